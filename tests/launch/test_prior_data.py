"""A start with prior_data: what is made of it, once, and what is refused."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tfagents_system.checks.checklist import Check
from tfagents_system.errors import UserError
from tfagents_system.experience import columns
from tfagents_system.experience.conversion import NamedEpisode
from tfagents_system.launch import prepare, prior_checks, resources
from tfagents_system.launch.preparation import Preparation
from tfagents_system.launch.run_settings import EDITS, FRESH
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase

PARAMS = """
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase

class TrainParams(TrainParamsBase):
    num_iter = 3
    batch_size = 32
    buffer_size = 200
    actor_fc_layer_params = (4,)
    critic_joint_fc_layer_params = (4,)
    prior_data = "data/demos.npz"
    offline_updates = 5

    def env_ctor(self, *args, seed=None, **kwargs):
        return gymnasium.make("Pendulum-v1")
"""


def write_demos(path: Path, steps: int, size: int = 3) -> None:
    path.parent.mkdir(exist_ok=True)
    episode = NamedEpisode({"": np.ones((steps + 1, size))}, {"": np.ones((steps, 1))}, np.ones(steps), False)
    columns.write(path, [episode])


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "params.py").write_text(PARAMS)
    (folder / "config.json").write_text('{"horizon": 20}')
    write_demos(folder / "data" / "demos.npz", 12)
    counts = ("REVERB_CPUS", "TRAIN_CPUS", "NUM_COLLECT_WORKERS", "COLLECT_WORKER_CPUS", "SHARE_CPUS")
    inputs = {"SAC_PARAMS": str(folder / "params.py"), "SAC_CONFIG": str(folder / "config.json")}
    run = {"SAC_EXP_NAME": "try", "SAC_EXP_DIR": str(tmp_path / "run")}
    return {**os.environ, **{f"SAC_{name}": "1" for name in counts}, **inputs, **run}


def rows(paths: RunPaths) -> int:
    return StoredRing(paths.prior_data).rows


def test_the_run_has_a_copy_that_stays(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths, demos = RunPaths(tmp_path / "run"), tmp_path / "mine" / "data" / "demos.npz"
    assert prepare.prepare(environ, None) and rows(paths) == 13
    assert "set initial_collect_steps=0" in capsys.readouterr().out
    write_demos(demos, 6)
    assert prepare.prepare(environ, None) and rows(paths) == 7, "before the first update what is there now"
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    demos.unlink()
    keeping = {**environ, "TFAGENTS_EDITS": "keep"}
    assert prepare.prepare(keeping, None) and rows(paths) == 7
    write_demos(demos, 9)
    again = {**environ, "TFAGENTS_EDITS": "fresh"}
    assert prepare.prepare(again, None) and rows(paths) == 10
    (tmp_path / "mine" / "params.py").write_text(PARAMS.replace('"data/demos.npz"', "None"))
    assert prepare.prepare(again, None) and not paths.prior_data.exists()


def test_it_counts_in_the_checks_of_disk_and_memory(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it is not there, of the disk; always of the memory that rings should fit into."""
    paths, disk, memory = RunPaths(tmp_path / "run"), list[Any](), list[int]()
    monkeypatch.setattr(resources, "check_disk", lambda check, needed: disk.append(needed.get(paths.prior_data)))
    monkeypatch.setattr(resources, "check_memory", lambda check, workers, own, ring, prior, **_: memory.append(prior))
    write_demos(tmp_path / "mine" / "data" / "demos.npz", 4000)
    assert prepare.prepare(environ, None)
    step = 4 * (3 + 1) + 4 * 3 + 1 + 4  # Observation and action, reward, discount, steps_left, step_type, crc.
    assert disk[0][0] == "prior data" and 4000 * step <= disk[0][1] <= 4000 * step + 500_000
    assert memory == [disk[0][1]]
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    assert prepare.prepare(environ, None)
    assert disk[1] is None and memory[1] >= 4000 * step, "it is there"


