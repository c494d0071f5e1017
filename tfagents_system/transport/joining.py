"""How a role that the run did not start finds the replay server and gets its worker number.

    SAC_SERVER=localhost:PORT, no SAC_CREDENTIALS_DIR   on the replay server's machine: it takes a free slot
    SAC_SERVER=HOST:PORT and SAC_CREDENTIALS_DIR        on another machine, through a tunnel: the gateway has slots

The run's own workers have neither: their supervisor gives them the port and a number.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.machine import peers
from tfagents_system.machine.claims import Claims, take_slot
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.run_paths import TRAINER, RunPaths, worker_role
from tfagents_system.settings.resolved import Settings
from tfagents_system.transport.connection import Connection, Waiting
from tfagents_system.transport.tunnel import SLOT_LOST, Hello, Tunnel, Welcome, identity_of

REPLACED = "replaced"
_START_DEADLINE_SECS = 600.0
_POLL_SECS = 0.05


class SlotLostError(Exception):
    """While this worker was out of reach its slot was given to another one: a new process of it gets another slot."""


@dataclasses.dataclass(frozen=True)
class Membership:
    """What a role receives when it joins a run.

    Attributes:
      connection: To the replay server.
      worker_id: Its number, which is its slot; -1 for the trainer.
      settings: Its own, with what it takes over from the run.
      tell: Passes a heartbeat on to the run.
      ended: Why the run is over for this role: `done` or `stopped`, if it says so; `replaced` for a trainer where
        another run has taken its place (`--fresh`) where the replay server is; `refused`, see `check`; else None.
      leave: Says goodbye after sending everything that is still to be sent.
      slots: Holds the slot, where nobody else does.
      is_far: Of a trainer: its run directory is another one than the replay server's.
      run: Of one that is far: the number of the run there.
      check: Raises UserError where the gateway refuses the role by now, or another run has taken the place of a far
        trainer's; SlotLostError for a worker.
    """

    connection: Connection
    worker_id: int
    settings: Settings
    tell: Callable[[dict[str, Any]], None] | None
    ended: Callable[[], str | None] = lambda: None
    leave: Callable[[], None] = lambda: None
    slots: Claims | None = None
    is_far: bool = False
    run: int | None = None
    check: Callable[[], None] = lambda: None


def join(
    role: str,
    server: str,
    stop: Callable[[], bool],
    settings: Settings,
    paths: RunPaths,
    say: Callable[[str], None] = lambda why: None,
) -> Membership:
    """Joins the run at `server`.

    Args:
      role: Name of the role in its own folder, such as `worker_0`, where its slot is remembered.
      stop: Tells whether the role is to stop; ends every wait.
      settings: Its own.
      paths: Its own folder.
      say: Called with the reason as long as the gateway does not let it in.

    Raises:
      UserError: The run has no slot for it, or refuses it.
      StoppedError, ServerUnreachableError: See `Waiting.check`.
    """
    paths.heartbeats.mkdir(parents=True, exist_ok=True)
    remembered = {"token": secrets.token_hex(16), **(read_json(paths.slot(role)) or {})}
    kind = TRAINER if role == TRAINER else settings.variables.worker_role
    if settings.variables.credentials_dir is not None:
        membership = _join_elsewhere(kind, server, stop, paths, remembered, settings, say)
    elif peers.address_here(server) is not None:
        membership = _join_here(kind, server, stop, remembered.get("slot"), settings)
    else:
        raise UserError(
            f"the server {server} is another machine, and SAC_CREDENTIALS_DIR is not set: give the folder with the "
            "run's credentials (sac join --credentials DIR)"
        )
    write_json(paths.slot(role), {**remembered, "slot": membership.worker_id, "run": membership.run})
    return membership


def _join_here(kind: str, server: str, stop: Callable[[], bool], wanted: int | None, settings: Settings) -> Membership:
    connection = Connection(server, stop)
    connection.wait_until_up(_START_DEADLINE_SECS)
    if kind == TRAINER:
        return Membership(connection, -1, settings, None)
    port, run, slots = int(server.rpartition(":")[2]), settings.variables.joined_run, Claims()
    slot = take_slot(slots, port, settings.variables.slots, kind, wanted)

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
    say: Callable[[str], None],
) -> Membership:
    variables = settings.variables
    assert variables.credentials_dir is not None
    # The token tells the gateway which slot this worker had.
    hello = Hello(kind, identity_of(paths, settings.overrides), token=remembered["token"])
    tunnel = Tunnel(server, hello, variables.credentials_dir, variables.password_file)
    welcome = _let_in(tunnel, stop, say)
    is_far = kind == TRAINER and (read_json(paths.gateway_json) or {}).get("started") != welcome.gateway
    known = None
    if is_far:
        known = (remembered.get("run") if run_directory.has_begun(paths) else None) or welcome.run

    def is_replaced() -> bool:
        # Each start of the run sends its number anew: another one may have taken its place meanwhile.
        return is_far and tunnel.welcome is not None and tunnel.welcome.run != known

    def check() -> None:
        if is_replaced():
            raise UserError(
                f"the run at {server} has begun anew since {paths.exp_dir} joined it: begin anew here, too (--fresh)"
            )
        _raise_if_refused(tunnel)

    def ended() -> str | None:
        return tunnel.end_of_run or (REPLACED if is_replaced() else "refused" if tunnel.refused else None)

    try:
        check()
        connection = Connection(server, stop, tunnel.socket)
        connection.wait_until_up(_START_DEADLINE_SECS)
    except BaseException:
        tunnel.close()
        raise
    # A trainer in the run's own directory writes its heartbeat there itself.
    return Membership(
        connection,
        -1 if welcome.slot is None else welcome.slot,
        settings.joined(welcome.settings),
        tunnel.tell if is_far or kind != TRAINER else None,
        ended=ended,
        leave=tunnel.close,
        is_far=is_far,
        run=known,
        check=check,
    )


def _let_in(tunnel: Tunnel, stop: Callable[[], bool], say: Callable[[str], None]) -> Welcome:
    """Waits until the gateway has let us in.

    Raises:
      UserError, SlotLostError: It refuses us.
      StoppedError, ServerUnreachableError: See `Waiting.check`.
    """
    waiting = Waiting(
        lambda: f"the gateway at {tunnel.address} to let us in: {tunnel.describe()}",
        _START_DEADLINE_SECS,
        lambda: stop() or tunnel.end_of_run is not None,
    )
    try:
        while tunnel.welcome is None:
            _raise_if_refused(tunnel)
            waiting.check()
            say(tunnel.down)
            time.sleep(_POLL_SECS)
    except BaseException:
        tunnel.close()
        raise
    return tunnel.welcome


def _raise_if_refused(tunnel: Tunnel) -> None:
    if tunnel.refused is not None:
        text = f"the gateway at {tunnel.address} refuses us: {tunnel.refused.message}"
        raise SlotLostError(text) if tunnel.refused.reason == SLOT_LOST else UserError(text)
