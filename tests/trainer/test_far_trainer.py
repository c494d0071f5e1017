"""A trainer with a run directory of its own: its agent is saved there, the header of the ring beside the ring."""

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
from tests.support.waiting import until
from tfagents_system import sac_train
from tfagents_system.errors import EXIT_RESUMABLE, UserError
from tfagents_system.replay.ring_files import parse_header
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.kept_checkpoints import DamagedCheckpointError
from tfagents_system.trainer import trainer_checkpoints
from tfagents_system.trainer.iteration_plan import TrainerState
from tfagents_system.trainer.trainer_checkpoints import TrainerCheckpoints
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
    agent = build_quiet()
    state, train_step = TrainerState(iteration=3), agent.train_step_counter
    return TrainerCheckpoints(folder, agent, state, train_step, server.connection, is_far=True)


def env_steps_of(server: Server, name: str) -> int:
    """Of the ring, as a checkpoint beside it has them, once it is complete."""
    server.turn_until((server.checkpoints / name).is_dir)
    content = kept_checkpoints.read(server.checkpoints / name).replay.read_bytes()
    return int(parse_header(content)["env_steps"])


def test_its_agent_is_here_and_the_header_of_the_ring_is_in_a_checkpoint_of_the_same_name_there(
    tmp_path: Path, server: Server
) -> None:
    here = tmp_path / "here" / "checkpoints"
    here.parent.mkdir()
    checkpoints = checkpoints_here(server, here)
    store(server, 0)
    while_turning(server, lambda: checkpoints.save(20.0, wait=True))
    ours = kept_checkpoints.newest_complete(here)
    assert ours is not None and ours.has_agent and not ours.has_replay
    assert env_steps_of(server, ours.name) == 10
    theirs = kept_checkpoints.newest_complete(server.checkpoints)
    assert theirs is not None and theirs.has_replay and not theirs.has_agent
    assert kept_checkpoints.newest_complete(server.checkpoints, with_agent=True) is None, "no trainer resumes from it"

    store(server, 1)
    while_turning(server, lambda: checkpoints.save(20.0, wait=True))
    again = kept_checkpoints.newest_complete(here)
    assert again is not None and again.name != ours.name, "a second one of the same train step"
    assert env_steps_of(server, again.name) == 20

    new = checkpoints_here(server, tmp_path / "new")  # Of a trainer that has lost its directory.
    store(server, 2)
    while_turning(server, lambda: new.save(20.0, wait=True))
    server.turn_until(lambda: server.snapshots.written == 3)
    assert env_steps_of(server, ours.name) == 30, "the name that the lost one had, too"


def test_it_asks_again_where_the_server_did_not_get_it(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_put, tries = server.connection.try_put, list[str]()

    def lose_first(table: str, *arguments: Any) -> bool:
        tries.append(table)
        return len(tries) > 1 and try_put(table, *arguments)

    checkpoints = checkpoints_here(server, tmp_path / "here")
    monkeypatch.setattr(server.connection, "try_put", lose_first)
    monkeypatch.setattr(trainer_checkpoints, "_ASK_AGAIN_SECS", 0.1)
    while_turning(server, lambda: checkpoints.save(20.0, wait=True))
    ours = kept_checkpoints.newest_complete(tmp_path / "here")
    assert tries == [tables.SNAPSHOTS] * 2 and ours is not None and env_steps_of(server, ours.name) == 0


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


def test_two_are_kept_and_names_of_something_else_and_moved_directories_are_refused(tmp_path: Path) -> None:
    run = RunFolders(tmp_path / "run")
    run.ring.extend([numbered_segment(number=0, steps=10, iteration=0)])

    def take(train_step: int) -> None:
        written = run.snapshots.written
        assert run.snapshots.take(f"checkpoint_{train_step:010d}", is_far=True)
        until(lambda: run.snapshots.written > written, 20.0, "a checkpoint")

    for train_step in (10, 20, 30):
        take(train_step)
    names = sorted(path.name for path in run.checkpoints.iterdir())
    assert names == ["checkpoint_0000000020", "checkpoint_0000000030"]
    take(5)  # A trainer that has lost its run directory begins anew.
    assert [path.name for path in run.checkpoints.iterdir()] == ["checkpoint_0000000005"]
    with pytest.raises(ValueError, match="'elsewhere' is no name of a checkpoint"):
        run.snapshots.take("elsewhere", is_far=True)
    home = run.checkpoints.parent
    moved = home.rename(home.with_name("moved"))
    assert not run.snapshots.take("checkpoint_0000000040", is_far=True), "the server goes on"
    assert not home.exists(), "and it may be put back"
    assert "checkpoint_0000000040: [Errno 2]" in str(run.snapshots.error)
    moved.rename(home)
    run.checkpoints.rename(home / "kept")
    run.checkpoints.write_bytes(b"")  # Nothing can be made there, as on a disk that is read-only.
    assert not run.snapshots.take("checkpoint_0000000040", is_far=True)
    run.checkpoints.unlink()
    (home / "kept").rename(run.checkpoints)
    take(40)
    assert run.snapshots.error is None


def test_a_checkpoint_that_lost_its_agent_is_damaged(tmp_path: Path) -> None:
    partial = kept_checkpoints.begin(tmp_path, 10)
    (partial / "replay.bin").write_bytes(b"rows")
    folder = kept_checkpoints.finish(partial, 10, 1, {}).folder
    with pytest.raises(DamagedCheckpointError, match="it has no agent"):
        kept_checkpoints.read(folder)
