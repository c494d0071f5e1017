"""Each attribute of TrainParams says when it acts; what was set without effect is told, whatever the algorithm."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fakes import CounterEnv
from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.checks.findings import Findings
from tfagents_system.checks.hyperparameters import IMAGES, described_by
from tfagents_system.launch.environment_checks import EnvironmentTrial
from tfagents_system.settings import params_check
from tfagents_system.settings.effects import without_effect
from tfagents_system.train_params_base import TrainParamsBase

# One that is right, and not the default, of each attribute that does not always act.
SET: dict[str, Any] = {
    "alpha_learning_rate": 1e-4,
    "target_update_tau": 0.01,
    "target_update_period": 2,
    "target_entropy": -3.0,
    "tqc": {"num_quantiles": 13},
    "actor_learning_rate": 1e-4,
    "learn_entropy_coef": True,
    "sac_log_alpha": -1.0,
    "actor_fc_layer_params": (32,),
    "actor_optimizer": {"name": "sgd"},
    "double_q": True,
    "dueling": True,
    "value_head_units": 64,
    "exploration_epsilon": 0.2,
    "boltzmann_epsilon": 0.2,
    "iqn": {"huber_kappa": 1.0},
    "image_encoder_layers": ((8, 4, 2),),
    "image_encoder_features": 20,
    "image_augmentation_pixels": 2,
    "alpha_optimizer": {"name": "sgd"},
    "priority_beta": 0.5,
    "prior_data_share": 0.25,
    "offline_updates": 5,
    "behaviour_cloning_weight": 0.4,
    "normalize_observations": True,
    "updates_per_iter": 7,
    "num_train_episodes_per_iter": 3,
    "max_policy_lag": 0,
    "min_updates_per_env_step": 0.5,
    "num_initial_episodes": 3,
    "publish_period_updates": 5,
    "policy_refresh_steps": 5,
    "cut_at_exploration": False,
    "hindsight_strategy": "final",
    "eval_period_iters": 3,
    "best_metric": "success",
}
SAMPLES = {"cut_at_exploration", "hindsight_strategy", "priority_beta"}
VALUES = {"double_q", "dueling", "value_head_units", "exploration_epsilon", "boltzmann_epsilon"}
ACTOR = {"actor_learning_rate", "sac_log_alpha", "actor_fc_layer_params", "actor_optimizer"}
TUNED = {"alpha_learning_rate", "alpha_optimizer", "target_entropy"}
PRIOR = {"prior_data_share", "offline_updates"}
TARGETS = {"target_update_tau", "target_update_period"}
ASYNCHRONOUS = {
    "min_updates_per_env_step",
    "publish_period_updates",
    "policy_refresh_steps",
}


def params_with(**attributes: Any) -> TrainParamsBase:
    hooks = {"env_ctor": lambda self, *args, seed=None, **kwargs: CounterEnv()}
    return type("TrainParams", (TrainParamsBase,), {**hooks, "prior_data": "demos.npz", **attributes})({"horizon": 100})


def names_told(images: bool | None = None, **attributes: Any) -> set[str]:
    params = params_with(**attributes)
    assert params_check.check_params(params) == []
    return {note.partition("=")[0].removeprefix("TrainParams.") for note in without_effect(params, images)}


def test_conditions_are_of_attributes_that_there_are_and_all_are_looked_at_here() -> None:
    described = described_by(TrainParamsBase)
    assert {each.name for each in described.values() if each.acts} == {*SET, "eval_period_env_steps", "keep_policies"}
    assert {when.attribute for each in described.values() for when in each.acts} <= {*described, IMAGES}


def test_without_evaluations_their_period_and_what_they_compare_have_no_effect() -> None:
    given: dict[str, Any] = {"eval_period_iters": 3, "best_metric": "success"}
    assert names_told(**given) == set() and names_told(**given, num_eval_episodes=0) == set(given)
    assert names_told(eval_period_env_steps=500, num_eval_episodes=0) == {"eval_period_env_steps"}
    assert names_told(keep_policies=False, num_eval_episodes=0) == set()
    assert names_told(keep_policies=False) == {"keep_policies"}


def test_what_is_said_of_prior_data_has_no_effect_without_any() -> None:
    given: dict[str, Any] = {name: SET[name] for name in PRIOR}
    assert names_told(**given, prior_data=None) == PRIOR
    assert names_told(behaviour_cloning_weight=0.4) == {"behaviour_cloning_weight"}, "without offline updates"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_defaults_are_never_told(algorithm: str) -> None:
    others: list[dict[str, Any]] = [{}, {"asynchronous": True}, {"updates_per_env_step": 1.0}]
    entropy = [] if algorithm in ("dqn", "iqn") else [{"learn_entropy_coef": False}]
    for attributes in [*others, *entropy]:
        assert names_told(False, algorithm=algorithm, **attributes) == set()


@pytest.mark.parametrize(
    ("algorithm", "without"),
    [
        ("sac", VALUES | {"tqc", "iqn"}),
        ("redq", VALUES | {"tqc", "iqn"}),
        ("droq", VALUES | {"tqc", "iqn"}),
        ("tqc", VALUES | {"iqn"}),
        ("crossq", TARGETS | VALUES | {"tqc", "iqn"}),
        ("dqn", ACTOR | TUNED | {"tqc", "iqn", "behaviour_cloning_weight"}),
        ("iqn", ACTOR | TUNED | {"tqc", "behaviour_cloning_weight"}),
        ("sac_discrete", VALUES | {"tqc", "iqn", "behaviour_cloning_weight"}),
    ],
)
def test_of_all_attributes_those_without_effect_are_told(algorithm: str, without: set[str]) -> None:
    plain = without | SAMPLES
    assert names_told(True, algorithm=algorithm, **SET) == plain | ASYNCHRONOUS
    assert names_told(True, algorithm=algorithm, asynchronous=True, **SET) == plain | {"max_policy_lag"}
    images = {name for name in SET if name.startswith("image_")}
    assert names_told(False, algorithm=algorithm, **SET) == plain | ASYNCHRONOUS | images
    tuned = {"alpha_learning_rate", "alpha_optimizer", "target_entropy"}
    found = names_told(True, algorithm=algorithm, **{**SET, "learn_entropy_coef": False})
    entropy = {"learn_entropy_coef"} if algorithm in ("dqn", "iqn") else set()
    assert found == plain | ASYNCHRONOUS | tuned | entropy


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        (
            {"updates_per_iter": 7, "updates_per_env_step": 2.0},
            "updates_per_iter=7 has no effect with updates_per_",
        ),
        ({"max_policy_lag": 0, "asynchronous": True}, "max_policy_lag=0 has no effect with asynchronous=True: remove"),
        (
            {"target_update_tau": 0.1, "algorithm": "crossq"},
            "tau=0.1 has no effect with algorithm='crossq': remove it,",
        ),
        (
            {"normalize_observations": True, "network": "simba"},
            "has no effect with network='simba': remove it, or chan",
        ),
    ],
)
def test_a_note_says_what_leaves_it_without_effect(attributes: dict[str, Any], told: str) -> None:
    (note,) = params_check.advice(params_with(**attributes))
    assert told in note


def test_what_a_users_own_agent_may_read_is_not_told() -> None:
    hooks: Any = {"agent_ctor": lambda self, *specs: TrainParamsBase.agent_ctor(self, *specs)}
    assert names_told(False, **SET, **hooks) == ASYNCHRONOUS | SAMPLES


def test_what_acts_on_images_alone_is_told_when_the_environment_is_known() -> None:
    params, checks = params_with(image_augmentation_pixels=2, dueling=True), Findings()
    assert params_check.advice(params) == [
        "TrainParams.dueling=True has no effect with algorithm='sac': remove it, or change that"
    ]
    assert EnvironmentTrial(params, 0, checks).run() is not None
    (note,) = checks.notes
    told = "TrainParams.image_augmentation_pixels=2 has no effect with observations without images: remove it"
    assert note == told


@pytest.mark.parametrize("name, value", [("updates_per_iter", 1000), ("updates_per_iter", 500)])
def test_whole_episodes_beside_iterations_of_steps_are_told_whatever_their_number(name: str, value: int) -> None:
    given: dict[str, Any] = {"env_steps_per_iter": 50, name: value}
    assert names_told(**given) == {name}
    assert names_told(env_steps_per_iter=50) == set()


def test_episodes_beside_steps_are_told_too() -> None:
    default = TrainParamsBase.num_train_episodes_per_iter
    assert names_told(env_steps_per_iter=50, num_train_episodes_per_iter=default) == {"num_train_episodes_per_iter"}
