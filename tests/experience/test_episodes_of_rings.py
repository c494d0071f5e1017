"""Rings and episodes: each step of a ring is in one episode and once, prior data of any kind become one ring."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from tf_agents.specs import array_spec

from tests.support.draws import draw_transitions
from tests.support.segments_for_tests import LAYOUT, filled_ring, numbered_segment
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.specs import save_specs
from tfagents_system.errors import UserError
from tfagents_system.experience import data_sets, transfer
from tfagents_system.experience.data_sets import Conversion, NamedEpisode
from tfagents_system.experience.transfer import episodes_of, is_terminated, make_prior_ring
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing, add_segments, differences
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.segments import OPTIONAL_COLUMNS, Column, Layout, Segment


def test_episodes_are_put_together_from_their_segments(tmp_path: Path) -> None:
    """Two workers in turn, cut episodes with a lead and history; the oldest one has lost its beginning."""
    ring = Ring.open(tmp_path, LAYOUT, 200, 60)
    lost = dataclasses.replace(numbered_segment(0, 0, first_step=4, episode=9), starts_episode=False)
    first = dataclasses.replace(numbered_segment(0, 1, episode=1, ends_episode=False), deferred=2)
    other = numbered_segment(1, 0, episode=2, ends_episode=False)
    # Begins with two observations of history, a step of context and the two deferred ones.
    second = dataclasses.replace(
        numbered_segment(0, 2, 9, episode=1, first_step=0, ends_episode=True),
        starts_episode=False,
        history=2,
        lead=3,
        context=1,
    )
    second.action, second.reward, second.discount = [second.action[0][2:]], second.reward[2:], second.discount[2:]
    rest = numbered_segment(1, 1, episode=2, first_step=5, terminates=True)
    for segment in (lost, first, other, second, rest):
        assert ring.append(segment)
    found = list(episodes_of(StoredRing(tmp_path)))
    told = [(each.observation[0][:, 1:].astype(int).tolist(), each.starts_episode, each.ends_episode) for each in found]
    assert told == [
        ([[9, step] for step in range(4, 10)], False, True),
        ([[1, step] for step in range(10)], True, True),
        ([[2, step] for step in range(11)], True, True),
    ]
    assert [each.reward.astype(int).tolist() for each in found[1:]] == [
        [1000 + step for step in range(9)],
        [2000 + step for step in range(10)],
    ]
    assert [is_terminated(each) for each in found] == [False, False, True]


def cut(steps: int, at: Sequence[int], look_ahead: int, worker_id: int, layout: Layout = LAYOUT) -> Iterator[Segment]:
    """The segments of an episode that is cut before these steps, as workers cut it; observations stand still.

    Each reward is 100 times the worker plus the step.
    """
    whole = numbered_segment(0, 0, steps, episode=3, terminates=True)
    whole.observation = [np.zeros_like(leaf) for leaf in whole.observation]
    whole.reward = np.arange(steps, dtype=np.float32) + 100 * worker_id
    begin = 0
    for number, end in enumerate([*at, steps]):
        deferred = min(look_ahead, end - begin) if end < steps else 0
        lead = (at[number - 1] - begin) if number else 0
        yield dataclasses.replace(
            whole,
            worker_id=worker_id,
            number=number,
            starts_episode=begin == 0,
            ends_episode=end == steps,
            observation=[leaf[begin : end + 1] for leaf in whole.observation],
            action=[leaf[begin:end] for leaf in whole.action],
            reward=whole.reward[begin:end],
            discount=whole.discount[begin:end],
            lead=lead,
            deferred=deferred,
            episode=np.array([[3, begin]], np.int64) if layout.episode else None,
        )
        begin = end - deferred


EPISODE = dataclasses.replace(LAYOUT, episode=OPTIONAL_COLUMNS["episode"])


@pytest.mark.parametrize("layout", [LAYOUT, EPISODE], ids=["unnumbered", "numbered"])
@pytest.mark.parametrize("at", [(4,), (1, 5), (2, 4), (2, 3, 4), (7,)])
def test_each_step_is_in_an_episode_once_where_observations_stand_still(
    tmp_path: Path, layout: Layout, at: tuple[int, ...]
) -> None:
    """With n_step = 3 a segment repeats the last two steps of the one before: they are not looked for elsewhere."""
    ring = Ring.open(tmp_path, layout, 200, 60)
    for segment in cut(10, at, 2, 0, layout):
        assert ring.append(segment)
    (found,) = episodes_of(StoredRing(tmp_path))
    assert found.reward.tolist() == list(range(10)) and found.starts_episode and is_terminated(found)
    assert len(found.observation[0]) == 11


@pytest.mark.parametrize("look_ahead", [0, 2])
@pytest.mark.parametrize("layout", [LAYOUT, EPISODE], ids=["unnumbered", "numbered"])
def test_workers_whose_observations_are_alike_at_a_cut_keep_all_steps(
    tmp_path: Path, layout: Layout, look_ahead: int
) -> None:
    """What a ring says of episodes, or repeated steps, tell which segment continues with which."""
    ring = Ring.open(tmp_path, layout, 200, 60)
    first, second = (cut(10, (5,), look_ahead, worker_id, layout) for worker_id in (0, 1))
    for segment in (next(first), next(second), next(second), next(first)):
        assert ring.append(segment)
    rewards = sorted(each.reward.tolist() for each in episodes_of(StoredRing(tmp_path)))
    own: list[list[float]] = [list(range(10)), [100.0 + step for step in range(10)]]
    mixed = [own[0][:5] + own[1][5:], own[1][:5] + own[0][5:]]
    assert rewards == (own if look_ahead or layout.episode else mixed)


def test_what_a_ring_says_of_episodes_goes_through_replay_from(tmp_path: Path) -> None:
    ring = Ring.open(tmp_path / "source", EPISODE, 200, 60)
    first, second = (cut(10, (5,), 0, worker_id, EPISODE) for worker_id in (0, 1))
    for segment in (next(first), next(second), next(second), next(first)):
        assert ring.append(segment)
    filled = Ring.open(tmp_path / "filled", EPISODE, 200, 60)
    add_segments(filled, StoredRing(tmp_path / "source").segments(), tmp_path / "source", 1)
    rewards = sorted(each.reward.tolist() for each in episodes_of(StoredRing(tmp_path / "filled")))
    assert rewards == [list(range(10)), [100.0 + step for step in range(10)]]


def test_episodes_that_were_held_out_are_told(tmp_path: Path) -> None:
    ring = Ring.open(tmp_path, EPISODE, 200, 60)
    segments = [*cut(6, (3,), 0, 0, EPISODE), *cut(4, (), 0, 1, EPISODE)]
    for segment in segments[:2]:
        assert ring.append(dataclasses.replace(segment, held_out=True))
    assert ring.append(segments[2])
    notes = list[str]()
    found = transfer._whole_episodes(StoredRing(tmp_path), "runs/a", notes.append)
    assert [(len(each.reward), each.held_out) for each in found] == [(6, True), (4, False)]
    assert notes == ["1 episodes that runs/a has held out (validation_share) are like the others from now on"]


def test_a_segment_that_is_gone_parts_an_episode(tmp_path: Path) -> None:
    ring = Ring.open(tmp_path, EPISODE, 200, 60)
    one, two, three = cut(9, (3, 6), 0, 0, EPISODE)
    for number, segment in enumerate((one, three)):
        assert ring.append(dataclasses.replace(segment, number=number))
    found = list(episodes_of(StoredRing(tmp_path)))
    assert [each.reward.tolist() for each in found] == [[6.0, 7.0, 8.0], [0.0, 1.0, 2.0]]
    assert [(each.starts_episode, each.ends_episode) for each in found] == [(False, True), (True, False)]


# Prior data.

ACTION = array_spec.BoundedArraySpec((2,), "float32", [-2.0, 0.0], [2.0, 1.0], "action")
CONVERSION = Conversion(LAYOUT, [actions_of(ACTION)], 0.9)


def episode(number: int, steps: int) -> NamedEpisode:
    ids = np.stack([np.full(steps + 1, 9), np.full(steps + 1, number), np.arange(steps + 1)], axis=1)
    return NamedEpisode(
        {"id": ids.astype(np.float32), "image": np.zeros((steps + 1, 2, 2), np.uint8)},
        {"": np.full((steps, 2), [2.0, 0.5])},
        np.arange(steps, dtype=np.float64),
        is_terminated=True,
    )


def test_files_and_runs_become_one_ring(tmp_path: Path) -> None:
    data_sets.write_npz(tmp_path / "demos.npz", [episode(0, 4), episode(1, 3)])
    filled_ring(tmp_path / "run" / "replay", 2)
    notes: list[str] = []
    told = make_prior_ring([tmp_path / "demos.npz", str(tmp_path / "run")], tmp_path / "made", CONVERSION, notes.append)
    assert "demos.npz, " in told and ": 17 steps" in told and notes == []
    stored = StoredRing(tmp_path / "made")
    ring = Ring.open(tmp_path / "made", stored.layout, stored.capacity_rows)
    assert (ring.training_steps, ring.env_steps, ring.verify()) == (17, 0, 0)
    drawn = draw_transitions(ring, np.random.default_rng(0), 50, 20)
    ids = drawn.observation[0].reshape(-1, 3)
    assert {(a, b) for a, b, _ in ids.tolist()} == {(9, 0), (9, 1), (0, 0), (0, 1)}
    of_file = ids[:, 0] == 9
    np.testing.assert_allclose(drawn.action[0].reshape(-1, 2)[of_file], [[1.0, 0.0]] * of_file.sum())
    last = of_file & (ids[:, 2] == np.where(ids[:, 1] == 0, 3, 2))
    np.testing.assert_array_equal(drawn.discount.reshape(-1)[of_file] == 0, last[of_file])


def test_all_that_does_not_fit_is_told_together(tmp_path: Path) -> None:
    run = tmp_path / "run" / "replay"
    Ring.open(run, LAYOUT.__class__(LAYOUT.observation[:1], LAYOUT.action), 60, 24)
    broken = episode(0, 4)
    broken.observations["id"][:] = np.nan
    data_sets.write_npz(tmp_path / "nan.npz", [broken])
    sources = [str(tmp_path / name) for name in ("run", "nan.npz", "demos.csv")]
    with pytest.raises(UserError) as raised:
        make_prior_ring(sources, tmp_path / "made", CONVERSION, print)
    layout, numbers, missing = raised.value.findings
    assert "\n  observation/image: here uint8 [2, 2], there none\n" in layout
    assert "not finite" in numbers and "demos.csv" in missing
    assert not (tmp_path / "made").exists()
    segment = numbered_segment()
    segment.reward[2] = np.inf
    Ring.open(tmp_path / "infinite", LAYOUT, 60, 24).take_over([segment])
    with pytest.raises(UserError, match="not finite"):
        make_prior_ring([str(tmp_path / "infinite")], tmp_path / "made", CONVERSION, print)
    few, many = (Layout(LAYOUT.observation, (Column("action", (), "int32", count),)) for count in (3, 9))
    assert differences(few, many) == ["action: here int32 [], one of 3, there int32 [], one of 9"]


@pytest.mark.parametrize("other", ["bounds", "rows"])
def test_the_same_numbers_for_other_actions_are_refused(tmp_path: Path, other: str) -> None:
    """A ring has shares of bounds, or numbers of rows: with other bounds or another table they are other actions."""
    rows = [[0.0, 0.5], [1.0, 0.5]] if other == "rows" else None
    spec = array_spec.BoundedArraySpec((2,), "float32", [-2.0, 0.0], [2.0, 3.0 if other == "bounds" else 1.0], "action")
    seen = LAYOUT.observation
    layout = Layout(seen, (Column("action", (), "int32", 2),)) if rows else LAYOUT
    run = tmp_path / "run"
    ring = Ring.open(run / "replay", layout, 60, 24)
    step = numbered_segment()
    ring.take_over([dataclasses.replace(step, action=[np.ones(step.num_steps, np.int32)]) if rows else step])
    observation = {"id": array_spec.ArraySpec((3,), "float32"), "image": array_spec.ArraySpec((2, 2), "uint8")}
    save_specs(RunPaths(run).specs, observation, spec, rows)
    ours = actions_of(ACTION, [[0.0, 0.5], [2.0, 0.5]] if rows else None)
    conversion = Conversion(layout, [ours], 0.9)
    with pytest.raises(UserError, match=r"action: here .*, there .*, with other bounds, rows or order"):
        make_prior_ring([str(run)], tmp_path / "made", conversion, print)
    save_specs(RunPaths(run).specs, observation, ACTION, rows)
    conversion = Conversion(layout, [actions_of(ACTION, rows)], 0.9)
    assert "steps" in make_prior_ring([str(run)], tmp_path / "made_2", conversion, print)
