"""The racing examples: their settings reach the car, evaluations have other tracks, and the checks find nothing."""

from pathlib import Path

import pytest

from tests.support.acting import action
from tfagents_system.checks.findings import Findings
from tfagents_system.envs import loading
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.errors import UserError
from tfagents_system.examples.racing import params as racing
from tfagents_system.examples.racing_camera import params as racing_camera
from tfagents_system.examples.racing_iqn import params as racing_iqn
from tfagents_system.examples.racing_real_time import params as racing_real_time
from tfagents_system.launch import environment_checks
from tfagents_system.policies.worker_policy import FixedPolicy
from tfagents_system.settings.load_params import load_env_config

EXAMPLES = [racing, racing_camera]


def shipped_config(module):
    return load_env_config(Path(module.__file__).parent / "config.json")


def test_the_check_finds_nothing_wrong_with_a_race_in_real_time():
    report = Findings()
    trial = environment_checks.EnvironmentTrial(
        racing_real_time.TrainParams(shipped_config(racing_real_time)), 0, report
    )
    assert trial.run().specs[1].shape == (3,) and report.errors == []


def test_the_agent_of_seven_seconds_has_fifteen_actions():
    params = racing_iqn.TrainParams(shipped_config(racing_iqn))
    assert len(params.action_table) == 15
    assert params.discount == 1.0 and params.mini_race["steps"] * 0.05 == 7.0


@pytest.mark.parametrize("module", EXAMPLES)
def test_the_shipped_curriculum_reaches_the_car(module):
    config = shipped_config(module)
    curriculum, seen = Curriculum.from_config(config), []
    with loading.make_collect_env(module.TrainParams(config), 0, 0) as env:
        for iteration in range(0, 301, 100):
            env.set_state(curriculum.values_at(iteration, is_eval=False))
            seen.append(env.user_env.parameters.friction)
    assert seen == pytest.approx([1.2, 1.1, 1.0, 0.9])


def test_evaluations_are_on_other_tracks():
    params = racing.TrainParams(shipped_config(racing))
    with loading.make_collect_env(params, 1, 0) as collect, loading.make_eval_env(params, 1, collect, 0) as evaluate:
        for number in (3, 0):
            evaluate.evaluation_episode = number
            evaluate.set_state({"friction": 1.0 + 0.1 * number})
            evaluate.reset()
            assert evaluate.user_env.track.name == f"closed/held_out/{number}"
        assert not set(collect.user_env.track_names) & set(evaluate.user_env.track_names)
        assert len(collect.user_env.track_names) == 20


def test_expert_workers_finish_laps():
    params = racing.TrainParams(shipped_config(racing))
    with loading.make_collect_env(params, 0, 0) as env:
        policy = FixedPolicy(params.expert_policy_ctor(), env.actions)
        time_step = env.reset()
        while not time_step.is_last():
            time_step = env.step(action(policy, time_step, False))
        assert env.info["is_success"] and time_step.discount == 0.0


def test_a_wrong_config_is_told_when_the_environment_is_built():
    config = shipped_config(racing) | {"trajectory_reward": {}, "input_files": {"trajectory_reward": "no/reward.npz"}}
    for module in (racing, racing_real_time):
        with pytest.raises(UserError, match="reward.npz does not exist"):
            module.TrainParams(config).env_ctor()
    config["racing"] = {"widht": 9}
    with pytest.raises(UserError, match="racing.widht is not known: width is meant"):
        racing.TrainParams(config).env_ctor()
