"""Notes on settings with which a run is costly or learns nothing."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.support.fakes import CounterEnv
from tfagents_system.settings import params_check
from tfagents_system.train_params_base import TrainParamsBase

OBSERVATION = tf.TensorSpec((17,), tf.float32, "observation")
ACTION = tensor_spec.BoundedTensorSpec((6,), tf.float32, -1.0, 1.0, "action")


class Params(TrainParamsBase):
    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        del seed
        return CounterEnv()


def made(**attributes: Any) -> Any:
    return type("TrainParams", (Params,), attributes)({"horizon": 10})


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
    params = type("TrainParams", (Params,), {"num_train_episodes_per_iter": 1, **attributes})(config)
    params.compute_config = {"num_collect_workers": 2}
    notes = [note for note in params_check.advice(params) if note.startswith("curriculum.")]
    told = f"curriculum.mass.iters: {late} come after the last iteration, so their values never fall due: the run has "
    assert [note.startswith(f"{told}{length}, counted from 0. Lower") for note in notes] == [True] * (late is not None)


def test_a_run_that_random_actions_fill_is_noted_at_each_start() -> None:
    def told(**attributes: Any) -> list[str]:
        return [note for note in params_check.advice(made(**attributes)) if "before the first update" in note]

    horizon = made().horizon
    (note,) = told(num_env_steps=10 * horizon, num_initial_episodes=10)
    assert note.startswith(
        f"num_env_steps={10 * horizon} may be over before the first update: num_initial_episodes=10 come first, "
        f"up to {10 * horizon:,} steps"
    )
    assert told(num_env_steps=10 * horizon + 1, num_initial_episodes=10) == [] == told(num_initial_episodes=10)
    (note,) = told(num_env_steps=200, initial_collect_steps=300)
    assert "initial_collect_steps=300 come first, up to 300 steps" in note
