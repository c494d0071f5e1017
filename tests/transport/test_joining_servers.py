"""Which worker a joining one is, what it takes over from the run, and that it is the same one when it comes again."""

import json
import sys
import types
from pathlib import Path

import pytest

from tfagents_system.errors import UserError
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import JOINED_RUN
from tfagents_system.transport import joining

SETTINGS = {
    "num_collect_workers": 2,
    "local_workers": 1,
    "max_workers": 5,
    "envs_per_worker": 3,
    "deterministic": False,
}


class FakeConnection:
    def __init__(self, address, stop):
        self.address, self.stop = address, stop

    def wait_until_up(self, deadline_secs):
        self.is_up = True

    def close(self):
        self.is_up = False


@pytest.fixture
def environ(tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "Connection", FakeConnection)
    paths = RunPaths(tmp_path / "joined")
    paths.exp_dir.mkdir()
    paths.run_json.write_text(json.dumps({"seed": 11, "settings": SETTINGS}))
    return {"SAC_EXP_DIR": str(paths.exp_dir), "SAC_SERVER": "localhost:3", "SAC_SEED": "0", "SLURM_PROCID": "0"}


def never():
    return False


def test_it_gets_a_slot_and_the_runs_settings(environ):
    membership = joining.join("worker_0", never, environ)
    assert membership.worker_id == 1 and membership.connection.is_up
    assert environ["SLURM_PROCID"] == "1"
    assert (environ["SAC_SEED"], environ["SAC_ENVS_PER_WORKER"]) == ("11", "3")
    assert (environ["SAC_NUM_COLLECT_WORKERS"], environ["SAC_DETERMINISTIC"]) == ("2", "0")
    membership.slots.release(1)


def test_it_comes_again_with_the_slot_that_it_had(environ):
    first = joining.join("worker_0", never, dict(environ))
    second = joining.join("worker_1", never, dict(environ))
    assert (first.worker_id, second.worker_id) == (1, 2)
    first.slots.release(1)
    second.slots.release(2)
    again = joining.join("worker_1", never, dict(environ))
    assert again.worker_id == 2, "though 1 is free, too"
    again.slots.release(2)


def test_its_heartbeats_are_the_runs_as_well(environ, tmp_path):
    run = RunPaths(tmp_path / "run")
    run.heartbeats.mkdir(parents=True)
    environ[JOINED_RUN] = str(run.exp_dir)
    membership = joining.join("worker_0", never, environ)
    membership.tell({"role": "worker_0", "state": "collecting", "episodes": 3})
    beat = read_heartbeat(run.heartbeat("worker_1"))
    assert beat == {"role": "worker_1", "state": "collecting", "episodes": 3, "remote": True}
    membership.slots.release(1)


def test_a_trainer_has_no_slot(environ):
    membership = joining.join("trainer", never, environ)
    assert (membership.worker_id, membership.slots) == (-1, None)


def test_another_machine_is_not_spoken_to_in_plain(environ):
    with pytest.raises(UserError, match=r"node7:8443 is another machine, and SAC_CREDENTIALS_DIR is not set"):
        joining.join("worker_0", never, environ | {"SAC_SERVER": "node7:8443"})


def test_a_far_trainer_hears_that_another_run_has_begun_where_the_server_is(environ, monkeypatch, tmp_path):
    """Its channel stays: another gateway welcomes it, with the run.json of another start."""

    class Remote(FakeConnection):
        end_of_run = None
        welcome = types.SimpleNamespace(worker_id=-1, settings={}, gateway="one", run=json.dumps({"id": 11}))

        def __init__(self, address, stop, hello, *, credentials, password_file):
            super().__init__(address, stop)

        def tell(self, heartbeat):
            pass

    monkeypatch.setattr("tfagents_system.transport.remote.client.RemoteConnection", Remote)
    monkeypatch.setattr("tfagents_system.transport.remote.messages.identity_of", lambda paths: {})
    environ |= {"SAC_SERVER": "node7:8443", "SAC_CREDENTIALS_DIR": "/c/credentials"}
    membership = joining.join("trainer", never, environ)
    assert membership.is_far and membership.ended() is None
    Remote.welcome = types.SimpleNamespace(gateway="two", run=json.dumps({"id": 11, "settings": {}}))
    membership.check_run()
    assert membership.ended() is None, "the same run after a restart"
    Remote.welcome = types.SimpleNamespace(worker_id=-1, settings={}, gateway="three", run=json.dumps({"id": 12}))
    assert membership.ended() == "replaced"
    with pytest.raises(UserError, match="the run at node7:8443 has begun anew since .* joined it: .*--fresh"):
        membership.check_run()
    assert joining.join("trainer", never, environ).ended() is None, "one that has trained nothing yet may join it"
    paths = RunPaths(Path(environ["SAC_EXP_DIR"]))
    paths.metrics_csv.write_text("train_step\n5\n")
    paths.run_json.write_text("{}")
    Remote.welcome = types.SimpleNamespace(worker_id=-1, settings={}, gateway="four", run=json.dumps({"id": 13}))
    with pytest.raises(UserError, match="has begun anew"):
        joining.join("trainer", never, environ)
    Remote.end_of_run = "done"
    assert membership.ended() == "done"


def test_through_the_channel_the_gateway_says_who_it_is(environ, tmp_path, monkeypatch):
    hellos, told = [], []

    class Remote(FakeConnection):
        end_of_run = None
        tell = staticmethod(told.append)
        welcome = types.SimpleNamespace(worker_id=4, settings={"SAC_SEED": "17"})

        def __init__(self, address, stop, hello, *, credentials, password_file):
            super().__init__(address, stop)
            hellos.append((hello, credentials.name, password_file))

    client, messages = types.ModuleType("client"), types.ModuleType("messages")
    client.RemoteConnection = Remote
    messages.Hello = types.SimpleNamespace
    messages.identity_of = lambda paths: {"params": paths.params.name, "config": paths.config.name}
    for name, module in (("client", client), ("messages", messages)):
        monkeypatch.setitem(sys.modules, f"tfagents_system.transport.remote.{name}", module)
    if "tfagents_system.transport.remote" not in sys.modules:
        monkeypatch.setitem(sys.modules, "tfagents_system.transport.remote", types.ModuleType("remote"))
    environ |= {"SAC_SERVER": "node7:8443", "SAC_CREDENTIALS_DIR": "/c/credentials", "SAC_WORKER_ROLE": "eval"}
    membership = joining.join("worker_0", never, environ)
    joining.join("worker_0", never, dict(environ))
    joining.join("worker_1", never, dict(environ))
    assert (membership.worker_id, environ["SLURM_PROCID"], environ["SAC_SEED"]) == (4, "4", "17")
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
