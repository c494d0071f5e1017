"""The file that `trajectory_reward` of the JSON names is a run's own: copied, used, compared and taken anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.starts_of_a_project import Starter, train, write
from tfagents_system.envs.reward_files import polyline, read_points, write_points
from tfagents_system.envs.reward_places import with_file_of
from tfagents_system.run_files import run_inputs
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.load_params import load_env_config, load_params
from tfagents_system.settings.overrides import Overrides
from tfagents_system.settings.resolved import read_run


def record(path: Path, metres: float) -> Path:
    points = polyline(np.stack([np.arange(0.0, metres, 0.5), np.zeros(int(2 * metres))], axis=1))
    write_points(path, points, {})
    return path


def file_of(params: Path, config: dict[str, Any]) -> str:
    return str(with_file_of(params, config)["trajectory_reward"]["file"])


def metres_of(paths: RunPaths) -> float:
    """Of the trajectory that the run's programs read."""
    overrides = Overrides.of_run(read_run(paths.run_json))
    merged = overrides.merged(load_env_config(paths.config))
    loaded = load_params(paths.params, merged, origin=run_inputs.origin_of_run(paths))
    return float(read_points(Path(loaded.env_config["trajectory_reward"]["file"]))[-1, 0])


@pytest.fixture
def config(project: Path) -> Path:
    path = project / "config.json"
    path.write_text(json.dumps({"horizon": 20, "trajectory_reward": {"file": "reward.npz"}}))
    return path


def test_it_is_looked_for_in_the_run_then_beside_the_params_then_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "params").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    params, section = tmp_path / "params/params.py", dict[str, Any](trajectory_reward={})
    assert with_file_of(params, section) == section and with_file_of(params, {"horizon": 3}) == {"horizon": 3}
    places = [tmp_path / "here/reward.npz", tmp_path / "params/reward.npz", tmp_path / "params/reward.points"]
    for place in places:
        record(place, 30.0)
        assert file_of(params, section) == str(place)
    assert with_file_of(params, {"horizon": 3}) == {"horizon": 3} and section == {"trajectory_reward": {}}
    places[2].unlink()
    elsewhere = record(tmp_path / "mine.npz", 30.0)
    assert file_of(params, {"trajectory_reward": {"file": str(elsewhere)}}) == str(elsewhere)
    for wrong in (3, {"file": 3}):
        told_by_who_reads_it = {"trajectory_reward": wrong}
        assert with_file_of(params, told_by_who_reads_it) == told_by_who_reads_it


@pytest.mark.parametrize("place", ["beside the params", "elsewhere"])
def test_recording_it_again_changes_no_run_that_has_begun(
    place: str, environ: dict[str, str], project: Path, config: Path, start: Starter, tmp_path: Path
) -> None:
    reward = record((project if place == "beside the params" else tmp_path) / "reward.npz", 30.0)
    if place == "elsewhere":
        config.write_text(json.dumps({"horizon": 20, "trajectory_reward": {"file": str(reward)}}))
    assert start().code == 0
    paths = RunPaths(Path(environ["SAC_EXP_DIR"]))

    record(reward, 40.0)
    assert metres_of(paths) == 29.5
    assert start().code == 0 and metres_of(paths) == 39.5, "a run without an update takes files as they are"
    train(paths)
    record(reward, 50.0)
    refused = start()
    assert refused.code == 2 and f"{reward}. " in refused.told and "edited since the run began" in refused.told
    assert start("--keep").code == 0 and metres_of(paths) == 39.5
    reward.unlink()
    gone = start("--keep")
    assert gone.code == 0 and metres_of(paths) == 39.5, "the run has its own"


def test_experience_of_another_reward_is_removed_before_the_first_update(
    environ: dict[str, str], project: Path, config: Path, tmp_path: Path
) -> None:
    reward = record(tmp_path / "reward.npz", 30.0)
    paths = write(environ, folder=None, reward=reward)
    paths.replay.mkdir()
    write(environ, folder=None, reward=reward)
    assert paths.replay.exists()
    record(reward, 40.0)
    write(environ, folder=None, reward=reward)
    assert not paths.replay.exists()
    write(environ, folder=None)
    assert not paths.reward.exists()
