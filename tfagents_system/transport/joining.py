"""How a role that the run did not start finds the replay server and gets its worker number.

    SAC_SERVER=localhost:PORT, no SAC_CREDENTIALS_DIR   on the replay server's machine: it takes a free slot
    SAC_SERVER=HOST:PORT and SAC_CREDENTIALS_DIR        on another machine, through the channel: the gateway has slots

The run's own workers have neither: their supervisor gives them the port and a number.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import secrets
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, cast

from tfagents_system.errors import UserError
from tfagents_system.machine import peers
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.machine.worker_slots import COLLECT, SlotCounts, Slots
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.run_paths import TRAINER, RunPaths, worker_role
from tfagents_system.settings.variables import JOINED_RUN
from tfagents_system.transport.connection import Connection

SERVER, ROLE = "SAC_SERVER", "SAC_WORKER_ROLE"
CREDENTIALS, PASSWORD_FILE = "SAC_CREDENTIALS_DIR", "SAC_PASSWORD_FILE"
REPLACED = "replaced"
_START_DEADLINE_SECS = 600.0


@dataclasses.dataclass(frozen=True)
class Membership:
    """What a role receives when it joins a run.

    Attributes:
      connection: To the replay server.
      worker_id: Its number, which is its slot; -1 for the trainer.
      settings: Variables of the run that it takes over.
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
    settings: Mapping[str, str]
    tell: Callable[[dict[str, Any]], None] | None
    ended: Callable[[], str | None] = lambda: None
    leave: Callable[[], None] = lambda: None
    slots: Slots | None = None
    is_far: bool = False
    run: int | None = None
    check_run: Callable[[], None] = lambda: None


def join(role: str, stop: Callable[[], bool], environ: MutableMapping[str, str] = os.environ) -> Membership:
    """Joins the run at SAC_SERVER; puts its settings and SLURM_PROCID, a worker's number, into `environ`.

    Args:
      role: Name of the role in its own folder, such as `worker_0`, where its slot is remembered.
      stop: Tells whether the role is to stop; ends every wait.
      environ: Usually os.environ.

    Raises:
      UserError: The run has no slot for it, or refuses it.
      StoppedError, ServerUnreachableError: See `Waiting.check`.
    """
    paths = RunPaths(Path(environ["SAC_EXP_DIR"]))
    paths.heartbeats.mkdir(parents=True, exist_ok=True)
    remembered = {"token": secrets.token_hex(16), **(read_json(paths.slot(role)) or {})}
    kind = TRAINER if role == TRAINER else environ.get(ROLE) or COLLECT
    if is_plain(environ[SERVER], environ):
        membership = _join_here(kind, stop, paths, remembered.get("slot"), environ)
    else:
        membership = _join_elsewhere(kind, stop, paths, remembered, environ)
    write_json(paths.slot(role), {**remembered, "slot": membership.worker_id, "run": membership.run})
    environ.update(membership.settings, SLURM_PROCID=str(membership.worker_id))
    return membership


def is_plain(server: str, environ: Mapping[str, str]) -> bool:
    """Whether a server is Reverb itself, which other machines cannot reach.

    Raises:
      UserError: It is on another machine, and there are no credentials for it.
    """
    if environ.get(CREDENTIALS):
        return False
    if peers.address_here(server) is None:
        raise UserError(
            f"the server {server} is another machine, and {CREDENTIALS} is not set: give the folder with the run's "
            "credentials (sac join --credentials DIR)"
        )
    return True


def _join_here(
    kind: str, stop: Callable[[], bool], paths: RunPaths, wanted: int | None, environ: Mapping[str, str]
) -> Membership:
    server, run = environ[SERVER], run_directory.read_run_json(paths)
    connection = Connection(server, stop)
    connection.wait_until_up(_START_DEADLINE_SECS)
    if kind == TRAINER:
        return Membership(connection, -1, {}, None)
    slots = Slots(int(server.rpartition(":")[2]), SlotCounts.of_run(run))
    slot = slots.take(kind, wanted)

    def tell(heartbeat: dict[str, Any]) -> None:
        role = worker_role(slot)
        write_json(RunPaths(Path(environ[JOINED_RUN])).heartbeat(role), {**heartbeat, "role": role, "remote": True})

    settings = run_directory.environ_of_run(run)
    return Membership(connection, slot, settings, tell if environ.get(JOINED_RUN) else None, slots=slots)


def _join_elsewhere(
    kind: str, stop: Callable[[], bool], paths: RunPaths, remembered: Mapping[str, Any], environ: Mapping[str, str]
) -> Membership:
    from tfagents_system.transport.remote.client import RemoteConnection  # Only remote roles pay for importing TLS.
    from tfagents_system.transport.remote.messages import Hello, identity_of

    password_file = environ.get(PASSWORD_FILE)
    connection = RemoteConnection(
        environ[SERVER],
        stop,
        Hello(
            kind=kind,
            identity=identity_of(paths),
            token=remembered["token"],  # Tells the gateway which slot this worker had.
        ),
        credentials=Path(environ[CREDENTIALS]),
        password_file=Path(password_file) if password_file else None,
    )
    connection.wait_until_up(_START_DEADLINE_SECS)
    welcome = connection.welcome

    is_far = kind == TRAINER and (read_json(paths.gateway_json) or {}).get("started") != welcome.gateway
    known = None
    if is_far:
        known = (remembered.get("run") if run_directory.has_begun(paths) else None) or _number_of(welcome.run)

    def check_run() -> None:
        if is_far and _number_of(connection.welcome.run) != known:
            raise UserError(
                f"the run at {environ[SERVER]} has begun anew since {paths.exp_dir} joined it: begin anew here, too "
                "(--fresh)"
            )

    def ended() -> str | None:
        # Each start of the run sends its run.json anew: another one may have taken its place meanwhile.
        is_another = is_far and _number_of(connection.welcome.run) != known
        return connection.end_of_run or (REPLACED if is_another else None)

    check_run()
    # A trainer in the run's own directory writes its heartbeat there itself.
    tell = connection.tell if is_far or kind != TRAINER else None
    same = cast(Connection, connection)  # It has the same methods.
    joined = same, welcome.worker_id, welcome.settings, tell, ended, connection.close
    return Membership(*joined, is_far=is_far, run=known, check_run=check_run)


@functools.lru_cache(maxsize=2)  # Asked for in every wait.
def _number_of(run: str) -> int:
    """Of a run.json."""
    number: int = json.loads(run).get("id", 0)
    return number
