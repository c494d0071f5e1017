"""A remote worker: `worker_for_tests.py ADDRESS CREDENTIALS SEGMENTS SECS`.

Sends segments of 100 steps for so many seconds, waits until all are stored, and prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.support.channel_for_tests import IDENTITY, segment
from tfagents_system.transport.connection import Waiting
from tfagents_system.transport.remote.check import check_path
from tfagents_system.transport.remote.client import Hello, RemoteConnection
from tfagents_system.worker.sender import SegmentSender

STEPS = 100


def main() -> None:
    address, folder, count, secs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    checks = check_path(address, folder, identity=IDENTITY)
    connection = RemoteConnection(address, lambda: False, Hello("collect", IDENTITY), credentials=folder)
    connection.wait_until_up(30.0)
    sender = SegmentSender(connection, connection.slot, time.time_ns())  # type: ignore[arg-type]
    print(json.dumps({"slot": connection.slot, "errors": checks.errors, "report": checks.report()}), flush=True)
    for _ in range(count):
        sender.send(segment(0, connection.slot, STEPS))
        sender.confirm()
        time.sleep(secs / count)
    sender.flush(Waiting("the segments", 60.0, lambda: False))
    print(json.dumps({"unconfirmed": sender.unconfirmed_segments}), flush=True)
    connection.close()


if __name__ == "__main__":
    main()
