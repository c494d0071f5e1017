"""What the check of a start finds in an environment."""

from __future__ import annotations

from typing import Any

from tests.support.fakes import FakeParams
from tfagents_system.checks.checklist import Checklist
from tfagents_system.launch.environment_checks import check_environment


def check(env_ctor: Any, curriculum: Any = None, **hooks: Any) -> tuple[list[str], Any]:
    """(errors, specs)."""
    checks, trial = report(env_ctor, curriculum, **hooks)
    return checks.errors, trial and trial.specs


def report(
    env_ctor: Any,
    /,
    curriculum: Any = None,
    horizon: int = 10,
    render: bool = False,
    deterministic: bool = False,
    envs_per_worker: int = 1,
    **hooks: Any,
) -> tuple[Checklist, Any]:
    config = {"horizon": horizon} | ({"curriculum": curriculum} if curriculum else {})
    attributes = {"env_ctor": lambda self, *args, seed=None, **kwargs: env_ctor(*args, **kwargs), **hooks}
    checks = Checklist()
    params = type("TrainParams", (FakeParams,), attributes)(config)
    trial = check_environment(
        params, 0, checks, render=render, deterministic=deterministic, envs_per_worker=envs_per_worker
    )
    return checks, trial
