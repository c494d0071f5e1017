"""`sac new NAME`: a folder with a params file, its JSON and a vars file, which train as they are."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfagents_system.errors import EXIT_DONE, UserError, exit_with, shown
from tfagents_system.settings.variable_values import run_name

_EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
_HORIZON = 1000  # Where the environment itself has no limit.
_DISCRETE = ("Discrete", "MultiDiscrete", "MultiBinary")

_PARAMS = '''\
"""{environment}, trained with {algorithm}."""

{imports}

from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    algorithm = "{algorithm}"
    num_env_steps = 100_000
    # `sac parameters` has every attribute with its default. `sac check` says what these cost.

    def env_ctor(self, *args, seed=None, **kwargs):
        return {call}
'''

_VARS = """\
# shellcheck shell=bash
# sac train vars.sh trains it. What the environment already says wins over these values.
: "${{SAC_EXP_NAME:={name}}}"                # the run directory is logs/<name>
: "${{SAC_PARAMS:=params.py}}"               # class TrainParams(TrainParamsBase)
: "${{SAC_CONFIG:=config.json}}"             # {horizon}, arguments of the environment, curriculum
: "${{SAC_REVERB_CPUS:=1}}"                  # CPUs of the replay server
: "${{SAC_TRAIN_CPUS:=2}}"                   # CPUs of the policy updates
: "${{SAC_NUM_COLLECT_WORKERS:=2}}"          # programs that collect experience and evaluate
: "${{SAC_COLLECT_WORKER_CPUS:=1}}"          # CPUs of each of them
: "${{SAC_SHARE_CPUS:=1}}"                   # roles share CPUs where there are too few
: "${{SAC_SEED:=0}}"                         # decides every other seed
"""


class _Found(NamedTuple):
    """What is known of an environment.

    Attributes:
      call: Builds it, with the arguments `kwargs`.
      horizon: The most steps of an episode.
      is_guess: The environment has no limit that could be seen.
    """

    imports: str
    call: str
    algorithm: str = "sac"
    horizon: int = _HORIZON
    is_guess: bool = True


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="sac new", description=__doc__, allow_abbrev=False)
    parser.add_argument("name", help="the folder to make; its last part names the run as well")
    parser.add_argument(
        "--env",
        default="Pendulum-v1",
        help="Gymnasium's name of it, such as Reacher-v5; MODULE:ID of one that MODULE registers; or MODULE:CLASS, a "
        "class of your own, such as my_env:MyEnv of ./my_env.py (default: Pendulum-v1)",
    )
    examples = sorted(path.parent.name for path in _EXAMPLES.glob("*/vars.sh"))
    parser.add_argument("--example", choices=examples, help="copy one of the toolkit's examples instead")
    flags = parser.parse_args(arguments)
    folder = Path(flags.name)
    findings = []
    try:
        run_name(folder.name)
    except ValueError as rule:
        findings.append(f"NAME={shown(flags.name)} must be {rule}")
    if folder.exists():
        findings.append(f"{folder} exists already: give another name, or remove it")
    try:
        found = None if flags.example else _look_at(flags.env)
    except UserError as error:
        findings += error.findings
    if findings:
        raise UserError(*findings)
    if found is None:
        _copy_example(flags.example, folder)
    else:
        _write(folder, flags.env, found)
    if found and found.is_guess:
        print(
            f"note: {flags.env} does not say how many steps an episode has: horizon={found.horizon} in "
            f"{folder}/config.json is a guess, give the most that one may have"
        )
    variables = shlex.quote(f"{folder}/vars.sh")
    print(f"next: sac check {variables}, then sac train {variables}")
    return EXIT_DONE


def _copy_example(example: str, folder: Path) -> None:
    """Copies an example; its params import the copied files, and its run is named after the folder."""
    shutil.copytree(_EXAMPLES / example, folder, ignore=shutil.ignore_patterns("__*__*"))
    for name, before, now in (
        ("params.py", f"from tfagents_system.examples.{example}.", "from "),
        ("vars.sh", f"SAC_EXP_NAME:={example}}}", f"SAC_EXP_NAME:={_in_double_quotes(folder.name)}}}"),
    ):
        path = folder / name
        path.write_text(path.read_text(encoding="utf-8").replace(before, now), encoding="utf-8")
    print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def _in_double_quotes(text: str) -> str:
    return re.sub(r'([\\$`"}])', r"\\\1", text)


def _write(folder: Path, environment: str, found: _Found) -> None:
    files = {
        "params.py": _PARAMS.format(environment=environment, **found._asdict()),
        "config.json": json.dumps({"horizon": found.horizon}, indent=2) + "\n",
        "vars.sh": _VARS.format(
            name=_in_double_quotes(folder.name),
            horizon="horizon (a guess: the most steps of an episode)" if found.is_guess else "horizon",
        ),
    }
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    print(f"{folder}: {', '.join(files)}")


def _look_at(environment: str) -> _Found:
    """How it is built, an algorithm for its actions, and the most steps of an episode.

    Raises:
      UserError: It can't be built, or its actions are of no kind that can be trained.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    import gymnasium

    what, imports, call = "gymnasium.make", "import gymnasium", f'gymnasium.make("{environment}", **kwargs)'
    try:
        if own := _own_class(environment):
            what = own.__name__
            imports, call = f"from {own.__module__} import {what}", f"{what}(**kwargs)"
        env: Any = own() if own else gymnasium.make(environment)
    except Exception as error:  # Of Gymnasium, of the environment's own packages, or of the user's code.
        text = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"--env={shown(environment)} must be an environment that {what} builds here: {text}") from None
    try:
        kinds = {kind.__name__ for kind in type(env.action_space).__mro__}
        if not kinds & {"Box", *_DISCRETE}:
            raise UserError(f"--env={environment} has actions in {env.action_space}: they must be a Box or discrete")
        limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
        algorithm = "dqn" if kinds & set(_DISCRETE) else "sac"
        return _Found(imports, call, algorithm, int(limit or _HORIZON), limit is None)
    finally:
        env.close()


def _own_class(environment: str) -> type | None:
    """The class of MODULE:CLASS; None of a name that Gymnasium knows, or must explain.

    Raises:
      ValueError: The module neither registers such an environment nor has such a class.
      Exception: Of the user's module.
    """
    import gymnasium

    module_name, colon, name = environment.partition(":")
    if not colon:
        return None
    module = importlib.import_module(module_name)
    if name in gymnasium.registry or not name.isidentifier():
        return None
    found = getattr(module, name, None)
    if inspect.isclass(found):
        return found
    raise ValueError(f"{module_name} has no class {name} and registers no such environment (gymnasium.register)")


if __name__ == "__main__":
    exit_with(main)
