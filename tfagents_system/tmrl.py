"""TMRL's command line, on its own ~/TmrlData/config/config.json.

    python -m tfagents_system.tmrl --install
    python -m tfagents_system.tmrl --server        # and --trainer and --worker, on the same machine or others
    python -m tfagents_system.tmrl --check-environment --config='{"ENV": {"RTGYM_INTERFACE": "TM20LIDAR"}}'

docs/how_to/tmrl.md has all commands, and what each key of config.json becomes here.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tfagents_system.checks.called_as import called_as
from tfagents_system.checks.spelling import near_misses
from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, TERMS, UserError, exit_with
from tfagents_system.launch import tmrl_roles
from tfagents_system.launch.run_settings import EDIT_OPTIONS, add_edit_options
from tfagents_system.launch.tmrl_data import PARAMS, Loaded, TmrlData
from tfagents_system.machine.worker_slots import COLLECT, EXPERT, TEST
from tfagents_system.settings.tmrl_keys import default_config, read_keys
from tfagents_system.settings.tmrl_translation import translate

_BENCHMARK_STEPS = 1000  # TMRL's.
_PICTURE_EVERY = 20
_TEST_EPISODES = 10
_COMMAND_OF_LINE = {"CUDA_TRAINING": "trainer", "TLS": "server"}  # All others are told by every command.
_SIMILARITY = 0.6  # An unknown option is refused anyway, so the nearest one is worth naming.


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    flags = _parse(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    data = TmrlData.of_user()
    if flags.command == "install":
        return _install(data)
    loaded = data.load(flags.config)
    for line in loaded.translation.lines:
        if _COMMAND_OF_LINE.get(line.split()[0], flags.command) == flags.command:
            print(f"note: {line}", flush=True)
    from tfagents_system.envs.faults import EnvironmentFault

    try:
        if flags.command == "trainer":
            _become(tmrl_roles.trainer_start(data, loaded, flags.wandb, flags.edits))
        if flags.command == "server":
            _become(tmrl_roles.server_start(data, loaded, flags.edits))
        return _COMMANDS[flags.command](data, loaded)
    except EnvironmentFault as fault:
        print(f"error: {fault}", file=sys.stderr)
        return EXIT_FAILED


def _install(data: TmrlData) -> int:
    print(f"TmrlData: {data.root}")
    for line in data.install():
        print(line)
    if not data.reward_file.exists():
        given = read_keys(default_config(), "the default config.json")
        print(_recorded(data, translate(given).env_config))
    return EXIT_DONE


def _record_reward(data: TmrlData, loaded: Loaded) -> int:
    if loaded.has_game:
        raise UserError("the game's reward is recorded by TMRL itself: python -m tmrl --record-reward")
    print(_recorded(data, loaded.translation.env_config))
    return EXIT_DONE


def _recorded(data: TmrlData, env_config: dict[str, Any]) -> str:
    """Lets the built-in driver drive a lap of the car's track, in simulated time."""
    from tfagents_system.playing import driving

    params = _params(_simulated(env_config), {})
    return driving.record_reward(params, None, 0, data.reward_file, is_forced=True)


def _check_environment(data: TmrlData, loaded: Loaded) -> int:
    from tfagents_system.envs import rendering
    from tfagents_system.playing import driving

    rendering.prepare_headless()
    translation = loaded.translation
    env_config = translation.env_config if loaded.has_game else _simulated(translation.env_config)
    params = _params(env_config, translation.attributes)
    out = data.root / "check_environment"
    for line in driving.check_environment(params, None, 0, out, _PICTURE_EVERY):
        print(line)
    return EXIT_DONE


def _benchmark(data: TmrlData, loaded: Loaded) -> int:
    from tfagents_system.playing import driving

    del data
    params = _params(loaded.translation.env_config, loaded.translation.attributes)
    for line in driving.benchmark(params, 0, _BENCHMARK_STEPS):
        print(line)
    return EXIT_DONE


def _worker(data: TmrlData, loaded: Loaded) -> NoReturn:
    _become(tmrl_roles.worker_start(data, loaded, COLLECT))


def _expert(data: TmrlData, loaded: Loaded) -> NoReturn:
    _become(tmrl_roles.worker_start(data, loaded, EXPERT))


def _test(data: TmrlData, loaded: Loaded) -> int:
    """Plays what was trained here, or the newest policy of the server's run."""
    run = tmrl_roles.trained_here(data, loaded)
    if run is None:
        _become(tmrl_roles.worker_start(data, loaded, TEST))
    from tfagents_system import run as player

    return player.main(["--exp_dir", str(run), "--num_episodes", str(_TEST_EPISODES), "--no_video"])


def _become(start: tmrl_roles.Start) -> NoReturn:
    """The launcher replaces this process, so that signals reach it."""
    for line in start.lines:
        print(f"note: {line}", flush=True)
    if start.server:
        tmrl_roles.wait_for(start.server)
    os.environ.setdefault("SAC_PYTHON", sys.executable)
    os.environ[TERMS] = json.dumps(tmrl_roles.TERMS)
    os.execvp("bash", start.command())


_COMMANDS: dict[str, Callable[[TmrlData, Loaded], int]] = {
    "worker": _worker,
    "expert": _expert,
    "test": _test,
    "record_reward": _record_reward,
    "check_environment": _check_environment,
    "benchmark": _benchmark,
}


_HELP = {
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


def _params(env_config: dict[str, Any], attributes: dict[str, Any]) -> Any:
    from tfagents_system.settings.load_params import load_params

    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    return load_params(PARAMS, copy.deepcopy(env_config), attributes=attributes)


def _simulated(env_config: dict[str, Any]) -> dict[str, Any]:
    """The same track in simulated time, in which a driver is built in."""
    return {key: value for key, value in env_config.items() if key != "real_time"}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=called_as("python -m tfagents_system.tmrl"), description=__doc__.split("\n")[0], allow_abbrev=False
    )
    commands = parser.add_mutually_exclusive_group(required=True)
    for name, words in _HELP.items():
        command = name.replace("-", "_")
        commands.add_argument(f"--{name}", action="store_const", const=command, dest="command", help=words)
    parser.add_argument("--config", metavar="{...}", help="Python dictionary: other values of config.json")
    parser.add_argument("--wandb", action="store_true", help="with --trainer: its metrics go to Weights & Biases, too")
    add_edit_options(parser)
    _refuse_unknown(parser, sys.argv[1:] if arguments is None else arguments)
    flags = parser.parse_args(arguments)
    if flags.edits and flags.command not in ("server", "trainer"):
        parser.error("--keep and --fresh are options of --server and --trainer: leave them out")
    if flags.config is not None and flags.command == "install":
        parser.error("--config is no option of --install, which writes no values of yours: leave it out")
    if flags.wandb and flags.command != "trainer":
        parser.error("--wandb is an option of --trainer: leave it out")
    return flags


def _refuse_unknown(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Names misspelt options with what is meant; argparse says first that a command is missing."""
    known = [*(f"--{name}" for name in _HELP), "--config", "--wandb", "--help", *EDIT_OPTIONS.values()]
    given = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    meant = dict(near_misses(given, known, _SIMILARITY))
    unknown = [word for word in dict.fromkeys(given) if word not in known]
    if unknown:
        words = (
            f"{word} is no option: {f'{meant[word]} is meant' if word in meant else 'remove it'}" for word in unknown
        )
        parser.error("; ".join(words))


if __name__ == "__main__":
    exit_with(main)
