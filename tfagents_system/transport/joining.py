"""How a role that the run did not start finds the replay server and gets its worker number.

    SAC_SERVER=localhost:PORT, no SAC_CREDENTIALS_DIR   on the replay server's machine: it takes a free slot
    SAC_SERVER=HOST:PORT and SAC_CREDENTIALS_DIR        on another machine, through the channel: the gateway has slots

The run's own workers have neither: their supervisor gives them the port and a number.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from tfagents_system.errors import UserError
from tfagents_system.machine import peers
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.machine.worker_slots import Slots
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.run_paths import TRAINER, RunPaths, worker_role
from tfagents_system.settings.resolved import Settings
from tfagents_system.transport.connection import Connection

REPLACED = "replaced"
_START_DEADLINE_SECS = 600.0


@dataclasses.dataclass(frozen=True)
class Membership:
    """What a role receives when it joins a run.

    Attributes:
      connection: To the replay server.
      worker_id: Its number, which is its slot; -1 for the trainer.
      settings: Its own, with what it takes over from the run.
      tell: Passes a heartbeat on to the run.
      ended: Why the run is over, `done` or `stopped`, if it says so; `replaced` for a trainer where another run has
        taken its place (`--fresh`) where the replay server is; None while it is not.
      leave: Says goodbye after sending everything that is still to be sent.
      slots: Holds the slot, where nobody else does.
      is_far: Of a trainer: its run directory is another one than the replay server's.
      run: Of one that is far: the number of the run there.
      check_run: Of one that is far: raises UserError once another run has taken the place of the one there.
    """

    connection: Connection
    worker_id: int
    settings: Settings
    tell: Callable[[dict[str, Any]], None] | None
    ended: Callable[[], str | None] = lambda: None
    leave: Callable[[], None] = lambda: None
    slots: Slots | None = None
    is_far: bool = False
    run: int | None = None
    check_run: Callable[[], None] = lambda: None


def join(role: str, server: str, stop: Callable[[], bool], settings: Settings, paths: RunPaths) -> Membership:
    """Joins the run at `server`.

    Args:
      role: Name of the role in its own folder, such as `worker_0`, where its slot is remembered.
      stop: Tells whether the role is to stop; ends every wait.
      settings: Its own.
      paths: Its own folder.

    Raises:
      UserError: The run has no slot for it, or refuses it.
      StoppedError, ServerUnreachableError: See `Waiting.check`.
    """
    paths.heartbeats.mkdir(parents=True, exist_ok=True)
    remembered = {"token": secrets.token_hex(16), **(read_json(paths.slot(role)) or {})}
    kind = TRAINER if role == TRAINER else settings.variables.worker_role
    if is_plain(server, settings.variables.credentials_dir):
        membership = _join_here(kind, server, stop, remembered.get("slot"), settings)
    else:
        membership = _join_elsewhere(kind, server, stop, paths, remembered, settings)
    write_json(paths.slot(role), {**remembered, "slot": membership.worker_id, "run": membership.run})
    return membership


def is_plain(server: str, credentials: Path | None) -> bool:
    """Whether a server is Reverb itself, which other machines cannot reach.

    Raises:
      UserError: It is on another machine, and there are no credentials for it.
    """
    if credentials is not None:
        return False
    if peers.address_here(server) is None:
        raise UserError(
            f"the server {server} is another machine, and SAC_CREDENTIALS_DIR is not set: give the folder with the "
            "run's credentials (sac join --credentials DIR)"
        )
    return True


def _join_here(kind: str, server: str, stop: Callable[[], bool], wanted: int | None, settings: Settings) -> Membership:
    connection = Connection(server, stop)
    connection.wait_until_up(_START_DEADLINE_SECS)
    if kind == TRAINER:
        return Membership(connection, -1, settings, None)
    slots = Slots(int(server.rpartition(":")[2]), settings.variables.slots)
    slot, run = slots.take(kind, wanted), settings.variables.joined_run

    def tell(heartbeat: dict[str, Any]) -> None:
        assert run is not None
        role = worker_role(slot)
        write_json(RunPaths(run).heartbeat(role), {**heartbeat, "role": role, "remote": True})

    return Membership(connection, slot, settings, tell if run is not None else None, slots=slots)


def _join_elsewhere(
    kind: str,
    server: str,
    stop: Callable[[], bool],
    paths: RunPaths,
    remembered: Mapping[str, Any],
    settings: Settings,
) -> Membership:
    from tfagents_system.transport.remote.client import RemoteConnection  # Only remote roles pay for importing TLS.
    from tfagents_system.transport.remote.messages import Hello, identity_of

    assert settings.variables.credentials_dir is not None
    connection = RemoteConnection(
        server,
        stop,
        Hello(
            kind=kind,
            identity=identity_of(paths, settings.overrides),
            token=remembered["token"],  # Tells the gateway which slot this worker had.
        ),
        credentials=settings.variables.credentials_dir,
        password_file=settings.variables.password_file,
    )
    connection.wait_until_up(_START_DEADLINE_SECS)
    welcome = connection.welcome

    is_far = kind == TRAINER and (read_json(paths.gateway_json) or {}).get("started") != welcome.gateway
    known = None
    if is_far:
        known = (remembered.get("run") if run_directory.has_begun(paths) else None) or welcome.run

    def check_run() -> None:
        if is_far and connection.welcome.run != known:
            raise UserError(
                f"the run at {server} has begun anew since {paths.exp_dir} joined it: begin anew here, too (--fresh)"
            )

    def ended() -> str | None:
        # Each start of the run sends its number anew: another one may have taken its place meanwhile.
        is_another = is_far and connection.welcome.run != known
        return connection.end_of_run or (REPLACED if is_another else None)

    check_run()
    # A trainer in the run's own directory writes its heartbeat there itself.
    tell = connection.tell if is_far or kind != TRAINER else None
    same = cast(Connection, connection)  # It has the same methods.
    joined = same, welcome.worker_id, settings.joined(welcome.settings), tell, ended, connection.close
    return Membership(*joined, is_far=is_far, run=known, check_run=check_run)
