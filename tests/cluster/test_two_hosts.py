"""Two hosts: experience comes over, through a partition as well, and nothing else of the run can be reached."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.namespaces import hosts_at_a_switch, needs_namespaces
from tests.support.worker_for_tests import STEPS

pytestmark = [pytest.mark.slow, needs_namespaces]

ROOT = Path(__file__).resolve().parents[2]
SEGMENTS, PORT, REPLAY_PORT = 200, 8443, 8008
_PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
_CAN_REACH = (
    "import socket, sys; probe = socket.socket(); probe.settimeout(20); "
    "sys.exit(probe.connect_ex((sys.argv[1], int(sys.argv[2]))))"
)


# Each program is process 1 of its machine: Reverb must not take a server and a client with one id for one process.
_FIRST = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def start(host, tmp_path, name, *arguments):
    command = host.command([*_FIRST, sys.executable, "-m", f"tests.support.{name}", *map(str, arguments)])
    with open(tmp_path / f"{name}.log", "w") as log:
        return subprocess.Popen(command, stderr=log, **_PIPES)


def can_reach(host, address, port):
    return subprocess.run(host.command([sys.executable, "-c", _CAN_REACH, address, str(port)])).returncode == 0


def test_a_worker_on_another_host_and_a_partition(tmp_path):
    with hosts_at_a_switch(2) as (here, elsewhere):
        replay = start(here, tmp_path, "host_for_tests", tmp_path / "run", REPLAY_PORT)
        gateway = start(here, tmp_path, "gateway_for_tests", tmp_path, PORT, REPLAY_PORT)
        watch = threading.Timer(400.0, lambda: (replay.kill(), gateway.kill()))
        watch.start()
        try:
            assert json.loads(replay.stdout.readline()) and int(gateway.stdout.readline()) == PORT
            # The gateway, and not Reverb.
            assert [can_reach(elsewhere, here.ipv4, number) for number in (PORT, REPLAY_PORT)] == [True, False]
            way = f"{here.ipv4}:{PORT}", tmp_path / "run" / "credentials"
            worker = start(elsewhere, tmp_path, "worker_for_tests", *way, SEGMENTS, 8)
            try:
                joined = json.loads(worker.stdout.readline())
                assert joined["slot"] == 0 and joined["errors"] == [], joined
                time.sleep(2)
                elsewhere.pull_the_cable()
                assert not can_reach(elsewhere, here.ipv4, PORT)
                time.sleep(4)
                elsewhere.plug_in_the_cable()
                done = json.loads(worker.stdout.readline())
                assert worker.wait(60) == 0
            finally:
                worker.kill()
            replay.stdin.close()
            stored = json.loads(replay.stdout.readline())
            gateway.stdin.close()
            # A connection may come back before the session that it belongs to.
            assert json.loads(gateway.stdout.readline()).keys() <= {"session"}, "nobody else was refused"
        finally:
            watch.cancel()
            replay.kill()
            gateway.kill()
    assert done["unconfirmed"] == 0
    assert (stored["steps"], stored["malformed"]) == (SEGMENTS * STEPS, 0), "each exactly once"
