"""What a run has where neither its params nor `--set` says it, and that a run which began keeps what it had."""

import itertools
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tf_agents.specs import tensor_spec

from tfagents_system.checks.schedules import Schedule
from tfagents_system.hyperparameters import Hyperparameters, described_by
from tfagents_system.settings.load_params import ENV_STEPS_PER_ITER, defaults_of, kept_defaults, load_params
from tfagents_system.settings.parameters_page import default_of
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
    "initial_collect_steps": 1000,
    "eval_period_env_steps": 9 * 10 * 50,
}
STEPS = {"initial_collect_steps"}
PERIODS = {name: steps for name, steps in ALL.items() if "period" in name}


def params_of(folder: Path, attributes: Any = None, config: Any = MappingProxyType({}), **places: str) -> Any:
    path = folder / "my_params.py"
    path.write_text(FILE.format(**({"base": "pass", "own": "pass", "constructor": "pass"} | places)))
    return load_params(path, {"horizon": 50, "mine": 7} | config, attributes=attributes)


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
    assert defaults_of(params_of(tmp_path, own=own), 2) == {"env_steps_per_iter": 200, "initial_collect_steps": 1000}
    own = "env_steps_per_iter = 40; num_initial_episodes = 9"
    assert defaults_of(params_of(tmp_path, own=own), 2) == PERIODS | {
        "log_period_iters": 25,
        "eval_period_env_steps": (1000 * 40 - 9 * 50) // 10,
    }
    assert defaults_of(params_of(tmp_path, own="num_env_steps = 10_000"), 2)["log_period_iters"] == 2
    assert defaults_of(params_of(tmp_path, own="num_env_steps = 3000"), 2)["log_period_iters"] == 1
    assert defaults_of(params_of(tmp_path, own="env_steps_per_iter = None"), 2) == {}
    assert defaults_of(params_of(tmp_path, config={"horizon": "x"}, own="num_initial_episodes = 9"), 2) == {}


@pytest.mark.parametrize("own", ["pass", "num_eval_episodes = 3", "num_env_steps = 1_000_000"])
def test_evaluations_of_a_long_run_take_a_tenth_of_all_steps(tmp_path: Path, own: str) -> None:
    params = params_of(tmp_path, own=own)
    steps, period = params.num_eval_episodes * 50, defaults_of(params, 2)["eval_period_env_steps"]
    assert steps / (steps + period) == 0.1
    assert "eval_period_env_steps" not in defaults_of(params_of(tmp_path, own=f"{own}; eval_period_iters = 20"), 2)


