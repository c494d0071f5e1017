"""TrainParams.potential is called in the worker; where it fails, the environment counts as faulty."""

import math

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.support.lanes_for_tests import NumberedLane, vector_of
from tfagents_system.envs import loading
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.train_params_base import TrainParamsBase

ACTION = np.zeros(2, np.float32)


def environment(potential):
    return TrainingEnvironment(NumberedLane(0, (9,)), 9, worker_id=3, potential=potential)


def test_it_is_that_of_the_newest_observation():
    env = environment(lambda observation: 10.0 * observation[2])
    columns = env.new_columns(3)
    env.reset_lanes(columns)
    for columns.row in range(3):
        env.step_lane([ACTION], columns)
    assert columns.potential.ravel().tolist() == [0.0, 10.0, 20.0, 30.0]


@pytest.mark.parametrize(
    ("potential", "told"),
    [
        (lambda observation: 1.0 / (observation[2] - 2.0), "ZeroDivisionError|divide by zero|infinite|finite"),
        (
            lambda observation: math.nan if observation[2] == 2 else 0.0,
            "the potential is nan, not finite as float32",
        ),
        (lambda observation: None if observation[2] == 2 else 0.0, "the potential is None: it must be a number"),
        (lambda observation: {2.0: [].pop}.get(observation[2], float)(), "IndexError: pop from empty list"),
    ],
)
def test_what_it_raises_is_a_fault_of_the_environment(potential, told):
    env = environment(potential)
    env.reset()
    env.step(ACTION)
    with np.errstate(divide="ignore"), pytest.raises(EnvironmentFault, match=told) as raised:
        env.step(ACTION)
    assert (raised.value.worker_id, raised.value.step, raised.value.episode) == (3, 2, 1)


def test_so_it_is_at_a_reset_and_in_lanes():
    def broken(observation):
        raise ValueError("no map")

    with pytest.raises(EnvironmentFault, match="ValueError: no map"):
        environment(broken).reset()
    lanes = [NumberedLane(lane, (9,)) for lane in range(3)]
    env = TrainingEnvironment(vector_of(lanes, AutoresetMode.SAME_STEP), 9, potential=broken)
    with pytest.raises(EnvironmentFault, match="a reset of its lanes: ValueError: no map"):
        env.reset_lanes(env.new_columns())


@pytest.mark.parametrize("has_own", [True, False])
def test_environments_that_evaluate_have_none(has_own):
    class Params(TrainParamsBase):
        def env_ctor(self, *args, seed=None, **kwargs):
            return NumberedLane(0, (9,))

    if has_own:
        Params.potential = lambda self, observation: 7.0
    params = Params({"horizon": 9})
    collecting = loading.make_collect_env(params, 0, 1)
    evaluating = loading.make_eval_env(params, 0, collecting, 1)
    columns = collecting.new_columns()
    assert (columns.potential is not None, evaluating.new_columns().potential) == (has_own, None)
    collecting.reset_lanes(columns)
    assert not has_own or columns.potential[0, 0] == 7.0
