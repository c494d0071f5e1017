"""Which episodes are greedy or held out: exactly that share of them, chosen by seed and number."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support.fakes import FakeParams, agent_of
from tfagents_system.policies.worker_policy import LaneSteps, WorkerPolicy, make_worker_policy
from tfagents_system.worker.actors import EpisodeShare, PolicyActor, RandomActor

OBSERVATION = tf.TensorSpec((2,), tf.float32)
ACTIONS = {
    "sac": tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action"),
    "dqn": tensor_spec.BoundedTensorSpec((), tf.int32, 0, 7, "action"),
}


def policy_of(algorithm: str, num_lanes: int = 1) -> WorkerPolicy:
    agent = agent_of(FakeParams, OBSERVATION, ACTIONS[algorithm], algorithm=algorithm, exploration_epsilon=1.0)
    return make_worker_policy(agent, seed=0, num_lanes=num_lanes)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("share", [0.07, 0.1, 0.25, 0.5, 0.7])
def test_the_share_is_exact_and_follows_from_seed_and_number(share: float, first: int) -> None:
    chosen = [EpisodeShare(share, 3, first).has(number) for number in range(1000)]
    assert sum(chosen) == pytest.approx(1000 * share, abs=1e-6)
    assert not (first and chosen[0]), "there is an episode to train on"
    assert max(sum(chosen[start : start + 100]) for start in range(900)) <= 100 * share + 2
    assert chosen[::-1] == [EpisodeShare(share, 3, first).has(number) for number in range(999, -1, -1)], "in any order"
    assert chosen != [EpisodeShare(share, 4, first).has(number) for number in range(1000)]


def test_no_place_among_several_environments_is_preferred() -> None:
    share = EpisodeShare(0.25, 7)
    places = [number % 4 for number in range(8000) if share.has(number)]
    assert len(places) == 2000 and all(400 < places.count(place) < 600 for place in range(4))
    assert not any(EpisodeShare(0.0, 3).has(number) for number in range(50))
    assert all(EpisodeShare(1.0, 3).has(number) for number in range(50))


@pytest.mark.parametrize("algorithm", ["sac", "dqn"])
def test_greedy_episodes_have_the_greedy_actions_and_the_others_explore(algorithm: str) -> None:
    policy = policy_of(algorithm, 2)
    share, greedy = EpisodeShare(0.5, 1), list[bool]()

    def is_greedy() -> bool:
        greedy.append(share.has(len(greedy)))
        return greedy[-1]

    actor = PolicyActor(policy, is_greedy)
    seen = LaneSteps.of([ts.restart(np.array([0.4, -0.1], np.float32))] * 2)
    best = policy.act(seen, True)[0]
    for _ in range(6):
        actor.reset([0, 1])
        both = np.array([actor.act(seen)[0] for _ in range(20)])
        for lane in (0, 1):
            is_best = both[:, lane] == best[lane]
            assert is_best.all() == greedy[lane - 2]
            assert actor.was_greedy[lane] or not greedy[lane - 2]
    assert sum(greedy) == 6 and len(greedy) == 12 and len(set(zip(greedy[::2], greedy[1::2], strict=True))) > 1


def test_random_actions_count_as_explored() -> None:
    actor = RandomActor(ACTIONS["sac"], np.random.default_rng(0))
    step = ts.restart(np.zeros(2, np.float32))
    (actions,) = actor.act(LaneSteps.of([step] * 3))
    assert actions.shape == (3, 2) and actor.explored.tolist() == [True] * 3 and not actor.was_greedy.any()
