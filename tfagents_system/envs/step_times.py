"""How long the parts of real-time steps take: durations with rtgym's meaning, and their statistics."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence

from tfagents_system.errors import UserError

TIME_STEP, STEP, JOIN, INFERENCE, SEND_CONTROL, RETRIEVE_OBS = PARTS = (
    "time_step",
    "step",
    "join",
    "inference",
    "send_control",
    "retrieve_obs",
)
SEND_DELAY = "send_delay"
_KEPT = 100_000  # Of each; 83 minutes at 20 Hz.


class StepTimes:
    """Durations of steps since the last call of `take`, seconds.

    time_step     from one action sent to the next
    step          of step()
    join          of waiting in step() for the end of the running time step
    inference     from the return of step() or reset() to the next step(): whatever the caller does, unless the device
                  was told to wait in between
    send_control  of the interface's send_control()
    retrieve_obs  of the interface's get_obs_rew_terminated_info()
    send_delay    from the end of a time step to the next action sent
    """

    def __init__(self) -> None:
        self._values: dict[str, collections.deque[float]] = {
            name: collections.deque(maxlen=_KEPT) for name in (*PARTS, SEND_DELAY)
        }
        self.add = {name: values.append for name, values in self._values.items()}

    def take(self) -> dict[str, list[float]]:
        """All of them, by name; they are forgotten here."""
        taken = {name: list(values) for name, values in self._values.items()}
        for values in self._values.values():
            values.clear()
        return taken


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and the mean absolute deviation from it; of no values 0."""
    if not values:
        return 0.0, 0.0
    mean = sum(values) / len(values)
    return mean, sum(abs(value - mean) for value in values) / len(values)


def metrics_of(times: Mapping[str, Sequence[float]], late_steps: int) -> dict[str, float]:
    """Metrics of an environment in real time: how many steps were late, and 99th percentiles in milliseconds.

    `step_ms_p99` is of the time from one action sent to the next, `inference_ms_p99` of the policy's and all else that
    the caller does.
    """
    return {
        "late_steps": float(late_steps),
        "step_ms_p99": 1e3 * percentile(times[TIME_STEP], 0.99),
        "inference_ms_p99": 1e3 * percentile(times[INFERENCE], 0.99),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The least of the values that at least this share does not exceed; of no values 0."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def check_time_step(duration: float, capture: float, factor: float, *, may_be_zero: bool = False) -> None:
    """Whether steps can be in time.

    Args:
      duration, capture, factor: time_step_duration, start_obs_capture and time_step_timeout_factor, as of
        RealTimeEnvironment.
      may_be_zero: Steps of no duration are taken as fast as they can be; all are late.

    Raises:
      UserError: They can't.
    """
    findings = []
    if not duration > 0 and not (may_be_zero and duration == 0):
        findings.append(f"time_step_duration={duration:g} must be above 0 seconds: correct it")
    if not factor >= 0:
        findings.append(f"time_step_timeout_factor={factor:g} must be at least 0: correct it")
    if duration != 0 and not findings and not 0 <= capture <= duration * (1.0 + factor):
        findings.append(
            f"start_obs_capture={capture:g} must be from 0 to time_step_duration={duration:g} plus its elasticity, "
            f"{duration * (1.0 + factor):g} seconds, or every step would be late: lower it"
        )
    if findings:
        raise UserError(*findings)
