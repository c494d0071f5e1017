"""The example with a goal passes the checks of a start, and its replay server gets the environment's functions."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.launching import ROOT
from tests.support.settings_for_tests import variables_with
from tfagents_system.checks.findings import Findings
from tfagents_system.examples.reach.environment import Reach
from tfagents_system.examples.reach.params import TrainParams
from tfagents_system.launch.environment_checks import EnvironmentTrial
from tfagents_system.playing.play import make_env
from tfagents_system.replay.hindsight import Hindsight
from tfagents_system.replay.server import settings_of_run
from tfagents_system.settings.params_check import advice, check_params


def test_a_start_accepts_it_and_the_server_can_say_what_goals_are_worth(tmp_path: Path) -> None:
    params = TrainParams(json.loads((ROOT / "tfagents_system/examples/reach/config.json").read_text()))
    assert check_params(params) == [] and advice(params) == []
    checks = Findings()
    trial = EnvironmentTrial(params, 0, checks).run()
    assert trial is not None and checks.errors == []
    assert trial.layout.optional == ("episode",)
    told = "rewards of other goals by compute_reward, terminations stay as recorded"
    assert told in checks.texts("ok", "environment")
    own = {"params": params, "variables": variables_with(seed=3, max_workers=2)}
    role: Any = types.SimpleNamespace(**own, derived_seed=lambda stream: stream)
    ring: Any = types.SimpleNamespace(folder=tmp_path)
    settings = settings_of_run(role, trial.layout, ring).at(0, 0, 0)
    assert settings.form.hindsight == Hindsight(0.8, "future") and settings.goals is not None
    goals = np.array([[0.0, 0.0, 0.0], [0.05, 0.0, 0.05], [0.0, 0.2, 0.0]], np.float32)
    assert settings.goals.rewards(goals, np.zeros_like(goals)).tolist() == [0.0, 0.0, -1.0]


def test_its_pictures_show_point_and_goal() -> None:
    params = TrainParams(json.loads((ROOT / "tfagents_system/examples/reach/config.json").read_text()))
    with make_env(params, 0, render=True) as env:
        env.reset()
        assert env.render_frame().shape == (192, 400, 3)
    for dimensions, width in ((1, 192), (2, 192), (3, 400), (4, 400)):
        reach = Reach(dimensions, render_mode="rgb_array")
        reach.reset(seed=dimensions)
        reach._place, reach._goal = -np.ones(dimensions, np.float32), np.ones(dimensions, np.float32)
        picture = reach.render()
        assert picture.shape == (192, width, 3) and picture.dtype == np.uint8
        rows, columns = np.nonzero((picture[:, :192] == (40, 80, 220)).all(-1))
        up = -1.0 if dimensions > 1 else 0.0
        np.testing.assert_allclose([columns.mean(), rows.mean()], [95.5 - 96 / 1.1, 95.5 - up * 96 / 1.1], atol=0.6)
        columns = np.nonzero((picture == (90, 180, 90)).all(-1))[1]
        assert columns.min() > 96 and columns.max() > width - 20


def test_its_point_moves_to_the_goal() -> None:
    env = Reach()
    seen, _ = env.reset(seed=1)
    rewards = []
    for _ in range(25):
        way = seen["desired_goal"] - seen["achieved_goal"]
        seen, reward, terminated, truncated, info = env.step(np.clip(way / 0.1, -1.0, 1.0))
        rewards.append(reward)
        assert env.observation_space.contains(seen) and not terminated and not truncated
        assert info["is_success"] == (reward == 0.0)
    first = rewards.index(0.0)
    assert 2 < first < 20 and rewards == [-1.0] * first + [0.0] * (25 - first)
