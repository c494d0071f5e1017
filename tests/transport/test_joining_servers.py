"""Which worker a joining one is, what it takes over from the run, and that it is the same one when it comes again."""

import contextlib
import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.support.settings_for_tests import variables_with
from tfagents_system import sac_collect
from tfagents_system.errors import EXIT_RENEW, UserError
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import Settings
from tfagents_system.transport import joining
from tfagents_system.transport.joining import SlotLostError
from tfagents_system.transport.tunnel import Refused, Welcome

CREDENTIALS = Path("/c/credentials")
COUNTS = {"num_collect_workers": 2, "local_workers": 1, "max_workers": 5}
SHARED: dict[str, dict[str, Any]] = Settings(variables_with(**COUNTS)).shared()


class FakeConnection:
    def __init__(self, address, stop, tunnel=None):
        self.address, self.stop, self.tunnel = address, stop, tunnel

    def wait_until_up(self, deadline_secs):
        self.is_up = True

    def close(self):
        self.is_up = False


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "Connection", FakeConnection)
    paths = RunPaths(tmp_path / "joined")
    paths.exp_dir.mkdir()
    return paths


def join(role, paths, server="localhost:3", **values):
    settings = Settings(variables_with(exp_dir=paths.exp_dir, **COUNTS, **values))
    return joining.join(role, server, lambda: False, settings, paths)


def test_it_comes_again_with_the_slot_that_it_had(paths):
    first = join("worker_0", paths)
    assert first.connection.is_up
    second = join("worker_1", paths)
    assert (first.worker_id, second.worker_id) == (1, 2)
    first.slots.release_all()
    second.slots.release_all()
    again = join("worker_1", paths)
    assert again.worker_id == 2, "though 1 is free, too"
    again.slots.release_all()


def test_its_heartbeats_are_the_runs_as_well(paths, tmp_path):
    run = RunPaths(tmp_path / "run")
    run.heartbeats.mkdir(parents=True)
    membership = join("worker_0", paths, joined_run=run.exp_dir)
    membership.tell({"role": "worker_0", "state": "collecting", "episodes": 3})
    beat = read_heartbeat(run.heartbeat("worker_1"))
    assert beat == {"role": "worker_1", "state": "collecting", "episodes": 3, "remote": True}
    membership.slots.release_all()


def test_a_trainer_has_no_slot(paths):
    membership = join("trainer", paths)
    assert (membership.worker_id, membership.slots) == (-1, None)


def test_another_machine_is_not_spoken_to_in_plain(paths):
    with pytest.raises(UserError, match=r"node7:8443 is another machine, and SAC_CREDENTIALS_DIR is not set"):
        join("worker_0", paths, "node7:8443")


class FakeTunnel:
    """Of a gateway that lets everybody in; `welcome` is what it says now."""

    welcome: Any = None
    made: list["FakeTunnel"] = []

    def __init__(self, address, hello, credentials, password_file):
        self.address, self.hello, self.credentials, self.socket = address, hello, credentials, "/tmp/socket"
        self.end_of_run = self.refused = None
        self.told, self.is_closed = [], False
        self.tell = self.told.append
        self.made.append(self)

    def close(self):
        self.is_closed = True


@pytest.fixture
def welcomed(monkeypatch):
    """Says what the gateway says from now on."""
    monkeypatch.setattr(joining, "Tunnel", FakeTunnel)
    monkeypatch.setattr(joining, "identity_of", lambda *inputs: {"params": "digest"})
    monkeypatch.setattr(FakeTunnel, "made", [])

    def welcome(gateway, run, slot=None, settings=SHARED):
        monkeypatch.setattr(FakeTunnel, "welcome", Welcome(slot, settings, run, gateway))

    return welcome


def test_a_far_trainer_hears_that_another_run_has_begun_where_the_server_is(paths, welcomed):
    """Its tunnel stays: another gateway welcomes it, with the number of another run."""
    welcomed(1, 11)
    far = "trainer", paths, "node7:8443"
    membership = join(*far, credentials_dir=CREDENTIALS)
    assert membership.is_far and membership.ended() is None
    welcomed(2, 11)
    membership.check()
    assert membership.ended() is None, "the same run after a restart"
    welcomed(3, 12)
    assert membership.ended() == "replaced"
    with pytest.raises(UserError, match="the run at node7:8443 has begun anew since .* joined it: .*--fresh"):
        membership.check()
    assert join(*far, credentials_dir=CREDENTIALS).ended() is None, "one that has trained nothing yet may join it"
    paths.metrics_csv.write_text("train_step\n5\n")
    paths.run_json.write_text("{}")
    welcomed(4, 13)
    with pytest.raises(UserError, match="has begun anew"):
        join(*far, credentials_dir=CREDENTIALS)
    assert FakeTunnel.made[-1].is_closed
    FakeTunnel.made[0].end_of_run = "done"
    assert membership.ended() == "done"


def test_through_a_tunnel_the_gateway_says_who_it_is(paths, welcomed):
    told = SHARED["variables"] | {"seed": 17, "max_workers": None, "exec_prefix": "rm", "BASH_ENV": "/tmp/x"}
    defaults = {"log_period_iters": 5, "env_ctor": 3, "horizon": "200"}
    welcomed(1, 11, 4, {"variables": told, "defaults": defaults})
    membership, *_ = (
        join(role, paths, "node7:8443", credentials_dir=CREDENTIALS, worker_role="eval")
        for role in ("worker_0", "worker_0", "worker_1")
    )
    variables = membership.settings.variables
    assert (membership.worker_id, variables.seed, variables.slots.most, variables.local_workers) == (4, 17, 2, 1)
    assert variables.exec_prefix is None, "the other side sets what both share, and nothing else"
    assert membership.settings.overrides.defaults == {"log_period_iters": 5}
    first, again, other = (tunnel.hello for tunnel in FakeTunnel.made)
    assert first.kind == "eval" and first.identity == {"params": "digest"}
    assert first.token == again.token != other.token and len(first.token) == 32
    assert membership.connection.tunnel == "/tmp/socket"
    membership.tell({"state": "idle"})
    (tunnel, *_) = FakeTunnel.made
    assert tunnel.told == [{"state": "idle"}]
    tunnel.end_of_run = "stopped"
    assert membership.ended() == "stopped"
    membership.leave()
    assert tunnel.is_closed


@pytest.mark.parametrize(("reason", "error"), [("slot_lost", SlotLostError), ("inputs", UserError)])
def test_who_is_refused_later_hears_why(paths, welcomed, reason, error):
    welcomed(1, 11, 4)
    membership = join("worker_0", paths, "node7:8443", credentials_dir=CREDENTIALS)
    membership.check()
    FakeTunnel.made[0].refused = Refused(reason, "for this reason")
    assert membership.ended() == "refused"
    with pytest.raises(error, match="the gateway at node7:8443 refuses us: for this reason"):
        membership.check()


@pytest.mark.parametrize("closing", [None, OSError("no such device")])
def test_a_worker_whose_slot_was_given_away_leaves_and_begins_anew(monkeypatch, closing):
    monkeypatch.setattr(sac_collect, "make_worker", MagicMock())
    sac_collect.make_worker().close.side_effect = closing
    role = MagicMock(stop=threading.Event())
    role.joined.check.side_effect = SlotLostError("slot 1 was given to another worker")
    with pytest.raises(OSError) if closing else contextlib.nullcontext():
        assert sac_collect.collect(role) == EXIT_RENEW
    role.joined.leave.assert_called_once_with()
