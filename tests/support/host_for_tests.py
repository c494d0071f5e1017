"""A run's replay server and gateway in one program: `host_for_tests.py FOLDER`; ends with its standard input.

A real Reverb server on loopback, a real ring, a real gateway; prints one line of JSON when they are up, and one at the
end: what is stored, and who was refused.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path

from tests.support.channel_for_tests import IDENTITY, LAYOUT, NoClaims
from tests.support.reverb_for_tests import make_server
from tfagents_system.machine.worker_slots import SlotCounts
from tfagents_system.replay.draw_settings import DrawSettings
from tfagents_system.replay.pacing import Lockstep
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sample_forms import TransitionForm
from tfagents_system.replay.service import ReplayService
from tfagents_system.replay.snapshots import SnapshotWriter
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport import loopback, tables
from tfagents_system.transport.connection import Connection
from tfagents_system.transport.remote import credentials
from tfagents_system.transport.remote.gateway import Gateway, RunFacts, layout_frame_bytes
from tfagents_system.transport.remote.remote_slots import RemoteSlots
from tfagents_system.transport.remote.shared_tables import SharedTables

PORT = 8008


def main() -> None:
    paths = RunPaths(Path(sys.argv[1]))
    for folder in (paths.logs, paths.heartbeats):
        folder.mkdir(parents=True)
    credentials.ensure_credentials(paths.credentials, "test")
    all_tables = tables.make_tables(4)
    server = loopback.start_confined(lambda: make_server(list(all_tables.values()), PORT), PORT)
    connection = Connection(f"localhost:{PORT}", lambda: False)
    ring = Ring.open(paths.replay, LAYOUT, 100_000)
    snapshots = SnapshotWriter(ring, None, paths.trainer_checkpoints)
    draw, pacing = DrawSettings(8, TransitionForm(), 10, 0), Lockstep(ring, 1, 120.0)
    service = ReplayService(ring, connection, all_tables[tables.BLOCKS], 4, draw, pacing, snapshots)
    facts = RunFacts(paths, IDENTITY, 4, {}, 7, layout_frame_bytes(LAYOUT, None))
    slots = RemoteSlots(SlotCounts(1, 1, 4), PORT, paths.gateway_slots, NoClaims())  # type: ignore[arg-type]
    gateway = Gateway(facts, SharedTables(connection), slots, credentials.server_context(paths.credentials))
    print(json.dumps({"port": gateway.listen(0), "host": socket.gethostname()}), flush=True)
    is_over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    while not is_over.is_set():
        service.step()
    service.drain(5.0)
    stored = {"steps": ring.env_steps, "duplicates": service.duplicates, "malformed": service.malformed}
    print(json.dumps({**stored, **gateway.state()}), flush=True)
    server.stop()
    os._exit(0)  # Threads that read from Reverb block in C++.


if __name__ == "__main__":
    main()
