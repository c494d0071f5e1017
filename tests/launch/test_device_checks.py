"""A device is tried before a start at its own pace, with its default action, without a second one beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.support.devices_for_tests import DummyDevice, OwnDevice
from tests.support.fakes import FakeParams
from tests.support.prepared_runs import variables_of_run
from tfagents_system.checks.checklist import Checklist
from tfagents_system.envs.clocks import VirtualClock
from tfagents_system.envs.real_time import RealTimeEnvironment
from tfagents_system.launch import environment_checks
from tfagents_system.launch.environment_checks import check_environment
from tfagents_system.launch.inspection import Inspector


class Device(DummyDevice):
    """Observes within the bounds of its space; takes states."""

    def set_state(self, state: Any) -> None:
        self._did("set_state", state)


def report(
    clock: Any = None,
    curriculum: Any = None,
    envs_per_worker: int = 1,
    deterministic: bool = False,
    has_workers: bool = True,
    **attributes: Any,
) -> tuple[Checklist, list[Device]]:
    devices: list[Device] = []

    def env_ctor(self: Any, *args: Any, seed: Any = None, **kwargs: Any) -> Any:
        devices.append(Device(clock))
        return RealTimeEnvironment(devices[-1], 0.05, clock=clock, **settings)

    settings = attributes.pop("settings", {})
    config = {"horizon": 10, **({"curriculum": curriculum} if curriculum else {})}
    params = type("TrainParams", (FakeParams,), {"env_ctor": env_ctor, **attributes})(config)
    checks = Checklist()
    workers: dict[str, Any] = {"envs_per_worker": envs_per_worker, "has_workers": has_workers}
    check_environment(params, 0, checks, render=True, deterministic=deterministic, **workers)
    return checks, devices


def test_it_is_driven_with_its_default_action_alone_and_left_waiting() -> None:
    gain = {"gain": {"iters": [0, 5], "range": [1.0, 2.0], "apply_to_eval": True}}
    checks, (device,) = report(VirtualClock(), curriculum=gain, num_eval_episodes=3, action_history=1)
    assert checks.errors == []
    assert {tuple(sent) for sent in device.sent()} == {tuple(Device.default.tolist())}
    assert len(device.sent()) > 10, "it was stepped"
    names = [name for name, _, _ in device.log]
    assert names[-1] == "wait"
    assert [value for name, _, value in device.log if name == "set_state"] == [{"gain": 1.0}, {"gain": 2.0}]
    assert "acts in real time: tried with its default action; each worker builds it once" in checks["environment"].facts
    assert checks["episode"].facts[0] == "ends by a time limit (horizon=10) after 10 steps"
    assert "set_state works with gain = 1, gain = 2" in checks["curriculum"].facts
    assert not any("in real time" in note for note in checks["environment"].notes)


def test_without_workers_of_the_start_it_is_built_and_not_driven() -> None:
    """Another machine has the device, or a worker of another start drives it already."""
    gain = {"gain": {"iters": [0, 5], "range": [1.0, 2.0], "apply_to_eval": True}}
    checks, (device,) = report(curriculum=gain, num_eval_episodes=3, action_history=1, has_workers=False)
    assert checks.errors == []
    assert {name for name, _, _ in device.log} <= {"close"}
    told = "acts in real time: not stepped, as this start has no workers; each worker builds it once"
    assert told in checks["environment"].facts
    assert "agent" in checks and not any(name in checks for name in ("episode", "curriculum", "rendering"))


@pytest.mark.parametrize(
    ("variables", "has_workers"),
    [
        ({}, True),
        ({"SAC_LOCAL_WORKERS": "0", "SAC_GATEWAY_PORT": "0"}, False),
        ({"SAC_LOCAL_WORKERS": "0", "SAC_GATEWAY_PORT": "0", "SAC_EXPERT_WORKERS": "1"}, True),
        ({"SAC_TRAINER_SERVER": "host:5", "SAC_CREDENTIALS_DIR": "."}, False),
        ({"SAC_LOCAL_WORKERS": "0", "SAC_SERVER": "host:5", "SAC_CREDENTIALS_DIR": "."}, True),
    ],
)
def test_a_start_says_whether_it_has_workers(
    variables: dict[str, str], has_workers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(environment_checks, "check_environment", lambda *_, **told: seen.append(told["has_workers"]))
    Inspector({**variables_of_run(tmp_path), **variables}, None).run(False, None)
    assert seen == [has_workers]


def test_all_that_a_run_can_not_do_with_it_is_told_at_once() -> None:
    checks, devices = report(
        envs_per_worker=2, deterministic=True, env_steps_per_iter=10, action_history=0, num_eval_episodes=1,
        settings={"time_step_timeout_factor": 2.0},
    )  # fmt: skip
    found = checks["environment"]
    assert len(devices) == 1
    assert [error.split(" ")[0] for error in found.errors] == [
        "SAC_ENVS_PER_WORKER=2,", "SAC_DETERMINISTIC=1", "SAC_DETERMINISTIC=1"
    ]  # fmt: skip
    assert "by a real clock: use SAC_DETERMINISTIC=0" in found.errors[1]
    assert "set num_train_episodes_per_iter instead of env_steps_per_iter" in found.errors[2]
    assert any(note.startswith("action_history=0 in real time") for note in found.notes)


def test_a_virtual_clock_is_deterministic() -> None:
    checks, _ = report(VirtualClock(), deterministic=True, env_steps_per_iter=None)
    assert checks["environment"].errors == []


def test_an_impossible_time_step_is_told_with_its_remedy() -> None:
    checks, _ = report(settings={"start_obs_capture": 0.2})
    assert len(checks.errors) == 1
    assert "start_obs_capture=0.2 must be from 0 to time_step_duration=0.05 plus its elasticity" in checks.errors[0]


def test_a_device_without_a_default_action_gets_the_middle_of_its_bounds() -> None:
    sent: list[list[float]] = []

    class Own(gymnasium.Env):
        real_time = True
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        action_space = gymnasium.spaces.Box(np.array([0.0, -4.0]), np.array([2.0, 2.0]), dtype=np.float64)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            sent.append(np.asarray(action).tolist())
            return np.zeros(1, np.float32), 0.0, False, False, {}

    attributes = {"env_ctor": lambda self, *args, seed=None, **kwargs: Own()}
    checks = Checklist()
    check_environment(type("TrainParams", (FakeParams,), attributes)({"horizon": 10}), 0, checks)
    assert checks.errors == [] and {tuple(action) for action in sent} == {(1.0, -1.0)}


@pytest.mark.parametrize(
    ("hooks", "is_told"), [("", False), ("collect", True), ("eval", False), ("collect eval", False)]
)
def test_workers_that_only_evaluate_need_arguments_of_their_own(hooks: str, is_told: bool) -> None:
    def arguments(self: Any, id: int = 0, collect_env: Any = None) -> Any:
        return (), {}

    own = {f"{hook}_env_args_kwargs": arguments for hook in hooks.split()}
    for has_evaluators in (True, False):
        attributes = {"env_ctor": lambda self, *args, seed=None, **kwargs: OwnDevice({}), **own}
        checks = Checklist()
        params = type("TrainParams", (FakeParams,), attributes)({"horizon": 10})
        check_environment(params, 0, checks, has_evaluators=has_evaluators)
        assert ["add eval_env_args_kwargs" in error for error in checks.errors] == [True] * (is_told and has_evaluators)
