"""`sac`: every program of the toolkit under one name.

Only what a command needs is imported: `sac --help` takes no TensorFlow. Commands that start processes become the shell
script of their name in `launch/`, so that signals reach it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from tfagents_system.checks.called_as import NAME_VARIABLE, run_name_of
from tfagents_system.checks.spelling import near_misses
from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE, UserError, exit_with

_LAUNCH = Path(__file__).resolve().parent / "launch"
_DEFAULTS = _LAUNCH / "default_variables.sh"


class Command(NamedTuple):
    """A word after `sac`.

    Attributes:
      summary: For `sac --help`.
      example: A whole line.
      target: The shell script of `launch/` that it becomes; its first file is a vars file, or a params file instead.
        Or the module of tfagents_system whose `main(arguments)` it calls.
      first: Arguments before those that are given.
      positional: The option of the module that an argument without a dash stands for.
    """

    summary: str
    example: str
    target: str
    first: tuple[str, ...] = ()
    positional: str = ""

    @property
    def takes_params(self) -> bool:
        """Whether `PARAMS.py --config JSON` may stand in place of a vars file."""
        return self.target.endswith(".sh") or self.target in ("launch.tune", "tasks.search", "tasks.sweep")


COMMANDS = {
    "new": Command(
        "a folder with params, JSON and vars file to begin with",
        "sac new reacher --env Reacher-v5",
        "launch.new_project",
    ),
    "check": Command(
        "check everything that `train` would, and start nothing",
        "sac check reacher/vars.sh",
        "run_script.sh",
        ("--check",),
    ),
    "train": Command(
        "train a run here, or go on with it", "sac train reacher/vars.sh --set batch_size=512", "run_script.sh"
    ),
    "sweep": Command(
        "train seeds and settings here, a few runs at a time",
        "sac sweep reacher/vars.sh --seeds 0-4 --parallel 2",
        "tasks.sweep",
    ),
    "submit": Command(
        "submit a run, or an array of them, to SLURM",
        "sac submit reacher/vars.sh --time 24:00:00 --array 0-9",
        "submit.sh",
    ),
    "join": Command(
        "let this machine's workers join a run elsewhere",
        "sac join reacher/vars.sh --ssh me@first_machine --to logs/reacher",
        "join_script.sh",
    ),
    "status": Command("the state of runs", "sac status logs/*", "report.status"),
    "plots": Command("draw the curves of runs anew", "sac plots logs/reacher", "report.plots"),
    "compare": Command(
        "curves of several runs together, with a table", "sac compare logs/reacher_task_*", "report.compare"
    ),
    "track": Command("send metrics that a run could not send", "sac track logs/reacher", "report.tracking.tracker"),
    "report": Command(
        "one HTML file on a run, or on several together: curves, settings, videos",
        "sac report logs/reacher_task_* --out report.html",
        "report.page.write",
    ),
    "play": Command(
        "play a policy: returns and videos",
        "sac play logs/reacher --num_episodes 5 --checkpoint best",
        "run",
        positional="--exp_dir",
    ),
    "montage": Command(
        "first, middle and best checkpoint in one video", "sac montage logs/reacher", "run", ("--montage",), "--exp_dir"
    ),
    "export": Command(
        "a policy as files of NumPy, TensorFlow Lite or ONNX",
        "sac export logs/reacher --format numpy --out exported",
        "playing.export",
        positional="--exp_dir",
    ),
    "experience": Command(
        "import, export and show experience", "sac experience show logs/reacher", "experience.__main__"
    ),
    "racing": Command(
        "record rewards, check and time racing environments", "sac racing --help", "examples.racing.recorder"
    ),
    "parameters": Command(
        "the attributes of TrainParams: defaults, values, meanings",
        "sac parameters learning_rate",
        "settings.parameters_page",
    ),
    "tune-params": Command(
        "search for good settings, with Optuna",
        "sac tune-params reacher/vars.sh --space sac --trials 40 --parallel 4",
        "tasks.search",
    ),
    "cpus": Command(
        "how to split this machine's CPUs among a run's programs", "sac cpus reacher/vars.sh", "launch.tune"
    ),
    "doctor": Command("what is installed here, what renders; CPUs, GPUs, SLURM", "sac doctor", "launch.doctor"),
}


def help_text() -> str:
    """What `sac --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "Usage: sac COMMAND [ARGUMENT...]     (sac COMMAND --help says more)",
            "",
            *lines,
            "",
            "VARS.sh assigns the SAC_ variables. Where a command takes one, `PARAMS.py --config JSON` does as well.",
            "Run directories are in logs/ of the current folder, or in SAC_LOGS_DIR.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code, or becomes a shell script."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given.pop(0) if given else ""
    if name in ("-h", "--help", "help"):
        print(help_text())
        return EXIT_DONE
    command = COMMANDS.get(name)
    if command is None:
        if not name:
            print(help_text(), file=sys.stderr)
            return EXIT_BAD_INPUT
        near = "".join(f", sac {known} is" for _, known in near_misses([name], COMMANDS, similarity=0.6))
        raise UserError(f"sac {name} is no command{near}: see sac --help")
    os.environ[NAME_VARIABLE] = sys.argv[0] = f"sac {name}"
    if {"-h", "--help"} & set(given):
        print(f"{command.summary}\n\n  {command.example}\n", flush=True)
        if command.positional:
            print(f"sac {name} RUN ... is sac {name} {command.positional} RUN ...\n", flush=True)
    elif command.takes_params:
        given = _with_vars_file(name, given)
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise UserError(f"the folder in which sac {name} was called is gone: cd into one that exists") from None
    if not (_LAUNCH.parents[1] / "setup.sh").is_file():  # Installed with pip: there is no environment to look for.
        os.environ.setdefault("SAC_PYTHON", sys.executable)
    if command.target.endswith(".sh"):
        sys.stdout.flush()
        os.execvp("bash", ["bash", str(_LAUNCH / command.target), *command.first, *given])
    if here not in sys.path:  # The last: as for a run's programs, see run_script.sh.
        sys.path.append(here)
    module = importlib.import_module(f"tfagents_system.{command.target}")
    if command.positional and given and not given[0].startswith("-"):
        given.insert(0, command.positional)  # `logs/reacher` becomes `--exp_dir logs/reacher`.
    code: int = module.main([*command.first, *given])
    return code


def _with_vars_file(name: str, given: Sequence[str]) -> list[str]:
    """The arguments with the default vars file in place of a params file, which goes to the environment.

    Raises:
      UserError: The params file has no JSON beside it, or there is a JSON and no params file.
    """
    is_params = [word.endswith(".py") and not word.startswith("-") and "=" not in word for word in given]
    place = is_params.index(True) if any(is_params) else None
    parser = argparse.ArgumentParser(prog=f"sac {name}", allow_abbrev=False, add_help=False)
    parser.add_argument("--config", metavar="JSON")
    options, words = parser.parse_known_args(given)
    config = options.config
    if place is None:
        if config is not None:
            raise UserError(f"--config={config} goes with a params file: sac {name} PARAMS.py --config {config}")
        return words
    params = Path(given[place]).absolute()
    words[words.index(given[place])] = str(_DEFAULTS)
    json = Path(config).absolute() if config is not None else _json_beside(params)
    os.environ.update(SAC_PARAMS=str(params), SAC_CONFIG=str(json))
    os.environ.setdefault("SAC_EXP_NAME", run_name_of(params))
    return words


def _json_beside(params: Path) -> Path:
    """The JSON that belongs to a params file where none is given: of the same name, or config.json."""
    candidates = [
        params.with_name(f"{stem}.json") for stem in (params.stem, params.stem.removesuffix("_params"), "config")
    ]
    for path in candidates:
        if path.is_file():
            return path
    names = ", ".join(dict.fromkeys(path.name for path in candidates))
    raise UserError(f"{params.name} has no JSON beside it ({names}): give it as --config JSON")


def run() -> NoReturn:
    """The entry point of the installed command."""
    exit_with(main)


if __name__ == "__main__":
    run()
