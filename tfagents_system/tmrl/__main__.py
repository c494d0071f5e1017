"""TMRL's commands, on its own folder ~/TmrlData (docs/how_to/tmrl.md): config.json becomes files for a launcher."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tfagents_system.checks.findings import is_installed
from tfagents_system.errors import EXIT_DONE, TERMS, OptionParser, UserError, called_as, exit_with
from tfagents_system.machine import cpus, files
from tfagents_system.machine.claims import COLLECT, EXPERT, TEST
from tfagents_system.run_files import run_directory, run_paths
from tfagents_system.settings.values import parse_json
from tfagents_system.tmrl import keys
from tfagents_system.tmrl.keys import KEYS, Config
from tfagents_system.transport import credentials

DATA = Path.home() / "TmrlData"
ROOT = Path(__file__).resolve().parents[1]
PARAMS = ROOT / "examples" / "tmrl" / "params.py"
SERVER, TRAINER, WORKER = "server", "trainer", "worker"
WAIT_SECS = 600
_COMMANDS = {
    "install": "make what is missing in ~/TmrlData, and say where that is",
    "server": "the replay server, which trainer and workers join, from this machine or others",
    "trainer": "the trainer, with a run directory of its own",
    "worker": "a worker that collects with the newest policy",
    "expert": "a worker that collects with a policy of this machine and ignores updates",
    "test": "play the policy that was trained here, or the server's newest; nothing is stored",
    "record-reward": "let the built-in driver drive a lap, which the reward follows",
    "check-environment": "drive an episode: print rewards, write pictures of what the policy sees",
    "benchmark": "print the durations of the parts of a step",
}
# What the environment already says of this machine wins.
_VARS_FILE = """# shellcheck shell=bash
# Made of config.json by python -m tfagents_system.tmrl: change that, not this.
: "${SAC_REVERB_CPUS:=1}" "${SAC_TRAIN_CPUS:=2}" "${SAC_NUM_COLLECT_WORKERS:=1}" "${SAC_COLLECT_WORKER_CPUS:=1}"
: "${SAC_SHARE_CPUS:=1}" "${SAC_REPORT:=0}"
"""
# What launchers say in the words of config.json, see `errors.in_callers_terms`.
_TERMS = {
    **{name: key.path for key in KEYS.values() for name in re.findall(r"\bSAC_\w+", key.target)},
    "--set num_iter=N": "a larger MAX_EPOCHS or ROUNDS_PER_EPOCH",
    "set SAC_PASSWORD_FILE to a file with it": "copy config/password of the server's TmrlData to config/password here",
    credentials.COPY_FOLDER: "copy the files in credentials of the server's TmrlData",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code. Launchers replace this process, so that signals reach them."""
    flags, options = _parse(arguments)
    if flags.command == "install":
        return install()
    config = load(flags.config)
    for note in config.notes:
        print(f"note: {note}", flush=True)
    if flags.command in ("record-reward", "check-environment", "benchmark"):
        return _drive(config, flags.command)
    if not (config.has_game or _reward().exists()):
        raise UserError(f"{_reward()} is missing: record the track's reward with --record-reward")
    trained = paths_of(config, TRAINER)
    if flags.command == "test" and any(trained.policy_checkpoints.glob("policy_checkpoint_*")):
        from tfagents_system import run

        return run.main([f"--exp-dir={trained.exp_dir}", "--checkpoint=latest", "--num-episodes=10", "--no-video"])
    if flags.command in (SERVER, TRAINER):
        command = server_command(config) if flags.command == SERVER else trainer_command(config, flags.wandb)
    else:
        command = worker_command(config, {"worker": COLLECT, "expert": EXPERT, "test": TEST}[flags.command])
    sys.stdout.flush()
    os.environ.setdefault("SAC_PYTHON", sys.executable)
    os.environ[TERMS] = json.dumps(_TERMS)
    os.execvp(command[0], [*command, *options])


def paths_of(config: Config, part: str) -> run_paths.RunPaths:
    """The run directory of SERVER, TRAINER or WORKER."""
    return run_paths.RunPaths(DATA / part / config.values["RUN_NAME"])


def _reward() -> Path:
    return DATA / "reward" / "reward.npz"


def load(override: str = "{}") -> Config:
    """Reads config.json and `--config`; raises a UserError with all findings."""
    file, over = DATA / "config" / "config.json", keys.parse_override(override)
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} can't be read ({error}): make it with --install, or copy yours there") from None
    config = keys.merged(parse_json(text, str(file), '{"RUN_NAME": "my_run"}'), over)
    values = keys.read_keys(config, f"{file}{' with --config' if over else ''}")
    return keys.translate(values, has_game=is_installed("tmrl"))