def test_a_fresh_run_needs_what_the_one_that_is_moved_aside_keeps(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, memory = list[dict[Path, int]](), list[int]()

    def check_disk(check: Check, needed: dict[Path, tuple[str, int]]) -> None:
        disk.append({folder: num_bytes for folder, (_, num_bytes) in needed.items()})

    monkeypatch.setattr(resources, "check_disk", check_disk)
    monkeypatch.setattr(resources, "check_memory", lambda check, workers, own, ring, prior, **_: memory.append(prior))
    (tmp_path / "mine" / "params.py").write_text(PARAMS.replace('"data/demos.npz"', "None"))
    scratch = {**environ, "SAC_REPLAY_DIR": str(tmp_path / "scratch")}
    assert prepare.prepare(scratch, None)
    paths = RunPaths(tmp_path / "run")
    on_scratch = next(folder for folder in disk[0] if tmp_path / "scratch" in folder.parents)
    for folder in (paths.replay, on_scratch, paths.prior_data):
        folder.mkdir(parents=True)
        (folder / "reward.bin").write_bytes(b"x" * 10_000_000)
    for more in ({}, {EDITS: FRESH}):
        preparation = Preparation(scratch | more, None)
        preparation.run(in_fork=False)
        preparation.close()
    assert disk[0][paths.replay] == disk[0][on_scratch] > 0
    assert (disk[1][paths.replay], disk[1][on_scratch], memory[1]) == (0, 0, 10_000_000)
    assert disk[2][paths.replay] == disk[0][paths.replay], "the other run's ring stays"
    assert (disk[2][on_scratch], memory[2]) == (0, 0), "and the one on scratch is removed"


def test_what_does_not_fit_is_refused_with_the_rest(environ: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    write_demos(folder / "data" / "demos.npz", 12, size=5)
    with pytest.raises(UserError, match=r"observation has the shape \[13, 5\], this needs \[13, 3\]"):
        prepare.prepare(environ, None)
    assert not RunPaths(tmp_path / "run").run_json.exists()


def test_missing_files_are_told_before_the_environment_is_built(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow, environment and agent take many seconds."""
    folder, built = tmp_path / "mine", tmp_path / "built"
    building = PARAMS.replace("        return", f"        open({str(built)!r}, 'w').close()\n        return")
    assert building != PARAMS
    missing = '["nowhere.npz", "minary:mujoco/hopper/expert-v0", "minari:mujoco/hopper/expert-v0"]'
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    (folder / "params.py").write_text(building.replace('"data/demos.npz"', missing))
    with pytest.raises(UserError) as raised:
        prepare.prepare(environ, None)
    file, minari, absent = raised.value.findings
    assert "minari:mujoco/hopper/expert-v0 is not on this machine: get it with `minari download mujoco" in absent
    assert re.search("nowhere.npz does not exist .*relative to the folder of SAC_PARAMS", file)
    assert "minary:mujoco/hopper/expert-v0 does not exist (looked for " in minari
    assert not built.exists() and not RunPaths(tmp_path / "run").run_json.exists()
    check = Check("prior data")
    start = prior_checks.PriorStart(
        cast(TrainParamsBase, SimpleNamespace(prior_data="nowhere.npz")),
        {"params": folder / "params.py"},
        None,
        True,
        None,
    )
    start.check_files(folder, check)
    assert check.errors[0].count(f"{folder}/nowhere.npz") == 1, "the same folder is named once"


def test_potentials_of_files_are_computed(environ: dict[str, str], tmp_path: Path) -> None:
    params = PARAMS + "\n    n_step = 3\n    mini_race = {'steps': 8, 'oversampling': (4, 1)}\n"
    shaped = params + "\n    def potential(self, observation):\n        return 2.0 * observation[1]\n"
    (tmp_path / "mine" / "params.py").write_text(shaped)
    assert prepare.prepare(environ, None)
    (segment,) = StoredRing(RunPaths(tmp_path / "run").prior_data).segments()
    assert segment.potential is not None and segment.potential.tolist() == [2.0] * 13
    (tmp_path / "mine" / "params.py").write_text(shaped.replace("observation[1]", "observation['speed']"))
    with pytest.raises(UserError, match=r"TrainParams.potential raises IndexError.*correct it"):
        prepare.prepare(environ, None)


def test_an_agent_that_goes_on_keeps_the_prior_data_it_began_with(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay server that finds none could not start, and other files would silently not be read."""
    paths, params = RunPaths(tmp_path / "run"), tmp_path / "mine" / "params.py"
    params.write_text(PARAMS.replace('"data/demos.npz"', "None").replace("offline_updates = 5", ""))
    assert prepare.prepare(environ, None)
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    paths.params.write_text(PARAMS)  # As nobody should: a run stays what it is.
    keeping = {**environ, "TFAGENTS_EDITS": "keep"}
    with pytest.raises(UserError, match=r"prior_data=data/demos.npz: the agent of this run began without it"):
        prepare.prepare(keeping, None)
