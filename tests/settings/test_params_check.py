"""Impossible values and near misses are told all at once; the user's own names pass."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from tests.support.fakes import FakeParams
from tfagents_system.checks.rules import is_kept
from tfagents_system.examples.halfcheetah import params as halfcheetah
from tfagents_system.examples.minitaur import params as minitaur
from tfagents_system.examples.pendulum import params as pendulum
from tfagents_system.examples.pendulum_pixels import params as pendulum_pixels
from tfagents_system.examples.racing import params as racing
from tfagents_system.examples.racing_camera import params as racing_camera
from tfagents_system.examples.racing_iqn import params as racing_iqn
from tfagents_system.examples.racing_real_time import params as racing_real_time
from tfagents_system.examples.reach import params as reach
from tfagents_system.hyperparameters import Count, Hyperparameters, MayChange, When, described_by
from tfagents_system.settings import params_check
from tfagents_system.settings.params_check import check_env_config, check_params
from tfagents_system.train_params_base import TrainParamsBase

ROOT = Path(__file__).resolve().parents[2]


def params_with(**attributes: Any) -> FakeParams:
    params = FakeParams({"horizon": 100})
    for name, value in attributes.items():
        setattr(params, name, value)
    return params


def findings_for(horizon: int = 100, **attributes: Any) -> list[str]:
    return check_params(type("TrainParams", (FakeParams,), attributes)({"horizon": horizon}))


def test_every_attribute_has_a_rule() -> None:
    values = [
        name
        for name, value in vars(Hyperparameters).items()
        if not name.startswith("_") and not callable(value) and not isinstance(value, property)
    ]
    described = described_by(TrainParamsBase)
    assert values == list(described)
    for each in described.values():
        assert each.rule.words and is_kept(each.rule, each.default) and not is_kept(each.rule, object()), each.name
        assert each.default is getattr(TrainParamsBase, each.name) is vars(Hyperparameters)[each.name], (
            "a plain attribute"
        )


def test_one_annotated_line_makes_a_hyperparameter() -> None:
    """As CONTRIBUTING.md has it."""

    class WithOneMore(TrainParamsBase):
        num_lanes: Annotated[Count | None, "steps in total", When("asynchronous", False), MayChange] = None

    described = described_by(WithOneMore)["num_lanes"]
    assert described.rule.words == "an integer of at least 1, or None"
    assert [is_kept(described.rule, value) for value in (None, 3, np.int64(3), 0, 2.0, True)] == [True] * 3 + [
        False
    ] * 3
    assert (described.default, described.unit, described.may_change) == (None, "steps in total", True)
    assert [described.acts[0].holds(value) for value in (False, True)] == [True, False]
    assert described_by(WithOneMore).keys() - described_by(TrainParamsBase).keys() == {"num_lanes"}


def test_what_may_change_in_a_run_and_what_needs_its_default_in_a_deterministic_one() -> None:
    described = described_by(TrainParamsBase)
    may_change = {name for name, attribute in described.items() if attribute.may_change}
    assert may_change > {"discount", "learning_rate", "target_update_tau", "sac_log_alpha", "num_iter", "batch_size"}
    fixed = {"algorithm", "buffer_size", "n_step", "frame_stack", "env_steps_per_iter", "prior_data", "actor_optimizer"}
    assert not fixed & may_change
    undetermined = {name for name, attribute in described.items() if attribute.not_deterministic}
    timing = {"asynchronous", "publish_period_updates", "policy_refresh_steps"}
    assert undetermined == timing | {"matmul_precision", "max_hours", "priority_exponent"}


@pytest.mark.parametrize(
    "module",
    [pendulum, minitaur, halfcheetah, pendulum_pixels, racing, racing_camera, racing_iqn, racing_real_time, reach],
)
def test_shipped_examples_and_defaults_pass(module: Any) -> None:
    params = module.TrainParams({"horizon": 200})
    assert check_params(params) == [] and params_check.advice(params) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("discount", 1.01),
        ("actor_learning_rate", 0),
        ("target_update_tau", 0.0),
        ("sac_log_alpha", 1e9),
        ("num_target_critics", 2.0),
        ("batch_size", True),
        ("actor_fc_layer_params", (256, 0)),
        ("recurrent", 1),
        ("recurrent", {}),
        ("image_encoder_layers", (32, 0)),
        ("image_encoder_layers", ((32, 3),)),
        ("num_iter", None),
        ("validation_share", 0.6),
        ("critic_dropout", 1e-6),
        ("batch_renormalization", "yes"),
        ("critic_optimizer", "adamw"),
    ],
)
def test_impossible_value_names_attribute_rule_and_value(name: str, value: Any) -> None:
    findings = findings_for(**{name: value})
    assert len(findings) == 1, findings
    assert f"TrainParams.{name} must be" in findings[0] and repr(value) in findings[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("discount", 1.0),
        ("actor_learning_rate", np.float32(1e-3)),
        ("batch_size", np.int64(32)),
        ("actor_fc_layer_params", [64, 64]),
        ("image_encoder_layers", [[16, 4, 2], 32]),
        ("image_encoder_layers", ()),
        ("mini_race", {"steps": 50, "oversampling": [4, 1]}),
        ("critic_optimizer", {"weight_decay": np.float32(0.01), "global_clipnorm": None}),
        ("alpha_optimizer", {"name": "adamw", "weight_decay": 0}),
    ],
)
def test_possible_values_pass(name: str, value: Any) -> None:
    assert findings_for(**{name: value}) == []


@pytest.mark.parametrize(
    ("attribute", "value", "told"),
    [
        ("tqc", {"num_quantiles": 1}, "tqc.num_quantiles must be an integer of at least 2, found 1"),
        ("iqn", {"huber_kapa": 1.0}, "iqn.huber_kapa is not known: huber_kappa is meant"),
        ("iqn", {"num_quantiles": 7}, "iqn.num_quantiles must be an even number of at least 2, found 7"),
        ("mini_race", {"oversampling": (4, 1)}, "mini_race has no steps: add steps, an integer of at least 1"),
        ("mini_race", {"steps": 9, "oversampling": (5, 4)}, "mini_race.oversampling must be two integers"),
        ("recurrent", {"lstm_units": 0}, "recurrent.lstm_units must be an integer of at least 1, found 0"),
        ("critic_optimizer", {"name": "AdamW"}, "must be one of 'adam', 'adamw', 'sgd', found 'AdamW'"),
        ("actor_optimizer", {"weight_decay": 10**400}, "must be a number of at least 0"),
        ("critic_optimizer", {"momentum": 0.9}, 'critic_optimizer["momentum"] is no setting of adam: remove it'),
        ("alpha_optimizer", {"weight_decay": 0.1}, "would pull log(alpha) to 0"),
        ("categorical", {"num_atoms": 1}, "categorical.num_atoms must be an integer of at least 2, found 1"),
        (
            "categorical",
            {"value_range": (5, -5)},
            "value_range must be two numbers, the lower one first, found (5, -5)",
        ),
        ("categorical", {"value_range": (float("-inf"), 5)}, "value_range must be two numbers, the lower one first"),
        ("categorical", {"value_range": (1, 10**400)}, "value_range must be two numbers, the lower one first"),
    ],
)
def test_what_is_wrong_with_a_key_of_a_dictionary_is_one_finding(attribute: str, value: Any, told: str) -> None:
    (finding,) = findings_for(**{attribute: value})
    assert finding.startswith(f"TrainParams.{attribute}") and told in finding


def test_a_dictionary_keeps_the_defaults_of_keys_that_it_does_not_set() -> None:
    params = params_with(
        iqn={"huber_kappa": 1.0}, recurrent=True, critic_optimizer={"name": "adamw"}, algorithm="crossq"
    )
    found = params_check.resolved_attributes(params)
    assert found["iqn"] == {"num_quantiles": 8, "num_acting_quantiles": 32, "num_cosines": 64, "huber_kappa": 1.0}
    assert found["recurrent"] == {"lstm_units": 64, "sequence_length": 20, "burn_in": 0} and found["mini_race"] is None
    assert found["batch_renormalization"] == {"warmup_steps": 100_000}, "of crossq"
    assert (found["critic_optimizer"]["weight_decay"], found["critic_optimizer"]["beta_1"]) == (0.01, 0.5)
    assert found["critic_learning_rate"] == found["learning_rate"] == 1e-3


def test_an_episode_and_a_minibatch_fit_the_buffer() -> None:
    assert findings_for(horizon=10, buffer_size=20, batch_size=20) == []
    (finding,) = findings_for(horizon=10, buffer_size=20, batch_size=21)
    assert "buffer_size=20 is less than a minibatch of batch_size=21 steps: raise it to at least 21" in finding
    (finding,) = findings_for(horizon=30, buffer_size=20)
    assert "an episode of horizon=30 steps" in finding


@pytest.mark.parametrize("wrong", ["REDQ", "redqq", "redg"])
def test_an_algorithm_that_is_misspelt_is_told_with_the_one_that_was_meant(wrong: str) -> None:
    (finding,) = findings_for(algorithm=wrong, num_critics=5)
    assert "must be one of 'sac', 'redq', 'droq', 'tqc', 'crossq'" in finding
    assert finding.endswith(f"found {wrong!r}: 'redq' is meant")


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"algorithm": "redq", "num_critics": 1}, "num_target_critics=2 must be at most num_critics=1"),
        (
            {"algorithm": "tqc", "tqc": {"num_dropped_quantiles": 25}},
            "num_dropped_quantiles=25 must be below num_quantiles=25",
        ),
        ({"algorithm": "tqc", "num_target_critics": 2}, "num_target_critics=2 does not work with algorithm='tqc'"),
        ({"algorithm": "crossq", "recurrent": True}, "recurrent=True does not work with algorithm='crossq', its batch"),
        ({"num_critics": 3}, "num_critics=3 does not work with algorithm='sac', it has two critics: set it to None"),
        *(
            (
                {"algorithm": algorithm, name: setting},
                f"{name}={setting!r} does not work with algorithm={algorithm!r}, ",
            )
            for algorithm in ("xqc", "flash_sac")
            for name, setting in {
                "recurrent": True,
                "critic_layer_norm": True,
                "critic_dropout": 0.1,
                "batch_renormalization": True,
                "num_target_critics": 2,
                "critic_head": "scalar",
            }.items()
        ),
        *(
            (
                {"algorithm": name, "critic_head": "categorical"},
                f"critic_head='categorical' does not work with algorithm={name!r}, ",
            )
            for name in ("tqc", "dqn", "iqn", "sac_discrete")
        ),
        *(
            (
                {"hindsight_share": 0.5, **attributes},
                "hindsight_share=0.5 does not work with normalize_rewards=True (by default), which divides by returns "
                "of the goals that steps had before: set hindsight_share to None, or normalize_rewards to False",
            )
            for attributes in ({"algorithm": "xqc"}, {"critic_head": "categorical"})
        ),
        ({"algorithm": "flash_sac", "actor_fc_layer_params": (64, 32)}, "must be one width, once for each residual"),
        ({"algorithm": "flash_sac", "critic_joint_fc_layer_params": ()}, "with algorithm='flash_sac': write it as in"),
    ],
)
def test_what_an_algorithm_cant_have_is_told(attributes: dict[str, Any], told: str) -> None:
    (finding,) = findings_for(**attributes)
    assert told in finding


@pytest.mark.parametrize(
    "attributes",
    [
        {"algorithm": "flash_sac", "hindsight_share": 0.5, "normalize_rewards": False}
        | {"categorical": {"value_range": [-50, 0]}},
        {"critic_head": "categorical", "recurrent": True, "categorical": {"num_atoms": 51}},
        {"algorithm": "xqc", "preset": "paper", "num_critics": 3, "categorical": {"value_range": [-1, 1]}},
        {"algorithm": "xqc", "critic_head": "categorical", "critic_layer_norm": False, "network": "mlp"},
        {"algorithm": "xqc", "critic_joint_fc_layer_params": (64, 32)},
        {"algorithm": "redq", "critic_head": "categorical", "critic_dropout": 0.01},
    ],
)
def test_what_categorical_critics_can_have(attributes: dict[str, Any]) -> None:
    assert findings_for(**attributes) == [] == params_check.advice(params_with(**attributes))


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"preset": "paper"}, "preset='paper' has no effect with algorithm='sac'"),
        ({"algorithm": "xqc", "network": "simba"}, "network='simba' has no effect with algorithm='xqc'"),
        ({"categorical": {"num_atoms": 51}}, "categorical={'num_atoms': 51} has no effect with critic_head='scalar'"),
    ],
)
def test_what_an_algorithm_does_not_read_is_told(attributes: dict[str, Any], told: str) -> None:
    (note,) = params_check.advice(params_with(**attributes))
    assert told in note


def test_the_least_ratio_is_at_most_the_most() -> None:
    assert findings_for(min_updates_per_env_step=1.0, asynchronous=True) == []
    assert findings_for(min_updates_per_env_step=3.0, updates_per_env_step=3.0, asynchronous=True) == []
    (finding,) = findings_for(min_updates_per_env_step=3.0, updates_per_env_step=2.0, asynchronous=True)
    assert "min_updates_per_env_step=3.0 must be at most updates_per_env_step=2" in finding
    (note,) = params_check.advice(params_with(min_updates_per_env_step=0.5))
    assert "min_updates_per_env_step=0.5 has no effect with asynchronous=False" in note


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("batchsize", "batch_size"),
        ("critic_learning_rates", "critic_learning_rate"),
        ("TARGET_UPDATE_TAU", "target_update_tau"),
        ("env_ctr", "env_ctor"),
        ("collect_env_arg_kwargs", "collect_env_args_kwargs"),
    ],
)
def test_near_miss_names_the_one_that_is_meant(wrong: str, right: str) -> None:
    value: Any = (lambda self: None) if right.startswith(("env_", "collect_env")) else 3
    (finding,) = findings_for(**{wrong: value})
    assert f"TrainParams.{wrong} " in finding and f"{right} is meant" in finding


@pytest.mark.parametrize("name", ["gripper_width", "_batchsize", "actor_learning_rate_decay", "rewards"])
def test_names_of_the_users_own_pass(name: str) -> None:
    assert findings_for(**{name: 3}) == []


def test_all_findings_at_once() -> None:
    assert len(findings_for(discount=2, num_iter=0, batchsize=3, horizon=1)) == 3


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, 'no "horizon"'),
        ({"horzion": 200}, '"horizon" is meant'),
        ({"horizon": 0}, "at least 1, found 0"),
        ({"horizon": True}, "found True"),
        ({"horizon": "200"}, "found '200'"),
        ({"horizon": 200, "curiculum": {}}, '"curriculum" is meant'),
    ],
)
def test_wrong_json_is_exactly_one_finding(config: dict[str, Any], text: str) -> None:
    (finding,) = check_env_config(config)
    assert text in finding


def test_what_can_not_be_had_in_a_deterministic_run_is_told() -> None:
    def findings(**attributes: Any) -> list[str]:
        return params_check.check_deterministic(type("TrainParams", (FakeParams,), attributes)({"horizon": 10}))

    assert findings() == []
    told = findings(asynchronous=True, matmul_precision="bfloat16")
    assert [text.partition(" does not work with SAC_DETERMINISTIC=1")[0] for text in told] == [
        "TrainParams.asynchronous=True",
        "TrainParams.matmul_precision='bfloat16'",
    ]


def test_a_property_that_raises_is_one_finding() -> None:
    def raises(self: Any) -> Any:
        raise RuntimeError("no ratio")

    (finding,) = findings_for(updates_per_env_step=property(raises))
    assert "TrainParams.updates_per_env_step raises RuntimeError: no ratio" in finding


@pytest.mark.parametrize(
    ("steps", "workers", "is_refused"), [(1, 1, False), (7, 8, True), (8, 8, False), (None, 8, False)]
)
def test_every_worker_has_a_step_of_an_iteration_of_steps(steps: int | None, workers: int, is_refused: bool) -> None:
    params = params_with(env_steps_per_iter=steps)
    params.compute_config["num_collect_workers"] = workers
    findings = [finding for finding in params_check.check_params(params) if "env_steps_per_iter" in finding]
    assert len(findings) == is_refused
    if is_refused:
        assert "SAC_NUM_COLLECT_WORKERS=8" in findings[0] and "raise it to at least 8" in findings[0]


def test_two_lengths_of_one_period_are_refused() -> None:
    assert findings_for(checkpoint_period_env_steps=5) == []
    (finding,) = findings_for(checkpoint_period_env_steps=5, checkpoint_period_iters=1)
    assert "checkpoint_period_env_steps=5 and checkpoint_period_iters=1 are two lengths of one period" in finding
