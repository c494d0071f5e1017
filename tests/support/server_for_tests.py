"""A Reverb server as a program, confined to this machine: `server_for_tests.py PORT`; prints where it listens."""

from __future__ import annotations

import json
import sys

import reverb

from tests.support.reverb_for_tests import make_server
from tfagents_system.transport import loopback, tables


def main() -> None:
    port = int(sys.argv[1])

    def start() -> reverb.Server:
        return make_server(list(tables.make_tables(1).values()), port)

    server = loopback.start_confined(start, port)
    print(json.dumps(loopback.listening()), flush=True)
    sys.stdin.readline()
    server.stop()


if __name__ == "__main__":
    main()