def install() -> int:
    """Makes what is missing; returns the exit code."""
    config = keys.DEFAULT_CONFIG
    lidar = keys.merged(config, {"RUN_NAME": "SAC_4_LIDAR", "ENV": {"RTGYM_INTERFACE": "TM20LIDAR"}})
    texts = {
        "config/config.json": json.dumps(config, indent=2),
        "config/password": secrets.token_hex(16),
        "resources/config_full.json": json.dumps(config, indent=2),
        "resources/config_lidar.json": json.dumps(lidar, indent=2),
    }
    print(f"TmrlData: {DATA}")
    for path, text in ((DATA / name, text) for name, text in texts.items()):
        if not path.exists():
            print(f"made {_write(path, text)}")
    (DATA / "credentials").mkdir(mode=0o700, exist_ok=True)  # Files of the server's are copied into it.
    default = keys.translate(keys.read_keys(config, "the default config.json"))
    return EXIT_DONE if _reward().exists() else _drive(default, "record-reward")


def _drive(config: Config, command: str) -> int:
    """In simulated time a driver is built in, who records and checks; --benchmark measures the time that there is."""
    from tfagents_system.examples.racing import recorder

    if config.has_game and command == "record-reward":
        raise UserError("the game's reward is recorded by TMRL itself: python -m tmrl --record-reward")
    options = {
        "record-reward": ["--out", str(_reward()), "--force"],
        "check-environment": ["--out", str(DATA / "check_environment")],
        "benchmark": ["--steps", "1000"],  # TMRL's.
    }[command]
    env_config = {key: part for key, part in config.env_config.items() if key != "real_time" or command == "benchmark"}
    file = _write(DATA / "config" / f"{command}.json", json.dumps(env_config))
    return recorder.main([command, "--params", str(PARAMS), "--config", str(file), *options])


def server_command(config: Config) -> list[str]:
    """What starts the replay server, and the gateway at PORT."""
    folder = Path(config.variables["SAC_CREDENTIALS_DIR"])
    credentials.make_credentials(folder, config.values["RUN_NAME"])
    print(f"note: for each other machine: scp {shlex.quote(str(folder))}/* HOST:TmrlData/credentials/")
    names = ("SAC_MAX_WORKERS", "SAC_GATEWAY_PORT", "SAC_REVERB_PORT")
    variables = {"SAC_LOCAL_TRAINER": "0", "SAC_LOCAL_WORKERS": "0", **{name: config.variables[name] for name in names}}
    return _start(config, SERVER, variables)


def trainer_command(config: Config, has_wandb: bool = False) -> list[str]:
    """What starts the trainer, once the server answers."""
    variables = {"SAC_TRAINER_SERVER": _server(config, TRAINER)}
    if config.values["CUDA_TRAINING"] and cpus.usable_gpus(os.environ):
        variables["SAC_TRAIN_GPUS"] = "1"
    elif config.values["CUDA_TRAINING"]:
        print("note: CUDA_TRAINING is true, and this machine shows no GPU: the trainer uses CPUs")
    if has_wandb:
        variables["SAC_WANDB"] = os.environ.get("SAC_WANDB") or "online"
        variables |= {name: text for name, text in config.variables.items() if name.startswith("WANDB_")}
        if (key := config.values["WANDB_KEY"]) != KEYS["WANDB_KEY"].default:
            variables["WANDB_API_KEY"] = str(_write(DATA / TRAINER / f"{config.values['RUN_NAME']}+wandb_key", key))
    return _start(config, TRAINER, variables)


def worker_command(config: Config, kind: str) -> list[str]:
    """What starts a worker of one of the kinds of machine/claims.py, once the server answers.

    Raises:
      UserError: An expert has no policy.
    """
    weights, trained = DATA / "weights" / config.values["RUN_NAME"], paths_of(config, TRAINER).policies
    policies = [path for path in (weights, trained / "greedy_policy") if kind == EXPERT and path.exists()]
    if kind == EXPERT and not policies and (config.has_game or "real_time" in config.env_config):
        raise UserError(
            f"--expert needs a policy: copy policies/greedy_policy of a trainer's run directory to {weights}, or let "
            'the car\'s driver drive, with "interface_kwargs": {"real_time": false} on all machines of the run'
        )
    variables = {"SAC_EXPERT_POLICY": str(policies[0])} if policies else {}
    command = _start(config, WORKER, variables, suffix="" if kind == COLLECT else f"+{kind}")
    return [*command, "--server", _server(config, WORKER), "--workers", "1", "--role", kind]


