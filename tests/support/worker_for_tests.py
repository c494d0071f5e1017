"""A worker on another machine: `worker_for_tests.py ADDRESS CREDENTIALS SEGMENTS SECS`.

Sends segments of 100 steps for so many seconds, waits until all are stored, and prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.support.gateway_for_tests import IDENTITY, wait_until
from tests.support.segments_for_tests import numbered_segment
from tfagents_system.transport.connection import Connection, Waiting
from tfagents_system.transport.tunnel import Hello, Tunnel, check_path
from tfagents_system.worker.sender import SegmentSender

STEPS = 100


def main() -> None:
    address, folder, count, secs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    checks = check_path(address, folder, identity=IDENTITY)
    hello = Hello("collect", IDENTITY, token=str(time.time_ns()))
    tunnel = Tunnel(address, hello, folder, None, Path("no heartbeat"))
    wait_until(lambda: tunnel.welcome is not None)
    slot = tunnel.worker_id
    sender = SegmentSender(Connection(address, lambda: False, tunnel.socket), slot, time.time_ns())
    print(json.dumps({"slot": slot, "errors": checks.errors, "report": checks.report()}), flush=True)
    for _ in range(count):
        sender.send(numbered_segment(slot, steps=STEPS))
        sender.confirm()
        time.sleep(secs / count)
    sender.flush(Waiting("the segments", 120.0, lambda: False))
    print(json.dumps({"unconfirmed": sender.unconfirmed_segments}), flush=True)
    tunnel.leave()


if __name__ == "__main__":
    main()
