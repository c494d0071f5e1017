"""What RealTimeEnvironment tells of its steps and is told of its episodes, for an environment of rtgym.

rtgym (0.16) has no hooks for that, so methods of the one instance are replaced by ones that call them.

Runs under SAC_ENV_PYTHON as well: the standard library is needed, Python 3.9.
"""

from __future__ import annotations

import time
from typing import Any

from tfagents_system.envs.layers import options_of_evaluation
from tfagents_system.envs.step_times import INFERENCE, TIME_STEP, StepTimes, check_time_step, metrics_of


def follow(env: Any) -> None:
    """Gives an environment of rtgym `is_evaluation` and `take_metrics()`, and leaves those that have some.

    Raises:
      UserError: It is one of rtgym, and all its steps would be late.
    """
    if not hasattr(env, "take_metrics") and hasattr(env, "_update_timestamps"):
        # Without that key rtgym's time steps have no duration.
        check_time_step(env.time_step_duration, env.start_obs_capture, env.time_step_timeout_factor, may_be_zero=True)
        _RtgymSteps(env)


class _RtgymSteps:
    """Follows the time steps of one environment, by rtgym's own rule of which are late."""

    def __init__(self, env: Any) -> None:
        self._env, self._times = env, StepTimes()
        self._late_steps = self._told_late = 0
        self._end: float | None = None  # Of the running time step.
        self._sent_at: float | None = None
        self._returned_at = 0.0
        self._is_first = False  # The next action is the one of reset(), which may be late.
        self._is_paused = False  # Since the last step.
        self._evaluation_episode: int | None = None
        self._reset, self._step, self._begin_time_step, self._wait = (
            env.reset,
            env.step,
            env._update_timestamps,
            env.wait,
        )
        env.reset, env.step, env._update_timestamps, env.wait = self.reset, self.step, self.begin_time_step, self.wait
        env.is_evaluation, env.take_metrics = False, self.take_metrics
        env.set_evaluation_episode = self.set_evaluation_episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        options = options_of_evaluation(options, self._env.is_evaluation, self._evaluation_episode)
        self._evaluation_episode = None
        self._is_first = True
        found = self._reset(seed=seed, options=options)
        self._is_paused, self._returned_at = False, time.perf_counter()
        return found

    def step(self, action: Any) -> Any:
        if not self._is_paused:
            self._times.add[INFERENCE](time.perf_counter() - self._returned_at)
        found = self._step(action)
        self._is_paused, self._returned_at = False, time.perf_counter()
        return found

    def wait(self) -> None:
        self._is_paused = True
        self._wait()

    def set_evaluation_episode(self, number: int) -> None:
        """See RealTimeEnvironment."""
        self._evaluation_episode = number

    def begin_time_step(self) -> None:
        """Called by rtgym when an action was sent, in its own thread."""
        now, env = time.perf_counter(), self._env
        is_in_time = self._end is not None and now < self._end + env.time_step_timeout
        if not self._is_first and (is_in_time or not env.is_waiting):
            self._late_steps += not is_in_time
            if self._sent_at is not None:
                self._times.add[TIME_STEP](now - self._sent_at)
        begin = self._end if self._end is not None and is_in_time else now
        self._end, self._sent_at, self._is_first = begin + env.time_step_duration, now, False
        self._begin_time_step()

    def take_metrics(self) -> dict[str, float]:
        """See RealTimeEnvironment."""
        late, self._told_late = self._late_steps - self._told_late, self._late_steps
        return metrics_of(self._times.take(), late)
