"""A trainer with a run directory of its own: the header of the ring comes to its checkpoints, and stays there, too."""

from __future__ import annotations

import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_for_tests import build_quiet
from tests.support.ports import free_port
from tests.support.replay_service import Server
from tests.support.run_for_tests import RunFolders
from tests.support.segments_for_tests import numbered_segment
from tfagents_system import sac_train
from tfagents_system.errors import EXIT_RESUMABLE, UserError
from tfagents_system.replay import ring_header
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.kept_checkpoints import DamagedCheckpointError
from tfagents_system.trainer.replay_snapshots import ReplaySnapshots
from tfagents_system.trainer.trainer_checkpoints import TrainerCheckpoints, TrainerState
from tfagents_system.transport import tables
from tfagents_system.transport.connection import StoppedError


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "there" / "ring", free_port())
    yield server
    server.close()


def store(server: Server, number: int) -> None:
    server.connection.put(tables.SEGMENTS, numbered_segment(number=number, steps=10, iteration=0).to_wire())
    server.turn_until(lambda: server.ring.env_steps == 10 * (number + 1))


def while_turning(server: Server, work: Any) -> None:
    """Does the trainer's work in a thread, as it is another process, while the server turns."""
    thread = threading.Thread(target=work)
    thread.start()
    server.turn_until(lambda: not thread.is_alive(), 30.0)


def checkpoints_here(server: Server, folder: Path) -> TrainerCheckpoints:
    agent, snapshots = build_quiet(), ReplaySnapshots(server.connection, is_far=True)
    return TrainerCheckpoints(
        folder,
        agent,
        TrainerState(iteration=3),
        agent.train_step_counter,
        snapshots.ask,
        fetch_replay=snapshots.fetch,
    )


def test_its_checkpoint_has_the_header_and_the_servers_has_it_without_an_agent(tmp_path: Path, server: Server) -> None:
    here = tmp_path / "here" / "checkpoints"
    here.parent.mkdir()
    checkpoints = checkpoints_here(server, here)
    store(server, 0)
    while_turning(server, lambda: checkpoints.save(20.0, {}, wait=True))
    ours, theirs = kept_checkpoints.newest_complete(here), kept_checkpoints.newest_complete(server.checkpoints)
    assert ours is not None and theirs is not None and ours.name == theirs.name
    assert ours.has_replay and ours.has_agent and theirs.has_replay and not theirs.has_agent
    assert ours.replay.read_bytes() == theirs.replay.read_bytes()
    header = ring_header.parse(ours.replay.read_bytes(), server.ring.files.fingerprint)
    assert int(header["env_steps"]) == 10
    assert kept_checkpoints.newest_complete(server.checkpoints, with_agent=True) is None, "no trainer resumes from it"

    # A second one of the same train step has its own header, though a lost trainer may use a name again.
    store(server, 1)
    while_turning(server, lambda: checkpoints.save(20.0, {}, wait=True))
    again = kept_checkpoints.newest_complete(here)
    assert again is not None and again.name != ours.name
    header = ring_header.parse(again.replay.read_bytes(), server.ring.files.fingerprint)
    assert int(header["env_steps"]) == 20

    new = checkpoints_here(server, tmp_path / "new")
    store(server, 2)
    while_turning(server, lambda: new.save(20.0, {}, wait=True))
    first = kept_checkpoints.newest_complete(tmp_path / "new")
    assert first is not None and first.name == ours.name, "the name that the lost one had, too"
    header = ring_header.parse(first.replay.read_bytes(), server.ring.files.fingerprint)
    assert int(header["env_steps"]) == 30
    assert (server.checkpoints / ours.name / "replay.bin").read_bytes() == first.replay.read_bytes()


def test_it_saves_before_it_ends_for_an_agent_that_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    class Replaced:
        def __init__(self, role: Any) -> None:
            del role

        def run(self) -> None:
            raise StoppedError

        def __getattr__(self, name: str) -> Any:
            return lambda: did.append(name)

    def refuse() -> None:
        raise UserError("the run has begun anew")

    monkeypatch.setattr(sac_train, "Trainer", Replaced)
    joined = types.SimpleNamespace(check=refuse, leave=lambda: did.append("leave"))
    with pytest.raises(UserError, match="begun anew"):
        sac_train.train(types.SimpleNamespace(joined=joined, is_far=True))  # type: ignore[arg-type]
    assert did == ["stop", "close", "leave"]
    joined.check = lambda: None
    role = types.SimpleNamespace(joined=joined, is_far=True)
    assert sac_train.train(role) == EXIT_RESUMABLE  # type: ignore[arg-type]


