"""Credentials by machine: each has a name and an end; whoever is shut out is out at once, and the others go on."""

import datetime
import os
import shutil
import stat
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from tests.support.channel_for_tests import IDENTITY, running_gateway, segment, wait_until
from tfagents_system.errors import UserError
from tfagents_system.transport import tables
from tfagents_system.transport.remote import channel as channel_module
from tfagents_system.transport.remote import credentials, frames, gateway, machines, messages, session
from tfagents_system.transport.remote import tls_client as tls_client_module
from tfagents_system.transport.remote.check import check_path
from tfagents_system.transport.remote.errors import ChannelError, GatewayRefusedError
from tfagents_system.transport.remote.tls_client import TlsClient

ROOT = Path(__file__).resolve().parents[3]
LIMITS = frames.Limits(10**6, 10**6)


@pytest.fixture
def folder(tmp_path):
    credentials.make_credentials(tmp_path / "run" / "credentials", "test")
    return tmp_path / "run" / "credentials"


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(gateway, "_TEND_SECS", 0.0)
    monkeypatch.setattr(channel_module, "_FIRST_BACKOFF_SECS", 0.05)
    monkeypatch.setattr(channel_module, "_MAX_BACKOFF_SECS", 0.1)


def command(folder, *words):
    assert machines.main([str(folder), *words]) == 0


def end_in_an_hour(monkeypatch, folder, name):
    """Credentials of a machine."""
    now = datetime.datetime.now(datetime.UTC)
    with monkeypatch.context() as patched:
        patched.setattr(credentials, "_now", lambda: now + datetime.timedelta(days=-5, hours=1))
        patched.setattr(credentials, "_check_dates", lambda *_, **__: [])
        machines.add(folder, name, days=5)


def turn_clocks(monkeypatch, hours):
    """Those by which both sides tell whether a certificate has expired; of the clients first."""
    later = datetime.timedelta(hours=hours)
    ahead = types.SimpleNamespace(**vars(time) | {"time": lambda: time.time() + later.total_seconds()})
    monkeypatch.setattr(credentials, "_now", lambda: datetime.datetime.now(datetime.UTC) + later)
    for module in (tls_client_module, gateway):
        monkeypatch.setattr(module, "time", ahead)


def test_each_machine_has_a_name_and_an_end_and_its_files_are_ours_alone(folder, capsys):
    command(folder.parent, "add", "laptop")
    command(folder, "add", "node7", "--days", "3")
    own = folder / "machines" / "laptop"
    assert f"{own}: good until " in capsys.readouterr().out
    assert sorted(path.name for path in own.iterdir()) == ["ca.pem", "client.key", "client.pem"]
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert credentials.days_left(own, credentials.CLIENT) in (29, 30)
    assert credentials.days_left(folder / "machines" / "node7", credentials.CLIENT) in (2, 3)
    command(folder, "revoke", "node7")
    capsys.readouterr()
    command(folder, "list")
    laptop, node7 = capsys.readouterr().out.splitlines()
    day = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
    assert laptop.startswith(f"laptop: until {day:%Y-%m}") and node7.startswith("node7: revoked, until ")


def test_a_name_is_shut_out_although_the_line_before_it_has_no_end(folder):
    for name in ("laptop", "node7"):
        command(folder, "add", name)
    (folder / "revoked").write_text("someone")
    command(folder, "revoke", "laptop")
    command(folder, "revoke", "node7")
    assert machines.Revocations(folder).names() == {"someone", "laptop", "node7"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "../x"], r"'../x' must be a name of at most 63 letters"),
        (["add", ""], "must be a name"),
        (["add", "a\nb"], "must be a name"),
        (["add", "x" * 64], "at most 63"),
        (["add", "x", "--days", "0"], "--days 0 must be 1 to 365"),
        (["add", "gone"], "gone was revoked, and so would be new ones of that name: take another, such as gone-2"),
        (["revoke", "a\nb"], "there are no credentials named"),
        (["revoke", "nobody"], "there are no credentials named 'nobody': gone"),
    ],
)
def test_what_can_not_be_made_is_refused(folder, words, message):
    command(folder, "add", "gone")
    command(folder, "revoke", "gone")
    with pytest.raises(UserError, match=message):
        machines.main([str(folder), *words])
    assert sorted(os.listdir(folder / "machines")) == ["gone"]


def test_a_machine_that_was_shut_out_is_out_within_seconds_and_others_go_on(tmp_path, capsys):
    with running_gateway(tmp_path, max_workers=5) as running:
        laptop, node7 = (machines.add(running.paths.credentials, name) for name in ("laptop", "node7"))
        machines.add(
            running.paths.credentials, "laptop"
        )  # Anew: the name is what counts, for the earlier ones as well.
        bad, again = running.client(credentials=laptop), running.client(credentials=laptop)
        good = running.client(credentials=node7)
        for each in (bad, again, good):
            each.wait_until_up(10)
        running.gateway.tend()
        assert running.gateway.state()["connections"] == 3
        command(running.paths.exp_dir, "revoke", "laptop")
        running.gateway.tend()
        wait_until(lambda: running.gateway.state()["connections"] == 1)
        for each in (bad, again):
            with pytest.raises(GatewayRefusedError, match="'laptop'.* were revoked: ask for others .*RUN add NAME"):
                each.put(tables.REPORTS, [], 10)
        good.put(tables.SEGMENTS, segment(0, good.slot).to_wire())
        wait_until(lambda: len(running.tables.items[tables.SEGMENTS]) == 1)
        assert running.refused("revoked") == 2
        (error,) = check_path(running.address, laptop, identity=IDENTITY).errors
        assert "refuses us: this machine's credentials ('laptop') were revoked" in error
        assert check_path(running.address, node7, identity=IDENTITY).errors == []
        # Whatever happens to the file, nobody comes back.
        (running.paths.credentials / "revoked").rename(tmp_path / "away")
        (running.paths.credentials / "revoked").mkdir()
        assert len(check_path(running.address, laptop, identity=IDENTITY).errors) == 1
        good.close()


