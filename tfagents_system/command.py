"""`sac`: every program of the toolkit under one name.

Only what a command needs is imported: `sac --help` takes no TensorFlow. Commands that start processes become the shell
script of their name in `launch/`, so that signals reach it.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import operator
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from tfagents_system import __version__
from tfagents_system.checks.rules import near_misses
from tfagents_system.errors import CALLED, EXIT_BAD_INPUT, EXIT_DONE, NAME_VARIABLE, UserError, exit_with, run_name_of

_LAUNCH = Path(__file__).resolve().parent / "launch"
_DEFAULTS = _LAUNCH / "default_variables.sh"


class Command(NamedTuple):
    """A word after `sac`.

    Attributes:
      group: Its heading in `sac --help`.
      target: The shell script of `launch/` that it becomes; its first file is a vars file, or a params file instead.
        Or the module of tfagents_system whose `main(arguments)` it calls.
      first: Arguments before those that are given.
      summary: For both help texts; begins with a verb.
      examples: Whole lines.
    """

    group: str
    name: str
    target: str
    first: Sequence[str]
    summary: str
    examples: Sequence[str]


_VARS, _RUN, _RACE = "reacher/vars.sh", "logs/reacher", "--params my_race/params.py --config my_race/config.json"
_ROWS = (
    ("prepare", "new", "launch.new_project", "create a folder with params, JSON and vars file",
     "reacher --env Reacher-v5", "my_race --example racing"),
    ("prepare", "check", "run_script.sh --check", "make all checks of a start, and start nothing", _VARS),
    ("prepare", "cpus", "run_script.sh --check", "measure how many workers a run needs", _VARS),
    ("train", "train", "run_script.sh", "train a run here, or resume it",
     _VARS, "reacher/params.py", f"{_VARS} --name reacher_512 --set batch_size=512"),
    ("train", "sweep", "tasks.sweep", "train seeds and settings here, a few at a time", f"{_VARS} --seeds 0-4"),
    ("train", "tune-params", "tasks.search", "search for good settings with Optuna",
     f"{_VARS} --space sac --trials 40", "--show-space sac"),
    ("train", "submit", "submit.sh", "submit a run, or an array of runs, to SLURM",
     f"{_VARS} --time 24:00:00 --dry-run", f"{_VARS} --array 0-9"),
    ("train", "join", "join_script.sh", "join workers of this machine to a run elsewhere",
     f"{_VARS} --to {_RUN}", f"{_VARS} --ssh me@node7 --to toolkit/{_RUN}"),
    ("watch", "status", "report.status", "show the state of runs", "", f"{_RUN} --follow"),
    ("watch", "plots", "report.plots", "draw the learning curves of runs anew", _RUN),
    ("watch", "compare", "report.compare", "compare runs: learning curves and a table", f"{_RUN}_task_* --out it.png"),
    ("watch", "report", "report.page", "write a run's curves, settings and videos to one HTML file", _RUN),
    ("watch", "track", "report.tracking", "send metrics that a run could not send", _RUN),
    ("use", "play", "run", "play a policy: returns and videos", f"{_RUN} --num-episodes 5 --checkpoint best"),
    ("use", "montage", "run --montage", "show the first, the middle and the best checkpoint in one video", _RUN),
    ("use", "export", "playing.export", "export a policy as NumPy, TFLite or ONNX", f"{_RUN} --format tflite"),
    ("use", "experience", "experience.command", "import, export or show experience",
     f"import demos.npz --run {_RUN} --out demos", f"export {_RUN} --out reacher.npz", f"show {_RUN}"),
    ("use", "racing", "examples.racing.recorder", "record rewards, check and time racing environments",
     f"record-reward {_RACE}", f"check-environment {_RACE} --out pictures", f"benchmark {_RACE}"),
    ("inspect", "parameters", "settings.parameters_page", "show attributes of TrainParams with their defaults", "rate"),
    ("inspect", "doctor", "launch.machine_checks", "show what is installed and renders here; CPUs, GPUs, SLURM", ""),
)  # fmt: skip
COMMANDS = {
    name: Command(group, name, target.split()[0], target.split()[1:], summary, [f"sac {name} {row}" for row in rows])
    for group, name, target, summary, *rows in _ROWS
}
# What does the work of other programs' commands.
_ELSEWHERE = {
    "sac play RUN": "eval evaluate enjoy render test video watch",
    "sac status": "info list logs ls ps runs show top",
    "sac train VARS.sh": "continue fit learn restart resume run start",
    "sac new": "create examples init make",
    "tensorboard --logdir logs": "tb tensorboard",
    "./run_benchmarks.sh": "bench benchmark benchmarks",
    "Ctrl-C in the run's terminal, or scancel for a job": "cancel end kill pause stop",
}


def help_text() -> str:
    """What `sac --help` prints."""
    text, width = "usage: sac COMMAND [ARGUMENT...]     (sac COMMAND --help says more)", max(map(len, COMMANDS))
    for group, commands in itertools.groupby(COMMANDS.values(), operator.attrgetter("group")):
        text += "\n".join([f"\n\n{group}:", *(f"  {command.name:{width}}  {command.summary}" for command in commands)])
    text += "\n\nVARS.sh assigns the SAC_ variables. Where a command takes one, `PARAMS.py --config JSON` does as well."
    return f"{text}\nRun directories are in logs/ of the current folder, or in SAC_LOGS_DIR."


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code, or becomes a shell script."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given.pop(0) if given else ""
    if name in ("-h", "--help", "help"):
        print(help_text())
        return EXIT_DONE
    command = COMMANDS.get(name)
    if name in ("--version", "version"):
        print(f"tfagents_system {__version__}")
        return EXIT_DONE
    if command is None:
        if not name:
            print(help_text(), file=sys.stderr)
            return EXIT_BAD_INPUT
        meant = [here for here, words in _ELSEWHERE.items() if name in words.split()]
        meant += [f"sac {known}" for known in COMMANDS if known.startswith(name) or name.startswith(known)]
        meant += [f"sac {known}" for _, known in near_misses([name], COMMANDS, similarity=0.6)]
        raise UserError(f"sac {name} is no command: {f'use {meant[0]}, or ' if meant else ''}see sac --help")
    if not any(variable.startswith("SAC_") for variable in os.environ):  # Else the words alone call another run.
        os.environ.setdefault(CALLED, shlex.join(["sac", name, *given]))
    os.environ[NAME_VARIABLE] = sys.argv[0] = f"sac {name}"
    if {"-h", "--help"} & set(given):
        return _print_help(command, given)
    if command.target.endswith(".sh") or command.target in ("tasks.search", "tasks.sweep"):
        given = _with_vars_file(name, given)
    return _call(command, given)


def _print_help(command: Command, given: Sequence[str]) -> int:
    """Prints what all commands tell in one form: a sentence, the target's own help, examples."""
    print(f"{command.summary[0].upper()}{command.summary[1:]}.\n", flush=True)
    try:
        if command.target.endswith(".sh"):
            return subprocess.run(["bash", str(_LAUNCH / command.target), "--help"], check=False).returncode
        return _call(command, given)
    finally:
        word = next((word for word in given if not word.startswith("-")), "")  # Of a subcommand.
        lines = [line for line in command.examples if f" {word} " in line] or command.examples
        print("\nexamples:", *(f"  {line}".rstrip() for line in lines), sep="\n")


