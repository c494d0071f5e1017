"""Vector environments give each lane the segments, episodes and statistics that single environments would have had."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.support.lanes_for_tests import NumberedLane, vector_of
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.transport.segments import Layout
from tfagents_system.worker.actors import EpisodeShare
from tfagents_system.worker.rollout import Rollout, SegmentBuilder

HORIZON = 12
LENGTHS = [(4, 9, 2), (40,), (1, 3), (12, 5), (7, 7, 40)]  # 40: until the horizon.
MODES = list(AutoresetMode)
AT_ONCE = [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]  # As single environments: no step between two episodes.
CUTS = {
    "plain": {},
    "sequences": {"look_ahead": 3, "look_back": 5},
    "all columns": {"history": 2, "look_ahead": 2, "gamma": 0.9},
}


def layout_of(env, cuts):
    optional = ("returns", "explored", "potential") if cuts == "all columns" else ()
    return Layout.from_specs(env.observation_spec(), env.action_spec(), optional)


def potential(observation):
    """Where it is, as a number."""
    return float(observation @ [100.0, 10.0, 1.0])


def lanes(**kwargs):
    return [NumberedLane(lane, lengths, **kwargs) for lane, lengths in enumerate(LENGTHS)]


class Actor:
    """Acts as [lane / 10, step / 100], by the observation alone; explores in each third step."""

    def __init__(self):
        self.begun = []
        self.steps = {}

    def reset(self, lanes):
        self.begun += lanes

    @staticmethod
    def _act(observation):
        return (observation[..., [0, 2]] * [0.1, 0.01]).astype(np.float32)

    @property
    def explored(self):
        return np.array([self.steps.get(lane, 0) % 3 == 1 for lane in range(len(LENGTHS))])

    def act(self, steps):
        is_first = (steps.observation[0][:, 2] == 0) & (np.asarray(steps.step_type) != 2)
        np.testing.assert_array_equal(np.equal(steps.step_type, 0), is_first, "step types of the policy")
        np.testing.assert_array_equal(np.asarray(steps.reward)[is_first], 0.0)
        self.steps = dict(enumerate(steps.observation[0][:, 2]))
        return [self._act(steps.observation[0])]


class Collected:
    """A rollout and all that it hands over."""

    def __init__(self, kind, env, cuts="plain", held_out=0.0, max_steps=5, **kwargs):
        envs = env if isinstance(env, list) else [env]
        layout = layout_of(envs[0], cuts)
        held, numbers = EpisodeShare(held_out, 3, first=1), itertools.count()
        self.segments, self.episodes, self.stepped = [], [], 0

        def new_builder():
            return SegmentBuilder(layout, max_steps, self.segments.append, held.has(next(numbers)), **CUTS[cuts])

        def on_step(count):
            self.stepped += count

        self.rollout = kind(
            envs, Actor(), new_builder=new_builder, on_episode=self.episodes.append, on_step=on_step, **kwargs
        )

    def of_lane(self, lane):
        return [segment for segment in self.segments if segment.observation[0][0, 0] == lane]


def single(cuts="plain", **kwargs):
    envs = [TrainingEnvironment(lane, HORIZON, potential=potential) for lane in lanes()]
    return Collected(Rollout, envs, cuts, **kwargs)


def batched(mode, cuts="plain", of=None, **kwargs):
    env = TrainingEnvironment(vector_of(of or lanes(), mode), HORIZON, potential=potential)
    return Collected(Rollout, env, cuts, **kwargs)


def assert_same(found, expected):
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        for field in dataclasses.fields(theirs):
            mine, its = getattr(ours, field.name), getattr(theirs, field.name)
            np.testing.assert_equal(mine, its, field.name)
            if isinstance(its, np.ndarray):
                assert mine.dtype == its.dtype


def assert_same_lanes(ours, theirs):
    """Of lanes that end with the same step, a single environment's order depends on when their episodes began."""
    for lane in range(len(LENGTHS)):
        found, expected = (
            [dataclasses.replace(s, end_of_iteration=False) for s in collected.of_lane(lane)]
            for collected in (ours, theirs)
        )
        assert_same(found, expected)
    assert [s.end_of_iteration for s in ours.segments] == [s.end_of_iteration for s in theirs.segments]
    assert sorted(ours.episodes, key=repr) == sorted(theirs.episodes, key=repr)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("mode", AT_ONCE, ids=lambda mode: mode.value)
