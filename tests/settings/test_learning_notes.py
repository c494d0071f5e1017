"""Notes on settings with which a run is costly or learns nothing."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.support.fakes import CounterEnv, agent_of
from tfagents_system.checks.checklist import Checklist
from tfagents_system.examples.halfcheetah.params import TrainParams as HalfCheetah
from tfagents_system.examples.pendulum.params import TrainParams as Pendulum
from tfagents_system.launch.environment_checks import check_environment
from tfagents_system.settings import learning_notes, params_check
from tfagents_system.train_params_base import TrainParamsBase

OBSERVATION = tf.TensorSpec((17,), tf.float32, "observation")
ACTION = tensor_spec.BoundedTensorSpec((6,), tf.float32, -1.0, 1.0, "action")


class Params(TrainParamsBase):
    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        del seed
        return CounterEnv()


def made(**attributes: Any) -> Any:
    return type("TrainParams", (Params,), attributes)({"horizon": 10})


def cost(**attributes: Any) -> float | None:
    return learning_notes.update_cost(made(**attributes), agent_of(Params, OBSERVATION, ACTION, **attributes))


@pytest.mark.parametrize(
    ("attributes", "late", "length"),
    [
        ({"num_env_steps": 1500}, "20, 40", "num_env_steps=1500, which are 8 iterations of full-length episodes"),
        ({"num_env_steps": 1500, "env_steps_per_iter": 40}, "40", "num_env_steps=1500, which are 38 iterations"),
        ({"num_env_steps": 1500, "num_iter": 5}, "20, 40", "5 iterations"),
        ({"num_iter": 40}, "40", "40 iterations"),
        ({"num_iter": 41}, None, ""),
    ],
)
def test_values_of_a_curriculum_that_never_fall_due_are_noted(
    attributes: dict[str, Any], late: str | None, length: str
) -> None:
    config = {"horizon": 100, "curriculum": {"mass": {"iters": [0, 20, 40], "range": [1.0, 3.0]}}}
    params = type("TrainParams", (Params,), {"n_train_episodes_per_iter": 1, **attributes})(config)
    params.compute_config = {"num_collect_workers": 2}
    notes = [note for note in params_check.advice(params) if note.startswith("curriculum.")]
    told = f"curriculum.mass.iters: {late} come after the last iteration, so their values never fall due: the run has "
    assert [note.startswith(f"{told}{length}, counted from 0. Lower") for note in notes] == [True] * (late is not None)


def test_plain_sac_costs_one_and_others_in_proportion() -> None:
    assert cost() == pytest.approx(1.0, abs=0.01)
    assert cost(train_batch_size=1024) == pytest.approx(4.0, abs=0.04)
    assert cost(algorithm="redq") == pytest.approx(21 / 5, rel=0.02)  # 10 critics, as many targets, an actor
    assert cost(actor_fc_layer_params=(512, 512), critic_joint_fc_layer_params=(512, 512)) == pytest.approx(
        3.8, rel=0.1
    )
    # Two blocks of 256 x 1024 x 2 in each network, where plain layers have 256 x 256: by measurement 13 times.
    assert cost(network="simba") == pytest.approx(15, abs=1.5)


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({}, None),
        ({"algorithm": "redq"}, None),
        ({"network": "simba"}, "by network='simba'"),
        ({"train_batch_size": 2048}, "by train_batch_size=2048"),
        ({"recurrent": True}, "by recurrent=True"),
    ],
)
def test_costly_settings_are_named_before_a_start(attributes: dict[str, Any], told: str | None) -> None:
    checks = Checklist()
    check_environment(made(**attributes), 0, checks)
    notes = [note for note in checks.notes if "times the arithmetic" in note]
    assert len(notes) == (told is not None)
    assert told is None or told in notes[0]


@pytest.mark.parametrize(
    ("attributes", "notes"),
    [
        ({}, 0),
        ({"critic_learning_rate": 0.01}, 0),
        ({"critic_learning_rate": 0.02}, 1),
        ({"critic_learning_rate": 0.02, "actor_learning_rate": 1e-7}, 2),
        ({"critic_learning_rate": 0.02, "critic_optimizer": {"name": "sgd"}}, 0),
    ],
)
def test_learning_rates_that_seldom_learn(attributes: dict[str, Any], notes: int) -> None:
    found = [note for note in params_check.advice(made(**attributes)) if "common are 1e-4 to 1e-3" in note]
    assert len(found) == notes


def test_large_returns_without_normalisation() -> None:
    assert learning_notes.returns(made(), 100.0) == [] == learning_notes.returns(made(normalize_rewards=True), -1e6)
    (note,) = learning_notes.returns(made(), -1203.4)
    assert "return of -1,203" in note and "normalize_rewards=True" in note


@pytest.mark.parametrize(("workers", "is_noted"), [(4, False), (5, True)])
def test_few_updates_a_step(workers: int, is_noted: bool) -> None:
    """An iteration's 10 steps a worker, and two updates."""
    params = made(num_steps_per_iter=2)
    params.compute_config = {"num_collect_workers": workers}
    checks = Checklist()
    check_environment(params, 0, checks)
    assert any("0.04 updates for each environment step" in note for note in checks.notes) == is_noted


