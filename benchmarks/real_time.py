"""In real time a worker spends at most 0.3 ms of CPU per step, and almost no step is late at 20 and 100 Hz.

    python -m benchmarks.real_time [--quick] [--minutes 2]

A worker's whole path (policy, TrainingEnvironment, segments, the sender's thread, heartbeats) with a device that takes
no time. Own share: CPU time of the thread that steps, less that of the policy's actions. What else runs on the machine
makes steps late, too: a bare loop at the same pace, in turns with the worker, shows how many.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
import types
from typing import Any

from benchmarks.outcome import Outcome, parse_args
from benchmarks.worker_steps import ACTION, OBSERVATION, Collector, Params  # Sets the number of threads, too.

import gymnasium  # isort: skip
import numpy as np  # isort: skip

from tfagents_system.envs.real_time import MonotonicClock, RealTimeEnvironment
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.transport.segments import Layout
from tfagents_system.worker.actors import PolicyActor
from tfagents_system.worker.episode_runner import COLLECTING, Activity
from tfagents_system.worker.rollout import Rollout, SegmentBuilder
from tfagents_system.worker.sender import BackgroundHeartbeat, BackgroundSender, leave_python_to_steps

_OWN_MS = 0.3
_MOST_JITTER_MS = {20: 2.0}
_MOST_LATE = {20: 0.001, 100: 0.01}
_ITERATION = 50  # Steps, then a segment is sent.
_TURN = 4  # Iterations, then the bare loop.


class Instant:
    """A device that takes no time."""

    def __init__(self) -> None:
        self._observation = np.zeros(OBSERVATION, np.float32)

    def send_control(self, control: Any) -> None:
        pass

    def get_obs_rew_terminated_info(self) -> tuple[Any, float, bool, dict[str, Any]]:
        return self._observation, 1.0, False, {}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._observation, {}

    def get_observation_space(self) -> gymnasium.Space:
        return gymnasium.spaces.Box(-1.0, 1.0, (OBSERVATION,), np.float32)

    def get_action_space(self) -> gymnasium.Space:
        return gymnasium.spaces.Box(-1.0, 1.0, (ACTION,), np.float32)

    def get_default_action(self) -> np.ndarray:
        return np.zeros(ACTION, np.float32)


class TimedActor(PolicyActor):
    """Measures the CPU time of its actions."""

    secs = 0.0

    def act(self, steps: Any) -> list[np.ndarray]:
        began = time.thread_time()
        actions = super().act(steps)
        self.secs += time.thread_time() - began
        return actions


class Sink:
    """A connection to a server that takes 5 ms for each item, and says nothing."""

    def put(self, table: str, arrays: Any) -> None:
        time.sleep(0.005)

    def newest(self, table: str) -> Any:
        return types.SimpleNamespace(get=lambda: None)


@dataclasses.dataclass
class Lateness:
    """Of some steps.

    Attributes:
      late: How many there were.
      delays: From the end of each time step to its action, seconds.
    """

    steps: int = 0
    late: int = 0
    delays: list[float] = dataclasses.field(default_factory=list)

    def tell(self, outcome: Outcome, who: str) -> None:
        outcome.row(f"{who}: late steps", 100 * self.late / self.steps, "%")
        outcome.row(
            f"{who}: 99th percentile of the delay of an action", 1e3 * float(np.percentile(self.delays, 99)), "ms"
        )


class Worker:
    """A worker's path at a pace."""

    def __init__(self, hertz: int) -> None:
        self.device = RealTimeEnvironment(Instant(), 1.0 / hertz, 0.8 / hertz)
        env = TrainingEnvironment(self.device, 1000)
        self.actor = TimedActor(Collector(Params({"horizon": 1000}), [env]).policy)
        layout = Layout.from_specs(env.observation_spec(), env.action_spec())
        sink: Any = Sink()
        self.sender = BackgroundSender(sink, 0, 1, 64, is_lockstep=False)
        heartbeat: Any = types.SimpleNamespace(beat=lambda *args, **kwargs: time.sleep(0.005))
        activity = Activity(BackgroundHeartbeat(heartbeat), 0, lambda state: {})
        self.rollout = Rollout(
            [env],
            self.actor,
            new_builder=lambda: SegmentBuilder(layout, 1000, self.sender.send),
            on_step=lambda count: activity.stepped(COLLECTING, count),
            times=activity.step_times,
        )
        self.rollout.steps(_ITERATION)  # Warms up.
        self.found, self.own_secs = Lateness(), 0.0

    def drive(self, iterations: int) -> None:
        """So many iterations; then the device waits."""
        self.device.take_times()
        before, self.actor.secs, began = self.device.late_steps, 0.0, time.thread_time()
        for _ in range(iterations):
            self.rollout.steps(_ITERATION)
            self.sender.confirm()
        self.own_secs += time.thread_time() - began - self.actor.secs
        self.found.steps += iterations * _ITERATION
        self.found.late += self.device.late_steps - before
        self.found.delays += self.device.take_times()["send_delay"]
        self.device.wait()


def loop(hertz: int, steps: int, found: Lateness) -> None:
    """The same pace in a bare loop: what the machine alone makes late."""
    clock, end = MonotonicClock(), time.monotonic() + 1.0 / hertz
    for _ in range(steps):
        clock.sleep_until(end)
        delay = clock.now() - end
        found.delays.append(delay)
        found.late += delay >= 1.0 / hertz
        end = end + 1.0 / hertz if delay < 1.0 / hertz else clock.now() + 1.0 / hertz
    found.steps += steps


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=2.0, help="for each rate (default: 2)")
    flags = parse_args(parser)
    minutes = 0.1 if flags.quick else flags.minutes
    leave_python_to_steps()
    outcome = Outcome((__doc__ or "").split("\n")[0])
    for hertz, most_late in _MOST_LATE.items():
        worker, bare = Worker(hertz), Lateness()
        for _ in range(max(1, round(60 * minutes * hertz / (_TURN * _ITERATION)))):
            worker.drive(_TURN)
            loop(hertz, _TURN * _ITERATION, bare)
        worker.device.close()
        own_ms = 1e3 * worker.own_secs / worker.found.steps
        outcome.row(f"{hertz} Hz: worker time per step", own_ms, "ms of CPU")
        worker.found.tell(outcome, f"{hertz} Hz")
        bare.tell(outcome, f"{hertz} Hz, bare loop")
        outcome.ratio(f"{_OWN_MS} ms over worker time at {hertz} Hz", _OWN_MS / own_ms, 1.0)
        in_time = 1 - worker.found.late / worker.found.steps
        outcome.ratio(f"steps in time at {hertz} Hz over {1 - most_late}", in_time / (1 - most_late), 1.0)
        if (most := _MOST_JITTER_MS.get(hertz)) is not None:
            jitter_ms = 1e3 * float(np.percentile(worker.found.delays, 99))
            outcome.ratio(
                f"{most:g} ms over the 99th percentile of an action's delay at {hertz} Hz", most / jitter_ms, 1.0
            )
    outcome.note(f"{minutes:g} minutes for each rate, in turns with a bare loop; the device takes no time")
    outcome.print()


if __name__ == "__main__":
    main()
