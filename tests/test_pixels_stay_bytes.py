"""Images are uint8 on all of their way from the environment into a minibatch: frames are stored and sent so."""

import numpy as np

from tests.support.frames_for_tests import recorded_envs
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sampling import draw_sequences, draw_transitions
from tfagents_system.transport import tables
from tfagents_system.transport.remote import frames, messages
from tfagents_system.transport.segments import Layout, Segment
from tfagents_system.worker.actors import RandomActor
from tfagents_system.worker.rollout import Rollout
from tfagents_system.worker.segment_builder import SegmentBuilder

PIXELS = 3 * 4 * 2


def over_the_channel(arrays):
    data = b"".join(map(bytes, frames.encode(messages.Put(1, ["segments"]), arrays)))
    limits = frames.Limits(10**6, 10**8)
    message_bytes, _ = frames.read_head(data[: frames.HEAD_BYTES], limits)
    message = frames.decode_message(data[frames.HEAD_BYTES :][:message_bytes], messages.FromClient)
    body = np.frombuffer(data[frames.HEAD_BYTES + message_bytes :], np.uint8)
    return frames.decode_arrays(message.arrays, body)


def assert_pixels_are_bytes(arrays):
    """Whatever is as large as an image a step is of bytes."""
    arrays = [np.asarray(array) for array in arrays]
    wide = [array for array in arrays if array.size >= PIXELS * len(arrays[1]) and array.dtype != np.uint8]
    assert not wide, [(array.shape, array.dtype) for array in wide]
    assert any(array.dtype == np.uint8 and array.shape[-3:-1] == (3, 4) for array in arrays)


def test_pixels_stay_bytes_from_the_environment_into_a_minibatch(tmp_path):
    (env,), _ = recorded_envs(3, lengths=(20, 30))
    layout = Layout.from_specs(env.observation_spec(), env.action_spec())
    ring = Ring.open(tmp_path, layout, 500)
    sent = []

    def send(segment):
        segment.incarnation, segment.number = 1, len(sent)
        wire = segment.to_wire()
        assert_pixels_are_bytes(wire)
        arrived = over_the_channel(wire)
        assert_pixels_are_bytes(arrived)
        sent.append(arrived)
        assert ring.append(Segment.from_wire(arrived, layout))

    actor = RandomActor(env.action_spec(), np.random.default_rng(0))
    Rollout([env], actor, new_builder=lambda: SegmentBuilder(layout, 12, send, history=2)).episodes(5)
    assert (tmp_path / "observation.camera.bin").stat().st_size == ring.num_rows * PIXELS
    for drawn in (
        draw_transitions(ring, np.random.default_rng(0), 2, 8, frame_stack=3),
        draw_sequences(ring, np.random.default_rng(0), 2, 8, 4, frame_stack=3),
    ):
        arrays = drawn.to_arrays()
        block = over_the_channel(tables.Block(1, 0, 0, 2, 100, 2, 0, arrays).to_wire())
        for found, expected in zip(block[1:], arrays, strict=True):
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype
        images = [array for array in arrays if array.shape[-3:] == (3, 4, 6)]
        assert images and all(array.dtype == np.uint8 for array in images)
