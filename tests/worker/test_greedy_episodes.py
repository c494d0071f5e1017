"""`greedy_episode_share`: exactly that share of episodes is without exploration, chosen by seed and number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support.fakes import FakeParams, agent_of
from tfagents_system.policies.policy_interface import WorkerPolicy
from tfagents_system.policies.worker_policy import make_worker_policy
from tfagents_system.worker.actors import PolicyActor, RefreshingActor
from tfagents_system.worker.greedy_episodes import GreedyEpisodes, SometimesGreedyActor
from tfagents_system.worker.held_out import EpisodeShare
from tfagents_system.worker.newest_policy import NewestPolicy

OBSERVATION = tf.TensorSpec((2,), tf.float32)
ACTIONS = {
    "sac": tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action"),
    "dqn": tensor_spec.BoundedTensorSpec((), tf.int32, 0, 7, "action"),
}


def policy_of(algorithm: str, num_envs: int = 1) -> WorkerPolicy:
    agent = agent_of(FakeParams, OBSERVATION, ACTIONS[algorithm], algorithm=algorithm, exploration_epsilon=1.0)
    return make_worker_policy(agent, seed=0, num_envs=num_envs)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.7, 1.0])
def test_the_share_is_exact_and_follows_from_the_seed(share: float) -> None:
    chosen = [EpisodeShare(share, 3).has(number) for number in range(200)]
    assert sum(chosen) == pytest.approx(200 * share, abs=1)
    assert chosen == [EpisodeShare(share, 3).has(number) for number in range(200)], "whoever asks, and when"
    if share < 1:
        assert chosen != [EpisodeShare(share, 4).has(number) for number in range(200)]
    assert not any(EpisodeShare(0.0, 3).has(number) for number in range(50))


@pytest.mark.parametrize("algorithm", ["sac", "dqn"])
def test_greedy_episodes_have_the_greedy_actions_and_the_others_explore(algorithm: str) -> None:
    policy = policy_of(algorithm, num_envs=2)
    numbers = iter(range(100))
    greedy = GreedyEpisodes(EpisodeShare(0.5, 1), lambda: next(numbers))
    actor, seen = SometimesGreedyActor(policy, greedy), ts.restart(np.array([0.4, -0.1], np.float32))
    best = policy.action(seen, greedy=True)
    kinds = []
    for _ in range(6):
        actor.reset(0)
        actor.reset(1)
        kinds.append((0 in greedy, 1 in greedy))
        both = [actor.actions({0: seen, 1: seen}) for _ in range(20)]
        for env in (0, 1):
            is_best = [np.array_equal(each[env], best) for each in both]
            assert all(is_best) if env in greedy else not all(is_best)
            if env in greedy:
                assert actor.was_greedy(env)
        assert np.array_equal(actor.action(seen), best) or 0 not in greedy
    assert len(set(kinds)) > 1 and sum(map(sum, kinds)) == 6, "half of the twelve"


class Counting:
    """Counts looks for newer weights."""

    looks = 0

    def refresh(self) -> None:
        self.looks += 1


def test_it_looks_for_newer_weights_as_without_greedy_episodes() -> None:
    policy, counting = policy_of("sac"), Counting()
    refreshing = RefreshingActor(policy, counting.refresh, 5)
    actor = SometimesGreedyActor(policy, GreedyEpisodes(EpisodeShare(1.0, 0), lambda: 0), refreshing.look)
    actor.reset(0)
    for _ in range(11):
        actor.action(ts.restart(np.zeros(2, np.float32)))
    assert counting.looks == 2, "before steps 6 and 11"


def test_a_policy_without_greedy_episodes_has_the_actor_that_it_had() -> None:
    connection: Any = type("C", (), {"newest": staticmethod(lambda table: None)})
    newest = NewestPolicy(connection, policy_of("sac"))
    assert type(newest.actor(None)) is PolicyActor and type(newest.actor(3)) is RefreshingActor
    greedy = GreedyEpisodes(EpisodeShare(0.5, 0), lambda: 0)
    assert type(newest.actor(None, greedy)) is type(newest.actor(3, greedy)) is SometimesGreedyActor