def test_an_end_in_mid_session_ends_it_and_new_credentials_bring_it_back(tmp_path, monkeypatch):
    with running_gateway(tmp_path, max_workers=5) as running:
        for name in ("lost", "renewed"):
            end_in_an_hour(monkeypatch, running.paths.credentials, name)
        for name in ("lost", "renewed"):  # As on machines elsewhere.
            shutil.copytree(running.paths.credentials / "machines" / name, tmp_path / name)
        lost, renewed = (running.client(credentials=tmp_path / name) for name in ("lost", "renewed"))
        lost.wait_until_up(10)
        renewed.wait_until_up(10)
        slot = renewed.slot
        running.gateway.tend()
        assert running.gateway.state()["connections"] == 2
        new = machines.add(running.paths.credentials, "renewed")
        for file in new.iterdir():
            shutil.copy2(file, tmp_path / "renewed" / file.name)
        running.gateway.tend()
        assert running.gateway.state()["connections"] == 2 and lost._channel.refusal is None
        turn_clocks(monkeypatch, hours=2)
        running.gateway.tend()
        wait_until(lambda: lost._channel.refusal is not None)
        with pytest.raises(
            GatewayRefusedError, match="client.pem expired on .* UTC: make others .*add NAME.*copy them here"
        ):
            lost.put(tables.REPORTS, [], 10)
        wait_until(lambda: renewed.describe() == "")
        renewed.put(tables.SEGMENTS, segment(0, slot).to_wire())
        wait_until(lambda: len(running.tables.items[tables.SEGMENTS]) == 1)
        assert renewed.slot == slot
        with pytest.raises(UserError, match="expired on"):
            TlsClient(running.address, tmp_path / "lost", None)
        renewed.close()


def test_whoever_sees_the_runs_own_folder_gets_its_own_and_new_ones_in_time(folder, monkeypatch):
    monkeypatch.setattr(machines.socket, "gethostname", lambda: "node 7.lab")
    own = machines.folder_of_client(folder)
    assert own == folder / "machines" / "node-7.lab"
    first = (own / "client.pem").read_bytes()
    assert machines.folder_of_client(folder) == own and (own / "client.pem").read_bytes() == first
    machines.add(folder, "node-7.lab", 14)
    soon = (own / "client.pem").read_bytes()
    assert machines.folder_of_client(folder) == own and (own / "client.pem").read_bytes() not in (first, soon)
    assert credentials.days_left(own, credentials.CLIENT) >= 29
    assert os.listdir(folder / "machines") == ["node-7.lab"]
    machines.add(folder, "node-7.lab", 14)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(credentials, "_write", full)
    assert machines.folder_of_client(folder) == own, "it is good for two weeks"
    monkeypatch.setattr(machines.socket, "gethostname", lambda: "node8")
    with pytest.raises(UserError, match=r"node8 can't be made: No space left on device: make it on the run's machine"):
        machines.folder_of_client(folder)


def test_workers_of_a_machine_that_start_at_once_share_one(folder):
    """Each process would replace what another one is reading."""
    program = (
        "import sys; from pathlib import Path; from tfagents_system.transport.remote import credentials, machines; "
        "folder = Path(sys.argv[1]); print(flush=True); input(); own = machines.folder_of_client(folder); "
        "credentials.client_context(own); print((own / 'client.pem').read_bytes().hex())"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in range(4)
    ]
    for process in processes:
        process.stdout.readline()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    found = {process.communicate(timeout=60)[0] for process in processes}
    assert len(found) == 1 and len(found.pop()) > 100 and [process.returncode for process in processes] == [0] * 4


def test_those_who_only_check_are_few_and_short_and_stand_in_nobodys_way(tmp_path, monkeypatch):
    monkeypatch.setattr(gateway, "_MAX_CHECKS", 5)
    monkeypatch.setattr(gateway, "_MAX_CHECKS_OF_ONE", 3)
    monkeypatch.setattr(session, "CHECK_SECS", 1.0)
    monkeypatch.setattr(gateway, "CHECK_SECS", 1.0)
    with running_gateway(tmp_path) as running:
        doors = [TlsClient(running.address, machines.add(running.paths.credentials, name), None) for name in "abc"]

        def check(tls_client):
            transport = tls_client.open()
            transport.send(messages.Hello("check"))
            answer, _ = transport.receive(messages.FromGateway, LIMITS, 10)
            return transport, answer

        answers = [check(tls_client) for tls_client in doors for _ in range(4)]
        kinds = [type(answer).__name__ for _, answer in answers]
        assert kinds == [*["Welcome"] * 3, "Refused", *["Welcome"] * 2, *["Refused"] * 6]
        refused = answers[3][1]
        assert (refused.reason, refused.final) == ("busy", False) and "3 programs only check" in refused.message
        (error,) = check_path(running.address, doors[0].folder).errors
        assert "try again in a minute" in error
        worker = running.client()
        worker.wait_until_up(10)  # Workers have their own places.
        began = time.monotonic()
        held = [transport for transport, answer in answers if isinstance(answer, messages.Welcome)]
        while running.gateway.state()["connections"] > 1:
            running.gateway.tend()
            for transport in held:  # They would stay for ever.
                try:
                    transport.send(messages.Ping())
                except ChannelError:
                    pass
            assert time.monotonic() - began < 10
            time.sleep(0.05)
        assert check_path(running.address, doors[0].folder).errors == []
        worker.close()
        for transport, _ in answers:
            transport.close()
