"""Samples with another goal: which goals, where they are found, and what they are worth, row by row."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.draws import draw_transitions
from tests.support.goals import REACH, Episode, GoalParams, Line, Writer, goal_layout, goal_ring, leaf
from tests.support.settings_for_tests import variables_with
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.envs.gym_driver import GoalFunctions
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.replay import sampling
from tfagents_system.replay.hindsight import (
    GoalEnvironment,
    Hindsight,
    Located,
    Strategy,
    episodes_of,
    make_goal_environment,
)
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sampling import DrawSettings, PriorData, TransitionForm, Transitions, make_block
from tfagents_system.replay.server import settings_of_run
from tfagents_system.replay.stored_ring import StoredRing, add_segments
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
    if strategy != "final":
        counts = np.bincount(found["goal"][found["step"] == 3].astype(int))[4 if strategy == "future" else 1 :]
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


# An episode's rows are found wherever its segments are.


def held(ring: Ring) -> dict[tuple[int, int], list[int]]:
    """The steps of each episode that the ring holds, row by row."""
    found: dict[tuple[int, int], set[int]] = {}
    for place in ring.held_rows:
        worker, episode, step = leaf(ring, "observation")[place].astype(int).tolist()
        found.setdefault((worker, episode), set()).add(step)
    return {key: sorted(steps) for key, steps in found.items()}


def check(ring: Ring) -> int:
    """Compares the index with `held`; returns how many starts there are."""
    steps_of, observation = held(ring), leaf(ring, "observation")
    rows = ring.held_rows
    starts = np.flatnonzero(ring.steps_left[rows] >= 1)
    if not len(starts):
        return 0
    found = episodes_of(ring).find(rows[starts])
    held_rows = set(rows.tolist())
    for k, start in enumerate(starts):
        worker, episode, step = observation[rows[start]].astype(int).tolist()
        steps = steps_of[worker, episode]
        _, _, place, first, last = (int(each[k]) for each in found)
        one = Located(*(np.repeat(each[k], last + 1 - first) for each in found))
        all_of_it = episodes_of(ring).rows(one, np.arange(first, last + 1))
        assert held_rows.issuperset(all_of_it.tolist())
        np.testing.assert_array_equal(observation[all_of_it], [(worker, episode, each) for each in steps])
        assert place - first == steps.index(step)
    return len(starts)


def scramble(
    writer: Writer, rng: np.random.Generator, count: int, episodes: dict[int, Episode], begun: list[int]
) -> None:
    """Steps of several workers in turn: some cut their segment, some end their episode."""
    for _ in range(count):
        worker = int(rng.integers(3))
        if worker not in episodes:
            episodes[worker] = writer.begin(worker, begun[0])
            begun[0] += 1
        under_way = episodes[worker]
        for _ in range(int(rng.integers(1, 5))):
            under_way.step()
        kind = rng.random()
        if kind < 0.4:
            under_way.cut()
        elif kind < 0.6:
            episodes.pop(worker).end()


@pytest.mark.parametrize(("look_ahead", "history"), [(0, 0), (2, 0), (2, 3)])
def test_interleaved_segments_of_several_workers_while_the_oldest_are_given_up(
    tmp_path: Path, look_ahead: int, history: int
) -> None:
    ring, rng = goal_ring(tmp_path, 120, 60), np.random.default_rng(history + look_ahead)
    writer, episodes, begun, starts = Writer(ring, 3, look_ahead, history), dict[int, Episode](), [0], 0
    for _ in range(20):
        scramble(writer, rng, 12, episodes, begun)
        starts += check(ring)
    assert ring.total_rows > 3 * ring.num_rows and starts > 1000


def test_after_a_restart_a_rollback_and_damage_it_is_that_of_the_rows(tmp_path: Path) -> None:
    ring, rng = goal_ring(tmp_path, 200, 120), np.random.default_rng(1)
    writer, episodes, begun = Writer(ring), dict[int, Episode](), [0]
    scramble(writer, rng, 40, episodes, begun)
    check(ring)
    snapshot, before = ring.snapshot(), held(ring)
    scramble(writer, rng, 10, episodes, begun)
    check(ring)
    assert held(ring) != before
    assert check(Ring.open(tmp_path, ring.layout, 200)) == check(ring)
    ring.rollback(snapshot)
    assert held(ring) == before
    check(ring)
    # A segment in the middle of an episode is damaged: what is before it and what is behind it are two.
    episode = writer.begin(7, begun[0])
    for _ in range(12):  # Three segments of four steps.
        episode.step()
    episode.end()
    leaf(ring, "observation")[(ring.total_rows - 8) % ring.num_rows] += 0.5
    assert ring.verify() == 4
    first = ring.total_rows - 15
    found = episodes_of(ring).find(np.array([first, first + 10]) % ring.num_rows)
    assert (found.last - found.place).tolist() == [4, 4] and (found.place - found.first).tolist() == [0, 0]
    assert found.episode[0] != found.episode[1]


def test_what_was_taken_over_has_numbers_of_its_own(tmp_path: Path) -> None:
    """Of two runs, whose workers number their episodes alike, and of one that has not said what belongs together."""
    sources = []
    for name in ("one", "other"):
        ring = goal_ring(tmp_path / name)
        writer = Writer(ring)
        episodes = [writer.begin(worker, 3) for worker in (0, 1)]
        for _ in range(3):
            for episode in episodes:
                episode.step()
                episode.cut()
        sources.append(StoredRing(tmp_path / name))
    unknown = goal_ring(tmp_path / "unknown", layout=dataclasses.replace(goal_layout(), episode=None))
    Writer(unknown).whole(0, 3, 6)
    sources.append(StoredRing(tmp_path / "unknown"))
    ring = goal_ring(tmp_path / "ring")
    for source in sources:
        add_segments(ring, source.segments(), source.folder, 1)
    Writer(ring).whole(0, 3, 5)
    starts = np.flatnonzero(ring.steps_left[ring.held_rows] >= 1)
    found = episodes_of(ring).find(starts)
    lengths = [3] * 12 + [4] * 4 + [2] * 2 + [5] * 5  # The last but one: of segments.
    assert (found.last - found.first).tolist() == lengths
    assert len(set(found.episode.tolist())) == 2 + 2 + 2 + 1
    assert ring.episode is not None and (ring.episode[np.arange(12)][:, 0] < 0).all()


# The replay server's own environment.


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


def goals_of(env: Narrowing, config: dict[str, Any]) -> GoalEnvironment:
    return GoalEnvironment(TrainingEnvironment(env, 12), Curriculum.from_config(config))


def near(goals: Any) -> int:
    """Of the distances 1 to 9, how many count as reached."""
    distances = np.arange(1, 10, dtype=np.float32)[:, None]
    return int((goals.rewards(distances, np.zeros_like(distances)) == 0).sum())


def test_it_has_the_values_of_the_iteration_that_is_drawn_for() -> None:
    env = Narrowing()
    goals = goals_of(env, CURRICULUM)
    assert env.calls == ["reset"]
    assert [near(goals.at(iteration)) for iteration in (0, 4, 5, 8, 9, 30)] == [3, 3, 2, 2, 1, 1]
    assert env.calls == ["reset", "reach=3", "reset", "reach=2", "reset", "reach=1", "reset"]
    assert near(goals.at(4)) == 3, "a trainer that was restarted asks for an earlier iteration"
    env = Narrowing()
    goals = goals_of(env, {})
    assert near(goals.at(0)) == near(goals.at(7)) == 9 and env.calls == ["reset"], "without a curriculum"


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
    variables = variables_with(envs_per_worker=envs_per_worker, seed=3, max_workers=3)
    return types.SimpleNamespace(params=params, variables=variables, derived_seed=lambda stream: 100 + stream)


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
