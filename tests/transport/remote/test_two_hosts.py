"""Two hosts: experience comes over, through a partition as well, and nothing else of the run can be reached."""

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.host_for_tests import PORT
from tests.support.namespaces import needs_namespaces, two_hosts
from tests.support.waiting import until
from tests.support.worker_for_tests import STEPS

pytestmark = [pytest.mark.slow, needs_namespaces]

ROOT = Path(__file__).resolve().parents[3]
SEGMENTS = 200
_PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
_CAN_REACH = (
    "import socket, sys; probe = socket.socket(); probe.settimeout(20); "
    "sys.exit(probe.connect_ex((sys.argv[1], int(sys.argv[2]))))"
)


def start(host, tmp_path, name, *arguments):
    command = host.command([sys.executable, "-m", f"tests.support.{name}", *map(str, arguments)])
    with open(tmp_path / f"{name}.log", "w") as log:
        return subprocess.Popen(command, stderr=log, **_PIPES)


def can_reach(host, address, port):
    return subprocess.run(host.command([sys.executable, "-c", _CAN_REACH, address, str(port)])).returncode == 0


def test_a_worker_on_another_host_and_a_partition(tmp_path):
    exp_dir = tmp_path / "run"
    with two_hosts() as (here, elsewhere):
        run = start(here, tmp_path, "host_for_tests", exp_dir)
        watch = threading.Timer(400.0, run.kill)
        watch.start()
        try:
            port = json.loads(run.stdout.readline())["port"]
            # The gateway, and not Reverb.
            assert [can_reach(elsewhere, here.ipv4, number) for number in (port, PORT)] == [True, False]
            worker = start(
                elsewhere, tmp_path, "worker_for_tests", f"{here.ipv4}:{port}", exp_dir / "credentials", SEGMENTS, 8
            )
            try:
                joined = json.loads(worker.stdout.readline())
                assert joined["slot"] == 1 and joined["errors"] == [], joined
                for fact in (
                    f"{here.ipv4} is {here.ipv4}",
                    f"port {port} answers",
                    "TLS",
                    "the same inputs",
                    "4 worker slots",
                ):
                    assert fact in joined["report"]
                time.sleep(2)
                elsewhere.pull_the_cable()
                assert not can_reach(elsewhere, here.ipv4, port)
                time.sleep(4)
                elsewhere.plug_in_the_cable()
                done = json.loads(worker.stdout.readline())
                assert worker.wait(60) == 0
            finally:
                worker.kill()
            run.stdin.close()
            stored = json.loads(run.stdout.readline())
        finally:
            watch.cancel()
            run.kill()
    assert done["unconfirmed"] == 0
    assert stored["steps"] == SEGMENTS * STEPS  # Each exactly once.
    assert (stored["malformed"], stored["refused"]) == (0, {"silent": 1})  # The probe of the port, which said nothing.


def test_what_stands_in_the_way_is_told_in_seconds(tmp_path):
    """`check_path` names the step that fails: name, port, TLS."""
    code = (
        "import sys, time; from pathlib import Path; from tfagents_system.transport.remote.check import check_path; "
        "began = time.monotonic(); "
        "[print('|'.join(check_path(a, Path(sys.argv[1])).errors)) for a in sys.argv[2:]]; "
        "print(time.monotonic() - began)"
    )
    from tfagents_system.transport.remote import credentials

    credentials.make_credentials(tmp_path / "credentials", "test")
    with two_hosts() as (here, elsewhere):
        plain = subprocess.Popen(here.command([sys.executable, "-m", "http.server", "8100"]), stderr=subprocess.DEVNULL)
        try:
            until(lambda: can_reach(elsewhere, here.ipv4, 8100), 100.0, "a server that is no gateway")
            addresses = [
                "no.such.host.invalid:8100",
                f"{here.ipv4}:8101",
                f"{here.ipv4}:8100",
                "10.99.0.77:8100",
                "nonsense",
            ]
            result = subprocess.run(
                elsewhere.command([sys.executable, "-c", code, str(tmp_path / "credentials"), *addresses]),
                capture_output=True,
                text=True,
                cwd=ROOT,
                timeout=300,
                check=True,
            )
        finally:
            plain.kill()
            plain.wait()
    *lines, secs = result.stdout.splitlines()
    assert float(secs) < 40
    for line, words in zip(
        lines,
        ["does not know the host no.such.host.invalid", "nobody listens", "does not prove to be the gateway",
         "can't reach 10.99.0.77 port 8100", "must be host:port"],
        strict=True,
    ):  # fmt: skip
        assert re.search(words, line), (line, result.stderr[-2000:])
