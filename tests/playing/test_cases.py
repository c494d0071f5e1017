"""Which cases of an evaluation are played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_agents.policies import py_policy
from tf_agents.trajectories import policy_step

from tests.support.tracks_driven import Tracks
from tfagents_system.envs import loading
from tfagents_system.examples.racing import params as racing
from tfagents_system.playing import play


class Braking(py_policy.PyPolicy):
    """Of a race."""

    def __init__(self, env: Any) -> None:
        super().__init__(env.time_step_spec(), env.action_spec())

    def _action(self, time_step: Any, policy_state: Any = (), seed: Any = None) -> policy_step.PolicyStep:
        return policy_step.PolicyStep(np.array([0.0, 1.0, 0.0], np.float32), policy_state)


def test_played_episodes_are_those_of_an_evaluation_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracks: list[str] = []

    class Race(racing.TrainParams):
        def env_ctor(self, *args: Any, **kwargs: Any) -> Any:
            return Tracks(super().env_ctor(*args, **kwargs), tracks)

    curriculum = {"friction": {"iters": [0], "range": [0.9, 0.9], "apply_to_eval": True}}
    params = Race({"horizon": 3, "racing": {"observations": ["motion"]}, "curriculum": curriculum})
    with loading.make_play_env(params, 0, render=False) as env:
        policy = Braking(env)
    monkeypatch.setattr(play, "_load_policy", lambda path: policy)
    monkeypatch.setattr(play, "_iteration", lambda params, path, policy: 0)
    episodes = play.play(params, tmp_path, 6, seed=0, on_episode=lambda k, episode: None)
    assert tracks == [f"closed/held_out/{k}" for k in (0, 1, 2, 3, 4, 0)]
    assert len(episodes) == 6
