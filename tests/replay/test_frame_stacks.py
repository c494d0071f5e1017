"""Stacks of frames out of a ring that stores each once are gymnasium's, wherever they are drawn."""

import numpy as np
import pytest

from tests.support.draws import draw_sequences, draw_transitions
from tests.support.frames_for_tests import recorded_envs
from tfagents_system.replay.ring import Ring
from tfagents_system.transport.segments import Layout, from_wire
from tfagents_system.worker.actors import RandomActor
from tfagents_system.worker.rollout import Rollout, SegmentBuilder

SEGMENT_STEPS = 7


class Collected:
    """Episodes of two environments side by side, stored as workers and the replay server do it.

    Args:
      folder: Of the ring.
      frame_stack: Frames of an image, or of the vector `place` alone as {"place": n}.
      episodes: How many.
      capacity_rows: Of the ring; its files have some more.
    """

    def __init__(self, folder, frame_stack, episodes, capacity_rows):
        part, frames = ("camera", frame_stack) if isinstance(frame_stack, int) else next(iter(frame_stack.items()))
        envs, self.stacks = recorded_envs(frames, count=2, part=part)
        self.layout = Layout.from_specs(envs[0].observation_spec(), envs[0].action_spec())
        self.history = self.layout.history_rows(frame_stack)
        self.ring = Ring.open(folder, self.layout, capacity_rows, 4 * (SEGMENT_STEPS + 1 + self.history))
        self.segments = []
        actor = RandomActor(envs[0].action_spec(), np.random.default_rng(0))
        Rollout(envs, actor, new_builder=self._new_builder).episodes(episodes)

    def _new_builder(self):
        return SegmentBuilder(self.layout, SEGMENT_STEPS, self._send, history=self.history)

    def _send(self, segment):
        segment.incarnation, segment.number = 1, len(self.segments)
        arrived = from_wire(segment.to_wire(), self.layout)[0]
        self.segments.append(arrived)
        assert self.ring.append(arrived)

    def expected(self, places):
        """Gymnasium's stacks at places `[n, 3]`."""
        return np.array([self.stacks[tuple(map(int, place))] for place in places])


@pytest.mark.parametrize("frame_stack", [2, 10])
@pytest.mark.parametrize("capacity_rows", [5000, 400], ids=["whole", "wrapped"])
def test_transitions_have_gymnasiums_stacks_everywhere(tmp_path, frame_stack, capacity_rows):
    collected = Collected(tmp_path, frame_stack, 30, capacity_rows)
    ring = collected.ring
    if capacity_rows < 5000:
        assert ring.total_rows > 2 * ring.num_rows, "around the files' end, several times"
    batch = draw_transitions(ring, np.random.default_rng(0), 100, 256, frame_stack=frame_stack)
    camera, place = (leaf.reshape(-1, *leaf.shape[2:]) for leaf in batch.observation)
    next_camera, next_place = (leaf.reshape(-1, *leaf.shape[2:]) for leaf in batch.next_observation)
    assert camera.dtype == next_camera.dtype == np.uint8 and camera.shape[1:] == (3, 4, 2 * frame_stack)
    np.testing.assert_array_equal(camera, collected.expected(place))
    np.testing.assert_array_equal(next_camera, collected.expected(next_place))
    np.testing.assert_array_equal(next_place[:, 2], place[:, 2] + 1)
    np.testing.assert_array_equal(batch.reward.reshape(-1), next_place[:, 2])
    drawn = {tuple(map(int, each)) for each in place}
    rows = ring.held_rows
    starts = {tuple(map(int, ring.observation[1][row])) for row in rows if ring.steps_left[row] > 0}
    assert drawn == starts, "every transition, and none twice: rows of history are no starts"
    assert any(step == 0 for *_, step in drawn) and any(step > SEGMENT_STEPS for *_, step in drawn)


@pytest.mark.parametrize("frames", [2, 10])
@pytest.mark.parametrize("capacity_rows", [5000, 400], ids=["whole", "wrapped"])
def test_vectors_are_stacked_as_gymnasium_does_beside_images_of_other_lengths(tmp_path, frames, capacity_rows):
    collected = Collected(tmp_path, {"place": frames}, 30, capacity_rows)
    frame_stack = {"place": frames, "camera": 2}
    assert collected.history == collected.layout.history_rows(frame_stack) == frames - 1
    batch = draw_transitions(collected.ring, np.random.default_rng(0), 50, 256, frame_stack=frame_stack)
    for camera, places in (batch.observation, batch.next_observation):
        places = places.reshape(-1, frames * 3)
        assert camera.shape == (50, 256, 3, 4, 4) and places.dtype == np.float32
        newest = places[:, -3:]
        np.testing.assert_array_equal(places, collected.expected(newest))
        assert (newest[:, 2] > 7).any() and (newest[:, 2] <= 1).any()
    sequences = draw_sequences(collected.ring, np.random.default_rng(0), 20, 64, 4, frame_stack=frame_stack)
    places = sequences.observation[1].reshape(-1, frames * 3)
    np.testing.assert_array_equal(places, collected.expected(places[:, -3:]))


def test_a_number_stacks_images_alone_and_names_say_the_rest():
    layout = Layout.from_specs(
        {"camera": np.zeros((3, 4, 2), np.uint8), "parts": {"touch": np.zeros(3, np.float32)}}, np.zeros(1, np.float32)
    )
    assert layout.leaves == ("camera", "parts/touch")
    assert layout.frames(3) == (3, 1) and layout.frames({"parts/touch": 4}) == (1, 4)
    assert layout.stacked_step_bytes({"parts/touch": 4}) == layout.step_bytes + 3 * 3 * 4
    assert layout.history_rows({"parts/touch": 4, "camera": 2}) == 3
    vector = Layout.from_specs(np.zeros(5, np.float32), np.zeros(2, np.float32))
    assert vector.frames({"observation": 2}) == (2,)


@pytest.mark.parametrize("burn_in", [0, 3])
@pytest.mark.parametrize("capacity_rows", [5000, 400], ids=["whole", "wrapped"])
def test_sequences_have_them_in_each_of_their_steps(tmp_path, capacity_rows, burn_in):
    collected = Collected(tmp_path, 3, 30, capacity_rows)
    batch = draw_sequences(
        collected.ring, np.random.default_rng(0), 100, 64, 4 + burn_in, burn_in=burn_in, frame_stack=3
    )
    camera, place = batch.observation
    assert camera.shape == (100, 64, 5 + burn_in, 3, 4, 6) and camera.dtype == np.uint8
    np.testing.assert_array_equal(camera.reshape(-1, 3, 4, 6), collected.expected(place.reshape(-1, 3)))
    is_step = batch.weight[..., :-1] > 0
    np.testing.assert_array_equal(np.diff(place[..., 2], axis=2)[is_step], 1)
    ring = collected.ring
    rows = ring.held_rows
    starts = {tuple(ring.observation[1][row]) for row in rows if ring.steps_left[row] > 0}
    assert {tuple(each) for each in place[..., :-1, :][is_step]} == starts


def test_each_frame_is_stored_once_but_for_the_history_of_segments(tmp_path):
    collected = Collected(tmp_path, 3, 20, 5000)
    ring, segments = collected.ring, collected.segments
    assert ring.env_steps == ring.ring_steps == sum(segment.num_steps for segment in segments)
    assert [segment.history for segment in segments] == [0 if segment.starts_episode else 2 for segment in segments]
    assert ring.filled_rows == ring.env_steps + len(segments) + 2 * sum(not each.starts_episode for each in segments)
    assert ring.observation[0].shape[1:] == (3, 4, 2)