def _call(command: Command, given: Sequence[str]) -> int:
    """The exit code of the command's target; does not return from a shell script."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise UserError(f"the folder in which sac {command.name} was called is gone: cd into one that exists") from None
    if not (_LAUNCH.parents[1] / "setup.sh").is_file():  # Installed with pip: there is no environment to look for.
        os.environ.setdefault("SAC_PYTHON", sys.executable)
    if command.target.endswith(".sh"):
        sys.stdout.flush()
        os.execvp("bash", ["bash", str(_LAUNCH / command.target), *command.first, *given])
    # The last, with the folders of PYTHONPATH: as for a run's programs, see shell_variables.sh.
    sys.path.sort(key=os.environ.get("PYTHONPATH", "").split(os.pathsep).__contains__)
    if here not in sys.path:
        sys.path.append(here)
    module = importlib.import_module(f"tfagents_system.{command.target}")
    code: int = module.main([*command.first, *given])
    return code


def _with_vars_file(name: str, given: Sequence[str]) -> list[str]:
    """The arguments with the default vars file in place of a params file, which goes to the environment."""
    parser = argparse.ArgumentParser(prog=f"sac {name}", allow_abbrev=False, add_help=False)
    parser.add_argument("--config", metavar="JSON")
    options, words = parser.parse_known_args(given)
    is_params = [word.endswith(".py") and not word.startswith("-") and "=" not in word for word in words]
    if True not in is_params:
        if options.config is not None:
            config = options.config
            raise UserError(f"--config={config} goes with a params file: sac {name} PARAMS.py --config {config}")
        return words
    params = Path(words[is_params.index(True)]).absolute()
    words[is_params.index(True)] = str(_DEFAULTS)
    config = Path(options.config).absolute() if options.config is not None else _json_beside(params)
    os.environ.update(SAC_PARAMS=str(params), SAC_CONFIG=str(config))
    os.environ.setdefault("SAC_EXP_NAME", run_name_of(params))
    return words


def _json_beside(params: Path) -> Path:
    """The JSON that belongs to a params file where none is given: of the same name, or config.json."""
    names = [f"{stem}.json" for stem in dict.fromkeys((params.stem, params.stem.removesuffix("_params"), "config"))]
    if config := next(filter(Path.is_file, map(params.with_name, names)), None):
        return config
    if params.is_file() and "class TrainParams" not in params.read_text(encoding="utf-8", errors="replace"):
        remedy = f"sac new NAME --env {params.stem}:CLASS makes params for an environment of it"
        raise UserError(f"{params.name} has no class TrainParams: {remedy}")
    raise UserError(f"{params.name} has no JSON beside it ({', '.join(names)}): give it as --config JSON")


def run() -> NoReturn:
    """The entry point of the installed command."""
    exit_with(main)
