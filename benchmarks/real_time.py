"""A real-time step takes 0.3 ms of the worker's own at most, and at 20 and 100 Hz next to no step is late.

    python -m benchmarks.real_time [--quick] [--minutes 2]

A worker's whole path (policy, TrainingEnvironment, segments, the sender's thread, heartbeats) with a device that takes
no time. Own share: CPU time of the thread that steps, less that of the policy's actions. Lateness is of the whole
machine: what else runs there is in it.
"""

from __future__ import annotations

import argparse
import time
import types
from typing import Any

from benchmarks.outcome import Outcome, parse_args
from benchmarks.worker_steps import ACTION, OBSERVATION, Collector, Params  # Sets the number of threads, too.

import gymnasium  # isort: skip
import numpy as np  # isort: skip

from tfagents_system.envs.real_time import RealTimeEnvironment
from tfagents_system.envs.step_times import SEND_DELAY, percentile
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.transport.segments import Layout
from tfagents_system.worker.activity import COLLECTING, Activity
from tfagents_system.worker.actors import PolicyActor
from tfagents_system.worker.background import BackgroundHeartbeat, leave_python_to_steps
from tfagents_system.worker.background_sender import BackgroundSender
from tfagents_system.worker.rollout import Rollout
from tfagents_system.worker.segment_builder import SegmentBuilder

_OWN_MS, _JITTER_MS = 0.3, 2.0
_MOST_LATE = {20: 0.001, 100: 0.01}
_ITERATION = 50  # Steps, then a segment is sent.


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

    def __init__(self, policy: Any) -> None:
        super().__init__(policy, greedy=False)
        choose = self.action

        def action(time_step: Any) -> Any:
            began = time.thread_time()
            chosen = choose(time_step)
            self.secs += time.thread_time() - began
            return chosen

        self.action = action  # type: ignore[assignment]


class Sink:
    """Of segments: a server that takes 5 ms for each."""

    unconfirmed_bytes = unconfirmed_segments = 0

    def send(self, segment: Any) -> None:
        segment.to_wire()
        time.sleep(0.005)

    def confirm(self) -> None:
        pass


def drive(hertz: int, steps: int) -> tuple[float, float, float]:
    """So many steps; returns (own CPU ms of a step, share of late steps, 99th percentile of the send delay in ms)."""
    device = RealTimeEnvironment(Instant(), 1.0 / hertz, 0.8 / hertz)
    env = TrainingEnvironment(device, 1000)
    params = Params({"horizon": 1000})
    actor = TimedActor(Collector(params, [env]).policy)
    layout = Layout.from_specs(env.observation_spec(), env.action_spec())
    sink: Any = Sink()
    sender = BackgroundSender(sink, 64, is_lockstep=False)
    heartbeat: Any = types.SimpleNamespace(beat=lambda *args, **kwargs: time.sleep(0.005))
    activity = Activity(BackgroundHeartbeat(heartbeat), 0, lambda state: {})
    rollout = Rollout(
        [env],
        actor,
        new_builder=lambda: SegmentBuilder(layout, 1000, sender.send),
        on_step=lambda count: activity.stepped(COLLECTING, count),
        times=activity.step_times,
    )
    rollout.steps(_ITERATION)  # Warms up.
    device.times.take()
    late, actor.secs, began = device.late_steps, 0.0, time.thread_time()
    for _ in range(steps // _ITERATION):
        rollout.steps(_ITERATION)
        sender.confirm()
    own_secs = time.thread_time() - began - actor.secs
    steps = steps // _ITERATION * _ITERATION
    delays = device.times.take()[SEND_DELAY]
    env.close()
    return 1e3 * own_secs / steps, (device.late_steps - late) / steps, 1e3 * percentile(delays, 0.99)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=2.0, help="for each rate (default: 2)")
    flags = parse_args(parser)
    minutes = 0.1 if flags.quick else flags.minutes
    leave_python_to_steps()
    outcome = Outcome((__doc__ or "").split("\n")[0])
    for hertz, most_late in _MOST_LATE.items():
        own_ms, late, jitter_ms = drive(hertz, max(2 * _ITERATION, round(60 * minutes * hertz)))
        outcome.row(f"own share of a step at {hertz} Hz", own_ms, "ms of CPU")
        outcome.row(f"late steps at {hertz} Hz", 100 * late, "%")
        outcome.row(f"99th percentile of the delay of an action at {hertz} Hz", jitter_ms, "ms")
        outcome.ratio(f"{_OWN_MS} ms over the own share at {hertz} Hz", _OWN_MS / own_ms, 1.0)
        if not flags.quick:
            outcome.ratio(f"steps in time at {hertz} Hz over {1 - most_late}", (1 - late) / (1 - most_late), 1.0)
    outcome.note(f"{minutes:g} minutes for each rate; the device takes no time")
    outcome.print()


if __name__ == "__main__":
    main()
