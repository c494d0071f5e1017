"""How a worker that the run has not started finds the replay server, and which worker it is there.

    SAC_SERVER=localhost:PORT, no SAC_CREDENTIALS_DIR   on the replay server's machine: it takes a free slot
    SAC_SERVER=HOST:PORT and SAC_CREDENTIALS_DIR        on another one, through the channel: the gateway gives it a slot

The run's own workers have neither: their supervisor gives them the port, and a number.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.launch import run_directory
from tfagents_system.launch.run_paths import RunPaths, worker_role
from tfagents_system.launch.slots import COLLECT, SlotCounts, Slots
from tfagents_system.replay.connection import Connection
from tfagents_system.report.heartbeat import write_json

SERVER, ROLE, JOINED_RUN = "SAC_SERVER", "SAC_WORKER_ROLE", "SAC_JOINED_RUN"
CREDENTIALS, PASSWORD_FILE = "SAC_CREDENTIALS_DIR", "SAC_PASSWORD_FILE"
_START_DEADLINE_SECS = 600.0


@dataclasses.dataclass
class Membership:
    """What a worker that has joined a run got there.

    Attributes:
      connection: To the replay server.
      worker_id: Its number: its slot.
      run: The run's run.json.
      tell: Passes a heartbeat on to the run; None where nobody takes it.
      slots: Holds the slot, where nobody else does.
    """

    connection: Connection
    worker_id: int
    run: Mapping[str, Any]
    tell: Callable[[dict[str, Any]], None] | None = None
    slots: Slots | None = None


def join(role: str, stop: Callable[[], bool], environ: MutableMapping[str, str] = os.environ) -> Membership:
    """Joins the run at SAC_SERVER. Its settings, and SLURM_PROCID, the worker's number, are put into `environ`.

    Args:
      role: Name of the worker in its own folder, such as `worker_0`: the slot that it gets is remembered there.
      stop: Tells whether the role is to stop; ends every wait.
      environ: Usually os.environ.

    Raises:
      UserError: The run has no slot for it, or refuses it.
      StoppedError, ServerUnreachableError: See `Waiting.check`.
    """
    paths = RunPaths(Path(environ["SAC_EXP_DIR"]))
    kind = environ.get(ROLE) or COLLECT
    wanted = _remembered(paths.slot(role))
    server = environ[SERVER]
    if is_plain(server, environ):
        place = _join_here(server, stop, kind, wanted, run_directory.read_run_json(paths), environ.get(JOINED_RUN))
    else:
        place = _join_elsewhere(server, stop, kind, wanted, paths, environ)
    environ.update(run_directory.environ_of_run(place.run), SLURM_PROCID=str(place.worker_id))
    paths.slot(role).write_text(str(place.worker_id))
    return place


def is_plain(server: str, environ: Mapping[str, str]) -> bool:
    """Whether the server is Reverb itself, which nobody reaches from another machine.

    Raises:
      UserError: It is another machine's, and there are no credentials for it.
    """
    if environ.get(CREDENTIALS):
        return False
    host = server.rpartition(":")[0]
    if host not in ("localhost", "127.0.0.1", "[::1]"):
        raise UserError(
            f"SAC_SERVER={server} is another machine, and {CREDENTIALS} is not set: give the folder with the run's "
            "credentials (join_script.sh --credentials DIR)"
        )
    return True


def _join_here(
    server: str,
    stop: Callable[[], bool],
    kind: str,
    wanted: int | None,
    run: Mapping[str, Any],
    exp_dir: str | None,
) -> Membership:
    connection = Connection(server, stop)
    connection.wait_until_up(_START_DEADLINE_SECS)
    slots = Slots(int(server.rpartition(":")[2]), SlotCounts.of_run(run))
    slot = slots.take(kind, wanted)
    tell = functools.partial(_write_beside_the_others, RunPaths(Path(exp_dir)), slot) if exp_dir else None
    return Membership(connection, slot, run, tell, slots)


def _write_beside_the_others(run: RunPaths, slot: int, heartbeat: dict[str, Any]) -> None:
    write_json(run.heartbeat(worker_role(slot)), {**heartbeat, "role": worker_role(slot)})


def _join_elsewhere(
    server: str,
    stop: Callable[[], bool],
    kind: str,
    wanted: int | None,
    paths: RunPaths,
    environ: Mapping[str, str],
) -> Membership:
    from tfagents_system.channel import client  # Only those who need it pay for TLS.

    password_file = environ.get(PASSWORD_FILE)
    connection = client.RemoteConnection(
        server,
        stop,
        client.Hello(kind, client.hash_of_inputs(paths), wanted, socket.gethostname()),
        credentials=Path(environ[CREDENTIALS]),
        password_file=Path(password_file) if password_file else None,
    )
    connection.wait_until_up(_START_DEADLINE_SECS)
    return Membership(connection, connection.slot, connection.run, connection.tell)


def _remembered(path: Path) -> int | None:
    """The slot of an earlier start, None where there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
