"""A device that does not wait for anybody, and a lap of the car that is recorded and then pays."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import psutil
import pytest

from tests.abilities.support import ROOT, SMALL, Project, column, sac, status

pytestmark = pytest.mark.slow

STEP_SECS, FACTOR, HORIZON, STALL_SECS = 0.02, 300.0, 40, 5.0

PARAMS = f"""
import os
import time
from pathlib import Path

import gymnasium
import numpy as np

from tfagents_system.envs.real_time import RealTimeEnvironment
from tfagents_system.train_params_base import TrainParamsBase


class Device:
    '''Writes down each command with its time.'''

    def __init__(self):
        self.file = open(Path("FOLDER") / f"device_{{os.getpid()}}", "a", buffering=1)
        self.note("open")

    def note(self, what):
        self.file.write(f"{{what}} {{time.monotonic():.4f}}\\n")

    def send_control(self, control):
        self.control = float(control[0])
        self.note("send")

    def get_obs_rew_terminated_info(self):
        return [np.array([self.control], np.float32)], -abs(self.control), False, {{}}

    def reset(self, seed=None, options=None):
        return [np.zeros(1, np.float32)], {{}}

    def wait(self):
        self.note("wait")

    def close(self):
        self.note("close")

    def get_observation_space(self):
        return gymnasium.spaces.Tuple((gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32),))

    def get_action_space(self):
        return gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def get_default_action(self):
        return np.zeros(1, np.float32)


class TrainParams(TrainParamsBase):
    {SMALL}
    num_iter = 10**6
    asynchronous = True
    env_steps_per_iter = 20
    num_eval_episodes = 1
    eval_period_iters = 5
    action_history = 1

    def env_ctor(self, *args, seed=None, **kwargs):
        return RealTimeEnvironment(
            Device(), {STEP_SECS}, start_obs_capture={STEP_SECS}, time_step_timeout_factor={FACTOR}, wait_on_done=False
        )
"""


class Driven:
    """The run after a stop, and what each process's device was told.

    Attributes:
      stall: From when to when the replay server stood still.
    """

    def __init__(self, folder: Path) -> None:
        self.project = project = Project(folder, PARAMS, {"horizon": HORIZON})
        process = project.start()
        project.wait_until(process, lambda: project.run.joinpath("metrics.csv").exists() and self.learned())
        server = psutil.Process(project.role("replay")["pid"])
        server.suspend()
        began = time.monotonic()
        time.sleep(STALL_SECS)
        self.stall = began, time.monotonic()
        server.resume()
        seen = project.role("trainer")["env_steps"]
        project.wait_until(process, lambda: project.role("trainer")["env_steps"] > seen + HORIZON)
        project.wait_until(process, lambda: column(project.run, "train/late_steps"))
        process.send_signal(signal.SIGTERM)
        project.finish(process, 75)
        files = sorted(folder.glob("device_*"), key=lambda path: path.stat().st_mtime)
        self.commands = [[line.split() for line in path.read_text().splitlines()] for path in files]

    def learned(self) -> bool:
        return len(column(self.project.run, "eval_return")) >= 2


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Driven:
    return Driven(tmp_path_factory.mktemp("device"))


def test_a_device_is_stepped_at_its_pace_and_waits_at_the_end(driven: Driven) -> None:
    checked, worker = driven.commands
    for told in (checked, worker):
        did = [what for what, _ in told]
        assert did.count("open") == did.count("close") == 1 and did[-2:] == ["wait", "close"]
    assert float(checked[-1][1]) < float(worker[0][1]), "one device at a time"
    began, ended = driven.stall
    sent = [float(when) for what, when in worker if what == "send" and began < float(when) < ended]
    assert len(sent) > 0.3 * STALL_SECS / STEP_SECS, "it went on while the server stood still"
    assert np.median(np.diff(sent)) == pytest.approx(STEP_SECS, rel=0.5)
    for name in ("late_steps", "dropped_steps"):
        assert sum(column(driven.project.run, f"train/{name}")) == 0.0


def test_one_device_a_worker_is_evaluated_in_turn(driven: Driven) -> None:
    assert len(driven.commands) == 2, "that of the check, and that of the worker, which also evaluates"
    assert len(column(driven.project.run, "eval_return")) >= 2
    assert status(driven.project.run)["roles"]["worker_0"]["time_shares"]["evaluating"] > 0


def test_a_recorded_lap_pays_its_length(tmp_path: Path) -> None:
    config, reward = tmp_path / "config.json", tmp_path / "reward.npz"
    racing = {"observations": ["lidar", "camera"], "track": "closed/train/5", "off_track_metres": None}
    own = {"trajectory_reward": {"max_stray": 20.0}, "input_files": {"trajectory_reward": str(reward)}}
    config.write_text(json.dumps({"horizon": 1000, "racing": racing, **own}))
    flags = ["--params", ROOT / "tfagents_system/examples/racing/params.py", "--config", config]
    told = sac("racing", "record-reward", *flags)
    points = int(re.findall(r"([\d,]+) points of", told)[0].replace(",", ""))
    told = sac("racing", "check-environment", *flags, "--out", tmp_path / "check", "--every", "200")
    paid = [float(number) for number in re.findall(r"reward +(\S+)", told)]
    assert sum(paid) == pytest.approx(points / 100 + 100.0, abs=0.1), "its points, and the end of the track"
    assert imageio.imread(tmp_path / "check" / "step_0001_camera.png").shape == (256, 256)
    assert "step" in sac("racing", "benchmark", *flags, "--steps", "50")


@pytest.mark.parametrize("example", ["racing_iqn", "racing_camera"])
def test_examples_are_checked_as_shipped(example: str, tmp_path: Path) -> None:
    told = sac("check", ROOT / "tfagents_system" / "examples" / example / "vars.sh", LOGS_DIR=tmp_path)
    assert re.search(r"^ok +agent", told, re.M) and re.search(r"^0 errors", told, re.M)
