"""What a role takes over from the run that it joins: a list of names, each of its kind, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.support.settings_for_tests import variables_with
from tfagents_system.errors import UserError
from tfagents_system.settings.resolved import Settings


def shared(**values: Any) -> dict[str, Any]:
    run = Settings(variables_with(exp_name="run", train_cpus=8, num_collect_workers=5, seed=3))
    return {"variables": run.shared()["variables"] | values, "defaults": {"log_period_iters": 2}}


def test_settings_of_the_run_are_taken_over_and_no_others() -> None:
    here = Settings(variables_with(exp_name="mine", train_cpus=2))
    joined = here.joined(shared(env_python="/theirs/python", job_prelude="rm -r ~"))
    expected: dict[str, Any] = {"exp_name": "run", "train_cpus": 8, "num_collect_workers": 5, "seed": 3}
    assert joined.variables == dataclasses.replace(here.variables, **expected)
    assert joined.overrides.defaults == {"log_period_iters": 2}


def test_a_trainer_keeps_the_number_of_its_cpus() -> None:
    here = Settings(variables_with(train_cpus=2, trainer_server="node7:8443"))
    assert here.joined(shared()).variables.train_cpus == 2


@pytest.mark.parametrize("values", [{"seed": "3"}, {"num_collect_workers": [1]}, {"exp_name": None}])
def test_values_of_another_kind_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"nothing usable of {next(iter(values))}: install its version"):
        Settings(variables_with(exp_dir=Path("/logs/try"))).joined(shared(**values))
