"""Samples with another goal: which goals, their rewards and whether they end an episode, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.draws import draw_transitions
from tests.support.goals import REACH, Line, Writer, goal_layout, goal_ring
from tfagents_system.envs.goals import GoalFunctions
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.replay import sampling
from tfagents_system.replay.hindsight import Hindsight, Strategy
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sample_forms import TransitionForm
from tfagents_system.replay.samples import Transitions
from tfagents_system.replay.sampling import DrawSettings, PriorData, make_block
from tfagents_system.transport import tables

FUNCTIONS = GoalFunctions([Line()])
GAMMA = 0.5


class WithoutTerminations:
    """An environment whose `compute_reward` is all that it says of goals."""

    compute_reward = Line.compute_reward


def drawn(ring: Ring, share: float = 1.0, strategy: Strategy = "future", **options: Any) -> Transitions:
    goals = options.pop("goals", FUNCTIONS)
    options |= {"hindsight": Hindsight(share, strategy), "goals": goals}
    return draw_transitions(ring, np.random.default_rng(0), 40, 50, gamma=GAMMA, **options)


def columns(samples: Transitions) -> dict[str, np.ndarray]:
    """Of all samples `[N]`: worker, episode and step of both observations, the goal, its reward and discount."""
    achieved, desired, observation = samples.observation  # In the order of their names.
    next_achieved, next_desired, following = (leaf.reshape(-1, leaf.shape[-1]) for leaf in samples.next_observation)
    observation, desired = observation.reshape(-1, 3), desired.reshape(-1, 1)
    np.testing.assert_array_equal(desired, next_desired)
    np.testing.assert_array_equal(achieved.reshape(-1), observation @ [1000, 100, 1], "what was achieved stays")
    return {
        "worker": observation[:, 0],
        "episode": observation[:, 1],
        "step": observation[:, 2],
        "ahead": following[:, 2] - observation[:, 2],
        "goal": desired[:, 0] - observation[:, :2] @ [1000, 100],  # The step that has achieved it.
        "of_goal": np.floor(desired[:, 0] / 100),
        "reward": samples.reward.reshape(-1),
        "discount": samples.discount.reshape(-1),
    }


def interleaved(folder: Path, terminates: bool = False) -> Ring:
    """Three episodes of two workers, of 9 steps each in segments of 4 at most, mixed."""
    ring = goal_ring(folder)
    writer = Writer(ring, 4)
    episodes = [writer.begin(worker, episode) for worker, episode in ((0, 0), (0, 1), (1, 0))]
    for step in range(9):
        for episode in episodes:
            episode.step(terminates=terminates and step == 8)
    for episode in episodes:
        episode.end()
    assert ring.segments == 9
    return ring


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_a_goal_is_one_that_its_episode_has_achieved(tmp_path: Path, strategy: Strategy) -> None:
    found = columns(drawn(interleaved(tmp_path), strategy=strategy))
    np.testing.assert_array_equal(found["of_goal"], 10 * found["worker"] + found["episode"])
    pairs = {(int(step), int(goal)) for step, goal in zip(found["step"], found["goal"], strict=True)}
    goals = {"future": lambda t: range(t + 1, 10), "final": lambda t: [9], "episode": lambda t: range(1, 10)}
    assert pairs == {(t, goal) for t in range(9) for goal in goals[strategy](t)}
    counts = np.bincount(found["goal"][found["step"] == 3].astype(int), minlength=10)[
        4 if strategy == "future" else 1 :
    ]
    if strategy != "final":
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 3 * len(counts), "all equally likely"


def test_rewards_are_those_of_the_new_goal_and_the_rest_of_a_minibatch_is_as_it_was(tmp_path: Path) -> None:
    ring = interleaved(tmp_path)
    samples = drawn(ring, 0.3)
    plain = draw_transitions(ring, np.random.default_rng(0), 40, 50, gamma=GAMMA)
    count = 15  # Of 50.
    for ours, theirs in zip(samples.to_arrays(), plain.to_arrays(), strict=True):
        np.testing.assert_array_equal(ours[:, count:], theirs[:, count:])
    desired = samples.observation[1]
    assert (desired[:, count:] == -1).all() and (desired[:, :count] >= 0).all()
    np.testing.assert_array_equal(samples.observation[2], plain.observation[2])
    found = columns(drawn(ring))
    away = found["goal"] - (found["step"] + 1)
    np.testing.assert_array_equal(found["reward"], np.where(away > REACH, -1.0, 0.0))


@pytest.mark.parametrize(
    ("step", "goal", "reward", "discount", "ahead"),
    [
        # Reached where it is at most one step away: a goal g from the step g - 1 on.
        (0, 9, -1 - GAMMA - GAMMA**2, GAMMA**2, 3),  # Not reached within three steps.
        (0, 3, -1 + 0.0, 0.0, 3),  # -1, then reached, which ends the episode: what comes then does not count.
        (0, 4, -1 - GAMMA, 0.0, 3),
        (0, 1, 0.0, 0.0, 3),
        (7, 9, 0.0, 0.0, 2),  # Two steps are left.
        (5, 9, -1 - GAMMA, 0.0, 3),
        (8, 9, 0.0, 0.0, 1),
    ],
)
def test_n_steps_by_hand(tmp_path: Path, step: int, goal: int, reward: float, discount: float, ahead: int) -> None:
    """The environment's `compute_terminated`; the recorded rewards and goals have no part in it."""
    ring = goal_ring(tmp_path)
    writer = Writer(ring, 4, look_ahead=2)
    writer.whole(0, 0, 9)
    found = columns(drawn(ring, n_step=3))
    which = (found["step"] == step) & (found["goal"] == goal)
    assert which.any()
    for name, expected in (("reward", reward), ("discount", discount), ("ahead", ahead)):
        np.testing.assert_allclose(found[name][which], expected, err_msg=name)


