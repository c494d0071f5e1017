"""The file that `trajectory_reward` of the JSON names is a run's own: copied, used, compared and taken anew."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.starts_of_a_project import Starter, train, write
from tfagents_system.envs.reward_files import polyline, read_points, write_points
from tfagents_system.envs.reward_places import KEPT, KEY, with_file_of
from tfagents_system.run_files import edited_files, run_directory, run_inputs
from tfagents_system.run_files.run_inputs import Inputs
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.load_params import load_env_config, load_params
from tfagents_system.settings.overrides import Overrides


def record(path: Path, metres: float) -> Path:
    points = polyline(np.stack([np.arange(0.0, metres, 0.5), np.zeros(int(2 * metres))], axis=1))
    write_points(path, points, {})
    return path


def file_of(params: Path, config: dict[str, Any]) -> str:
    return str(with_file_of(params, config)["trajectory_reward"]["file"])


def metres_of(paths: RunPaths) -> float:
    """Of the trajectory that the run's programs read."""
    overrides = Overrides.read(paths.overrides)
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
    taken = start("--take_edits")
    assert taken.code == 0 and metres_of(paths) == 49.5, taken.told
    before = read_points(paths.exp_dir / "before_edits_1" / paths.reward.name)
    assert before[-1, 0] == 39.5 and len(run_directory.read_run_json(paths)["edits"]) == 1
    reward.unlink()
    gone = start("--keep")
    assert gone.code == 0 and metres_of(paths) == 49.5, "the run has its own"


@pytest.mark.parametrize("file", ["config.json", "overrides.json"])
def test_a_run_whose_own_json_names_another_file_goes_on_with_that(
    file: str, environ: dict[str, str], project: Path, config: Path, start: Starter
) -> None:
    params = project / "params.py"
    told_by_trial = 'Path(__file__).with_name("seen").write_text(self.env_config["trajectory_reward"]["file"])'
    params.write_text(params.read_text().replace("assert", f"{told_by_trial}\n        assert"))
    record(project / "reward.npz", 30.0)
    new = record(project / "new.npz", 40.0)
    given = ["--set", "config.trajectory_reward.file=reward.npz"] if file == "overrides.json" else []
    assert start(*given).code == 0
    paths = RunPaths(Path(environ["SAC_EXP_DIR"]))
    train(paths)
    assert start().code == 0 and metres_of(paths) == 29.5

    def edit(name: str, other: str) -> None:
        text = (paths.exp_dir / file).read_text()
        assert text.count(name) == 1
        (paths.exp_dir / file).write_text(text.replace(name, other))

    edit("reward.npz", "missing.npz")
    refused = start()
    assert refused.code == 2 and "the reward file missing.npz does not exist" in refused.told
    assert metres_of(paths) == 29.5
    edit("missing.npz", "new.npz")
    taken = start()
    assert taken.code == 0 and metres_of(paths) == 39.5, taken.told
    assert f"{paths.reward} becomes a copy of {new}" in taken.told and "beside the params" not in taken.told
    seen = paths.params_folder / "seen"
    assert (seen if seen.exists() else project / "seen").read_text() == str(new), "the trial before the start"
    again = start()
    assert again.code == 0 and "becomes a copy of" not in again.told
    assert len(run_directory.read_run_json(paths)["edits"]) == 1
    record(new, 50.0)
    refused = start()
    assert refused.code == 2 and f"{new}. " in refused.told
    assert start("--take_edits").code == 0
    assert metres_of(paths) == (29.5 if file == "config.json" else 49.5), "of the JSON as SAC_CONFIG has it now"


def test_a_reset_that_names_another_file_sets_the_old_one_aside(
    environ: dict[str, str], project: Path, config: Path, tmp_path: Path
) -> None:
    old, new = record(tmp_path / "old.npz", 30.0), record(tmp_path / "new.npz", 40.0)
    named = Overrides(config={KEY: {"file": str(old)}})
    given = Inputs(project / "params.py", config, reward=old, reward_named=str(old))
    paths = write(environ, folder=None, overrides=named, inputs=given)
    train(paths)
    other = Overrides(config={KEY: {"file": str(new)}})
    reset = run_directory.new_reset(paths, "agent", catch_up=False)
    write(environ, folder=None, overrides=other, reset=reset, inputs=dataclasses.replace(given, reward=new))
    aside = paths.exp_dir / reset.before
    assert [file.read_bytes() for file in (aside / KEPT, paths.reward)] == [old.read_bytes(), new.read_bytes()]
    run = run_directory.read_run_json(paths)
    assert run["reward_named"] == str(new)
    assert edited_files.find(paths, given.params, given.config).used == []


def test_experience_of_another_reward_is_removed_before_the_first_update(
    environ: dict[str, str], project: Path, config: Path, tmp_path: Path
) -> None:
    reward = record(tmp_path / "reward.npz", 30.0)
    paths = RunPaths(Path(environ["SAC_EXP_DIR"]))
    given = Inputs(project / "params.py", config, reward=reward)
    write(environ, folder=None, reward=given.reward)
    assert run_inputs.fit_experience(paths, given) and run_inputs.are_same(paths, given)
    record(reward, 40.0)
    assert not run_inputs.fit_experience(paths, given) and not run_inputs.are_same(paths, given)
    without = Inputs(project / "params.py", config)
    assert not run_inputs.fit_experience(paths, without)
    write(environ, folder=None)
    assert not paths.reward.exists() and run_inputs.fit_experience(paths, without)


def test_an_edit_of_the_runs_own_copy_is_another_task(
    environ: dict[str, str], project: Path, config: Path, tmp_path: Path
) -> None:
    given = Inputs(project / "params.py", config, reward=record(tmp_path / "reward.npz", 30.0))
    paths = write(environ, folder=None, reward=given.reward)
    train(paths)
    write(environ, folder=None, reward=given.reward)
    assert not run_directory.read_run_json(paths)["edits"]
    record(tmp_path / "other.npz", 60.0).rename(paths.reward)
    assert not edited_files.find(paths, project / "params.py", config).used
    write(environ, folder=None, reward=given.reward)
    assert len(run_directory.read_run_json(paths)["edits"]) == 1
