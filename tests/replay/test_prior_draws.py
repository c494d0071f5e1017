"""Minibatches have their share of prior data, and draws depend on nothing but the position in the run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.support.ports import free_port
from tests.support.replay_service import DRAW, Server, take_block
from tests.support.segments_for_tests import LAYOUT, filled_ring, numbered_segment
from tfagents_system.checks.schedules import Schedule
from tfagents_system.errors import UserError
from tfagents_system.replay import sampling
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sampling import DrawSettings, PriorData, SampleForm, SequenceForm, TransitionForm
from tfagents_system.replay.server import open_prior
from tfagents_system.transport import tables
from tfagents_system.transport.segments import Column

OWN, PRIOR = 0, 7  # Workers whose numbers the observations have.
B, SAMPLES, STEPS = 16, 5, 40


def prior_ring(folder: Path, held_out: bool = False) -> Ring:
    """Eight episodes of five steps of worker 7, and perhaps one that is held out."""
    ring = Ring.open(folder, LAYOUT, 60, 24)
    segments = [numbered_segment(PRIOR, number=number) for number in range(8)]
    ring.take_over(segments + [numbered_segment(PRIOR, number=8, held_out=True)] * held_out)
    return ring


def settings(folder: Path, form: SampleForm | None = None, **others: object) -> DrawSettings:
    prior = PriorData(prior_ring(folder / "prior", held_out=True), SAMPLES)
    given = {"batch_size": B, "max_block_minibatches": 8, "seed": 3, "prior": prior, **others}
    return DrawSettings(form=form or TransitionForm(), **given)  # type: ignore[arg-type]


def draw(ring: Ring, wanted: DrawSettings, count: int = 200, **options: bool) -> list[np.ndarray]:
    return sampling.draw(ring, np.random.default_rng(1), wanted, count, **options)


@pytest.mark.parametrize(
    "form", [TransitionForm(), TransitionForm(3), SequenceForm(3, 1)], ids=["one", "n", "sequence"]
)
def test_each_minibatch_has_so_many_samples_of_prior_data(tmp_path: Path, form: SampleForm) -> None:
    ring = filled_ring(tmp_path / "ring")
    arrays = draw(ring, settings(tmp_path, form))
    own, prior = arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :]
    place = 1 if form.sequence_length else 0  # A sequence begins with its step types.
    np.testing.assert_array_equal(own[place][..., 0], OWN)
    np.testing.assert_array_equal(prior[place][..., 0], PRIOR)
    assert all(array.shape[:2] == (200, B - SAMPLES) for array in own)
    assert all(array.shape[:2] == (200, SAMPLES) for array in prior)
    if not form.sequence_length:
        assert len(np.unique(prior[0].reshape(-1, 3), axis=0)) == STEPS, "all of its steps, and none that is held out"


def test_held_out_draws_are_of_the_run_s_own_experience(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring")
    ring.append(numbered_segment(number=10, held_out=True))
    ring.append(numbered_segment(number=11))
    held_out = draw(ring, settings(tmp_path, held_out=True))
    parts = held_out[0], held_out[len(held_out) // 2]
    assert [part.shape[1] for part in parts] == [B - SAMPLES, SAMPLES]
    assert all(set(map(tuple, part[..., :2].reshape(-1, 2))) == {(OWN, 10)} for part in parts)


def test_offline_updates_are_of_prior_data_alone_and_wait_for_nobody(tmp_path: Path) -> None:
    server = Server(tmp_path / "ring", free_port())
    try:
        server.service._draw_settings = dataclasses.replace(DRAW, prior=PriorData(prior_ring(tmp_path / "prior"), 2))
        reader = server.connection.reader(tables.BLOCKS)
        for iteration, count in ((0, 20), (tables.OFFLINE, 18)):
            server.connection.put(tables.REQUESTS, tables.Request(1, iteration, 0, count, 0).to_wire())
        blocks = [take_block(server, reader) for _ in range(3)]
        assert [(b.iteration, b.first, b.count, b.total) for b in blocks] == [
            (tables.OFFLINE, 0, 8, 18),
            (tables.OFFLINE, 8, 8, 18),
            (tables.OFFLINE, 16, 2, 18),
        ]
        assert all(set(block.arrays[0][..., 0].ravel()) == {PRIOR} and block.env_steps == 0 for block in blocks)
        server.turn()
        assert server.service.waiting_for == "iteration 0 of workers [0]"
        # A trainer that was killed after the first block asks for the rest.
        server.connection.put(tables.REQUESTS, tables.Request(2, tables.OFFLINE, 8, 10, 0).to_wire())
        np.testing.assert_equal(take_block(server, reader).arrays, blocks[1].arrays)
        segment = numbered_segment(steps=50, iteration=0, end_of_iteration=True)
        server.connection.put(tables.SEGMENTS, segment.to_wire())
        take_block(server, reader)
        server.connection.put(tables.REQUESTS, tables.Request(2, 0, 0, 20, 0).to_wire())
        arrays = take_block(server, reader).arrays
        assert set(arrays[0][..., 0].ravel()) == {OWN} and set(arrays[len(arrays) // 2][..., 0].ravel()) == {PRIOR}
        server.service._draw_settings = DRAW
        server.connection.put(tables.REQUESTS, tables.Request(2, tables.OFFLINE, 8, 10, 0).to_wire())
        server.turn_until(lambda: server.service.malformed == 1)
    finally:
        server.close()


def test_offline_updates_of_a_later_agent_have_the_discount_of_its_first_step(tmp_path: Path) -> None:
    schedule = Schedule.of({"points": [[0, 0.3], [100, 0.5]], "by": "env_steps"})
    for steps, expected in ((0, 0.3), (50, 0.4)):
        prior = PriorData(prior_ring(tmp_path / f"prior {steps}"), 2, offline_env_steps=steps)
        draw = dataclasses.replace(DRAW, prior=prior, schedules={"discount": schedule})
        assert draw.at(0, 0, tables.OFFLINE).discount == pytest.approx(expected)
        assert draw.at(100, 0, 0).discount == 0.5


def test_a_ring_that_is_gone_damaged_or_of_another_layout_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no replay ring"):
        open_prior(tmp_path / "prior", LAYOUT)
    ring = prior_ring(tmp_path / "prior")
    other = dataclasses.replace(LAYOUT, action=(Column("action", (3,), "float32"),))
    with pytest.raises(UserError, match=r"action: here float32 \[3\], there float32 \[2\]"):
        open_prior(tmp_path / "prior", other)
    ring.reward[3] += 1.0  # Of the first episode.
    assert open_prior(tmp_path / "prior", LAYOUT).training_steps == STEPS - 5


def test_an_update_of_two_parts_is_that_of_the_whole_minibatch() -> None:
    import tensorflow as tf

    from tests.support.tiny_agents import ACTION, OBSERVATION, TinyParams
    from tfagents_system.agents.agent import make_agent
    from tfagents_system.agents.block_update import make_block_update

    def trained(prior_data: str | None) -> list[np.ndarray]:
        params = TinyParams({"horizon": 5})
        own = {"batch_size": 8, "prior_data": prior_data, "validation_share": 0.1}
        vars(params).update(own, prior_data_share=0.25, normalize_rewards=False)
        tf.keras.utils.set_random_seed(4)
        agent = make_agent(params, OBSERVATION, ACTION, tf.Variable(0, dtype=tf.int64))
        update = make_block_update(params, agent, seed=1)
        rng = np.random.default_rng(0)
        shapes = [(3,), (2,), (), (), (3,)]
        whole = [rng.uniform(-1, 1, (4, 8, *shape)).astype(np.float32) for shape in shapes]
        parts = [array[:, :6] for array in whole] + [array[:, 6:] for array in whole]
        arrays = parts if prior_data else whole
        assert [spec.shape[1:] for spec in update.block_spec] == [array.shape[1:] for array in arrays]
        losses = [*update(arrays).values(), *update.measure(arrays).values()]
        return [np.array(losses), *(variable.numpy() for variable in agent.trainable_variables)]

    np.testing.assert_equal(trained("demos.npz"), trained(None))
