"""Which worker a joining one is, what it takes over from the run, and that it is the same one when it comes again."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.support.settings_for_tests import variables_with
from tfagents_system.errors import UserError
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import Settings
from tfagents_system.transport import joining

CREDENTIALS = Path("/c/credentials")
COUNTS = {"num_collect_workers": 2, "local_workers": 1, "max_workers": 5}
SHARED: dict[str, dict[str, Any]] = Settings(variables_with(**COUNTS)).shared()


class FakeConnection:
    def __init__(self, address, stop):
        self.address, self.stop = address, stop

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
    first.slots.release(1)
    second.slots.release(2)
    again = join("worker_1", paths)
    assert again.worker_id == 2, "though 1 is free, too"
    again.slots.release(2)


def test_its_heartbeats_are_the_runs_as_well(paths, tmp_path):
    run = RunPaths(tmp_path / "run")
    run.heartbeats.mkdir(parents=True)
    membership = join("worker_0", paths, joined_run=run.exp_dir)
    membership.tell({"role": "worker_0", "state": "collecting", "episodes": 3})
    beat = read_heartbeat(run.heartbeat("worker_1"))
    assert beat == {"role": "worker_1", "state": "collecting", "episodes": 3, "remote": True}
    membership.slots.release(1)


def test_a_trainer_has_no_slot(paths):
    membership = join("trainer", paths)
    assert (membership.worker_id, membership.slots) == (-1, None)


def test_another_machine_is_not_spoken_to_in_plain(paths):
    with pytest.raises(UserError, match=r"node7:8443 is another machine, and SAC_CREDENTIALS_DIR is not set"):
        join("worker_0", paths, "node7:8443")


def test_a_far_trainer_hears_that_another_run_has_begun_where_the_server_is(paths, monkeypatch):
    """Its channel stays: another gateway welcomes it, with the number of another run."""

    class Remote(FakeConnection):
        end_of_run = None
        welcome = types.SimpleNamespace(worker_id=-1, settings=SHARED, gateway="one", run=11)

        def __init__(self, address, stop, hello, *, credentials, password_file):
            super().__init__(address, stop)

        def tell(self, heartbeat):
            pass

    monkeypatch.setattr("tfagents_system.transport.remote.client.RemoteConnection", Remote)
    monkeypatch.setattr("tfagents_system.transport.remote.messages.identity_of", lambda *inputs: {})
    far = "trainer", paths, "node7:8443"
    membership = join(*far, credentials_dir=CREDENTIALS)
    assert membership.is_far and membership.ended() is None
    Remote.welcome = types.SimpleNamespace(gateway="two", run=11)
    membership.check_run()
    assert membership.ended() is None, "the same run after a restart"
    Remote.welcome = types.SimpleNamespace(worker_id=-1, settings=SHARED, gateway="three", run=12)
    assert membership.ended() == "replaced"
    with pytest.raises(UserError, match="the run at node7:8443 has begun anew since .* joined it: .*--fresh"):
        membership.check_run()
    assert join(*far, credentials_dir=CREDENTIALS).ended() is None, "one that has trained nothing yet may join it"
    paths.metrics_csv.write_text("train_step\n5\n")
    paths.run_json.write_text("{}")
    Remote.welcome = types.SimpleNamespace(worker_id=-1, settings=SHARED, gateway="four", run=13)
    with pytest.raises(UserError, match="has begun anew"):
        join(*far, credentials_dir=CREDENTIALS)
    Remote.end_of_run = "done"
    assert membership.ended() == "done"


def test_through_the_channel_the_gateway_says_who_it_is(paths, monkeypatch):
    hellos, told = [], []

    class Remote(FakeConnection):
        end_of_run = None
        tell = staticmethod(told.append)
        welcome = types.SimpleNamespace(
            worker_id=4,
            settings={
                "variables": SHARED["variables"] | {"seed": 17, "max_workers": None},
                "defaults": {"log_period_iters": 5},
            },
        )

        def __init__(self, address, stop, hello, *, credentials, password_file):
            super().__init__(address, stop)
            hellos.append((hello, credentials.name, password_file))

    client, messages = types.ModuleType("client"), types.ModuleType("messages")
    client.RemoteConnection = Remote
    messages.Hello = types.SimpleNamespace
    messages.identity_of = lambda paths, overrides: {"params": paths.params.name, "config": paths.config.name}
    for name, module in (("client", client), ("messages", messages)):
        monkeypatch.setitem(sys.modules, f"tfagents_system.transport.remote.{name}", module)
    if "tfagents_system.transport.remote" not in sys.modules:
        monkeypatch.setitem(sys.modules, "tfagents_system.transport.remote", types.ModuleType("remote"))
    membership, *_ = (
        join(role, paths, "node7:8443", credentials_dir=CREDENTIALS, worker_role="eval")
        for role in ("worker_0", "worker_0", "worker_1")
    )
    variables = membership.settings.variables
    assert (membership.worker_id, variables.seed, variables.slots.most, variables.local_workers) == (4, 17, 2, 1)
    assert membership.settings.overrides.attributes == {"log_period_iters": 5}
    first, again, other = (hello for hello, _, _ in hellos)
    assert first.kind == "eval" and first.identity == {"params": "params.py", "config": "config.json"}
    assert first.token == again.token != other.token and len(first.token) == 32
    assert hellos[0][1:] == ("credentials", None)
    membership.tell({"state": "idle"})
    assert told == [{"state": "idle"}]
    Remote.end_of_run = "stopped"
    assert membership.ended() == "stopped"
    membership.leave()
    assert not membership.connection.is_up
