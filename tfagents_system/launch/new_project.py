"""`sac new NAME`: a folder with a params file, its JSON and a vars file, which train as they are."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfagents_system.envs.faults import describe_error
from tfagents_system.errors import EXIT_DONE, OptionParser, UserError, shown
from tfagents_system.launch.vars_file import LAUNCHERS

_EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
_HORIZON = 1000  # Where the environment itself has no limit.
_DISCRETE = ("Discrete", "MultiDiscrete", "MultiBinary")
_VALUES, _SAC = '"dqn"  # "iqn" is steadier', '"sac"  # "crossq" learns in fewer steps'

_PARAMS = '''\
"""Trains {environment}."""

{imports}

from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    algorithm = {algorithm}
    num_env_steps = 100_000
    # `sac parameters` has every attribute with its default. `sac check` says what these cost.

    def env_ctor(self, *args, seed=None, **kwargs):
        return {call}
'''

_VARS = """\
# shellcheck shell=bash
# Train it with `sac train vars.sh`. A variable that is set already wins over its value here.
: "${{SAC_EXP_NAME:={name}}}" # the run directory is logs/<name>
: "${{SAC_PARAMS:=params.py}}" # class TrainParams(TrainParamsBase)
: "${{SAC_CONFIG:=config.json}}" # {horizon}, environment arguments, curriculum
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = OptionParser()
    parser.add_argument("name", metavar="FOLDER", help="folder to make; its last part is the run's name as well")
    parser.add_argument(
        "--env",
        default="Pendulum-v1",
        help="Gymnasium's name of an environment, such as Reacher-v5; MODULE:NAME of one that MODULE registers; or "
        "MODULE:CLASS of your own, such as my_env:MyEnv of ./my_env.py (default: Pendulum-v1)",
    )
    examples = sorted(path.parent.name for path in _EXAMPLES.glob("*/vars.sh"))
    parser.add_argument("--example", choices=examples, metavar="NAME", help=f"copy an example: {', '.join(examples)}")
    flags = parser.parse_args(arguments)
    folder, findings, files = Path(flags.name), list[str](), dict[str, str]()
    if not re.fullmatch(r"[\w .+-]*\w[\w .+-]*", folder.name):
        findings.append(f"NAME={shown(flags.name)} must end in a name of letters, digits, spaces and . _ + - alone")
    sys.path.insert(0, str(folder.resolve()))  # As of a run.
    try:
        files = _files_of_example(flags.example, folder.name) if flags.example else _files_for(flags.env, folder.name)
    except UserError as error:
        findings += error.findings
    paths = folder, *(folder / file for file in files or ("params.py", "config.json", "vars.sh"))
    findings += [f"{path} exists already: give another name" for path in paths if path.is_file()]
    if findings:
        raise UserError(*findings)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        aligned = re.sub(r'^(: ".*?") +#', lambda assigned: f"{assigned[1]:44} #", text, flags=re.MULTILINE)
        (folder / name).write_text(aligned, encoding="utf-8")
    print(f"{folder}: {', '.join(files)}")
    if "guess" in files["vars.sh"]:
        print(f"note: horizon={_HORIZON} in {folder}/config.json is a guess: give the most steps of an episode")
    module = flags.env.partition(":")[0].partition(".")[0]
    for source in (Path(f"{module}.py"), Path(module)):
        if ":" in flags.env and source != folder and source.exists():
            print(f"note: move {source} into {folder}: a run keeps a copy of what is there, and finds it from anywhere")
    variables = shlex.quote(f"{folder}/vars.sh")
    print(f"next: sac check {variables}, then sac train {variables}")
    return EXIT_DONE


def _files_of_example(example: str, name: str) -> dict[str, str]:
    """Those of an example; its modules import the copied ones, and its run is named `name`."""
    left_out = "__init__.py", "recorder.py"  # The latter is `sac racing`.
    paths = sorted(path for path in (_EXAMPLES / example).iterdir() if path.is_file() and path.name not in left_out)
    package, run = f"from tfagents_system.examples.{example}.", "SAC_EXP_NAME:={}}}"
    return {
        path.name: path.read_text(encoding="utf-8")
        .replace(package, "from ")
        .replace(run.format(example), run.format(name))
        for path in paths
    }


def _files_for(environment: str, name: str) -> dict[str, str]:
    """For an environment: how it is built, an algorithm for its actions, and the most steps of an episode.

    Raises:
      UserError: It can't be built, or its actions are of no kind that can be trained.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    import gymnasium

    module, _, name_there = environment.partition(":")
    imports, call = "import gymnasium", f'gymnasium.make("{environment}", **kwargs)'
    try:
        kind = getattr(importlib.import_module(module), name_there, None) if name_there.isidentifier() else None
        if inspect.isclass(kind):
            imports, call = f"from {module} import {name_there}", f"{name_there}(**kwargs)"
        env: Any = kind() if inspect.isclass(kind) else gymnasium.make(environment)
    except Exception as error:  # Of Gymnasium, of the environment's own packages, or of the user's code.
        text = str(error) if isinstance(error, gymnasium.error.Error) else describe_error(error)
        if module in sys.modules and isinstance(error, gymnasium.error.UnregisteredEnv):
            text += f" Classes in {module}: {', '.join(dict(inspect.getmembers(sys.modules[module], inspect.isclass)))}"
        raise UserError(
            f"--env={shown(environment)} must be Gymnasium's name of an environment, or MODULE:CLASS with defaults for "
            f"all arguments, and can't be built here: {' '.join(text.split())}"
        ) from None
    with contextlib.closing(env):
        kinds = {space.__name__ for space in type(env.action_space).__mro__}
        if not kinds & {"Box", *_DISCRETE}:
            raise UserError(f"--env={environment} has actions in {env.action_space}: they must be a Box or discrete")
        limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    defaults = (LAUNCHERS / "default_variables.sh").read_text(encoding="utf-8")
    algorithm = _VALUES if kinds & set(_DISCRETE) else _SAC
    horizon = "horizon" if limit else "horizon (a guess: the most steps of an episode)"
    return {
        "params.py": _PARAMS.format(environment=environment, imports=imports, call=call, algorithm=algorithm),
        "config.json": json.dumps({"horizon": int(limit or _HORIZON)}, indent=2) + "\n",
        "vars.sh": _VARS.format(name=name, horizon=horizon) + defaults[defaults.index(': "') :],
    }
