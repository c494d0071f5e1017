"""The replay server's own environment: an id of its own, a reset, and the curriculum's values of each iteration."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.goals import GoalParams, Line, Writer, goal_ring
from tests.support.settings_for_tests import variables_with
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.replay.goal_environment import GoalEnvironment, make_goal_environment
from tfagents_system.replay.server import settings_of_run

CURRICULUM = {"curriculum": {"reach": {"iters": [0, 5, 9], "range": [3.0, 1.0]}}}


class Narrowing(Line):
    """How near its goal is near enough is set by a curriculum, and known from the next reset on."""

    def __init__(self) -> None:
        self.wanted, self.calls = 40.0, list[str]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.near = self.wanted
        self.calls.append("reset")
        return super().reset(seed=seed)

    def close(self) -> None:
        self.calls.append("close")

    def set_state(self, state: dict[str, float]) -> None:
        if "reach" not in state:
            raise KeyError(*state)
        self.wanted = state["reach"]
        self.calls.append(f"reach={self.wanted:g}")

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > self.near).astype(np.float64)


def goals_of(env: Narrowing, config: dict[str, Any], *more: Narrowing) -> GoalEnvironment:
    """With this environment, and further ones where it builds another."""
    envs = iter([env, *more])
    return GoalEnvironment(lambda: TrainingEnvironment(next(envs), 12), Curriculum.from_config(config))


def near(goals: Any) -> int:
    """Of the distances 1 to 9, how many count as reached."""
    distances = np.arange(1, 10, dtype=np.float32)[:, None]
    return int((goals.rewards(distances, np.zeros_like(distances)) == 0).sum())


def test_it_has_the_values_of_the_iteration_that_is_drawn_for() -> None:
    env = Narrowing()
    goals = goals_of(env, CURRICULUM)
    assert env.calls == ["reset"] and near(goals) == 9
    assert [near(goals.at(iteration)) for iteration in (0, 4, 5, 8, 9, 30)] == [3, 3, 2, 2, 1, 1]
    assert env.calls == ["reset", "reach=3", "reset", "reach=2", "reset", "reach=1", "reset"]
    assert near(goals.at(4)) == 3, "a trainer that was restarted asks for an earlier iteration"
    assert near(goals_of(Narrowing(), CURRICULUM).at(6)) == 2, "and so does a restarted server"


def test_without_a_curriculum_it_is_reset_once() -> None:
    env = Narrowing()
    goals = goals_of(env, {})
    assert near(goals.at(0)) == near(goals.at(7)) == 9 and env.calls == ["reset"]


class Numbered(GoalParams):
    """Notes what its hook and its constructor are given."""

    ids: list[int] = []
    seeds: list[int | None] = []

    def collect_env_args_kwargs(self, id: int = 0) -> Any:
        self.ids.append(id)
        return (["one", "other"][:id],), {}

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        self.seeds.append(seed)
        return Narrowing()


def role_of(params: Any, envs_per_worker: int = 1) -> Any:
    variables, seed = variables_with(envs_per_worker=envs_per_worker), lambda stream: 100 + stream
    return types.SimpleNamespace(params=params, variables=variables, seed=3, max_workers=3, derived_seed=seed)


def test_its_id_and_seed_are_no_worker_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Numbered, "ids", [])
    monkeypatch.setattr(Numbered, "seeds", [])
    params, ring = Numbered({"horizon": 12}), goal_ring(tmp_path)
    settings_of_run(role_of(params), ring.layout, ring)
    settings_of_run(role_of(params, envs_per_worker=4), ring.layout, ring)
    assert Numbered.ids == [3, 12] and Numbered.seeds == [119, 119]


def test_draws_of_an_iteration_have_its_rewards(tmp_path: Path) -> None:
    """What `settings.at` gives, drawn by a server with the curriculum, and by another one after a restart."""
    ring = goal_ring(tmp_path)
    Writer(ring).whole(0, 0, 9)
    params = Numbered({"horizon": 12, **CURRICULUM})
    settings = settings_of_run(role_of(params), ring.layout, ring)

    def reached(settings: Any, iteration: int) -> float:
        of_iteration = settings.at(0, 0, iteration)
        drawn = of_iteration.form.draw(ring, np.random.default_rng(0), of_iteration, 20)
        return float((drawn.reward[:, : of_iteration.form.hindsight.count(of_iteration.batch_size)] == 0).mean())

    shares = [reached(settings, iteration) for iteration in (2, 7, 20)]
    assert 1 > shares[0] > shares[1] > shares[2] > 0
    again = settings_of_run(role_of(params), ring.layout, ring)
    assert [reached(again, iteration) for iteration in (7, 2)] == [shares[1], shares[0]]


def test_what_is_wrong_is_told() -> None:
    class Short(Numbered):
        def collect_env_args_kwargs(self, id: int = 0) -> Any:
            return (["one", "other"][id],), {}

    with pytest.raises(UserError, match=r"could not be built: IndexError: .* id for collect_env_args_kwargs is 3, the"):
        make_goal_environment(Short({"horizon": 12}), 3, 0)
    other = {"curriculum": {"mass": {"iters": [2], "range": [1, 1]}}}
    goals = goals_of(Narrowing(), other)
    with pytest.raises(UserError, match=r"set_state\({'mass': 1}\) of the replay server's environment failed: KeyErr"):
        goals.at(2)
