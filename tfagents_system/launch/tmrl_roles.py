"""TMRL's --server, --trainer, --worker and --expert, as starts of our own launchers.

Each has a run directory of its own in ~/TmrlData, so that each may be on another machine:

    server/NAME     replay server and gateway (SAC_LOCAL_TRAINER=0, SAC_LOCAL_WORKERS=0)
    trainer/NAME    the trainer (SAC_TRAINER_SERVER): checkpoints, policies, metrics
    worker/NAME     workers of this machine, which join

Beside it are NAME.json and NAME.sh, the files of the toolkit's own kind that config.json becomes; those of --expert and
--test, which may run beside a worker, are NAME+expert.* and NAME+test.*.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import socket
import time
from pathlib import Path

from tfagents_system.errors import UserError
from tfagents_system.launch.run_settings import EDIT_OPTIONS, FRESH
from tfagents_system.launch.tmrl_data import PARAMS, Loaded, TmrlData
from tfagents_system.machine.files import write_atomically
from tfagents_system.machine.worker_slots import COLLECT, EXPERT
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.tmrl_translation import server_of
from tfagents_system.settings.variable_values import REPLAY
from tfagents_system.transport.remote import credentials

SERVER, TRAINER, WORKER = "server", "trainer", "worker"
_LAUNCH = Path(__file__).resolve().parent
_WAIT_SECS, _SPEAK_SECS, _LOOK_SECS = 600.0, 60.0, 1.0
# Of this machine: what the environment already says wins.
_DEFAULTS = {
    "SAC_REVERB_CPUS": "1",
    "SAC_TRAIN_CPUS": "2",
    "SAC_NUM_COLLECT_WORKERS": "1",
    "SAC_COLLECT_WORKER_CPUS": "1",
    "SAC_SHARE_CPUS": "1",
    "SAC_REPORT": "0",
}
TERMS = {
    "SAC_EXP_NAME": "RUN_NAME",
    "--set num_iter=N": "a larger MAX_EPOCHS or ROUNDS_PER_EPOCH",
    "set SAC_PASSWORD_FILE to a file with it": (
        "copy config/password of the server's TmrlData to config/password of this one"
    ),
    "SAC_CREDENTIALS_DIR": "TLS_CREDENTIALS_DIRECTORY",
    credentials.COPY_CLIENT: "copy the files in credentials/client of the server's TmrlData",
    "SAC_GATEWAY_PORT": "PORT",
    "SAC_REVERB_PORT": "LOCAL_PORT_SERVER",
    "SAC_MAX_WORKERS": "NB_WORKERS",
}
"""What a launcher says, in the words of config.json, see `errors.in_callers_terms`."""
_SIMULATED = '"interface_kwargs": {"real_time": false}'
_OF_SERVER = ("SAC_MAX_WORKERS", "SAC_GATEWAY_PORT", "SAC_REVERB_PORT")


@dataclasses.dataclass(frozen=True)
class Start:
    """A launcher and its arguments.

    Attributes:
      script: Of `launch/`.
      arguments: The vars file, then options.
      lines: What the user should know first.
      server: `host:port` that must answer before; "" for none.
    """

    script: str
    arguments: tuple[str, ...]
    lines: tuple[str, ...] = ()
    server: str = ""

    def command(self) -> list[str]:
        """For execvp."""
        return ["bash", str(_LAUNCH / self.script), *self.arguments]


def server_start(data: TmrlData, loaded: Loaded, edits: str | None = None) -> Start:
    """The replay server, and the gateway at PORT.

    Raises:
      UserError: Credentials can't be made, or the reward is missing.
    """
    _require_reward(data, loaded)
    options = _again(data, loaded, SERVER, edits)
    folder = _credentials_folder(loaded)
    with contextlib.suppress(OSError):
        folder.rmdir()  # An empty one, as --install makes it, is not there for ensure_credentials.
    credentials.ensure_credentials(folder, _name(loaded))
    own = folder / credentials.CLIENT
    lines = []
    if own.is_dir():  # Not the user's own certificates.
        lines.append(f"for each other machine: scp {shlex.quote(str(own))}/* HOST:TmrlData/credentials/")
    variables = {name: loaded.translation.variables[name] for name in _OF_SERVER}
    variables |= {"SAC_LOCAL_TRAINER": "0", "SAC_LOCAL_WORKERS": "0"}
    vars_file = _write_files(data, loaded, SERVER, variables)
    return Start("run_script.sh", (vars_file, *_settings(loaded), *options), tuple(lines))


def trainer_start(data: TmrlData, loaded: Loaded, with_wandb: bool = False, edits: str | None = None) -> Start:
    """The trainer, which waits for the server; its metrics may go to Weights & Biases, too.

    A server on this machine that has not made credentials yet is waited for here.

    Raises:
      UserError: Credentials or the reward are missing.
    """
    _require_reward(data, loaded)
    options = _again(data, loaded, TRAINER, edits)
    server = _server(loaded, "TRAINER")
    gpus = {name: text for name, text in loaded.translation.variables.items() if name == "SAC_TRAIN_GPUS"}
    wandb = _wandb(data, loaded) if with_wandb else {}
    vars_file = _write_files(data, loaded, TRAINER, {"SAC_TRAINER_SERVER": server, **gpus, **wandb})
    return Start("run_script.sh", (vars_file, *_settings(loaded), *options))


def worker_start(data: TmrlData, loaded: Loaded, kind: str) -> Start:
    """A worker of one of the kinds of machine/worker_slots.py.

    Raises:
      UserError: Credentials, the reward or an expert's policy are missing.
    """
    _require_reward(data, loaded)
    expert = _expert_policy(data, loaded) if kind == EXPERT else None
    server = _server(loaded, "WORKER")
    policy = {"SAC_EXPERT_POLICY": str(expert)} if expert else {}
    vars_file = _write_files(data, loaded, WORKER, policy, suffix="" if kind == COLLECT else f"+{kind}")
    options = ["--server", server, "--credentials", str(_credentials_folder(loaded)), "--workers", "1", "--role", kind]
    if password := data.secret_file("PASSWORD", loaded, Path(vars_file)):
        options += ["--password_file", str(password)]
    return Start("join_script.sh", (vars_file, *options, *_settings(loaded)), server=server)


def _wandb(data: TmrlData, loaded: Loaded) -> dict[str, str]:
    variables = loaded.translation.variables
    found = {name: text for name, text in variables.items() if name.startswith("WANDB_")}
    file = data.secret_file("WANDB_KEY", loaded, _vars_file(data, loaded, TRAINER))
    # The vars file, which others may read, names the file with the key.
    found |= {"WANDB_API_KEY": f"$(<{shlex.quote(str(file))})"} if file else {}
    return {"SAC_WANDB": "online", **found}


def trained_here(data: TmrlData, loaded: Loaded) -> Path | None:
    """The run directory of this machine's trainer, if it has a policy."""
    paths = RunPaths(data.root / TRAINER / _name(loaded))
    return paths.exp_dir if any(paths.policy_checkpoints.glob("policy_checkpoint_*")) else None


