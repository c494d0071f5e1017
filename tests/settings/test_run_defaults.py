"""What a run has where neither its params nor `--set` says it, and that a run which began keeps what it had."""

from pathlib import Path
from typing import Any

import pytest

from tfagents_system.settings.load_params import ENV_STEPS_PER_ITER, defaults_of, kept_defaults, load_params
from tfagents_system.settings.resolved import Overrides

FILE = """
from tfagents_system.train_params_base import TrainParamsBase

class Base(TrainParamsBase):
    {base}

class TrainParams(Base):
    {own}

    def __init__(self, env_config):
        super().__init__(env_config)
        {constructor}

    def env_ctor(self, *args, seed=None, **kwargs):
        raise AssertionError("no environment is built here")
"""
ALL = {
    "env_steps_per_iter": ENV_STEPS_PER_ITER,
    "log_period_iters": 5,
    "checkpoint_period_env_steps": 50_000,
    "eval_period_env_steps": 9 * 10 * 50,
}
PERIODS = {name: steps for name, steps in ALL.items() if "period" in name}


def params_of(folder: Path, attributes: Any = None, **places: str) -> Any:
    path = folder / "my_params.py"
    path.write_text(FILE.format(**({"base": "pass", "own": "pass", "constructor": "pass"} | places)))
    return load_params(path, {"horizon": 50, "mine": 7}, attributes=attributes)


@pytest.mark.parametrize("name", ["num_train_episodes_per_iter", "updates_per_iter"])
@pytest.mark.parametrize("place", ["base", "own", "constructor", "json", "set"])
def test_whoever_sets_an_iteration_keeps_whole_episodes(tmp_path: Path, name: str, place: str) -> None:
    words = {"constructor": f"self.{name} = 1", "json": f"self.{name} = env_config['mine']"}.get(place, f"{name} = 1")
    where = "constructor" if place == "json" else place
    params = params_of(tmp_path, {name: 1}) if place == "set" else params_of(tmp_path, **{where: words})
    assert defaults_of(params, 2) == {}


def test_nobody_sets_an_iteration(tmp_path: Path) -> None:
    assert defaults_of(params_of(tmp_path), 2) == ALL
    assert defaults_of(params_of(tmp_path), 300) == ALL | {"env_steps_per_iter": 300, "log_period_iters": 3}
    own = "log_period_iters = 1; eval_period_iters = 3; checkpoint_period_env_steps = 7"
    assert defaults_of(params_of(tmp_path, own=own), 2) == {"env_steps_per_iter": 200}
    assert defaults_of(params_of(tmp_path, own="env_steps_per_iter = 40"), 2) == PERIODS | {"log_period_iters": 25}
    assert defaults_of(params_of(tmp_path, own="env_steps_per_iter = None"), 2) == {}


@pytest.mark.parametrize("own", ["pass", "env_steps_per_iter = 40", "num_eval_episodes = 3", "num_eval_episodes = 200"])
def test_evaluations_take_a_tenth_of_all_steps_whatever_else_is_set(tmp_path: Path, own: str) -> None:
    params = params_of(tmp_path, own=own)
    steps, period = params.num_eval_episodes * 50, defaults_of(params, 2)["eval_period_env_steps"]
    assert steps / (steps + period) == 0.1
    assert "eval_period_env_steps" not in defaults_of(params_of(tmp_path, own=f"{own}; eval_period_iters = 20"), 2)


def test_without_evaluations_there_is_no_period_of_them(tmp_path: Path) -> None:
    assert "eval_period_env_steps" not in defaults_of(params_of(tmp_path, own="num_eval_episodes = 0"), 2)


def test_defaults_are_values_of_the_run_and_no_settings(tmp_path: Path) -> None:
    began = Overrides(params={"discount": 0.9}, defaults=ALL)
    assert began.attributes == {"discount": 0.9, **ALL} and began.settings() == {"discount": 0.9}
    assert params_of(tmp_path, began.attributes).env_steps_per_iter == ENV_STEPS_PER_ITER


@pytest.mark.parametrize("is_set", [True, False])
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"discount": 0.9}, ALL.keys()),
        ({"eval_period_iters": 3}, ALL.keys() - {"eval_period_env_steps"}),
        ({"eval_period_env_steps": 3, "checkpoint_period_iters": 2}, {"env_steps_per_iter", "log_period_iters"}),
        ({"env_steps_per_iter": 40}, PERIODS.keys()),
        ({"env_steps_per_iter": 40, "log_period_iters": 1}, PERIODS.keys() - {"log_period_iters"}),
        ({"updates_per_iter": 5}, set()),
        ({"num_eval_episodes": 0}, ALL.keys() - {"eval_period_env_steps"}),
    ],
)
def test_a_run_keeps_the_defaults_that_nobody_has_replaced(
    tmp_path: Path, given: dict[str, Any], kept: set[str], is_set: bool
) -> None:
    recorded = {name: value + 7 for name, value in ALL.items()}
    own = "; ".join(f"{name} = {value}" for name, value in given.items())
    params = params_of(tmp_path, given) if is_set else params_of(tmp_path, own=own)
    assert kept_defaults(params, 2, recorded) == {name: recorded[name] for name in kept}


def test_a_run_whose_params_say_a_value_no_more_has_that_of_a_new_run(tmp_path: Path) -> None:
    recorded = {"env_steps_per_iter": 300, "log_period_iters": 5}
    assert kept_defaults(params_of(tmp_path), 2, recorded) == ALL | recorded


def test_a_length_in_steps_has_no_other_bound(tmp_path: Path) -> None:
    assert params_of(tmp_path, own="num_env_steps = 5000").num_iter == 5000
    assert params_of(tmp_path, own="num_env_steps = 5000; num_iter = 3").num_iter == 3
    assert params_of(tmp_path, {"num_env_steps": 70}, own="num_env_steps = 5000").num_iter == 70
