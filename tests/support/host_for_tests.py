"""A run's replay server as a program: `host_for_tests.py FOLDER PORT`; ends with its standard input.

A real Reverb server on loopback and a real ring, which a second start continues. Prints one line of JSON when it is up,
and one at the end: what is stored.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from tests.support.reverb_for_tests import make_server
from tests.support.segments_for_tests import LAYOUT
from tfagents_system.replay.pacing import Lockstep
from tfagents_system.replay.recovery import SnapshotWriter
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sampling import DrawSettings, TransitionForm
from tfagents_system.replay.server import ReplayService
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport import loopback, tables
from tfagents_system.transport.connection import Connection


def main() -> None:
    paths, port = RunPaths(Path(sys.argv[1])), int(sys.argv[2])
    all_tables = tables.make_tables(40)
    server = loopback.start_confined(lambda: make_server(list(all_tables.values()), port), port)
    connection = Connection(f"localhost:{port}", lambda: False)
    ring = Ring.open(paths.replay, LAYOUT, 100_000)
    snapshots = SnapshotWriter(ring, paths.trainer_checkpoints)
    draw, pacing = DrawSettings(8, TransitionForm(), 10, 0), Lockstep(ring, 1, 120.0)
    service = ReplayService(ring, connection, all_tables[tables.BLOCKS], 40, draw, pacing, snapshots)
    print(json.dumps({"pid": os.getpid()}), flush=True)
    is_over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    while not is_over.is_set():
        service.step()
    service.drain(5.0)
    stored = {"steps": ring.env_steps, "duplicates": service.duplicates, "malformed": service.malformed}
    print(json.dumps(stored), flush=True)
    server.stop()
    os._exit(0)  # Threads that read from Reverb block in C++.


if __name__ == "__main__":
    main()