@pytest.mark.parametrize("count", [1, 17])
def test_whole_episodes_are_the_same_segments_as_of_single_environments(mode, cuts, count):
    ours, theirs = batched(mode, cuts, held_out=0.3), single(cuts, held_out=0.3)
    found, expected = ours.rollout.episodes(count), theirs.rollout.episodes(count)
    assert found == ours.episodes and len(found) == len(expected) == count
    assert_same_lanes(ours, theirs)
    assert ours.stepped == theirs.stepped == sum(episode.length for episode in ours.episodes)


def test_segments_say_which_actions_explored_and_how_good_it_is_to_be_where():
    for collected in (batched(AutoresetMode.SAME_STEP, "all columns"), single("all columns")):
        collected.rollout.steps(100)
        for segment in collected.segments:
            steps = segment.observation[0][segment.history :, 2]
            assert segment.explored.tolist() == (steps[:-1] % 3 == 1).tolist()
            assert segment.potential.tolist() == (segment.observation[0] @ [100, 10, 1]).tolist()
            assert (segment.explored.dtype, segment.potential.dtype) == (np.uint8, np.float32)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("mode", AT_ONCE, ids=lambda mode: mode.value)
def test_iterations_of_steps_are_the_same_segments_as_of_single_environments(mode, cuts):
    counts = [5, 10, 5, 50, 5, 100]
    ours, theirs = batched(mode, cuts, held_out=0.3), single(cuts, held_out=0.3)
    for count in counts:
        found, expected = ours.rollout.steps(count), theirs.rollout.steps(count)
        assert sorted(found, key=repr) == sorted(expected, key=repr)
        assert_same_lanes(ours, theirs)
        assert ours.segments[-1].end_of_iteration
    assert sum(segment.num_steps for segment in ours.segments) == sum(counts)


@pytest.mark.parametrize("cuts", CUTS)
def test_where_lanes_begin_with_the_next_step_each_lane_has_the_same_segments(cuts):
    ours, theirs = batched(AutoresetMode.NEXT_STEP, cuts), single(cuts)
    ours.rollout.steps(500)
    theirs.rollout.steps(600)
    for lane in range(len(LENGTHS)):
        mine, its = (
            [dataclasses.replace(s, end_of_iteration=False) for s in collected.of_lane(lane)]
            for collected in (ours, theirs)
        )
        assert 5 < len(mine) < len(its)
        assert_same(mine[:-1], its[: len(mine) - 1])  # The last one was cut by the iteration's end.


def transitions(segments):
    """All new transitions, in the order of their lane, episode and step."""
    rows = []
    for s in segments:
        first = s.history + s.lead
        for k in range(s.num_steps):
            now, then = s.observation[0][first + k], s.observation[0][first + k + 1]
            step = s.lead + k
            rows.append([*now, *then, *s.action[0][step], s.reward[step], s.discount[step]])
    return sorted(map(tuple, np.array(rows).tolist()))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("lengths", [None, (4,)], ids=["various", "all at once"])
def test_exactly_so_many_steps_are_handed_over_whatever_the_number_of_lanes(mode, lengths):
    own = [NumberedLane(lane, lengths or LENGTHS[lane]) for lane in range(len(LENGTHS))]
    ours = batched(mode, of=own)
    total = 0
    for count in [3, 1, 7, 2, 11, 13, 1, 1, 1, 1] * 3:
        before = len(ours.segments)
        ours.rollout.steps(count)
        new = ours.segments[before:]
        assert sum(segment.num_steps for segment in new) == count
        assert [segment.end_of_iteration for segment in new] == [False] * (len(new) - 1) + [True]
        total += count
    found = transitions(ours.segments)
    assert len(set(found)) == len(found) == total
    assert ours.stepped - total < len(LENGTHS), "taken, and handed over with the next call"
    by_lane = [[row for row in found if row[0] == lane] for lane in range(len(LENGTHS))]
    for lane, rows in enumerate(by_lane):
        episode, step = 0, 0
        for lane_of, at, before, to_lane, to, after, first, second, reward, discount in rows:
            assert (lane_of, at, before, to_lane, to, after) == (lane, episode, step, lane, episode, step + 1)
            np.testing.assert_allclose([first, second], [lane / 10, step / 100], rtol=1e-6)
            step += 1
            assert reward == step * 0.5
            length = (lengths or LENGTHS[lane])[min(episode, len(lengths or LENGTHS[lane]) - 1)]
            assert discount == (0.0 if step == length and episode % 2 == 0 else 1.0)
            if step == min(length, HORIZON):
                episode, step = episode + 1, 0


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_episodes_are_counted_in_each_lane_without_preferring_short_ones(mode):
    own = [NumberedLane(lane, (length,)) for lane, length in enumerate((2, 11, 3))]
    ours = batched(mode, of=own)
    found = ours.rollout.episodes(3)
    assert sorted(episode.length for episode in found) == [2, 3, 11], "the first one of each lane"
    assert [s.num_steps for s in ours.of_lane(1)] == [5, 5, 1]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_logs_and_success_are_those_of_the_steps_and_not_of_resets(mode):
    found = batched(mode).rollout.episodes(14)
    for episode in found:
        assert episode.logs == {"step": (1 + episode.length) / 2}
        assert episode.episode_return == sum(0.5 * step for step in range(1, episode.length + 1))
    of_horizon = [episode for episode in found if episode.length == HORIZON]
    assert {episode.success for episode in of_horizon} <= {None, True, False}
    assert any(episode.success is None for episode in of_horizon), "not told where the horizon ends it"
    assert {episode.success for episode in found if episode.length < HORIZON} == {True, False}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("by", ["steps", "episodes"])
