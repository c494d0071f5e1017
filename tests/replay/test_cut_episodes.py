"""However episodes are cut into segments, the samples are those of the whole episodes."""

from __future__ import annotations

import itertools
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_agents.trajectories import time_step as ts

from tests.support.draws import draw_sequences, draw_transitions
from tests.support.fed_builder import FedEpisode
from tfagents_system.replay.ring import Ring, is_held_out, is_repeated
from tfagents_system.transport.segments import Layout, MalformedSegmentError, Segment, from_wire
from tfagents_system.worker.rollout import SegmentBuilder

LENGTHS = (9, 1, 4, 13, 2, 6)
FRAMES, GAMMA = 3, 0.9
LAYOUT = Layout.from_specs(
    {"camera": np.zeros((2, 2, 1), np.uint8), "place": np.zeros(2, np.float32)}, np.zeros(1, np.float32), ["returns"]
)


def fill(folder: Path, max_steps: int, reach: tuple[int, int], lengths: tuple[int, ...] = LENGTHS) -> Ring:
    """Episodes of these lengths, every second one terminated, in segments of up to so many new steps."""
    look_back, look_ahead = reach
    ring = Ring.open(folder, LAYOUT, 2000, 400)
    numbers = itertools.count()

    def send(segment: Segment) -> None:
        segment.incarnation, segment.number = 1, next(numbers)
        arrived = from_wire(segment.to_wire(), LAYOUT)[0]
        assert arrived.num_starts == segment.num_starts and ring.append(arrived)

    for episode, length in enumerate(lengths):
        builder = SegmentBuilder(
            LAYOUT,
            max_steps,
            send,
            held_out=episode % 3 == 1,
            history=FRAMES - 1,
            gamma=GAMMA,
            look_ahead=look_ahead,
            look_back=look_back,
        )
        fed = FedEpisode(builder, ts.restart(observation(episode, 0)))
        for step in range(1, length + 1):
            terminates = step == length and episode % 2 == 0
            discount = np.float32(0.0 if terminates else 1.0)
            reward = np.float32(100 * episode + step)
            fed.add(np.array([step / 100], np.float32), ts.TimeStep(1, reward, discount, observation(episode, step)))
        fed.finish(end_of_iteration=episode == len(lengths) - 1)
    return ring


def observation(episode: int, step: int) -> dict[str, Any]:
    return {
        "camera": np.full((2, 2, 1), (20 * episode + step) % 256, np.uint8),
        "place": np.array([episode, step], np.float32),
    }


def distinct(drawn: Any, outer: int) -> dict[bytes, int]:
    """How often each sample was drawn, by all of its arrays; `outer` leading axes count the samples."""
    arrays = [array.reshape(-1, *array.shape[outer:]) for array in drawn.to_arrays()]
    samples = [b"".join(array[k].tobytes() for array in arrays) for k in range(len(arrays[0]))]
    keys, counts = np.unique(np.array(samples, object), return_counts=True)
    return dict(zip(keys, counts.tolist(), strict=True))


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize(("max_steps", "n_step"), [(1, 2), (2, 5), (3, 1), (5, 2)])
def test_transitions_are_those_of_whole_episodes(tmp_path, max_steps, n_step, held_out):
    def drawn(ring):
        samples = draw_transitions(
            ring, np.random.default_rng(0), 20, 200, n_step=n_step, gamma=GAMMA, held_out=held_out, frame_stack=FRAMES
        )
        return distinct(samples, 2)

    whole, cut = (fill(tmp_path / str(most), most, (0, n_step - 1)) for most in (1000, max_steps))
    starts = sum(length for episode, length in enumerate(LENGTHS) if (episode % 3 == 1) == held_out)
    expected, found = drawn(whole), drawn(cut)
    assert expected.keys() == found.keys() and len(found) == starts
    counts = np.array(list(found.values()))
    chi_square = ((counts - 4000 / starts) ** 2 / (4000 / starts)).sum()
    assert chi_square < 2.0 * starts + 10, "all equally likely"


