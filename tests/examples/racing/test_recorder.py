"""`sac racing`: a recorded lap, what a check prints and draws, and what is refused."""

import json
import os
import signal
import sys
import time

import imageio.v3 as imageio
import numpy as np
import pytest

from tests.support.launching import ROOT
from tfagents_system.errors import UserError
from tfagents_system.examples.racing import recorder
from tfagents_system.examples.racing.trajectory_reward import read_points
from tfagents_system.report import long_work
from tfagents_system.settings.load_params import load_params

PARAMS = str(ROOT / "tfagents_system/examples/racing/params.py")


@pytest.fixture
def files(tmp_path):
    """Flags with a config; and where its reward file is."""

    def write(**config):
        path, reward = tmp_path / "config.json", tmp_path / "reward.npz"
        own = {"horizon": 1000, "trajectory_reward": {}, "input_files": {"trajectory_reward": str(reward)}}
        path.write_text(json.dumps({**own, "racing": {"observations": ["lidar"]}, **config}))
        return ["--params", PARAMS, "--config", str(path)], reward

    return write


NOBODY = """
from tfagents_system.examples.racing.params import TrainParams as Racing

class TrainParams(Racing):
    def expert_policy_ctor(self):
        return None
"""


def test_a_lap_that_is_not_finished_records_nothing(files):
    """Nor does a horizon that is too short for the driver."""
    flags, reward = files(horizon=30)
    with pytest.raises(UserError, match=r"the lap was not finished: it ended after 30 steps at \d+.\d m \(horizon\)"):
        recorder.main(["record-reward", *flags])
    assert not reward.exists()
    with pytest.raises(UserError, match="--policy=.*does not exist"):
        recorder.main(["record-reward", *flags, "--policy", str(reward)])


def test_all_that_keeps_a_lap_from_being_recorded_is_told(files, tmp_path):
    flags, reward = files()
    (tmp_path / "nobody.py").write_text(NOBODY)
    flags[1] = str(tmp_path / "nobody.py")
    reward.write_bytes(b"")
    with pytest.raises(UserError) as raised:
        recorder.main(["record-reward", *flags])
    exists, driver = raised.value.findings
    assert "reward.npz exists: give another --out, or --force" in exists and driver.startswith("nobody drives: ")
    with pytest.raises(UserError) as raised:
        recorder.main(["record-reward", *flags, "--out", str(tmp_path / "reward.pkl")])
    assert raised.value.findings[0].endswith("reward.pkl must end with .npz: give such a file with --out")


def test_a_process_of_its_own_is_refused_by_name(files, monkeypatch):
    monkeypatch.setenv("SAC_ENV_PYTHON", sys.executable)
    flags, _ = files()
    with pytest.raises(UserError, match=f"SAC_ENV_PYTHON={sys.executable}: an environment in a process of its own"):
        recorder.main(["benchmark", *flags])


WATCHED = """
import numpy as np
from tests.support.devices_for_tests import DummyDevice
from tfagents_system.envs.real_time import RealTimeEnvironment
from tfagents_system.train_params_base import TrainParamsBase

MADE = []

class Device(DummyDevice):  # Somebody drives it half a metre further between two looks.
    def get_obs_rew_terminated_info(self):
        observation, reward, _, info = super().get_obs_rew_terminated_info()
        is_over = self._count == 60
        told = {"position": (0.5 * self._count, 0.0), "is_success": is_over, "track": "the yard"}
        return observation, reward, is_over, {**info, **told}

class TrainParams(TrainParamsBase):
    made = MADE

    def env_ctor(self, *args, **kwargs):
        MADE.append(Device())
        return RealTimeEnvironment(MADE[-1], 0.01)
"""


def test_a_lap_that_somebody_else_drives_is_recorded_and_nothing_is_sent(tmp_path):
    path, out = tmp_path / "params.py", tmp_path / "reward.npz"
    path.write_text(WATCHED)
    params = load_params(path, {"horizon": 100})
    params.expert_policy_ctor = lambda: pytest.fail("no expert is needed")
    began = time.monotonic()
    said = recorder.record_reward(params, None, 0, out, False, is_watched=True)
    assert time.monotonic() - began >= 60 * 0.01, "at its pace"
    assert "driven in 60 steps, track the yard" in said
    assert read_points(str(out))[[0, -1]].tolist() == [[0.5, 0.0], [30.0, 0.0]]
    (device,) = params.made
    assert [what for what, _, _ in device.log] == ["reset", *["capture"] * 60]
    short = load_params(path, {"horizon": 20})
    with pytest.raises(UserError, match=r"it ended after 20 steps \(horizon\)"):
        recorder.record_reward(short, None, 0, out, True, is_watched=True)


def test_ctrl_c_lets_the_device_wait_and_leaves_no_traceback(files, tmp_path, monkeypatch):
    params, config = tmp_path / "params.py", tmp_path / "config.json"
    params.write_text(WATCHED)
    config.write_text(json.dumps({"horizon": 100}))
    made = []
    real = recorder._watched

    def watched(env, seed, horizon):
        made.append(env.device.watched()[0])
        for step in real(env, seed, horizon):
            if step.number == 3:
                os.kill(os.getpid(), signal.SIGINT)
            yield step

    monkeypatch.setattr(recorder, "_watched", watched)
    flags = ["--params", str(params), "--config", str(config), "--out", str(tmp_path / "reward.npz")]
    assert recorder.main(["record-reward", *flags, "--watch"]) == 130
    assert [what for what, _, _ in made[0].log] == ["reset", *["capture"] * 3, "wait"]


