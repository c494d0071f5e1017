"""Settings of one run: read, sorted, merged, refused; what a role takes over from the run that it joins."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.settings_for_tests import variables_with
from tfagents_system.errors import UserError
from tfagents_system.settings.resolved import Overrides, Settings, parse_assignments


def sorted_out(*texts: str, variables: tuple[str, ...] = ()) -> tuple[Overrides, list[str]]:
    settings, findings = parse_assignments(texts)
    overrides, found = Overrides.from_settings(settings, variables)
    return overrides, findings + found


def test_each_setting_goes_where_it_belongs() -> None:
    overrides, findings = sorted_out(
        "batch_size=512", "config.env.mass=2", 'config.env={"name": "walker"}', "SAC_SEED=3", "SAC_EXP_NAME=007"
    )
    assert findings == []
    assert overrides.params == {"batch_size": 512}
    assert overrides.config == {"env": {"mass": 2, "name": "walker"}}
    assert overrides.variables == {"SAC_SEED": "3", "SAC_EXP_NAME": "007"}
    assert overrides.in_words() == (
        "batch_size=512 config.env.mass=2 config.env.name=walker SAC_SEED=3 SAC_EXP_NAME=007"
    )


@pytest.mark.parametrize(("name", "meant"), [("sac_seed", "SAC_SEED"), ("Sac_Exp_Name", "SAC_EXP_NAME")])
def test_a_variable_in_lower_case_is_no_attribute(name: str, meant: str) -> None:
    assert sorted_out(f"{name}=3")[1] == [f"--set: {name} is no attribute of TrainParams: {meant} is meant"]
    assert sorted_out("path=3", "sac_my_gain=2", variables=("PATH", "SAC_MY_GAIN"))[1] == []


@pytest.mark.parametrize(
    "name",
    [
        "SAC_EXEC_PREFIX",
        "SAC_JOB_PRELUDE",
        "SAC_PYTHON",
        "SAC_ALLOW_LOGIN",
    ],
)
def test_what_shell_code_has_read_by_then_can_not_be_set(name: str) -> None:
    overrides, findings = sorted_out(f"{name}=1", variables=(name,))
    assert (overrides, findings) == (Overrides(), [f"--set: {name} is read before --set: put it into the vars file"])


def test_dictionaries_are_given_as_a_whole_or_key_by_key() -> None:
    overrides, findings = sorted_out('critic_optimizer={"name": "sgd"}', "critic_optimizer.momentum=0.9")
    assert (overrides.params, findings) == ({"critic_optimizer": {"name": "sgd", "momentum": 0.9}}, [])
    assert overrides.in_words() == "critic_optimizer.name=sgd critic_optimizer.momentum=0.9"
    assert sorted_out("a={}", "a.b=1")[1] == ["a.b is given twice, by --set and --set: remove one"]
    assert sorted_out("a.b=1", "a={}")[1] == ["a is given twice, by --set and --set: remove one"]
    assert sorted_out("a.b=1", 'a={"b": 2}')[1] == ["a.b is given twice, by --set and --set: remove one"]


def test_all_that_is_wrong_is_told() -> None:
    _, findings = sorted_out(
        "num_iter", "=3", "discount=True", "SAC_SED=1", "SAC_OTHERS=1", "_x=1", "env_config=1", "9a.b=1",
        "compute_config=1", "config=3", "config.a..b=1", "tau=1", "tau=2", "config.a=1", "config.a.b=1", "config={}",
        'x={"mass": 1, "mass": 2}',
    )  # fmt: skip
    text = "\n".join(findings)
    for part in (
        "--set num_iter: it must be NAME=VALUE", "--set =3: it must be NAME=VALUE", "it is not valid JSON",
        "SAC_SED is not a known variable: SAC_SEED", "SAC_OTHERS is not a known variable: docs/reference/variables.md",
        "_x must be a public attribute", "env_config must be", "9a.b must be", "compute_config follows",
        "config must be an object of keys, found 3", "config.a..b has an empty key",
        "tau is given twice, by --set and --set", "config.a.b is given twice",
        "config must be an object of keys, found {}",
        'it has the key "mass" twice in one object',
    ):  # fmt: skip
        assert part in text
    assert len(findings) == 15


def test_the_configuration_is_merged_key_by_key_and_stays_as_it_was() -> None:
    config = {"horizon": 200, "env": {"mass": 1, "legs": {"left": 1, "right": 2}}, "list": [1, 2], "other": {"x": 1}}
    before = json.dumps(config)
    overrides, _ = sorted_out("config.horizon=500", "config.env.legs.left=9", "config.list=[3]")
    merged = overrides.merged(config)
    assert merged == {"horizon": 500, "env": {"mass": 1, "legs": {"left": 9, "right": 2}}, "list": [3]} | {
        "other": {"x": 1}
    }
    merged["env"]["legs"]["right"] = merged["other"]["x"] = 7
    merged["list"].append(4)
    assert json.dumps(config) == before and overrides.config["list"] == [3]


def test_null_removes_a_key_and_what_is_below_it() -> None:
    config = {"horizon": 200, "env": {"mass": 1, "goal": None}, "curriculum": {"mass": {"iters": [0], "range": [1, 2]}}}
    before = json.dumps(config)
    overrides, findings = sorted_out("config.curriculum=null", "config.env.mass=null", "target_entropy=null")
    assert findings == []
    assert overrides.merged(config) == {"horizon": 200, "env": {"goal": None}}
    assert json.dumps(config) == before
    # One that is null already stays so, and one that is not there is not missed.
    assert sorted_out("config.env.goal=null")[0].merged(config) == config
    assert sorted_out("config.curriculum=null")[0].merged({"horizon": 200}) == {"horizon": 200}


def test_an_empty_object_takes_the_place_of_all_keys() -> None:
    overrides, _ = sorted_out("config.curriculum={}", "config.env={}")
    assert overrides.merged({"curriculum": {"mass": 1}, "env": None}) == {"curriculum": {}, "env": {}}
    begun, _ = sorted_out("config.curriculum.mass=1")
    assert begun.replaced_by(overrides).config == {"curriculum": {}, "env": {}}


def test_keys_that_nobody_would_read_are_refused() -> None:
    overrides, _ = sorted_out("config.horizn=1", "config.env.mas=1", "config.new=1", "config.horizon.x=1")
    config = {"horizon": 200, "env": {"mass": 1}}
    findings = overrides.unknown_keys(config)
    text = "\n".join(findings)
    assert len(findings) == 4 and overrides.merged(config) == config
    assert "config.horizn is not in SAC_CONFIG (horizon is meant)" in text
    assert "config.env.mas is not in SAC_CONFIG (mass is meant)" in text
    assert "config.new is not in SAC_CONFIG (there are horizon, env)" in text
    assert "config.horizon.x has no place: config.horizon is 200: set that to an object" in text
    added, _ = sorted_out('config.curriculum={"mass": {"iters": [0, 1], "range": [1, 2]}}')
    assert added.merged({"horizon": 1})["curriculum"]["mass"]["range"] == [1, 2]


DEFAULTS = {"log_period_iters": 2, "batch_size": 64, "learning_rate": {"points": [[0, 0.1]]}}


def shared(**values: Any) -> dict[str, Any]:
    run = Settings(variables_with(exp_name="run", train_cpus=8, num_collect_workers=5, seed=3))
    return {"variables": run.shared()["variables"] | values, "defaults": DEFAULTS | {"n_step": 0, "num_iter": 3}}


def test_settings_of_the_run_are_taken_over_and_no_others() -> None:
    here = Settings(variables_with(exp_name="mine", train_cpus=2))
    joined = here.joined(shared(env_python="/theirs/python", job_prelude="rm -r ~"))
    expected: dict[str, Any] = {"exp_name": "run", "train_cpus": 8, "num_collect_workers": 5, "seed": 3}
    assert joined.variables == dataclasses.replace(here.variables, **expected)
    assert joined.overrides.defaults == DEFAULTS


def test_a_trainer_keeps_the_number_of_its_cpus() -> None:
    here = Settings(variables_with(train_cpus=2, trainer_server="node7:8443"))
    assert here.joined(shared()).variables.train_cpus == 2


@pytest.mark.parametrize("values", [{"seed": "3"}, {"num_collect_workers": [1]}, {"exp_name": None}])
def test_values_of_another_kind_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"nothing usable of {next(iter(values))}: install its version"):
        Settings(variables_with(exp_dir=Path("/logs/try"))).joined(shared(**values))
