"""The checks of a start as a function, for tests of your own environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def assert_environment(
    make_env: Callable[..., Any], horizon: int = 1000, seed: int = 0, config: Mapping[str, Any] | None = None
) -> list[str]:
    """Makes the checks that `./run_script.sh --check` makes of an environment.

    They look at `horizon` and `config`, at what `reset` and `step` return, how episodes end, seeds, a second
    environment for evaluations, a curriculum's values, and whether an agent can be built and updated for it.

    Args:
      make_env: Builds one environment; called several times, with the keyword `seed` if it takes one.
      horizon: Most steps of an episode.
      seed: For environments and actions.
      config: Further keys of the JSON, such as `curriculum`.

    Returns:
      Notes: what works but is seldom meant.

    Raises:
      AssertionError: With everything that was found, each with its remedy.
    """
    from tfagents_system.checks.findings import Findings
    from tfagents_system.launch.environment_checks import EnvironmentTrial
    from tfagents_system.settings.params_check import check_env_config
    from tfagents_system.train_params_base import TrainParamsBase

    params_class = type("TrainParams", (TrainParamsBase,), {"env_ctor": staticmethod(make_env)})
    env_config, findings = {**(config or {}), "horizon": horizon}, Findings()
    findings.error("configuration", *check_env_config(env_config))
    outcome = EnvironmentTrial(params_class(env_config), seed, findings).run()
    assert outcome is not None and not findings.errors, "\n".join(findings.errors)
    return findings.notes