def test_a_check_sends_a_device_its_default_action_alone(tmp_path):
    """Random ones may harm it."""
    path = tmp_path / "params.py"
    path.write_text(WATCHED)
    params = load_params(path, {"horizon": 100})
    *steps, end, _ = recorder.check_environment(params, None, 0, tmp_path / "check", 1000)
    assert len(steps) == 60 and end.startswith("end: terminated after 60 steps")
    (device,) = params.made
    assert device.sent() == [pytest.approx(list(device.default))] * 60


ENDS = """
import gymnasium
import numpy as np
from tfagents_system.train_params_base import TrainParamsBase

class Camera(gymnasium.Env):  # Its picture is as bright as the number of its steps; it ends as the JSON says.
    render_mode = "rgb_array"
    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 1), np.uint8)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, how):
        self.how = how

    def picture(self):
        return np.full((8, 8, 1), 60 + self.steps, np.uint8)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.picture(), {}

    def step(self, action):
        self.steps += 1
        is_over = self.steps == 2
        terminated, truncated = is_over and self.how == "terminated", is_over and self.how == "truncated"
        return self.picture(), 1.0, terminated, truncated, {"position": (0.0, 0.0)}

    def render(self):
        return self.picture()[..., 0]

class TrainParams(TrainParamsBase):
    frame_stack = 4

    def env_ctor(self, *args, **kwargs):
        return Camera(self.env_config["how"])
"""


def test_a_check_shows_what_the_policy_sees_and_how_an_episode_ends(tmp_path):
    path, out = tmp_path / "params.py", tmp_path / "check"
    path.write_text(ENDS)
    for how, steps in (("terminated", 2), ("truncated", 2), ("horizon", 3)):
        lines = list(recorder.check_environment(load_params(path, {"horizon": 3, "how": how}), None, 0, out, 1))
        assert f"end: {how} after {steps} steps, return {steps:.3f}" in lines
    frames = imageio.imread(out / "step_0001_observation.png")[0]
    assert frames[[0, 36, 72, 108]].tolist() == [60, 60, 60, 61], "the first, of the reset, is repeated"
    assert set(np.unique(imageio.imread(out / "step_0001.png"))) == {61}, "the environment's own"


PATHS = """
import gymnasium
import numpy as np
from tfagents_system.train_params_base import TrainParamsBase

class Walker(gymnasium.Env):  # 1.2 m along x in a step.
    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        x, is_over = 1.2 * self.steps, self.steps == 20
        info = {"position": (x, 0.0), "path": PATH, "is_success": is_over}
        return np.zeros(1, np.float32), 0.0, is_over, False, info

class TrainParams(TrainParamsBase):
    def env_ctor(self, *args, **kwargs):
        return Walker()

    def expert_policy_ctor(self):
        return lambda seen: np.zeros(1, np.float32)
"""


def recorded(folder, path, out):
    """The lap of a Walker whose info has this path."""
    (folder / "params.py").write_text(PATHS.replace("PATH", path))
    return recorder.record_reward(load_params(folder / "params.py", {"horizon": 50}), None, 0, out, False)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("'straight on'", '"path" in the info of a step must have two or three .* found .straight on.'),
        ("[[0.0, 1.0], [1.0, 2.0, 3.0]]", '"path" in the info of a step must have two or three'),
        ("None if x < 2 else np.zeros((1, 3))", "two coordinates in some steps and three in others"),
        ("None", "gap of 1.20 m"),
        ("None, 'position': 'there'", '"position" in the info of a step must have two or three coordinates in metres'),
        ("None, 'position': np.full(2, np.nan)", "the position of step 0 is not finite"),
    ],
)
def test_places_that_are_none_are_told(tmp_path, path, told):
    out = tmp_path / "reward.npz"
    with pytest.raises(UserError, match=told):
        recorded(tmp_path, path, out)
    assert not out.exists()


def test_places_between_two_steps_are_recorded(tmp_path):
    out = tmp_path / "reward.npz"
    recorded(tmp_path, "np.array([[x - 0.6, 0.0], [x, 0.0]])", out)
    assert read_points(str(out))[[0, -1]].tolist() == [[pytest.approx(0.6), 0.0], [24.0, 0.0]]
    params = load_params(tmp_path / "params.py", {"horizon": 50})
    params.expert_policy_ctor = lambda: lambda seen: [np.nan]
    with pytest.raises(UserError, match=r"the action of the expert \(expert_policy_ctor\) is not finite"):
        recorder.record_reward(params, None, 0, out, True)


def test_benchmark_prints_times_and_rates(files, capsys, tmp_path, monkeypatch):
    """Meanwhile it says how far it is: in real time it takes minutes."""
    monkeypatch.setattr(long_work, "AFTER_SECS", 0.01)
    monkeypatch.setattr(long_work, "_LINE_SECS", 0.1)
    flags, _ = files()
    (tmp_path / "config.json").write_text('{"horizon": 50, "racing": {"observations": ["lidar"]}}')
    assert recorder.main(["benchmark", *flags, "--steps", "120"]) == 0
    out, err = capsys.readouterr()
    assert " of 120 steps (" in err
    head, reset, step, rate = out.splitlines()
    assert "mean abs. deviation" in head and reset.startswith("reset") and 0.0 < float(step.split()[1]) < 50.0
    assert rate.split()[1:4] == ["steps", "per", "second"] and "the 120 steps" in rate