def _start(config: Config, part: str, variables: dict[str, str], suffix: str = "") -> list[str]:
    """Writes the JSON and the vars file of a part; returns the launcher's command line.

    Args:
      suffix: Of these files, for starts beside each other in one part: no RUN_NAME can end with it.
    """
    name, password = f"{config.values['RUN_NAME']}{suffix}", config.values["PASSWORD"].strip()
    password_file = _write(DATA / part / f"{name}+password", password) if password else DATA / "config" / "password"
    env_config = _write(DATA / part / f"{name}.json", json.dumps(config.env_config, indent=2), 0o644)
    paths = {"SAC_EXP_DIR": paths_of(config, part).exp_dir, "SAC_PARAMS": PARAMS, "SAC_CONFIG": env_config}
    paths |= {"SAC_PASSWORD_FILE": password_file} if password_file.exists() else {}
    common = {name: config.variables[name] for name in ("SAC_EXP_NAME", "SAC_CREDENTIALS_DIR")}
    lines = [f"{name}={shlex.quote(str(value))}\n" for name, value in (common | paths | variables).items()]
    if "WANDB_API_KEY" in variables:  # Others may read the vars file, but not the key's.
        lines.append('WANDB_API_KEY=$(<"$WANDB_API_KEY")\n')
    vars_file = _write(DATA / part / f"{name}.sh", "".join([_VARS_FILE, *lines]), 0o644)
    script = ROOT / "launch" / ("join_script.sh" if part == WORKER else "run_script.sh")
    command = ["bash", str(script), str(vars_file)]
    if config.values["RESET_TRAINING"] and part != WORKER and run_directory.has_begun(paths_of(config, part)):
        server = ["--from", str(paths_of(config, part).exp_dir), "--take", "replay"] if part == SERVER else []
        command += ["--fresh", *server]  # The new run copies the ring of the one before, which is moved aside.
    return [*command, *(f"--set={name}={json.dumps(value)}" for name, value in config.attributes.items())]


def _write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(path, f"{text}\n".encode(), mode=mode)
    return path


def _server(config: Config, role: str) -> str:
    """`host:port` of the server, once it answers; on its own machine it first makes the credentials.

    Raises:
      UserError: It is not known where it is, there are no credentials, or it does not answer in time.
    """
    local, host, port = f"LOCALHOST_{role.upper()}", config.values["PUBLIC_IP_SERVER"], config.values["PORT"]
    if config.values[local]:
        host = "127.0.0.1"
    elif host == KEYS["PUBLIC_IP_SERVER"].default:
        raise UserError(f"{local} is false, so PUBLIC_IP_SERVER must be the server's address, found {host!r}: set it")
    folder = Path(config.variables["SAC_CREDENTIALS_DIR"])
    for waited in range(WAIT_SECS):
        has_key = (folder / credentials.KEY).exists()
        if not has_key and not config.values[local]:
            raise UserError(
                f"{folder} has no credentials for the server at {host}: start --server once, and copy the files in "
                "credentials of its TmrlData into this folder"
            )
        with contextlib.suppress(OSError):
            socket.create_connection((host, port), timeout=5.0).close()
            if has_key:
                return f"{host}:{port}"
        if waited % 60 == 0:
            print(f"waiting {waited} s for the server at {host}:{port}", flush=True)
        time.sleep(1.0)
    raise UserError(f"the server at {host}:{port} has not answered: start --server, or correct its address")


def _parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The options, and those that are run_script.sh's."""
    parser = OptionParser(
        prog=called_as("python -m tfagents_system.tmrl"),
        description="TMRL's commands. --server and --trainer take --check, --keep and --fresh of run_script.sh, too.",
    )
    commands = parser.add_mutually_exclusive_group(required=True)
    for name, words in _COMMANDS.items():
        commands.add_argument(f"--{name}", action="store_const", const=name, dest="command", help=words)
    parser.add_argument("--config", default="{}", help="Python dictionary: other values of config.json")
    parser.add_argument("--wandb", action="store_true", help="with --trainer: its metrics go to Weights & Biases, too")
    flags, options = parser.parse_known_args(arguments)
    refused = [option for option in options if flags.command not in (SERVER, TRAINER) or not option.startswith("--")]
    refused += ["--wandb"] if flags.wandb and flags.command != TRAINER else []
    if refused:
        parser.error(f"{refused[0]} is no option of --{flags.command}: leave it out")
    return flags, options


if __name__ == "__main__":
    exit_with(main)
