"""Tries the curriculum's values in a user's environments before any process starts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tfagents_system.checks.checklist import Check
from tfagents_system.envs.curriculum import Curriculum, check_curriculum
from tfagents_system.envs.faults import EnvironmentFault, describe_error
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.launch.random_steps import take_steps
from tfagents_system.train_params_base import TrainParamsBase

_FEW_STEPS = 5


def check_values(
    params: TrainParamsBase,
    collect_env: TrainingEnvironment,
    eval_env: TrainingEnvironment | None,
    check: Callable[[], Check],
    enter: Callable[[str], None],
) -> None:
    """Sets every parameter to its first and to its last value and takes a few steps with each.

    Args:
      params: The user's.
      collect_env: Gets all values.
      eval_env: Gets those that are for evaluation; None: nothing is evaluated, or in the collect environment.
      check: Returns what gets facts and errors; asked for where there is a curriculum.
      enter: Called with a description before each call of the user's code.
    """
    if not params.env_config.get("curriculum") or check_curriculum(params.env_config):
        return  # None, or reported by the check of the JSON.
    found, curriculum = check(), Curriculum.from_config(params.env_config)
    wrong: set[str] = set()
    for name, value in curriculum.end_values():
        if name in wrong:
            continue  # Most likely the same again.
        enter(f"set_state() of {name} = {value} or step() with it")
        envs = [collect_env]
        if eval_env is not None and curriculum.apply_to_eval(name):
            envs.append(eval_env)
        if findings := [finding for env in envs for finding in _try_value(env, name, value)]:
            wrong.add(name)
            found.errors += dict.fromkeys(findings)
    if not found.errors:
        values = ", ".join(f"{name} = {value:g}" for name, value in curriculum.end_values())
        found.facts.append(f"set_state works with {values}")


@contextlib.contextmanager
def told(findings: list[str], what: str) -> Iterator[None]:
    """Turns an exception of the user's code into a finding."""
    try:
        yield
    except UserError as error:
        findings += [f"{what}: {finding}" for finding in error.findings]
    except EnvironmentFault as fault:
        where = f"step {fault.step}" if fault.step else "its first reset"
        findings.append(f"{what} failed in {where}: {describe_error(fault.__cause__ or fault)}")
    except (Exception, SystemExit) as error:
        findings.append(f"{what}: env_ctor or one of its hooks raised {describe_error(error)}")


def _try_value(env: TrainingEnvironment, name: str, value: Any) -> list[str]:
    """Sets a parameter and takes a few steps with it; what is wrong."""
    try:
        env.set_state({name: value})
    except UserError as error:
        return [f"curriculum.{name}: {finding}" for finding in error.findings]
    except (Exception, SystemExit) as error:
        return [
            f"curriculum.{name}: set_state({{{name!r}: {value}}}) of the environment raised {describe_error(error)}"
        ]
    findings: list[str] = []
    with told(findings, f"the environment with {name} = {value}"):
        take_steps(env, 0, _FEW_STEPS)
    return findings