@pytest.mark.parametrize("horizon", [5, 1000])
@pytest.mark.parametrize("iteration", ["pass", "num_initial_episodes = 45", "num_eval_episodes = 100"])
@pytest.mark.parametrize("steps", [400, 1000, 4100, 10_000, 30_000, 1_000_000])
def test_a_run_of_any_length_is_evaluated_ten_times(tmp_path: Path, steps: int, iteration: str, horizon: int) -> None:
    params = params_of(tmp_path, config={"horizon": horizon}, own=f"num_env_steps = {steps}; {iteration}")
    defaults = defaults_of(params, 2)
    first = min(defaults.get("initial_collect_steps", 45 * horizon), steps // 2)
    ends = [*range(first, steps, defaults["env_steps_per_iter"]), steps]
    periods = [end // defaults["eval_period_env_steps"] for end in ends]
    assert 1 + sum(later > earlier for earlier, later in itertools.pairwise(periods)) >= 10


@pytest.mark.parametrize(("iterations", "period"), [(5, 1), (30, 3), (99, 9), (100, None), (1000, None)])
def test_a_run_of_so_many_iterations_of_episodes_is_evaluated_ten_times(
    tmp_path: Path, iterations: int, period: int | None
) -> None:
    own = f"num_train_episodes_per_iter = 1; num_iter = {iterations}"
    assert defaults_of(params_of(tmp_path, own=own), 2).get("eval_period_iters") == period


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
        (
            {"eval_period_env_steps": 3, "checkpoint_period_iters": 2},
            STEPS | {"env_steps_per_iter", "log_period_iters"},
        ),
        ({"env_steps_per_iter": 40}, STEPS | PERIODS.keys()),
        ({"env_steps_per_iter": 40, "log_period_iters": 1}, STEPS | PERIODS.keys() - {"log_period_iters"}),
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


ITERATIONS = {"points": [[0, 1e-3], [1000, 1e-4]], "by": "iterations"}
OF_DQN = {"batch_size": 64, "n_step": 3, "learning_rate": ITERATIONS, "updates_per_env_step": 0.5}


@pytest.mark.parametrize("place", ["base", "own", "constructor", "set"])
@pytest.mark.parametrize("name", OF_DQN)
def test_an_own_value_wins_over_the_default_of_the_algorithm(tmp_path: Path, name: str, place: str) -> None:
    dqn = {"base": "algorithm = 'dqn'"}
    assert OF_DQN.items() <= defaults_of(params_of(tmp_path, **dqn), 1).items()
    words = {"constructor": f"self.{name} = 2"}.get(place, f"{name} = 2")
    places = {**dqn, place: f"{dqn['base']}; {words}" if place == "base" else words}
    params = params_of(tmp_path, {name: 2}, **dqn) if place == "set" else params_of(tmp_path, **places)
    defaults = defaults_of(params, 1)
    assert name not in defaults and OF_DQN.keys() - {name} <= defaults.keys()
    assert getattr(params_of(tmp_path, defaults | ({name: 2} if place == "set" else {}), **places), name) == 2


def test_a_schedule_of_an_algorithm_is_as_long_as_the_run(tmp_path: Path) -> None:
    params = params_of(tmp_path, own="algorithm = 'iqn'; num_env_steps = 10_000")
    falling = {"points": [[0, 1.0], [1600, 0.04]], "by": "env_steps"}
    assert defaults_of(params, 1)["exploration_epsilon"] == falling
    assert params_of(tmp_path, defaults_of(params, 1), own="algorithm = 'iqn'").exploration_epsilon == falling
    assert not defaults_of(params_of(tmp_path), 1).keys() & {"exploration_epsilon", "learning_rate", "batch_size"}


def test_a_number_of_updates_in_each_iteration_is_not_replaced_by_a_ratio(tmp_path: Path) -> None:
    defaults = defaults_of(params_of(tmp_path, own="algorithm = 'dqn'; updates_per_iter = 7"), 1)
    assert "updates_per_env_step" not in defaults and defaults["batch_size"] == 64


@pytest.mark.parametrize("own", ["target_update_tau = 0.005", "target_update_period = 8"])
def test_who_sets_step_or_period_of_the_target_has_the_other_one_as_sac_has_it(tmp_path: Path, own: str) -> None:
    defaults = defaults_of(params_of(tmp_path, own="algorithm = 'iqn'"), 1)
    assert (defaults["target_update_tau"], defaults["target_update_period"]) == (1.0, 100)
    assert not {
        name for name in defaults_of(params_of(tmp_path, own=f"algorithm = 'iqn'; {own}"), 1) if "target" in name
    }


def test_an_own_agent_follows_no_schedule_of_an_algorithm(tmp_path: Path) -> None:
    own = "algorithm = 'dqn'; agent_ctor = lambda self, *specs: None"
    assert not OF_DQN.keys() & defaults_of(params_of(tmp_path, own=own), 1).keys()


def test_the_page_of_parameters_tells_defaults_of_algorithms() -> None:
    described = described_by(Hyperparameters)
    of_iqn = "iqn: `64` (preset `paper`: `512`)"
    assert default_of(described["batch_size"]).startswith(f"`256`; dqn, sac_discrete: `64`; {of_iqn}; ")
    rates = default_of(described["learning_rate"])
    assert rates.startswith("`0.001`; redq, droq, tqc: `0.0003`; xqc: 3e-4 (")
    assert "; dqn, iqn, sac_discrete: from 1e-3 to 1e-4 over" in rates
    assert default_of(described["discount"]) == "`0.99`; xqc: 1 - 5 / `horizon`, within 0.95 and 0.995"
    assert default_of(described["num_critics"]) == "`None`; redq: `10`; tqc: `5`; others: `2`"


@pytest.mark.parametrize(
    ("algorithm", "preset", "expected"),
    [
        ("xqc", "cpu", {"critic_joint_fc_layer_params": (256, 256), "updates_per_env_step": 1, "discount": 0.95}),
        ("xqc", "paper", {"critic_joint_fc_layer_params": (512,) * 4, "updates_per_env_step": 2}),
        ("flash_sac", "cpu", {"actor_fc_layer_params": (64, 64), "batch_size": 256, "target_update_tau": 0.01}),
        ("flash_sac", "paper", {"actor_fc_layer_params": (128, 128), "batch_size": 512, "sac_log_alpha": -4.605}),
        ("iqn", "cpu", {"critic_joint_fc_layer_params": (128, 128), "batch_size": 64, "value_head_units": 64}),
        ("iqn", "paper", {"critic_joint_fc_layer_params": (512,), "batch_size": 512, "value_head_units": 512}),
    ],
)
def test_defaults_of_a_preset(tmp_path: Path, algorithm: str, preset: str, expected: dict[str, Any]) -> None:
    own = f"algorithm = {algorithm!r}; preset = {preset!r}"
    assert expected.items() <= defaults_of(params_of(tmp_path, own=own), 1).items()
    mine = defaults_of(params_of(tmp_path, own=f"{own}; batch_size = 7; critic_joint_fc_layer_params = (9,)"), 1)
    assert not mine.keys() & {"batch_size", "critic_joint_fc_layer_params"}


@pytest.mark.parametrize(("horizon", "discount"), [(20, 0.95), (200, 0.975), (500, 0.99), (1000, 0.995), (5000, 0.995)])
def test_xqcs_discount_follows_from_the_horizon(tmp_path: Path, horizon: int, discount: float) -> None:
    defaults = defaults_of(params_of(tmp_path, config={"horizon": horizon}, own="algorithm = 'xqc'"), 1)
    assert defaults["discount"] == pytest.approx(discount)


def test_rates_of_flash_sac_and_of_the_papers_xqc_fall_over_the_run(tmp_path: Path) -> None:
    def rate_of(algorithm: str, preset: str) -> Schedule:
        own = f"algorithm = {algorithm!r}; preset = {preset!r}; num_env_steps = 1000"
        return Schedule.of(defaults_of(params_of(tmp_path, own=own), 1)["learning_rate"])

    rates = {"xqc": rate_of("xqc", "paper"), "flash_sac": rate_of("flash_sac", "cpu")}
    assert rate_of("xqc", "cpu").values == (3e-4,)
    for steps in range(0, 1001, 100):
        assert rates["xqc"].value(steps, 0, 0) == pytest.approx(3e-4 - 2.7e-4 * steps / 1000)
        cosine = 2.25e-4 + 0.75e-4 * np.cos(np.pi * steps / 1000)
        assert rates["flash_sac"].value(steps, 0, 0) == pytest.approx(cosine, rel=0.04)


@pytest.mark.parametrize(
    ("algorithm", "preset", "actor", "critic"),
    [
        ("xqc", "paper", 206_126, 854_163),
        ("flash_sac", "paper", 268_590, 1_085_843),
        ("flash_sac", "cpu", 68_782, 280_851),
    ],
)
def test_networks_have_as_many_weights_as_the_authors(
    tmp_path: Path, algorithm: str, preset: str, actor: int, critic: int
) -> None:
    """HalfCheetah's; the preset `cpu` of FlashSAC is its half width."""
    own = f"algorithm = {algorithm!r}; preset = {preset!r}"
    params = params_of(tmp_path, defaults_of(params_of(tmp_path, own=own), 1), own=own)
    observation = tensor_spec.TensorSpec((17,), "float32", "observation")
    action = tensor_spec.BoundedTensorSpec((6,), "float32", -1.0, 1.0, "action")
    networks = params.actor_ctor(observation, action), params.critic_ctor(observation, action)
    for network in networks:
        network.create_variables()
    counts = [sum(variable.shape.num_elements() for variable in net.trainable_variables) for net in networks]
    assert counts == [actor, critic]
