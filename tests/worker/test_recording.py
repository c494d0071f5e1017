"""Episodes are recorded step by step where somebody asks for it: the lists, whose they are, and which are kept."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest.mock import MagicMock

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support.acting import LaneActor
from tests.support.acting import action as action_of
from tests.support.fakes import FakeParams, agent_of
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.policies.worker_policy import make_worker_policy
from tfagents_system.run_files.episodes import RecordedEpisode
from tfagents_system.worker import recording
from tfagents_system.worker.actors import PolicyActor
from tfagents_system.worker.recording import BestOfWorker, EpisodeRecorder, callables, takers_of
from tfagents_system.worker.rollout import Rollout

HORIZON = 20


class Told(gymnasium.Env):
    """Episodes of `length` steps, each longer by one than the one before. Its info has something of every form."""

    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, lane: int = 0, length: int = 3) -> None:
        self.lane, self.length = lane, length - 1
        self.place = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.length += 1
        self.steps = 0
        return np.array([self.lane, 0.0], np.float32), {"record/zone": -1}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.place[:] = self.lane, self.steps
        info = {"record/zone": 10 * self.lane + self.steps, "record/place": self.place, "log/zone": 1.0}
        if self.steps == 2:
            info["record/late"] = 0.5
        is_over = self.steps == self.length
        return np.array([self.lane, self.steps], np.float32), float(self.steps), is_over, False, info


class Alternating(LaneActor):
    """Acts as its number of steps; each second action is greedy, and its values are known."""

    def __init__(self) -> None:
        self.steps = np.zeros(3, np.int64)

    def begin(self, lane: int) -> None:
        self.steps[lane] = 0

    def action(self, lane: int, time_step: Any) -> np.ndarray:
        self.steps[lane] += 1
        self.was_greedy = self.steps % 2 == 0
        self.explored = ~self.was_greedy
        self.q_values = np.stack([np.arange(3), self.steps], axis=1).astype(np.float32)
        return np.array([self.steps[lane] / 10], np.float32)


class Whole:
    """An observer of episodes alone."""

    def __init__(self) -> None:
        self.seen: list[RecordedEpisode] = []

    def take_episode(self, episode: RecordedEpisode) -> None:
        self.seen.append(episode)


def recorder(observer: Whole, actor: Any) -> EpisodeRecorder:
    made = EpisodeRecorder(3, lambda env: 30 + env, takers_of([observer, print]), lambda: 77)
    made.actor, made.iteration, made.seed, made.curriculum = actor, 5, 12, {"mass": 2.0}
    return made


def collected(*lengths: int, count: int) -> list[RecordedEpisode]:
    """What an observer gets of so many episodes in single environments."""
    observer, actor = Whole(), Alternating()
    assert callables([observer, print]) == [print], "it is not called with steps"
    envs = [TrainingEnvironment(Told(lane, length), HORIZON) for lane, length in enumerate(lengths)]
    Rollout(envs, actor, new_record=recorder(observer, actor).begin).episodes(count)
    return observer.seen


def test_the_lists_of_an_episode_are_what_was_chosen_and_returned_step_by_step() -> None:
    first, second = collected(3, count=2)
    assert (len(first), len(second)) == (3, 4), "one longer"
    assert set(first.lists) == {
        *("actions", "action_was_greedy", "rewards", "q_values", "record/zone", "record/place", "record/late")
    }
    np.testing.assert_array_equal(first.lists["actions"], np.array([[0.1], [0.2], [0.3]], np.float32))
    np.testing.assert_array_equal(first.lists["action_was_greedy"], [False, True, False])
    np.testing.assert_array_equal(first.lists["rewards"], np.array([1.0, 2.0, 3.0], np.float32))
    np.testing.assert_array_equal(first.lists["q_values"], [[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
    np.testing.assert_array_equal(first.lists["record/zone"], [1, 2, 3])
    np.testing.assert_array_equal(first.lists["record/place"], [[0, 1], [0, 2], [0, 3]], "not its buffer")
    np.testing.assert_array_equal(first.lists["record/late"], [np.nan, 0.5, np.nan])
    assert (first.episode_return, second.episode_return) == (6.0, 10.0)
    assert (first.worker_id, first.env_id, first.train_step, first.iteration) == (3, 30, 77, 5)
    assert (first.number, second.number, first.seed, first.curriculum) == (0, 1, 12, {"mass": 2.0})
    assert first.checkpoint == "policy_checkpoint_0000000077"


def test_odd_values_cost_their_list_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Refuses:
        def __array__(self, *_: Any) -> np.ndarray:
            raise RuntimeError("no array")

    class Odd(Told):
        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            info |= {"record/ragged": [[1], [2, 3]], "record/own": Refuses(), "record/grows": [0.0] * self.steps}
            info["record/words"] = "a" * self.steps
            return *rest, info | {"record/once": [[1], [2, 3]] if self.steps == 2 else 4.0}

    observer, actor = Whole(), Alternating()
    Rollout([TrainingEnvironment(Odd(), HORIZON)], actor, new_record=recorder(observer, actor).begin).episodes(1)
    (episode,) = observer.seen
    assert {name for name in episode.lists if name.startswith("record/")} == {
        *("record/zone", "record/place", "record/late", "record/once", "record/words")
    }
    np.testing.assert_array_equal(episode.lists["record/once"], [4.0, np.nan, 4.0])
    assert episode.lists["record/words"].tolist() == ["a", "aa", "aaa"]
    once = "is not recorded: in a step it is [[1], [2, 3]], neither numbers nor texts; such steps are left out (NaN)"
    assert f"record/once of the environment's info {once}" in caplog.text
    for name in ("ragged", "own", "grows"):
        assert f"record/{name} of the environment's info is not recorded" in caplog.text


@pytest.mark.parametrize("steps", [False, True], ids=["episodes", "steps"])
def test_lanes_of_a_vector_environment_are_recorded_as_single_environments_are(steps: bool) -> None:
    observer, actor = Whole(), Alternating()
    lengths = (3, 5, 4)
    lanes = [lambda lane=lane, length=length: Told(lane, length) for lane, length in enumerate(lengths)]
    env = TrainingEnvironment(SyncVectorEnv(lanes, autoreset_mode=AutoresetMode.SAME_STEP), HORIZON)
    rollout = Rollout([env], actor, new_record=recorder(observer, actor).begin)
    if steps:
        while len(observer.seen) < 9:
            rollout.steps(7)
    else:
        rollout.episodes(9)
    single = {(each.env_id, len(each)): each for each in collected(*lengths, count=9)}
    assert len(observer.seen) >= 9
    for each in observer.seen:
        if (theirs := single.get((each.env_id, len(each)))) is None:
            continue
        assert set(each.lists) == set(theirs.lists) and each.episode_return == theirs.episode_return
        for name, values in theirs.lists.items():
            np.testing.assert_array_equal(each.lists[name], values, name)
            assert each.lists[name].dtype == values.dtype, name


def test_an_episode_that_was_broken_off_is_not_recorded() -> None:
    observer, actor, calls = Whole(), Alternating(), 0

    def stop_at_eight(steps: int) -> None:
        nonlocal calls
        calls += steps
        if calls > 8:
            raise KeyboardInterrupt

    env = TrainingEnvironment(Told(), HORIZON)
    with pytest.raises(KeyboardInterrupt):
        Rollout([env], actor, new_record=recorder(observer, actor).begin, on_step=stop_at_eight).episodes(9)
    assert [len(each) for each in observer.seen] == [3, 4]


def test_actors_tell_what_their_policy_knows_of_an_action() -> None:
    action = tensor_spec.BoundedTensorSpec((), tf.int32, 0, 3, "action")
    agent = agent_of(FakeParams, tf.TensorSpec((2,), tf.float32), action, algorithm="dqn", exploration_epsilon=1.0)
    actor, seen = PolicyActor(make_worker_policy(agent, seed=0), greedy=False), set()
    for _ in range(60):
        chosen = action_of(actor, ts.restart(np.array([0.3, -0.2], np.float32)))
        assert actor.q_values is not None and actor.q_values.shape == (1, 4)
        assert actor.was_greedy[0] == (chosen == actor.q_values[0].argmax())
        seen.add(bool(actor.was_greedy[0]))
    assert seen == {False, True}, "a random action may be the greedy one"


def test_a_worker_hands_on_those_that_may_be_among_the_best() -> None:
    best = BestOfWorker(2)
    (episode,) = collected(3, count=1)

    def take(*returns: float) -> list[float]:
        for number, episode_return in enumerate(returns):
            best.take(_with(episode, episode_return, number))
        return [each.episode_return for each in best.pop()]

    assert take(1.0) == [1.0]
    assert take(0.5, 0.4, 0.5) == [0.5], "an equal one is no better"
    assert take(3.0, 2.0, 1.5, 4.0) == [4.0, 3.0]
    assert take(2.5, 3.0) == []
    best.take(_with(episode, 9.0, 5))
    (kept,) = best.pop()
    assert (kept.train_step, kept.number) == (77, 5) and len(kept.file) > 100


def test_an_episode_too_large_for_a_message_is_left_out_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    best = BestOfWorker(2)
    (episode,) = collected(3, count=1)
    monkeypatch.setattr(recording, "MOST_KEPT_BYTES", len(episode.to_bytes()) + 200)
    noise = np.random.default_rng(0).normal(size=(3, 1000))
    best.take(dataclasses.replace(episode, lists={**episode.lists, "record/noise": noise}, episode_return=9.0))
    best.take(_with(episode, 1.0, 1))
    assert [each.episode_return for each in best.pop()] == [1.0]
    assert "an episode of return 9 is not kept" in caplog.text
    to_bytes = MagicMock()
    monkeypatch.setattr(RecordedEpisode, "to_bytes", to_bytes)
    best.take(dataclasses.replace(episode, lists={**episode.lists, "record/noise": noise}, episode_return=8.0))
    assert not to_bytes.called, "one as large is not tried"


def _with(episode: RecordedEpisode, episode_return: float, number: int) -> RecordedEpisode:
    return dataclasses.replace(episode, episode_return=episode_return, number=number)
