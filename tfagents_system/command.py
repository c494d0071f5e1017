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

from tfagents_system import __version__
from tfagents_system.checks.rules import near_misses
from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE, NAME_VARIABLE, UserError, exit_with, run_name_of

_LAUNCH = Path(__file__).resolve().parent / "launch"
_DEFAULTS = _LAUNCH / "default_variables.sh"


class Command(NamedTuple):
    """A word after `sac`.

    Attributes:
      target: The shell script of `launch/` that it becomes; its first file is a vars file, or a params file instead.
        Or the module of tfagents_system whose `main(arguments)` it calls.
      summary: For `sac --help`.
      arguments: Of an example.
      first: Arguments before those that are given.
      positional: The option of the module that an argument without a dash stands for.
    """

    name: str
    target: str
    summary: str
    arguments: str
    first: tuple[str, ...] = ()
    positional: str = ""

    @property
    def example(self) -> str:
        """A whole line."""
        return f"sac {self.name} {self.arguments}".rstrip()


_COMMANDS = (
    Command("new", "launch.new_project", "a folder with params, JSON and vars file", "reacher --env Reacher-v5"),
    Command("check", "run_script.sh", "all checks of `train`, without a start", "reacher/vars.sh", ("--check",)),
    Command("train", "run_script.sh", "train a run here, or resume it", "reacher/vars.sh --set batch_size=512"),
    Command("sweep", "tasks.sweep", "train seeds and settings here, a few at a time", "reacher/vars.sh --seeds 0-4"),
    Command("submit", "submit.sh", "submit a run, or an array of them, to SLURM", "reacher/vars.sh --array 0-9"),
    Command("join", "join_script.sh", "let workers here join a run elsewhere", "reacher/vars.sh --ssh me@node7"),
    Command("status", "report.status", "the state of runs", "logs/*"),
    Command("plots", "report.plots", "draw the curves of runs anew", "logs/reacher"),
    Command("compare", "report.compare", "curves of several runs together, with a table", "logs/reacher_task_*"),
    Command("track", "report.tracking", "send metrics that a run could not send", "logs/reacher"),
    Command("report", "report.page", "a run's curves, settings, videos in an HTML file", "logs/reacher --out r.html"),
    Command("play", "run", "play a policy: returns and videos", "logs/reacher --num-episodes 5", (), "--exp-dir"),
    Command("montage", "run", "three checkpoints in one video", "logs/reacher", ("--montage",), "--exp-dir"),
    Command(
        "export", "playing.export", "a policy as NumPy, TFLite or ONNX", "logs/reacher --out here", (), "--exp-dir"
    ),
    Command("experience", "experience.command", "import, export and show experience", "show logs/reacher"),
    Command("racing", "examples.racing.recorder", "record rewards, check and time racing environments", "--help"),
    Command("parameters", "settings.parameters_page", "attributes of TrainParams and their defaults", "learning_rate"),
    Command("tune-params", "tasks.search", "search for good settings, with Optuna", "reacher/vars.sh --trials 40"),
    Command("cpus", "run_script.sh", "how many workers a run needs, measured", "reacher/vars.sh", ("--check",)),
    Command("doctor", "launch.machine_checks", "what is installed here, what renders; CPUs, GPUs, SLURM", ""),
)
COMMANDS = {command.name: command for command in _COMMANDS}


def help_text() -> str:
    """What `sac --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    usage = ["Usage: sac COMMAND [ARGUMENT...]     (sac COMMAND --help says more)", ""]
    more = "VARS.sh assigns the SAC_ variables. Where a command takes one, `PARAMS.py --config JSON` does as well."
    return "\n".join(
        [*usage, *lines, "", more, "Run directories are in logs/ of the current folder, or in SAC_LOGS_DIR."]
    )


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
        longer = [known for known in COMMANDS if known.startswith(name)]
        meant = longer or [known for _, known in near_misses([name], COMMANDS, similarity=0.6)]
        near = f", sac {meant[0]} is" if meant else ""
        raise UserError(f"sac {name} is no command{near}: see sac --help")
    os.environ[NAME_VARIABLE] = sys.argv[0] = f"sac {name}"
    if {"-h", "--help"} & set(given):
        print(f"{command.summary}\n\n  {command.example}\n", flush=True)
        if command.positional:
            print(f"sac {name} RUN ... is sac {name} {command.positional} RUN ...\n", flush=True)
    elif command.target.endswith(".sh") or command.target in ("tasks.search", "tasks.sweep"):
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
    # The last, with the folders of PYTHONPATH: as for a run's programs, see shell_variables.sh.
    sys.path.sort(key=os.environ.get("PYTHONPATH", "").split(os.pathsep).__contains__)
    if here not in sys.path:
        sys.path.append(here)
    module = importlib.import_module(f"tfagents_system.{command.target}")
    if command.positional and given and not given[0].startswith("-"):
        given.insert(0, command.positional)  # `logs/reacher` becomes `--exp-dir logs/reacher`.
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
    raise UserError(f"{params.name} has no JSON beside it ({', '.join(names)}): give it as --config JSON")


def run() -> NoReturn:
    """The entry point of the installed command."""
    exit_with(main)