def wait_for(server: str) -> None:
    """Waits until something listens at `host:port`.

    Raises:
      UserError: Nothing does for ten minutes.
    """
    host, _, port = server.rpartition(":")
    began = spoke = time.monotonic()
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5.0).close()
            return
        except OSError as error:
            waited = time.monotonic() - began
            if waited > _WAIT_SECS:
                raise UserError(
                    f"no server has answered at {server} for {waited:.0f} s ({error.strerror or error}): start it with "
                    "--server, or correct PUBLIC_IP_SERVER and PORT"
                ) from None
            if time.monotonic() - spoke > _SPEAK_SECS or spoke == began:
                spoke = time.monotonic()
                print(f"waiting {waited:.0f} s for the server at {server}", flush=True)
        time.sleep(_LOOK_SECS)


def _name(loaded: Loaded) -> str:
    return loaded.translation.variables["SAC_EXP_NAME"]


def _server(loaded: Loaded, role: str) -> str:
    """Where the server is, once this machine has credentials for it: `--server` on this machine makes them.

    Raises:
      UserError: There are none.
    """
    server, folder = server_of(loaded.given, role), _credentials_folder(loaded)
    if not _has_credentials(folder) and loaded.given[f"LOCALHOST_{role}"]:
        print(f"{folder} has no credentials yet: as LOCALHOST_{role} is true, --server makes them here", flush=True)
        wait_for(server)
    if not _has_credentials(folder):
        raise UserError(
            f"{folder} has no credentials for the server at {server}: start --server once, and copy the files in "
            "credentials/client of its TmrlData into this folder"
        )
    return server


