"""The gateway program: gives other machines encrypted and authenticated access to the replay server.

    SAC_EXP_DIR=RUN python -m tfagents_system.sac_gateway

Load parameters, admit only authenticated clients, serve until told to stop, notify all clients.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NoReturn

from absl import logging

from tfagents_system.envs import specs
from tfagents_system.errors import EXIT_RESUMABLE, UserError
from tfagents_system.machine import memory
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE
from tfagents_system.role import Role, run_role
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.run_paths import GATEWAY, TRAINER
from tfagents_system.transport.connection import Connection
from tfagents_system.transport.remote import credentials
from tfagents_system.transport.remote.gateway import Gateway, RunFacts, layout_frame_bytes
from tfagents_system.transport.remote.messages import identity_of
from tfagents_system.transport.remote.remote_slots import RemoteSlots
from tfagents_system.transport.remote.shared_tables import SharedTables
from tfagents_system.transport.run_layout import run_layout

_START_DEADLINE_SECS = 600.0
_STEP_SECS = 0.5
_FAREWELL_SECS = 15.0


def serve(role: Role) -> int:
    """Serves until told to stop; returns the exit code."""
    memory.keep_freed_memory()
    folder = credentials_folder(role)
    context = credentials.server_context(folder)
    password = credentials.read_password(role.variables.password_file)
    facts = run_facts(role)
    connection = Connection(role.server_address, role.stop.is_set)
    role.wait_until_up(connection, _START_DEADLINE_SECS)
    slots = RemoteSlots(role.slots, int(role.server_address.rpartition(":")[2]), role.paths.gateway_slots)
    # A supervisor has started a trainer, unless that is elsewhere; without a supervisor it may be anywhere.
    has_trainer = SUPERVISOR_PID_VARIABLE in os.environ and role.variables.local_trainer
    gateway = Gateway(facts, SharedTables(connection), slots, context, password, has_trainer=has_trainer)
    port = _listen(gateway, role, role.variables.gateway_port or 0)
    write_json(
        role.paths.gateway_json,
        {"host": host_name(), "port": port, "pid": os.getpid(), "started": gateway.started},
    )
    logging.info("listening on port %d; credentials in %s, password: %s", port, folder, "yes" if password else "no")
    while not role.stop.is_set():
        slots.tend()
        role.heartbeat.beat("serving", port=port, **gateway.state())
        role.stop.wait(_STEP_SECS)
    role.heartbeat.beat("ending", port=port, **gateway.state())
    gateway.end("done" if _trainer_state(role) == "done" else "stopped", _FAREWELL_SECS)
    role.heartbeat.beat("stopped", port=port, **gateway.state())
    return EXIT_RESUMABLE


def host_name() -> str:
    """This machine's name for others. /etc/hosts may name it `localhost` first, where they would reach themselves."""
    names = (socket.getfqdn(), os.environ.get("SLURMD_NODENAME", ""), socket.gethostname())
    return next((name for name in names if name and not name.startswith(("localhost", "ip6-"))), names[-1])


def credentials_folder(role: Role) -> Path:
    """SAC_CREDENTIALS_DIR, or the folder of the run, whose credentials are created if missing.

    Raises:
      UserError: They can't be made.
    """
    if role.variables.credentials_dir is not None:
        return role.variables.credentials_dir
    credentials.ensure_credentials(role.paths.credentials, role.variables.exp_name)
    return role.paths.credentials


def run_facts(role: Role) -> RunFacts:
    """What the gateway needs to know about its run."""
    layout = run_layout(role.params, *specs.load_specs(role.paths.specs))
    form, keeps_episodes = role.params.sample_form_ctor(), bool(role.params.keep_best_episodes)
    return RunFacts(
        paths=role.paths,
        identity=identity_of(role.paths, role.settings.overrides),
        max_workers=role.max_workers,
        settings=role.settings.shared(),
        run=role.run_id,
        max_worker_bytes=layout_frame_bytes(
            layout,
            form.sequence_length,
            role.params.frame_stack,
            form.reach,
            keeps_episodes=keeps_episodes,
            eval_episodes=role.params.num_eval_episodes,
        ),
    )


def _listen(gateway: Gateway, role: Role, wanted: int) -> int:
    """Listens on the port of an earlier start unless one is set: machines that joined reconnect to it.

    Raises:
      UserError: The port is in use.
    """
    before = (read_json(role.paths.gateway_json) or {}).get("port")
    for port in [before, 0] if wanted == 0 and isinstance(before, int) else [wanted]:
        try:
            return gateway.listen(port)
        except (OSError, OverflowError) as error:
            if port != wanted:
                continue
            raise UserError(
                f"SAC_GATEWAY_PORT={wanted} can't be listened on ({error}): choose another port, or 0 for any free one"
            ) from None
    raise AssertionError


def _trainer_state(role: Role) -> object:
    return (read_heartbeat(role.paths.heartbeat(TRAINER)) or {}).get("state")


def main() -> NoReturn:
    run_role(GATEWAY, serve)


if __name__ == "__main__":
    main()
