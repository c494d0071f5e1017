"""The gateway program: gives other machines encrypted and authenticated access to the replay server.

    python -m tfagents_system.sac_gateway          # with a supervisor's variables

Load parameters, admit only authenticated clients, serve until told to stop, notify all clients.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from absl import logging

from tfagents_system.envs import specs
from tfagents_system.errors import EXIT_RESUMABLE, UserError
from tfagents_system.machine import memory
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE
from tfagents_system.role import Role, run_role
from tfagents_system.run_files import run_directory
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
# What a remote role takes over from the run.
_SHARED_VARIABLES = (
    "SAC_EXP_NAME",
    "SAC_SEED",
    "SAC_NUM_COLLECT_WORKERS",
    "SAC_LOCAL_WORKERS",
    "SAC_EXPERT_WORKERS",
    "SAC_EVAL_WORKERS",
    "SAC_MAX_WORKERS",
    "SAC_DETERMINISTIC",
    "SAC_ENVS_PER_WORKER",
    "SAC_STEP_TIMEOUT_SECS",
    "SAC_STRAGGLER_SECS",
)


def serve(role: Role) -> int:
    """Serves until told to stop; returns the exit code."""
    memory.keep_freed_memory()
    folder = credentials_folder(role)
    context = credentials.server_context(folder)
    password_file = os.environ.get("SAC_PASSWORD_FILE")
    password = credentials.read_password(Path(password_file) if password_file else None)
    facts = run_facts(role, os.environ)
    connection = Connection(role.server_address, role.stop.is_set)
    role.wait_until_up(connection, _START_DEADLINE_SECS)
    slots = RemoteSlots(role.slots, int(role.server_address.rpartition(":")[2]), role.paths.gateway_slots)
    # A supervisor has started a trainer, unless that is elsewhere; without a supervisor it may be anywhere.
    has_trainer = SUPERVISOR_PID_VARIABLE in os.environ and os.environ.get("SAC_LOCAL_TRAINER") != "0"
    gateway = Gateway(facts, SharedTables(connection), slots, context, password, has_trainer=has_trainer)
    port = _listen(gateway, role, int(os.environ.get("SAC_GATEWAY_PORT") or 0))
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
    if own := os.environ.get("SAC_CREDENTIALS_DIR"):
        return Path(own)
    credentials.ensure_credentials(role.paths.credentials, os.environ["SAC_EXP_NAME"])
    return role.paths.credentials


def run_facts(role: Role, environ: Mapping[str, str]) -> RunFacts:
    """What the gateway needs to know about its run."""
    layout = run_layout(role.params, *specs.load_specs(role.paths.specs))
    form, keeps_episodes = role.params.sample_form_ctor(), bool(role.params.keep_best_episodes)
    shared = {name: environ[name] for name in _SHARED_VARIABLES if environ.get(name)}
    return RunFacts(
        paths=role.paths,
        identity=identity_of(role.paths),
        seed=role.seed,
        num_collect_workers=role.num_workers,
        max_workers=role.max_workers,
        settings=shared | {"SAC_MAX_WORKERS": str(role.max_workers)} | run_directory.defaults_of_run(role.paths),
        run=role.paths.run_json.read_text(encoding="utf-8"),
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