def _has_credentials(folder: Path) -> bool:
    return (credentials.folder_of_client(folder) / f"{credentials.CLIENT}.pem").exists()


def _credentials_folder(loaded: Loaded) -> Path:
    return Path(loaded.translation.variables["SAC_CREDENTIALS_DIR"]).expanduser().absolute()


def _require_reward(data: TmrlData, loaded: Loaded) -> None:
    if not (loaded.has_game or data.reward_file.exists()):
        raise UserError(f"{data.reward_file} is missing: record the track's reward with --record-reward")


def _expert_policy(data: TmrlData, loaded: Loaded) -> Path | None:
    """What an expert acts with: a policy of this machine, or None for the car's driver, in simulated time.

    Raises:
      UserError: There is neither.
    """
    trained = RunPaths(data.root / TRAINER / _name(loaded)).policies / "collect_policy"
    weights = data.root / "weights" / _name(loaded)
    for path in (weights, trained):
        if path.exists():
            return path
    if not loaded.has_game and "real_time" not in loaded.translation.env_config:
        return None
    driver = "" if loaded.has_game else f"; or let the car's driver drive, with {_SIMULATED} on all machines of the run"
    raise UserError(
        f"--expert needs a policy: copy policies/collect_policy of a trainer's run directory to {weights}, or train "
        f"one here ({trained}){driver}"
    )


def _write_files(data: TmrlData, loaded: Loaded, part: str, variables: dict[str, str], suffix: str = "") -> str:
    """Writes the JSON and the vars file of one part; returns the path of the latter.

    Args:
      suffix: Of their names. It is for starts beside each other in one part, and none that a RUN_NAME can have.
    """
    vars_file, name = _vars_file(data, loaded, part, suffix), _name(loaded)
    folder, config = vars_file.parent, vars_file.with_suffix(".json")
    folder.mkdir(parents=True, exist_ok=True)
    password = data.secret_file("PASSWORD", loaded, vars_file)
    write_atomically(config, json.dumps(loaded.translation.env_config, indent=2).encode() + b"\n")
    own = {
        "SAC_EXP_NAME": name,
        "SAC_EXP_DIR": str(folder / name),
        "SAC_PARAMS": str(PARAMS),
        "SAC_CONFIG": str(config),
        "SAC_CREDENTIALS_DIR": str(_credentials_folder(loaded)),
        **({"SAC_PASSWORD_FILE": str(password)} if password else {}),
        **variables,
    }
    lines = [
        "# shellcheck shell=bash",
        f"# Made of {data.config_file} by python -m tfagents_system.tmrl: change that, not this.",
        *(f"{name}={text if name == 'WANDB_API_KEY' else shlex.quote(text)}" for name, text in own.items()),
        *(f': "${{{variable}:={text}}}"' for variable, text in _DEFAULTS.items()),
    ]
    write_atomically(vars_file, "\n".join([*lines, ""]).encode())
    return str(vars_file)


def _vars_file(data: TmrlData, loaded: Loaded, part: str, suffix: str = "") -> Path:
    return data.root / part / f"{_name(loaded)}{suffix}.sh"


def _settings(loaded: Loaded) -> list[str]:
    return [word for assignment in loaded.translation.assignments() for word in ("--set", assignment)]


def _again(data: TmrlData, loaded: Loaded, part: str, edits: str | None) -> list[str]:
    """RESET_TRAINING: once a command, where there is something to begin anew from. The run before is moved aside.

    Args:
      edits: See run_settings.py.
    """
    paths = RunPaths(data.root / part / _name(loaded))
    if edits is not None or not (loaded.given["RESET_TRAINING"] and run_directory.has_begun(paths)):
        return [EDIT_OPTIONS[edits]] if edits else []
    takes_ring = ["--from", str(paths.exp_dir), "--take", REPLAY] if part == SERVER else []
    return [EDIT_OPTIONS[FRESH], *takes_ring]
