"""Images are uint8 on all of their way from the environment into a minibatch: frames are stored and sent so."""

import numpy as np

from tests.support.draws import draw_sequences, draw_transitions
from tests.support.frames_for_tests import recorded_envs
from tfagents_system.replay.ring import Ring
from tfagents_system.transport.segments import Layout, from_wire
from tfagents_system.worker.actors import RandomActor
from tfagents_system.worker.rollout import Rollout, SegmentBuilder

PIXELS = 3 * 4 * 2


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
        sent.append(wire)
        assert ring.append(from_wire(wire, layout)[0])

    actor = RandomActor(env.action_spec(), np.random.default_rng(0))
    Rollout([env], actor, new_builder=lambda: SegmentBuilder(layout, 12, send, history=2)).episodes(5)
    assert (tmp_path / "observation.camera.bin").stat().st_size == ring.num_rows * PIXELS
    for drawn in (
        draw_transitions(ring, np.random.default_rng(0), 2, 8, frame_stack=3),
        draw_sequences(ring, np.random.default_rng(0), 2, 8, 4, frame_stack=3),
    ):
        arrays = drawn.to_arrays()
        images = [array for array in arrays if array.shape[-3:] == (3, 4, 6)]
        assert images and all(array.dtype == np.uint8 for array in images)