def test_a_server_that_does_not_answer_leaves_a_checkpoint_without_its_part(tmp_path: Path, server: Server) -> None:
    checkpoints_here(server, tmp_path / "here").save(0.3, {}, wait=True)
    newest = kept_checkpoints.newest_complete(tmp_path / "here")
    assert newest is not None and not newest.has_replay


def test_a_ring_goes_back_to_the_header_that_stayed(tmp_path: Path) -> None:
    run = RunFolders(tmp_path)
    run.ring.extend([numbered_segment(number=0, steps=10, iteration=0)])
    assert run.snapshots.take("checkpoint_0000000020", 7)
    number, header = run.snapshots.sent.get(timeout=20.0)
    assert number == 7
    run.ring.extend([numbered_segment(number=1, steps=10, iteration=0)])
    assert not run.snapshots.take("checkpoint_0000000020", 7), "it is there"
    assert run.snapshots.sent.get(timeout=20.0) == (7, header), "and is sent again"
    assert [path.name for path in run.places.checkpoints.iterdir()] == ["checkpoint_0000000020"]
    run.snapshots.close(20.0)
    again = RunFolders(tmp_path, from_checkpoint=True)
    assert again.ring.env_steps == 10
    again.snapshots.close(20.0)


def test_two_are_kept_and_names_of_something_else_and_moved_directories_are_refused(tmp_path: Path) -> None:
    run = RunFolders(tmp_path / "run")
    run.ring.extend([numbered_segment(number=0, steps=10, iteration=0)])
    for number in (10, 20, 30):
        assert run.snapshots.take(f"checkpoint_{number:010d}", number)
        assert run.snapshots.sent.get(timeout=20.0)[0] == number
    names = sorted(path.name for path in run.places.checkpoints.iterdir())
    assert names == ["checkpoint_0000000020", "checkpoint_0000000030"]
    assert run.snapshots.take("checkpoint_0000000005", 5), "a trainer that has lost its run directory begins anew"
    assert run.snapshots.sent.get(timeout=20.0)[0] == 5
    assert [path.name for path in run.places.checkpoints.iterdir()] == ["checkpoint_0000000005"]
    with pytest.raises(ValueError, match="'elsewhere' is no name of a checkpoint"):
        run.snapshots.take("elsewhere", 4)
    home = run.places.checkpoints.parent
    moved = home.rename(home.with_name("moved"))
    assert not run.snapshots.take("checkpoint_0000000040", 40), "the server goes on"
    assert not home.exists(), "and it may be put back"
    moved.rename(home)
    assert run.snapshots.take("checkpoint_0000000040", 40)
    run.snapshots.close(20.0)


def test_a_checkpoint_that_lost_its_agent_is_damaged(tmp_path: Path) -> None:
    partial = kept_checkpoints.begin(tmp_path, 10)
    (partial / "replay.bin").write_bytes(b"rows")
    folder = kept_checkpoints.finish(partial, 10, 1, {}).folder
    with pytest.raises(DamagedCheckpointError, match="it has no agent"):
        kept_checkpoints.read(folder)


def test_messages_survive_the_wire() -> None:
    for snapshot in (tables.Snapshot("checkpoint_0000000010"), tables.Snapshot("checkpoint_0000000010", 2**60)):
        assert tables.Snapshot.from_wire(snapshot.to_wire()) == snapshot
    header = tables.Header(2**60, b"\x00rows")
    assert tables.Header.from_wire(header.to_wire()) == header
    for arrays in ([], header.to_wire()[:1], header.to_wire()[::-1]):
        with pytest.raises(tables.MalformedMessageError):
            tables.Header.from_wire(arrays)
    with pytest.raises(tables.MalformedMessageError):
        tables.Snapshot.from_wire([*tables.Snapshot("a", 1).to_wire()[:1], header.to_wire()[1]])