@pytest.mark.parametrize(("max_steps", "burn_in"), [(1, 2), (3, 0), (5, 2)])
def test_sequences_are_those_of_whole_episodes(tmp_path, max_steps, burn_in):
    window = 3
    length = window + burn_in

    def drawn(ring):
        samples = draw_sequences(ring, np.random.default_rng(0), 40, 500, length, burn_in=burn_in, frame_stack=FRAMES)
        return distinct(samples, 2)

    reach = (length - 1, window - 1)
    whole, cut = (fill(tmp_path / str(most), most, reach) for most in (1000, max_steps))
    expected, found = drawn(whole), drawn(cut)
    assert expected.keys() == found.keys()
    differences = [abs(expected[key] - found[key]) / np.sqrt(expected[key] + found[key]) for key in expected]
    assert max(differences) < 5, "and as likely as there"


def test_steps_that_wait_for_the_next_segment_are_not_drawn_before(tmp_path):
    ring = Ring.open(tmp_path, LAYOUT, 2000, 400)
    segments: list[Segment] = []
    builder = SegmentBuilder(LAYOUT, 4, segments.append, gamma=GAMMA, look_ahead=2)
    fed = FedEpisode(builder, ts.restart(observation(0, 0)))
    for step in range(1, 6):
        fed.add(np.zeros(1, np.float32), ts.TimeStep(1, np.float32(step), np.float32(1), observation(0, step)))
    (segment,) = segments
    segment.incarnation = 1
    assert ring.append(segment)
    assert (ring.env_steps, ring.ring_steps) == (4, 2)
    drawn = draw_transitions(ring, np.random.default_rng(0), 1, 100, n_step=3, gamma=GAMMA)
    assert set(drawn.observation[1][..., 1].ravel()) == {0.0, 1.0}
    assert set((drawn.next_observation[1] - drawn.observation[1])[..., 1].ravel()) == {3.0}


def test_a_full_ring_counts_what_it_still_holds(tmp_path):
    lengths = tuple(np.random.default_rng(0).integers(1, 30, size=300).tolist())
    ring = fill(tmp_path, 4, (3, 3), lengths)
    assert ring.total_rows > ring.num_rows
    again = Ring.open(tmp_path, LAYOUT, 2000, 400)
    assert (again.ring_steps, again.repeated_steps) == (ring.ring_steps, ring.repeated_steps) and again.verify() == 0
    rows = ring.held_rows
    starts = (ring.steps_left[rows] > 0) & ~is_repeated(ring.step_type[rows])
    assert ring.ring_steps == np.count_nonzero(starts)
    assert ring.held_out_steps == np.count_nonzero(starts & is_held_out(ring.step_type[rows]))
    assert len({tuple(ring.observation[1][row]) for row in rows[starts]}) == ring.ring_steps, "each once"


@pytest.mark.parametrize(
    "changes",
    [
        {"lead": -1},
        {"context": 3, "lead": 2},
        {"deferred": 9},
        {"ends_episode": True, "deferred": 1},
        {"starts_episode": True, "history": 2},
    ],
)
def test_impossible_leads_are_refused(changes):
    header = {"new_steps": 4, "history": 5, "lead": 6, "context": 7, "deferred": 8}
    segments: list[Segment] = []
    builder = SegmentBuilder(LAYOUT, 3, segments.append, gamma=GAMMA)
    fed = FedEpisode(builder, ts.restart(observation(0, 0)))
    for step in range(1, 8):
        fed.add(np.zeros(1, np.float32), ts.TimeStep(1, np.float32(step), np.float32(1), observation(0, step)))
    arrays = segments[1].to_wire()
    fields = arrays[0][0]
    changes = types.SimpleNamespace(**{"starts_episode": False, "ends_episode": False, **changes})
    fields[10:12] = changes.starts_episode, changes.ends_episode
    fields[1] = 1  # The incarnation.
    for name in ("history", "lead", "context", "deferred"):
        fields[header[name]] = getattr(changes, name, 0)
    fields[header["new_steps"]] = 3 - max(0, fields[header["lead"]])
    with pytest.raises(MalformedSegmentError, match="impossible header"):
        from_wire(arrays, LAYOUT)[0]
