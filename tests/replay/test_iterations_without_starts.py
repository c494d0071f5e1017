"""Iterations that bring no step at which a sample may start: nobody waits for what only their end lets come."""

import dataclasses

import pytest

from tests.support.ports import free_port
from tests.support.replay_service import Server, ask, take_block
from tests.support.segments_for_tests import numbered_segment
from tfagents_system.transport import tables


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path / "ring", free_port(), updates_per_env_step=0.5)
    yield server
    server.close()


def collect(server, iteration, steps=4, deferred=0, **options):
    """A segment of the only worker, the last of an iteration; at so many of its steps no sample starts yet."""
    options |= {"ends_episode": not deferred, "end_of_iteration": True}
    segment = numbered_segment(number=iteration, steps=steps, iteration=iteration, **options)
    server.connection.put(tables.SEGMENTS, dataclasses.replace(segment, deferred=deferred).to_wire())


def test_updates_of_iterations_without_starts_become_due_with_a_later_one(server):
    reader, updates = server.connection.reader(tables.BLOCKS), []
    for iteration, deferred in enumerate([4, 4, 3, 0]):
        ask(server, iteration, count=tables.AS_DUE, updates=sum(updates))
        collect(server, iteration, deferred=deferred)
        block = take_block(server, reader)
        assert (block.iteration, block.first, block.count) == (iteration, 0, block.total)
        updates.append(block.total)
    assert updates == [0, 0, 6, 2] and server.ring.ring_steps == 5


def test_who_waits_for_the_next_iteration_is_told_why_nothing_was_trained(server):
    reader = server.connection.reader(tables.BLOCKS)
    collect(server, 0, deferred=4)
    ask(server, 0, count=tables.AS_DUE, updates=0)
    take_block(server, reader)
    ask(server, 1, count=tables.AS_DUE, updates=0)
    server.turn()
    told = server.service.waiting_for
    assert told is not None and told.startswith("iteration 1 of workers [0]; nothing to train on so far, no sample")
    assert "raise env_steps_per_iter" in told
