"""What the check of a start finds in an environment."""

from __future__ import annotations

from typing import Any

from tests.support.fakes import FakeParams
from tfagents_system.checks.findings import Findings
from tfagents_system.launch.environment_checks import EnvironmentTrial


class WithoutAgent(EnvironmentTrial):
    """A trial of the environment alone: building an agent and an update take seconds."""

    def _build_agent(self, env: Any) -> Any:
        return None


def check(env_ctor: Any, curriculum: Any = None, **hooks: Any) -> tuple[list[str], Any]:
    """(errors, specs)."""
    findings, outcome = report(env_ctor, curriculum, **hooks)
    return findings.errors, outcome and outcome.specs


def report(
    env_ctor: Any,
    /,
    curriculum: Any = None,
    horizon: int = 10,
    render: bool = False,
    deterministic: bool = False,
    envs_per_worker: int = 1,
    workers: int = 1,
    evaluates: bool = True,
    agent: bool = False,
    **hooks: Any,
) -> tuple[Findings, Any]:
    """(all findings, outcome of the trial); `agent`: of the agent, too."""
    config = {"horizon": horizon} | ({"curriculum": curriculum} if curriculum else {})
    attributes = {"env_ctor": lambda self, *args, seed=None, **kwargs: env_ctor(*args, **kwargs), **hooks}
    findings = Findings()
    params = type("TrainParams", (FakeParams,), attributes)(config)
    start: dict[str, Any] = {"deterministic": deterministic, "envs_per_worker": envs_per_worker}
    trial = (EnvironmentTrial if agent else WithoutAgent)(
        params, 0, findings, render=render, workers=workers, evaluates=evaluates, **start
    )
    return findings, trial.run()
