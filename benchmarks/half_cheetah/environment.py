"""HalfCheetah-v5, as it is or with a step that takes as long as that of a heavier simulator.

Imports Gymnasium alone: the peers' Python has no TensorFlow.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium

HORIZON = 1000


class SlowSteps(gymnasium.Wrapper):
    """Steps that take at least `step_ms` each.

    Args:
      env: The environment.
      step_ms: Milliseconds of a step.
      busy: True burns that much CPU time of its own, as a simulator does; False sleeps, as a robot behind a network.
    """

    def __init__(self, env: gymnasium.Env, step_ms: float, busy: bool) -> None:
        super().__init__(env)
        self._step_secs = step_ms / 1000.0
        self._clock = time.thread_time if busy else time.perf_counter
        self._busy = busy

    def step(self, action: Any) -> Any:
        end = self._clock() + self._step_secs
        result = self.env.step(action)
        if self._busy:
            while self._clock() < end:
                pass
        else:
            time.sleep(max(0.0, end - self._clock()))
        return result


def make(step_ms: float = 0.0, busy: bool = True, horizon: int = HORIZON) -> gymnasium.Env:
    """HalfCheetah-v5 with episodes of `horizon` steps; see `SlowSteps`."""
    env = gymnasium.make("HalfCheetah-v5", max_episode_steps=horizon)
    return SlowSteps(env, step_ms, busy) if step_ms > 0 else env
