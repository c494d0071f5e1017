"""`run.py --replay_actions` repeats a recorded episode to the last bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfagents_system import run
from tfagents_system.envs import loading
from tfagents_system.envs.gym_driver import seed_episode
from tfagents_system.errors import UserError
from tfagents_system.run_files.episodes import RecordedEpisode, load_episode
from tfagents_system.settings.load_params import load_params
from tfagents_system.worker.actors import RandomActor
from tfagents_system.worker.recording import EpisodeRecorder
from tfagents_system.worker.rollout import Rollout

PARAMS = """
import random
import gymnasium
import numpy as np
from tests.support.fakes import CounterEnv, FakeParams

class Noisy(CounterEnv):
    '''Its rewards are random and depend on the action, the number of the environment and its mass.'''
    def __init__(self, number):
        super().__init__(truncate_at=9)
        self.number = number
    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        noise = self.np_random.normal() + np.random.normal() + random.random()
        reward = float(self.mass * noise + action[0] + self.number)
        told = {"record/zone": int(observation[0]), "record/lap_time": None if observation[0] < 7 else 3.5}
        return observation, reward, terminated, truncated, {**info, **told}

class Choosing(Noisy):
    action_space = gymnasium.spaces.Dict({"gas": gymnasium.spaces.Discrete(3), "steer": CounterEnv.action_space})
    def step(self, action):
        return super().step(action["steer"] + action["gas"])

class TrainParams(FakeParams):
    def collect_env_args_kwargs(self, id=0):
        return (id,), {}
    def eval_env_args_kwargs(self, id=0, collect_env=None):
        return (-7,), {}
    def env_ctor(self, *args, seed=None, **kwargs):
        return KIND(*args)
"""


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., tuple[Path, RecordedEpisode]]:
    """Makes a run directory with an episode of random actions in environment 5."""

    def made(kind: str = "Noisy", seed: int | None = 2**32 - 9) -> tuple[Path, RecordedEpisode]:
        (tmp_path / "episodes").mkdir()
        (tmp_path / "config.json").write_text(json.dumps({"horizon": 40}))
        (tmp_path / "params.py").write_text(PARAMS.replace("KIND", kind))
        params = load_params(tmp_path / "params.py", {"horizon": 40})
        env = loading.make_collect_env(params, 2, 99, 5)
        env.set_state({"mass": 3.0})
        actor = RandomActor(env.action_spec(), np.random.default_rng(0))
        seen: list[RecordedEpisode] = []
        recorder = EpisodeRecorder(2, lambda env: 5, [seen.append], lambda: 12)
        recorder.actor, recorder.iteration, recorder.seed, recorder.curriculum = actor, 3, seed, {"mass": 3.0}
        rollout = Rollout([env], actor, on_start=lambda _: seed_episode(env, seed or 0), new_record=recorder.begin)
        rollout.episodes(1)
        path = tmp_path / "episodes" / "one.npz"
        path.write_bytes(seen[0].to_bytes())
        return path, seen[0]

    return made


def replayed(capsys: Any, path: Path, *flags: str) -> str:
    assert run.main(["--replay_actions", str(path), "--no_video", *flags]) == 0
    return str(capsys.readouterr().out)


@pytest.mark.parametrize("kind", ["Noisy", "Choosing"])
def test_an_episode_is_repeated_to_the_last_bit(capsys: Any, make: Any, kind: str) -> None:
    path, episode = make(kind)
    np.testing.assert_array_equal(episode.lists["record/lap_time"], [np.nan] * 6 + [3.5] * 3)
    told = replayed(capsys, path)
    both = f"return {episode.episode_return:.3f}"
    assert f"recorded: {both}, 9 steps of worker 2 with policy_checkpoint_0000000012, mass=3" in told
    assert f"replayed: {both}, 9 steps" in told


def test_an_episode_without_a_seed_says_so(capsys: Any, make: Any) -> None:
    path, _ = make(seed=None)
    assert "note: the episode was not seeded" in replayed(capsys, path)


def test_what_is_no_recorded_episode_or_of_another_environment_is_refused(make: Any, tmp_path: Path) -> None:
    path, _ = make()
    (path.parents[1] / "params.py").write_text(PARAMS.replace("KIND", "Choosing"))
    with pytest.raises(UserError, match=r"has actions of shapes \{'actions': \(2,\)\}, but this environment takes"):
        run.main(["--replay_actions", str(path), "--no_video"])
    for content in (b"", b"no file of numpy"):
        (tmp_path / "other.npz").write_bytes(content)
        with pytest.raises(UserError, match="other.npz is no recorded episode"):
            load_episode(tmp_path / "other.npz", "--replay_actions")
    np.savez(tmp_path / "other.npz", actions=np.zeros(3))
    with pytest.raises(UserError, match="is no recorded episode"):
        load_episode(tmp_path / "other.npz", "--replay_actions")
    with pytest.raises(UserError, match="does not exist"):
        run.main(["--replay_actions", str(tmp_path / "none.npz")])


def test_flags_that_do_not_go_with_it_are_refused(make: Any) -> None:
    path, _ = make()
    for flags in (["--num_episodes", "2"], ["--seed", "3"], ["--montage"], ["--policy", "x"]):
        with pytest.raises(UserError) as refused:
            run.main(["--replay_actions", str(path), *flags])
        assert "--replay-actions" in str(refused.value)
