"""SAC_REPLAY_FROM at a start: which sources a run without an update begins with, and which its buffer can't take."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.prepared_runs import PARAMS
from tests.support.prepared_runs import train as trained
from tests.support.starts_of_a_project import update
from tfagents_system.errors import UserError
from tfagents_system.experience import columns
from tfagents_system.experience.conversion import NamedEpisode, conversion_for
from tfagents_system.experience.transfer import import_into
from tfagents_system.launch import prepare
from tfagents_system.replay.filling import fill
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.ring_sizes import buffer_size_to_take, capacity_rows, slack_rows
from tfagents_system.run_files.run_directory import read_run_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.load_params import load_params


def imported(folder: Path, name: str, steps: int) -> Path:
    """An episode of so many steps, as one segment."""
    seen = np.random.default_rng(0).normal(size=(steps + 1, 3)).astype(np.float32)
    episode = NamedEpisode({"": seen}, {"": np.zeros((steps, 1))}, np.ones(steps), False)
    columns.write(folder / f"{name}.npz", [episode])
    (folder / "of_import.json").write_text(json.dumps({"horizon": steps}))
    files = str(folder / "params.py"), str(folder / "of_import.json")
    import_into(str(folder / f"{name}.npz"), folder / name, None, *files, lambda line: None)
    return folder / name


def filled(paths: RunPaths, *sources: Path, episodes: int = 10, horizon: int = 20) -> Ring:
    """The ring as the replay server of a start fills it."""
    params = load_params(paths.params, {"horizon": horizon})
    params.buffer_size = episodes * horizon
    layout = conversion_for(params, paths.specs).layout
    ring = Ring.open(paths.replay, layout, capacity_rows(params, layout), slack_rows(params, layout))
    fill(ring, sources, paths.replay, paths.trainer_checkpoints)
    return ring


@pytest.mark.parametrize("then", ["other", ""], ids=["another source", "none"])
def test_before_the_first_update_a_run_begins_with_the_sources_of_this_start(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], then: str
) -> None:
    """Its first checkpoint is written before that, while it waits for experience, and when it is stopped."""
    paths, first = RunPaths(tmp_path / "run"), imported(tmp_path, "first", 7)
    others = [imported(tmp_path, then, 9)] if then else []
    given = {**environ, "SAC_REPLAY_FROM": str(first)}
    assert prepare.prepare(given, None)
    assert filled(paths, first).ring_steps == 7
    update(paths, 0)
    assert prepare.prepare(given, None)
    assert filled(paths, first).ring_steps == 7 and paths.trainer_checkpoints.exists(), "nothing has changed"
    capsys.readouterr()
    assert prepare.prepare({**environ, "SAC_REPLAY_FROM": ",".join(map(str, others))}, None)
    assert "it starts over" in capsys.readouterr().out
    assert filled(paths, *others).ring_steps == (9 if then else 0)
    assert read_run_json(paths)["replay_from"] == [str(other) for other in others]


def test_sources_count_for_a_run_that_was_stopped_before_it_had_any(environ: dict[str, str], tmp_path: Path) -> None:
    paths, source = RunPaths(tmp_path / "run"), imported(tmp_path, "source", 7)
    assert prepare.prepare(environ, None)
    assert filled(paths).ring_steps == 0 and read_run_json(paths)["replay_from"] == []
    update(paths, 0)
    assert prepare.prepare({**environ, "SAC_REPLAY_FROM": str(source)}, None)
    assert filled(paths, source).ring_steps == 7


def test_a_run_that_has_begun_keeps_what_it_began_with(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(tmp_path / "run")
    first, other = imported(tmp_path, "first", 7), imported(tmp_path, "other", 9)
    assert prepare.prepare({**environ, "SAC_REPLAY_FROM": str(first)}, None)
    filled(paths, first)
    trained(paths)
    assert prepare.prepare({**environ, "SAC_REPLAY_FROM": str(other)}, None)
    assert "SAC_REPLAY_FROM is for a new run" in capsys.readouterr().out
    assert paths.replay.exists() and read_run_json(paths)["replay_from"] == [str(first)]


def test_segments_that_the_buffer_can_not_take_are_refused_with_the_size_that_is_enough(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """10 episodes of 20 steps are 210 rows, and slack of 4 segments of 21 rows: 84 rows are the most."""
    paths, fits, long = RunPaths(tmp_path / "run"), imported(tmp_path, "fits", 83), imported(tmp_path, "long", 200)
    given = {**environ, "SAC_REPLAY_FROM": f"{fits},{long}"}
    with pytest.raises(UserError) as raised:
        prepare.prepare(given, None)
    (finding,) = raised.value.findings
    assert f"SAC_REPLAY_FROM={long} has segments of 201 rows, and the replay buffer takes 84 at most" in finding
    enough = int(re.findall(r"set buffer_size to at least (\d+)$", finding)[0])
    assert enough == 780, "a quarter of 39 * 21 rows are 205, of 38 * 21 only 200"
    (tmp_path / "params.py").write_text(PARAMS.replace("buffer_size = 200", f"buffer_size = {enough}"))
    assert prepare.prepare(given, None)
    assert filled(paths, fits, long, episodes=39).ring_steps == 283
    shutil.rmtree(paths.replay)
    with pytest.raises(UserError, match="a segment of 201 rows does not fit a ring of 200"):
        filled(paths, fits, long, episodes=38)


def test_the_size_that_is_enough_for_segments_hardly_longer_than_the_runs_own(
    environ: dict[str, str], tmp_path: Path
) -> None:
    assert prepare.prepare(environ, None)
    paths = RunPaths(tmp_path / "run")
    params = load_params(paths.params, {"horizon": 20})
    layout = conversion_for(params, paths.specs).layout
    told = {rows: buffer_size_to_take(rows, params, layout) for rows in (21, 22, 84, 85)}
    assert told == {21: 20, 22: 40, 84: 80, 85: 340}, "4 * 21 rows are always there; more are a quarter of the capacity"
