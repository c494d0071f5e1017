"""A device in a process of its own (SAC_ENV_PYTHON): the worker sees it as one that acts in real time."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pytest import approx

from tfagents_system.envs import env_process, loading
from tfagents_system.envs.env_process import ProcessSettings
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.settings.load_params import load_params

PARAMS = """
import gymnasium
import numpy as np

from tfagents_system.envs.clocks import VirtualClock
from tfagents_system.envs.real_time import RealTimeEnvironment
from tfagents_system.train_params_base import TrainParamsBase


class Device:
    waits = sends = 0

    def send_control(self, control):
        self.control = control
        self.sends += 1

    def get_obs_rew_terminated_info(self):
        return np.array([*self.control, self.waits], np.float32), 1.0, False, {}

    def reset(self, seed=None, options=None):
        number = 1 + options["episode"] if options and options["evaluation"] else 0
        return np.array([self.sends, number, self.waits], np.float32), {}

    def wait(self):
        self.waits += 1

    def get_observation_space(self):
        return gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def get_action_space(self):
        return gymnasium.spaces.Box(np.array([0.0, -2.0], np.float32), np.array([1.0, 2.0], np.float32))

    def get_default_action(self):
        return np.array([0.25, -0.5], np.float32)


class TrainParams(TrainParamsBase):
    action_history = 1

    def env_ctor(self, *args, seed=None, **kwargs):
        return RealTimeEnvironment(Device(), 0.05, clock=VirtualClock())
"""


def test_its_pace_default_action_waits_and_times_cross_over(tmp_path: Path) -> None:
    path = tmp_path / "device_params.py"
    path.write_text(PARAMS)
    params = load_params(path, {"horizon": 3})
    settings = ProcessSettings(Path(sys.executable), step_timeout_secs=60.0)
    with loading.make_collect_env(params, 0, 0, process=settings) as env:
        assert env.device is not None and not env.device.has_real_clock
        first = env.reset().observation
        assert first["action_history"] == approx(np.array([-0.5, -0.25])), "the default action, as the agent has it"
        second = env.step(np.zeros(2, np.float32)).observation
        assert second["observation"] == approx(np.array([0.25, -0.5, 0.0])), "under the default action"
        env.device.wait()
        env.device.wait()
        steps = [env.step(np.ones(2, np.float32)) for _ in range(2)]
        assert steps[0].observation["observation"] == approx(np.array([0.5, 0.0, 0.0])), "captured before it waited"
        assert steps[1].is_last()
        metrics = env.device.take_metrics()
        assert metrics["late_steps"] == 0.0 and metrics["step_ms_p99"] == approx(50.0)
        third = env.reset().observation["observation"]
        assert third == approx(np.array([3.0, 0.0, 1.0])), "it knows the horizon: the last action was not sent"
        told = []
        for number in (6, 0, None):
            env.device.set_evaluation(number is not None)
            env.evaluation_episode = number
            told.append(float(env.reset().observation["observation"][1]))
        assert told == [7.0, 1.0, 0.0], "resets tell of evaluations"


def test_a_signal_to_all_processes_of_a_job_leaves_it_to_its_worker(tmp_path: Path) -> None:
    path = tmp_path / "device_params.py"
    path.write_text(PARAMS)
    settings = ProcessSettings(Path(sys.executable), step_timeout_secs=60.0)
    with loading.make_collect_env(load_params(path, {"horizon": 3}), 0, 0, process=settings) as env:
        env.reset()
        assert isinstance(env.user_env, env_process.EnvProcess) and env.device is not None
        os.kill(env.user_env.pid, signal.SIGTERM)
        env.step(np.zeros(2, np.float32))
        env.device.wait()
        assert env.reset().observation["observation"][2] == 1.0, "it was told to wait"


def in_own_process(folder: Path, imports: str, device: str, settings: ProcessSettings) -> TrainingEnvironment:
    """An environment of a params file that has a subclass of Device."""
    path = folder / "device_params.py"
    path.write_text(imports + PARAMS.partition("class TrainParams")[0] + device)
    return loading.make_collect_env(load_params(path, {"horizon": 4}), 0, 0, process=settings)


SLOW = """