@pytest.mark.parametrize("example", [Pendulum, HalfCheetah])
def test_examples_have_no_note(example: Any) -> None:
    params = example({"horizon": 200})
    agent = agent_of(example, OBSERVATION, ACTION)
    assert learning_notes.learning_rates(params) + learning_notes.costly_updates(params, agent) == []


# Rows as tests/worker's rollouts have them: 64 lanes with 200 steps, 3.125 of each.
@pytest.mark.parametrize(
    ("lanes", "workers", "attributes", "told"),
    [
        (64, 1, {}, "holds 1.3 rows for each step. Raise it to 1600"),
        (64, 1, {"n_step": 3}, "holds 2.0 rows for each step. Raise it to 1728"),
        (64, 1, {"recurrent": True}, "holds 13.5 rows for each step"),
        (4, 2, {"env_steps_per_iter": 199}, "each of 8 episodes side by side (2 workers, 4 environments each): "),
        (256, 1, {"env_steps_per_iter": 50}, "206 of them wait, with observations that a later policy acts on. "),
        (1, 4, {"recurrent": True}, "Raise it to 252"),
    ],
)
def test_iterations_too_short_for_the_episodes_side_by_side(
    lanes: int, workers: int, attributes: dict[str, Any], told: str
) -> None:
    params = made(**({"env_steps_per_iter": 200} | attributes))
    params.compute_config = {"num_collect_workers": workers}
    (note,) = learning_notes.short_shares(params, lanes)
    assert told in note


@pytest.mark.parametrize(
    ("attributes", "without"),
    [
        ({"env_steps_before_training": 1000}, 7),  # 19 steps behind the drawn one in 128 lanes are 2432 steps.
        ({"n_buffer_init_episodes": 0}, 12),
        ({"env_steps_before_training": 2400}, 0),
        ({}, 0),
    ],
)
def test_first_iterations_without_updates_are_foretold(attributes: dict[str, Any], without: int) -> None:
    sequences = {"recurrent": True}
    (note,) = learning_notes.short_shares(made(env_steps_per_iter=200, **sequences, **attributes), 128)
    assert (f"the first {without} iterations have no updates" in note) == (without > 0)
    assert without or "no updates" not in note


def test_long_enough_iterations_and_whole_episodes_are_not_noted() -> None:
    assert learning_notes.short_shares(made(env_steps_per_iter=200), 8) == []
    assert learning_notes.short_shares(made(env_steps_per_iter=1, recurrent=False), 1) == []
    assert learning_notes.short_shares(made(env_steps_per_iter=None), 500) == []


def test_the_check_of_the_environment_knows_how_many_a_worker_has() -> None:
    checks = Checklist()
    check_environment(made(env_steps_per_iter=200), 0, checks, envs_per_worker=16)
    assert len([note for note in checks.notes if "(1 workers, 16 environments each)" in note]) == 1


def test_a_run_that_random_actions_fill_is_noted_at_each_start() -> None:
    def told(**attributes: Any) -> list[str]:
        return [note for note in params_check.advice(made(**attributes)) if "before the first update" in note]

    horizon = made().horizon
    (note,) = told(num_env_steps=10 * horizon, n_buffer_init_episodes=10)
    assert note.startswith(
        f"num_env_steps={10 * horizon} may be over before the first update: n_buffer_init_episodes=10 come first, "
        f"up to {10 * horizon:,} steps"
    )
    assert told(num_env_steps=10 * horizon + 1, n_buffer_init_episodes=10) == [] == told(n_buffer_init_episodes=10)
    (note,) = told(num_env_steps=200, env_steps_before_training=300)
    assert "env_steps_before_training=300 come first, up to 300 steps" in note