def test_after_a_fault_the_whole_vector_is_replaced_and_the_steps_before_it_are_handed_over(mode, by):
    faults = []

    def vector(fails):
        own = [NumberedLane(lane, (6,), fails=fails if lane == 1 else None) for lane in range(3)]
        return TrainingEnvironment(vector_of(own, mode), HORIZON)

    envs = [vector((1, 3))]

    def on_fault(env, fault):
        faults.append((env, str(fault)))
        envs[0] = vector(None)

    ours = Collected(Rollout, envs, on_fault=on_fault)
    if by == "steps":
        ours.rollout.steps(60)
        assert sum(segment.num_steps for segment in ours.segments) == 60
    else:
        assert [episode.length for episode in ours.rollout.episodes(8)] == [6] * 3 + [2] * 3 + [6] * 2
    ((env, text),) = faults
    at = 9 + (mode is AutoresetMode.NEXT_STEP)
    assert env == 0 and f"step {at} of its 3 lanes: ZeroDivisionError: the motor is off" in text
    broken = [s for s in ours.segments if s.ends_episode and s.num_steps == 2]
    assert len(broken) == 3 and all(s.discount.tolist() == [1.0, 1.0] for s in broken), "truncated, not terminated"
    assert [s.end_of_iteration for s in ours.segments].count(True) == 1 and ours.segments[-1].end_of_iteration


@pytest.mark.parametrize("is_vector", [False, True])
def test_an_evaluation_counts_each_episode_that_it_began_with_its_return_up_to_a_fault(is_vector):
    def envs_of(fails):
        own = [NumberedLane(lane, (6,), fails=fails if lane == 1 else None) for lane in range(3)]
        if is_vector:
            return [TrainingEnvironment(vector_of(own, AutoresetMode.SAME_STEP), HORIZON)]
        return [TrainingEnvironment(lane, HORIZON) for lane in own]

    envs = envs_of((0, 4))

    def on_fault(env, fault):
        envs[env] = envs_of(None)[env]

    episodes = Rollout(envs, Actor(), on_fault=on_fault).episodes(5)
    three, whole = 0.5 * (1 + 2 + 3), 0.5 * (1 + 2 + 3 + 4 + 5 + 6)
    failed = [(three, 3, True)] * (3 if is_vector else 1)
    found = [(episode.episode_return, episode.length, episode.has_failed) for episode in episodes]
    assert sorted(found) == sorted(failed + [(whole, 6, False)] * (5 - len(failed)))


def test_where_values_of_the_curriculum_are_due_all_lanes_begin_anew():
    is_due, starts = [], []
    ours = batched(
        AutoresetMode.SAME_STEP, must_restart=lambda: bool(is_due), on_start=lambda env: starts.append(is_due.clear())
    )
    ours.rollout.steps(8)
    is_due.append(True)
    ours.rollout.steps(10)
    assert len(starts) == 2 and not is_due
    assert sum(segment.num_steps for segment in ours.segments) == 18
    assert all(s.starts_episode for s in ours.segments[-5:]), "no episode has steps of both stages"


def test_long_runs_move_their_columns_and_lose_nothing():
    own = [NumberedLane(lane, (lengths,)) for lane, lengths in enumerate((900, 7, 333))]
    env = TrainingEnvironment(vector_of(own, AutoresetMode.SAME_STEP), 1000)
    ours = Collected(Rollout, env, "sequences", max_steps=11)
    for _ in range(20):
        ours.rollout.steps(150)
    rows = transitions(ours.segments)
    assert len(set(rows)) == 20 * 150
    assert [row[1:3] for row in rows if row[0] == 0][:901] == [(0.0, k) for k in range(900)] + [(1.0, 0.0)]
