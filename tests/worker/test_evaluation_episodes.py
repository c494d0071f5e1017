"""Which of its episodes an evaluation plays where: each exactly once, whatever the workers, faults and seeds."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.support.acting import LaneActor
from tests.support.fakes import CounterEnv, FakeParams
from tests.support.tracks_driven import Tracks
from tests.support.workers_in_parts import runner_of
from tfagents_system.examples.racing import params as racing
from tfagents_system.machine.claims import SlotCounts
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.episode_reports import Episode, Report, eval_episodes, summarize
from tfagents_system.worker.evaluator import Evaluator
from tfagents_system.worker.worker import EvalWorker
from tfagents_system.workers import MemoryLimit

CURRICULUM = {"friction": {"iters": [0, 2], "range": [1.2, 0.9], "apply_to_eval": True}}
HELD_OUT = [f"closed/held_out/{k}" for k in range(5)]


class Told(gymnasium.Env[np.ndarray, np.ndarray]):
    """Episodes of differing lengths; those of number 2 fail at first."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def __init__(self, log: list[Any], faults: list[int]) -> None:
        self._log, self._faults = log, faults
        self._number = self._steps = 0

    def set_evaluation_episode(self, number: int) -> None:
        self._number = number

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._number in self._faults:
            self._faults.remove(self._number)
            raise OSError("torn")
        is_over = self._steps == 1 + 3 * (self._number % 3)
        if is_over:
            self._log.append(self._number)
        return np.zeros(1, np.float32), 0.0, is_over, False, {}


class ToldParams(FakeParams):
    """Of `Told`."""

    def __init__(self, faults: Sequence[int] = ()) -> None:
        super().__init__({"horizon": 50})
        self.log: list[int] = []
        self.faults = list(faults)

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        return Told(self.log, self.faults)


class Race(racing.TrainParams):
    """Of the example, with short episodes."""

    def __init__(self) -> None:
        super().__init__({"horizon": 3, "racing": {"observations": ["motion"]}, "curriculum": CURRICULUM})
        self.log: list[str] = []

    def env_ctor(self, *args: Any, **kwargs: Any) -> Any:
        return Tracks(super().env_ctor(*args, **kwargs), self.log)


class Actor(LaneActor):
    """Always the same action."""

    def __init__(self, size: int) -> None:
        self.size = size

    def action(self, lane: int, time_step: Any) -> np.ndarray:
        return np.zeros(self.size, np.float32)


def evaluator_of(
    params: TrainParamsBase, worker: int, workers: int, num_episodes: int, envs: int = 1, *, deterministic: bool = False
) -> Evaluator:
    """What one of so many workers evaluates with, without its process and its server."""
    numbers = eval_episodes(num_episodes, range(workers), worker)
    acting = types.SimpleNamespace(reseed=lambda seed, holds_noise: None, with_lanes=lambda count: None)
    policy: Any = types.SimpleNamespace(policy=acting)
    _, runner = runner_of(params, policy, worker, envs, min(envs, len(numbers)), deterministic=deterministic)
    nothing: Any = None
    return Evaluator(params, worker, numbers, nothing, nothing, nothing, runner, policy)


def evaluate(evaluators: Sequence[Evaluator], version: int) -> list[Episode]:
    """All workers' shares of an evaluation."""
    ended: list[Episode] = []
    for evaluator in evaluators:
        evaluator.play(version, 0, evaluator.episodes, ended.append, repeats=True)
    return ended


@pytest.fixture(autouse=True)
def _policies_are_actors(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    size = 3 if "race" in request.node.name else 2
    monkeypatch.setattr("tfagents_system.worker.evaluator.PolicyActor", lambda policy, greedy: Actor(size))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_evaluation_of_a_race_has_each_of_the_held_out_tracks_once(workers: int, deterministic: bool) -> None:
    params = Race()
    assert params.num_eval_episodes == len(HELD_OUT)
    evaluators = [evaluator_of(params, worker, workers, 5, deterministic=deterministic) for worker in range(workers)]
    for version in range(4):  # With another friction from the third on.
        params.log.clear()
        assert len(evaluate(evaluators, version)) == 5
        shares = [HELD_OUT[worker::workers] for worker in range(workers)]
        assert params.log == [track for share in shares for track in share]


@pytest.mark.parametrize("envs", [1, 2, 3])
def test_an_episode_that_fails_counts_and_no_other_takes_its_place(envs: int) -> None:
    params = ToldParams(faults=[2, 4])
    evaluator = evaluator_of(params, 0, 1, 7, envs)
    for whole in ([0, 1, 3, 5, 6], list(range(7))):
        params.log.clear()
        episodes = evaluate([evaluator], 0)
        assert sorted(params.log) == whole
        assert len(episodes) == 7 and sum(episode.has_failed for episode in episodes) == 7 - len(whole)
        assert summarize("eval", [Report("eval", 0, 0, 0, 0, 0, episodes)])["eval_faults"] == 7 - len(whole)


def test_environments_that_want_to_know_nothing_are_told_nothing() -> None:
    class Params(FakeParams):
        def env_ctor(self, *args: Any, **kwargs: Any) -> Any:
            return CounterEnv()

    assert len(evaluate([evaluator_of(Params({"horizon": 4}), 0, 1, 2)], 0)) == 2


def test_a_worker_that_has_grown_too_large_ends_after_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator, ended = evaluator_of(ToldParams(), 0, 1, 3), list[Episode]()
    monkeypatch.setattr(MemoryLimit, "check", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluator.play(0, 0, range(3), ended.append)
    assert len(ended) == 3


PLACES = SlotCounts(local=2, planned=2, most=8, evaluators=3)  # 2, 3 and 4; those behind them have joined.


def episodes_of(worker_id: int, num_episodes: int) -> list[int]:
    worker: Any = EvalWorker.__new__(EvalWorker)
    worker._id, worker._params = worker_id, types.SimpleNamespace(num_eval_episodes=num_episodes)
    worker._role = types.SimpleNamespace(variables=types.SimpleNamespace(slots=PLACES))
    return list(worker._eval_episodes())


@pytest.mark.parametrize(
    ("num_episodes", "episodes"),
    [
        (1, [[0], [], [], [1]]),
        (2, [[0], [1], [], [2]]),
        (3, [[0], [1], [2], [3]]),
        (7, [[0, 3, 6], [1, 4], [2, 5], [7, 8, 9]]),
    ],
)
def test_the_runs_own_have_their_share_alone_and_one_that_joins_the_largest(
    num_episodes: int, episodes: list[list[int]]
) -> None:
    assert [episodes_of(worker_id, num_episodes) for worker_id in range(2, 6)] == episodes