class Slow(Device):
    def _takes(self, what):
        with open(os.environ["DEVICE_LOG"], "a") as log:
            log.write(f"{what} begins, ")
            log.flush()
            time.sleep(1.2)
            log.write(f"{what} ends, ")

    def get_obs_rew_terminated_info(self):
        self._takes("capture")
        return super().get_obs_rew_terminated_info()

    def reset(self, seed=None, options=None):
        self._takes("reset")
        return super().reset(seed, options)

    def wait(self):
        self._takes("wait")

    def close(self):
        self._takes("close")


class TrainParams(TrainParamsBase):
    def env_ctor(self, *args, seed=None, **kwargs):
        return RealTimeEnvironment(Slow(), 0.05, clock=VirtualClock())
"""


def test_a_device_does_what_it_is_told_though_the_worker_is_told_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reset, step, wait and close may take longer than others have when a worker ends."""
    log = tmp_path / "log"
    monkeypatch.setenv("DEVICE_LOG", str(log))
    monkeypatch.setattr(env_process, "_CLOSE_SECS", 1.0)
    is_stopped = False
    settings = ProcessSettings(Path(sys.executable), 60.0, on_wait=lambda: is_stopped)
    with in_own_process(tmp_path, "import os\nimport time\n", SLOW, settings) as env:
        is_stopped = True
        env.reset()
        env.step(np.zeros(2, np.float32))
        assert env.device is not None
        env.device.wait()
    did = ("reset", "capture", "capture", "wait", "close")  # Waiting, it has finished the running time step.
    assert log.read_text() == "".join(f"{what} begins, {what} ends, " for what in did)


def test_a_device_that_hangs_at_a_stop_leaves_time_to_send_its_experience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEVICE_LOG", str(tmp_path / "log"))
    settings = ProcessSettings(Path(sys.executable), 60.0, on_wait=lambda: is_stopped, stop_secs=2.0)
    is_stopped = False
    with in_own_process(tmp_path, "import os\nimport time\n", SLOW.replace("1.2", "60.0"), settings) as env:
        is_stopped = True
        began = time.monotonic()
        with pytest.raises(EnvironmentFault, match=r"reset\(\) was waited for 3 s when the worker was told"):
            env.reset()
        assert 2.0 < time.monotonic() - began < 20.0


def interrupts_once(condition: Callable[[], bool]) -> Callable[[], bool]:
    """For `on_wait`: Ctrl-C, once, while the worker waits for its environment and the condition holds.

    Sent from outside, it may come before the worker waits, or end all tests.
    """
    did: list[bool] = []

    def on_wait() -> bool:
        if not did and condition():
            did.append(True)
            signal.raise_signal(signal.SIGINT)
        return False

    return on_wait


def test_an_interrupted_reset_ends_before_the_device_is_told_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("DEVICE_LOG", str(log))
    may_go = tmp_path / "may_go"
    slow = SLOW.replace("time.sleep(1.2)", f"while not os.path.exists({str(may_go)!r}): time.sleep(0.01)")
    on_wait = interrupts_once(lambda: log.exists() and log.read_text() == "reset begins, ")
    settings = ProcessSettings(Path(sys.executable), 60.0, on_wait)
    with in_own_process(tmp_path, "import os\nimport time\n", slow, settings) as env:
        assert env.device is not None
        with pytest.raises(KeyboardInterrupt):
            env.reset()
        assert log.read_text() == "reset begins, "
        threading.Timer(0.3, may_go.touch).start()  # While it is told to wait.
        env.device.wait()
        assert env.device.take_metrics()["late_steps"] == 0.0
    did = ("reset", "capture", "wait", "close")
    assert log.read_text() == "".join(f"{what} begins, {what} ends, " for what in did)


FORKING = """

class Forking(Device):
    def reset(self, seed=None, options=None):
        reader = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30.0,))
        reader.start()
        time.sleep(0.2)
        reader.terminate()
        reader.join(5.0)
        return np.array([reader.exitcode or 0, 0.0, 0.0], np.float32), {}


class TrainParams(TrainParamsBase):
    def env_ctor(self, *args, seed=None, **kwargs):
        return RealTimeEnvironment(Forking(), 0.05, clock=VirtualClock())
"""


def test_a_process_that_a_device_forks_can_be_terminated(tmp_path: Path) -> None:
    with in_own_process(
        tmp_path, "import multiprocessing\nimport time\n", FORKING, ProcessSettings(Path(sys.executable), 60.0)
    ) as env:
        assert env.reset().observation[0] == -signal.SIGTERM
