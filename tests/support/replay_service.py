"""A replay server in the tests' process, whose loop the test turns."""

from __future__ import annotations

import dataclasses
import threading
import time

import numpy as np

from tests.support.reverb_for_tests import make_server
from tests.support.segments_for_tests import LAYOUT
from tfagents_system.replay.pacing import Lockstep, WorkerOrder
from tfagents_system.replay.priorities import Priorities
from tfagents_system.replay.recovery import SnapshotWriter
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sampling import DrawSettings, TransitionForm
from tfagents_system.replay.server import ReplayService
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection, Reader

DRAW = DrawSettings(batch_size=4, form=TransitionForm(), max_block_minibatches=8, seed=0, held_out_minibatches=3)


class Server:
    """A replay server in this process, whose loop the test turns."""

    def __init__(self, folder, port, num_workers=1, updates_per_env_step=None, has_room=None, priority_exponent=None):
        self.ring = Ring.open(folder, LAYOUT, 1000)
        self.checkpoints = folder.parent / "checkpoints"
        priorities = None if priority_exponent is None else Priorities(self.ring, priority_exponent)
        self.snapshots = SnapshotWriter(self.ring, self.checkpoints, priorities)
        draw = DRAW
        if priorities is not None:
            form = TransitionForm(is_prioritized=True)
            draw = dataclasses.replace(DRAW, form=form, priorities=priorities)
        all_tables = tables.make_tables(num_workers)
        self.reverb = make_server(list(all_tables.values()), port=port)
        self.connection = Connection(f"localhost:{port}", lambda: False)
        self.streams = []
        self._sample = self.connection._client.sample
        self.connection._client.sample = self._keep_stream
        pacing = Lockstep(self.ring, num_workers, straggler_secs=60.0, updates_per_env_step=updates_per_env_step)
        blocks = all_tables[tables.BLOCKS]
        order = has_room and WorkerOrder(self.ring, lambda iteration: range(num_workers), has_room)
        self.service = ReplayService(
            self.ring, self.connection, blocks, num_workers, draw, pacing, self.snapshots, order
        )

    def close(self):
        """Ends the readers, which wait in Reverb's code, each with an item that nobody needs, and then the server.

        Readers of a server that is gone look for it without end: dozens of them made later tests ten times as slow.
        """
        self.connection.close()
        readers = self._reading()
        tables_read = {reader._table for reader in readers.values()}
        for table in tables_read:
            assert self.connection.try_put(table, [np.zeros(1)], 10.0)
        deadline = time.monotonic() + 20.0
        while any(self.connection.size(table) for table in tables_read):
            assert time.monotonic() < deadline, "readers take no more items"
        self.reverb.stop()
        for thread in readers:
            thread.join(20.0)
            assert not thread.is_alive(), thread.name
        self.streams.clear()

    def _keep_stream(self, table, num_samples=1, **options):
        """Until the server has stopped: before that, its end takes 3 s, in which no other thread runs."""
        stream = self._sample(table, num_samples, **options)
        self.streams += [stream] if num_samples > 1 else []
        return stream

    def _reading(self):
        """The threads that read queues and news over this server's connection, with their readers."""
        targets = {thread: getattr(thread, "_target", None) for thread in threading.enumerate()}
        readers = {thread: getattr(target, "__self__", None) for thread, target in targets.items()}
        return {
            thread: reader
            for thread, reader in readers.items()
            if isinstance(reader, Reader) and reader._connection is self.connection
        }

    def turn_until(self, condition, secs=20.0):
        deadline = time.monotonic() + secs
        while not condition():
            assert time.monotonic() < deadline, "the service did not get there in time"
            self.service.step()

    def turn(self, rounds=40):
        for _ in range(rounds):
            self.service.step()


def ask(server, iteration, session=1, first=0, count=20, updates=None):
    message = tables.Request(
        session, iteration, first, count, iteration * count + first if updates is None else updates
    )
    server.connection.put(tables.REQUESTS, message.to_wire())


def take_block(server, reader):
    blocks = []
    server.turn_until(lambda: blocks.append(reader.get(0)) or blocks[-1] is not None)
    return tables.Block.from_wire(blocks[-1])
