"""A Reverb server as a program: `server_for_tests.py PORT confined|open|unhooked`; prints what came of it, and waits.

`unhooked` leaves out the hook alone: what looks at the kernel's tables must then refuse.
"""

from __future__ import annotations

import json
import sys

import reverb

from tests.support.reverb_for_tests import make_server
from tfagents_system.errors import UserError
from tfagents_system.transport import loopback, tables


def main() -> None:
    port, how = int(sys.argv[1]), sys.argv[2]

    def start() -> reverb.Server:
        return make_server(list(tables.make_tables(1).values()), port)

    if how == "unhooked":
        loopback.confine_bind = lambda: None
    refused = ""
    try:
        server = start() if how == "open" else loopback.start_confined(start, port)
    except UserError as error:
        server, refused = None, str(error)
    print(json.dumps({"listening": loopback.listening(), "refused": refused}), flush=True)
    sys.stdin.readline()
    if server is not None:
        server.stop()


if __name__ == "__main__":
    main()
