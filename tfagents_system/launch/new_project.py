"""`sac new NAME --env ENVIRONMENT`: a folder with a params file, its JSON and a vars file, which train as they are."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfagents_system.errors import EXIT_DONE, UserError, exit_with, shown

_HORIZON = 1000  # Where the environment itself has no limit.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")

_PARAMS = '''\
"""{environment}, trained with {algorithm}."""

import gymnasium

from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    algorithm = "{algorithm}"
    num_env_steps = 100_000
    # Every attribute with its default: docs/reference/parameters.md. `sac check` says what these cost.

    def env_ctor(self, *args, seed=None, **kwargs):
        return gymnasium.make("{environment}", **kwargs)
'''

_VARS = """\
# shellcheck shell=bash
# sac train vars.sh trains it. What the environment already says wins over these values.
: "${{SAC_EXP_NAME:={name}}}"                # the run directory is logs/<name>
: "${{SAC_PARAMS:=params.py}}"               # class TrainParams(TrainParamsBase)
: "${{SAC_CONFIG:=config.json}}"             # horizon, arguments of the environment, curriculum
: "${{SAC_REVERB_CPUS:=1}}"                  # CPUs of the replay server
: "${{SAC_TRAIN_CPUS:=2}}"                   # CPUs of the policy updates
: "${{SAC_NUM_COLLECT_WORKERS:=2}}"          # programs that collect experience and evaluate
: "${{SAC_COLLECT_WORKER_CPUS:=1}}"          # CPUs of each of them
: "${{SAC_SHARE_CPUS:=1}}"                   # roles share CPUs where there are too few
: "${{SAC_SEED:=0}}"                         # decides every other seed
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="sac new", description=__doc__, allow_abbrev=False)
    parser.add_argument("name", help="the folder to make, which names the run as well")
    parser.add_argument(
        "--env", default="Pendulum-v1", help="Gymnasium's name of it, such as Reacher-v5 (default: Pendulum-v1)"
    )
    flags = parser.parse_args(arguments)
    folder = Path(flags.name)
    findings = []
    if not _NAME.fullmatch(folder.name):
        findings.append(f"NAME={shown(flags.name)} must end in letters, digits, '.', '-' and '_': give another one")
    if folder.exists():
        findings.append(f"{folder} exists already: give another name, or remove it")
    algorithm, horizon = "sac", _HORIZON
    try:
        algorithm, horizon = _look_at(flags.env)
    except UserError as error:
        findings += error.findings
    if findings:
        raise UserError(*findings)
    files = {
        "params.py": _PARAMS.format(environment=flags.env, algorithm=algorithm),
        "config.json": json.dumps({"horizon": horizon}, indent=2) + "\n",
        "vars.sh": _VARS.format(name=folder.name),
    }
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    print(f"{folder}: {', '.join(files)}")
    print(f"next: sac check {folder}/vars.sh, then sac train {folder}/vars.sh")
    return EXIT_DONE


def _look_at(environment: str) -> tuple[str, int]:
    """An algorithm for its actions, and the most steps of an episode.

    Raises:
      UserError: Gymnasium does not make it, or its actions are of no kind that can be trained.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    import gymnasium

    try:
        env: Any = gymnasium.make(environment)
    except Exception as error:  # Of Gymnasium, or of the environment's own packages.
        text = " ".join(str(error).split())
        raise UserError(
            f"--env={shown(environment)} must be an environment that gymnasium.make builds here: {text}"
        ) from None
    try:
        space, spec = env.action_space, env.spec
        discrete = (gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete, gymnasium.spaces.MultiBinary)
        if not isinstance(space, (gymnasium.spaces.Box, *discrete)):
            raise UserError(f"--env={environment} has actions in {space}: they must be a Box or discrete")
        limit = spec.max_episode_steps if spec is not None else None
        return ("dqn" if isinstance(space, discrete) else "sac"), int(limit or _HORIZON)
    finally:
        env.close()


if __name__ == "__main__":
    exit_with(main)