def test_terminations(tmp_path: Path) -> None:
    """The last step of these episodes terminated, at a goal (-1) that `compute_terminated` says was not reached."""
    ring = interleaved(tmp_path, terminates=True)
    found = columns(drawn(ring, strategy="episode"))
    is_last, reached = found["step"] == 8, np.abs(found["goal"] - found["step"] - 1) <= REACH
    assert (is_last & ~reached).any()
    np.testing.assert_array_equal(found["discount"], np.where(reached | is_last, 0.0, 1.0))
    # Without the function they stay as they were recorded.
    recorded = columns(drawn(ring, strategy="episode", goals=GoalFunctions([WithoutTerminations()])))
    np.testing.assert_array_equal(recorded["discount"], np.where(is_last, 0.0, 1.0))


def test_an_episode_that_ended_at_its_goal_goes_on_with_another(tmp_path: Path) -> None:
    """One that terminated because its goal was reached, by the environment's own steps."""
    ring = goal_ring(tmp_path)
    episode = Writer(ring).begin(0, 0, desired=4.0)
    for step in range(3):
        episode.step(terminates=step == 2)  # At 3, within 1.5 of 4.
    episode.end()
    own = columns(draw_transitions(ring, np.random.default_rng(0), 4, 50, gamma=GAMMA))
    assert set(zip(own["step"], own["discount"], strict=True)) == {(0, 1), (1, 1), (2, 0)}

    class Far:
        """Nothing is near its goal but the goal 4."""

        compute_reward = Line.compute_reward

        def compute_terminated(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
            return (desired == 4.0)[:, 0] & (np.abs(achieved - desired)[:, 0] <= REACH)

    found = columns(drawn(ring, goals=GoalFunctions([Far()])))
    assert set(found["discount"]) == {1.0}


def test_what_the_ring_has_of_an_episode_decides(tmp_path: Path) -> None:
    """Of one under way the steps so far, of one that is partly given up the rest."""
    ring = goal_ring(tmp_path, 24, 20)
    writer = Writer(ring, 4)
    under_way = writer.begin(0, 0)
    for _ in range(8):
        under_way.step()
    under_way.cut()
    found = columns(drawn(ring, strategy="final"))
    assert set(found["goal"]) == {8}
    for _ in range(4):
        under_way.step()
    under_way.cut()
    assert set(columns(drawn(ring, strategy="final"))["goal"]) == {12}
    writer.whole(1, 0, 4)
    writer.whole(1, 1, 4)  # 25 rows: one of the first episode is gone.
    writer.whole(1, 2, 2)
    found = columns(drawn(ring, strategy="episode"))
    ours = found["goal"][found["worker"] == 0]
    assert set(found["step"][found["worker"] == 0]) == set(range(4, 12)) and set(ours) == set(range(5, 13))


def settings(**others: Any) -> DrawSettings:
    form = TransitionForm(2, hindsight=Hindsight(0.75))
    return DrawSettings(
        **{"batch_size": 16, "form": form, "max_block_minibatches": 8, "seed": 3, "goals": FUNCTIONS, **others}
    )


def test_blocks_are_the_same_after_a_restart_and_after_going_back(tmp_path: Path) -> None:
    ring = interleaved(tmp_path / "ring")
    request = tables.Request(1, 4, 0, 6, 20)
    before, snapshot = make_block(ring, settings(), request, 0, 4), ring.snapshot()
    again = make_block(Ring.open(tmp_path / "ring", goal_layout(), 400), settings(), request, 0, 4)
    np.testing.assert_equal(again.arrays, before.arrays)
    Writer(ring).whole(5, 0, 20)
    assert not np.array_equal(make_block(ring, settings(), request, 0, 4).arrays[0], before.arrays[0])
    ring.rollback(snapshot)
    np.testing.assert_equal(make_block(ring, settings(), request, 0, 4).arrays, before.arrays)


def test_prior_data_get_goals_of_their_own_episodes(tmp_path: Path) -> None:
    prior = goal_ring(tmp_path / "prior")
    writer = Writer(prior)
    for episode in range(3):
        writer.whole(9, episode, 7)
    own = goal_ring(tmp_path / "own")
    Writer(own).whole(0, 0, 9)
    arrays = sampling.draw(own, np.random.default_rng(0), settings(prior=PriorData(prior, 4)), 20)
    desired = arrays[1], arrays[len(arrays) // 2 + 1]
    assert [each.shape[1] for each in desired] == [12, 4]
    for each, count, worker in zip(desired, (9, 3), (0, 9), strict=True):
        assert (each[:, :count] // 1000 == worker).all() and (each[:, count:] == -1).all()


def test_the_environments_functions_come_from_its_wrappers() -> None:
    import gymnasium

    class Doubled(gymnasium.RewardWrapper):
        def reward(self, reward: Any) -> Any:
            return 2 * reward

        def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
            return 2 * Line().compute_reward(achieved_goal, desired_goal, info)

    goals = np.array([[0.0], [9.0]], np.float32)
    for env, expected in ((Line(), -1.0), (gymnasium.wrappers.TimeLimit(Line(), 5), -1.0), (Doubled(Line()), -2.0)):
        functions = TrainingEnvironment(env, 10).goal_functions
        assert functions.has_reward and functions.has_terminated
        found = functions.rewards(goals, np.zeros_like(goals))
        assert (found.dtype, found.tolist()) == (np.float32, [0.0, expected])
        over = functions.terminated(goals, np.zeros_like(goals))
        assert over is not None and over.tolist() == [True, False]
    assert not TrainingEnvironment(gymnasium.make("Pendulum-v1"), 10).goal_functions.has_reward
