"""`greedy_episode_share`: exactly that share of episodes is without exploration, chosen by seed and number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support.fakes import FakeParams, agent_of
from tfagents_system.policies.worker_policy import LaneSteps, WorkerPolicy, make_worker_policy
from tfagents_system.worker.actors import GreedyEpisodes, PolicyActor, RandomActor
from tfagents_system.worker.held_out import EpisodeShare

OBSERVATION = tf.TensorSpec((2,), tf.float32)
ACTIONS = {
    "sac": tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action"),
    "dqn": tensor_spec.BoundedTensorSpec((), tf.int32, 0, 7, "action"),
}


def policy_of(algorithm: str, num_lanes: int = 1) -> WorkerPolicy:
    agent = agent_of(FakeParams, OBSERVATION, ACTIONS[algorithm], algorithm=algorithm, exploration_epsilon=1.0)
    return make_worker_policy(agent, seed=0, num_lanes=num_lanes)


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
    policy = policy_of(algorithm, 2)
    numbers = iter(range(100))
    greedy = GreedyEpisodes(EpisodeShare(0.5, 1), lambda: next(numbers))
    actor = PolicyActor(policy, greedy)
    seen = LaneSteps.of([ts.restart(np.array([0.4, -0.1], np.float32))] * 2)
    best = policy.act(seen, True)[0]
    kinds = []
    for _ in range(6):
        actor.reset([0, 1])
        kinds.append((0 in greedy, 1 in greedy))
        both = np.array([actor.act(seen)[0] for _ in range(20)])
        for lane in (0, 1):
            is_best = both[:, lane] == best[lane]
            assert is_best.all() == (lane in greedy)
            assert actor.was_greedy[lane] or lane not in greedy
    assert len(set(kinds)) > 1 and sum(map(sum, kinds)) == 6, "half of the twelve"


@pytest.mark.parametrize("greedy", [False, GreedyEpisodes(EpisodeShare(1.0, 0), lambda: 0)])
def test_an_actor_looks_for_newer_weights_every_so_many_steps(greedy: bool | GreedyEpisodes) -> None:
    looks: list[int] = []
    policy: Any = SimpleNamespace(reset=lambda lanes: None, act=lambda steps, greedy: [])
    actor = PolicyActor(policy, greedy, lambda: looks.append(1), 5)
    actor.reset([0])
    for _ in range(11):
        actor.act(LaneSteps.of([ts.restart(np.zeros(2, np.float32))]))
    assert len(looks) == 2, "before steps 6 and 11"


def test_random_actions_count_as_explored() -> None:
    actor = RandomActor(ACTIONS["sac"], np.random.default_rng(0))
    step = ts.restart(np.zeros(2, np.float32))
    (actions,) = actor.act(LaneSteps.of([step] * 3))
    assert actions.shape == (3, 2) and actor.explored.tolist() == [True] * 3 and not actor.was_greedy.any()
