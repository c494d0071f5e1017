"""A start with prior_data: what is made of it, once, and what is refused."""

from __future__ import annotations

import dataclasses
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
from tfagents_system.launch import orphans, prepare, prior_checks, resources
from tfagents_system.launch.preparation import Preparation
from tfagents_system.launch.run_settings import EDITS, FRESH
from tfagents_system.launch.worker_kind_checks import check_prior_experts
from tfagents_system.replay.prior_data import open_prior
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.overrides import Overrides
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.segments import Segment

PARAMS = """
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase

class TrainParams(TrainParamsBase):
    num_iter = 3
    train_batch_size = 32
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
    assert "set env_steps_before_training=0" in capsys.readouterr().out
    write_demos(demos, 6)
    assert prepare.prepare(environ, None) and rows(paths) == 7, "before the first update what is there now"
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    demos.unlink()
    keeping = {**environ, "TFAGENTS_EDITS": "keep"}
    assert prepare.prepare(keeping, None) and rows(paths) == 7
    write_demos(demos, 9)
    assert prepare.prepare({**keeping, "TFAGENTS_RESET": "agent"}, None) and rows(paths) == 7, "of its own folder"
    again = {**environ, "TFAGENTS_RESET": "agent", "TFAGENTS_EDITS": "take"}
    assert prepare.prepare(again, None) and rows(paths) == 10
    assert (paths.exp_dir / "before_reset_1" / "prior_data").is_dir()
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
        preparation.run(None)
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
    assert minari.endswith("minary:mujoco/hopper/expert-v0 does not exist: minari:mujoco/hopper/expert-v0 is meant")
    assert not built.exists() and not RunPaths(tmp_path / "run").run_json.exists()
    check = Check("prior data")
    start = prior_checks.PriorStart(
        cast(TrainParamsBase, SimpleNamespace(prior_data="nowhere.npz")),
        {"params": folder / "params.py"},
        None,
        True,
        None,
        Overrides(),
        0,
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


def test_columns_that_prior_data_has_are_dropped_with_another_agent_alone(
    environ: dict[str, str], tmp_path: Path
) -> None:
    paths, params = RunPaths(tmp_path / "run"), tmp_path / "mine" / "params.py"
    params.write_text(PARAMS + "\n    def potential(self, observation):\n        return 2.0 * observation[1]\n")
    assert prepare.prepare(environ, None)
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    layout = StoredRing(paths.prior_data).layout
    Ring.open(paths.replay, layout, 210)
    params.write_text(PARAMS)
    taking = {**environ, "TFAGENTS_EDITS": "take"}
    with pytest.raises(UserError, match=r"potential: now none, before float32 \[\]\. Restore .*--reset_training"):
        prepare.prepare(taking, None)
    assert "potential" in paths.params.read_text()
    assert prepare.prepare({**taking, "TFAGENTS_RESET": "agent"}, None)
    assert open_prior(paths.prior_data, dataclasses.replace(layout, potential=None)).training_steps == 12
    assert prepare.prepare(environ, None), "killed before the ring lost its column"


def test_an_agent_that_goes_on_keeps_the_prior_data_it_began_with(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay server that finds none could not start, and other files would silently not be read."""
    paths, params = RunPaths(tmp_path / "run"), tmp_path / "mine" / "params.py"
    params.write_text(PARAMS.replace('"data/demos.npz"', "None").replace("offline_updates = 5", ""))
    assert prepare.prepare(environ, None)
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    params.write_text(PARAMS)
    taking = {**environ, "TFAGENTS_EDITS": "take"}
    with pytest.raises(UserError, match=r"prior_data=data/demos.npz: the agent of this run began without it"):
        prepare.prepare(taking, None)
    assert prepare.prepare({**taking, "TFAGENTS_RESET": "agent"}, None) and rows(paths) == 13
    params.write_text(PARAMS.replace("data/demos.npz", "data/other.npz"))
    capsys.readouterr()
    assert prepare.prepare(taking, None) and rows(paths) == 13
    assert "data/other.npz is for an agent that begins (--reset_training)" in capsys.readouterr().out


EXPERTS = (
    PARAMS.replace('prior_data = "data/demos.npz"', "n_expert_episodes_in_prior_data = 5").replace(
        "offline_updates = 5", ""
    )
    + "\n    def expert_policy_ctor(self):\n        return lambda observation: [0.0]\n"
)
TOGETHER = EXPERTS.replace("n_expert", 'prior_data = "data/demos.npz"\n    n_expert')


def test_there_is_room_for_experts_alone_or_behind_files(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths, params = RunPaths(tmp_path / "run"), tmp_path / "mine" / "params.py"
    environ |= {"SAC_EXPERT_WORKERS": "1", "SAC_SHARE_CPUS": "1"}
    for text, rows_of_files in ((EXPERTS, 0), (TOGETHER, 13)):
        params.write_text(text)
        assert prepare.prepare(environ, None)
        ring = StoredRing(paths.prior_data)
        assert (ring.rows, ring.capacity_rows, ring.slack_rows) == (rows_of_files, rows_of_files + 5 * 21, 21)
        assert "room for 105 rows of experts" in capsys.readouterr().out
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    params.write_text(TOGETHER.replace("= 5", "= 6"))
    assert prepare.prepare({**environ, "TFAGENTS_EDITS": "take"}, None)
    assert "data=6 is for an agent that begins (--reset_training): the ring of this one has room for 5" in (
        " ".join(capsys.readouterr().out.split())
    )
    assert StoredRing(paths.prior_data).capacity_rows == 13 + 5 * 21
    alone = {**environ, "SAC_EXPERT_WORKERS": "0", "TFAGENTS_EDITS": "take"}
    params.write_text(EXPERTS)
    assert prepare.prepare(alone, None), "experts may have brought some"
    params.write_text(EXPERTS.replace("= 5", "= None"))
    capsys.readouterr()
    assert prepare.prepare(alone, None)
    told = " ".join(capsys.readouterr().out.split())
    assert "nothing is drawn from prior data any more: prior_data=None" in told
    assert "what experts bring from now on comes into the run's own ring" in told and "began with n_expert" in told


def bring(paths: RunPaths, number: int, steps: int) -> None:
    """What an expert sends while the run goes on."""
    stored = StoredRing(paths.prior_data)
    ring = open_prior(paths.prior_data, stored.layout, grows=True)
    seen, action = (
        np.ones((count, *spec.shape), spec.dtype)
        for count, spec in zip((steps + 1, steps), stored.layout.columns, strict=True)
    )
    segment = Segment(
        worker_id=0,
        incarnation=9,
        number=number,
        iteration=0,
        end_of_iteration=False,
        starts_episode=True,
        ends_episode=True,
        observation=[seen],
        action=[action],
        reward=np.ones(steps, np.float32),
        discount=np.ones(steps, np.float32),
        is_prior=True,
    )
    ring.keep(segment)


def sizes(paths: RunPaths) -> list[int]:
    return [segment.num_steps for segment in StoredRing(paths.prior_data).segments()]


def test_what_experts_have_brought_stays_where_another_agent_begins(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it is the first one, of a run that was stopped before its first update."""
    paths, params = RunPaths(tmp_path / "run"), tmp_path / "mine" / "params.py"
    environ |= {"SAC_EXPERT_WORKERS": "1", "SAC_SHARE_CPUS": "1", "TFAGENTS_EDITS": "take"}
    params.write_text(TOGETHER)
    assert prepare.prepare(environ, None)

    bring(paths, 0, 4)
    bring(paths, 1, 7)
    assert sizes(paths) == [12, 4, 7]
    write_demos(tmp_path / "mine" / "data" / "demos.npz", 6)
    assert prepare.prepare(environ, None) and sizes(paths) == [6, 4, 7]
    assert "11 steps that experts have brought before" in capsys.readouterr().out
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    reset = {**environ, "TFAGENTS_RESET": "agent"}
    params.write_text(EXPERTS)
    assert prepare.prepare({**reset, "SAC_EXPERT_WORKERS": "0"}, None), "there is what they have brought"
    assert sizes(paths) == [4, 7]
    assert StoredRing(paths.prior_data).capacity_rows == 5 * 21
    (tmp_path / "mine" / "config.json").write_text('{"horizon": 9}')
    params.write_text(EXPERTS.replace("= 5", "= 1"))
    assert prepare.prepare(reset, None) and sizes(paths) == [7], "the newest that fit 10 rows"


def test_what_experts_bring_after_a_kill_is_waited_for_before_it_is_copied(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay server of a supervisor that was killed stores what is under way, and ends."""
    paths, params = RunPaths(tmp_path / "run"), tmp_path / "mine" / "params.py"
    environ |= {"SAC_EXPERT_WORKERS": "1", "SAC_SHARE_CPUS": "1"}
    params.write_text(TOGETHER)
    assert prepare.prepare(environ, None)
    bring(paths, 0, 4)
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    late = [5]

    def waits(run: RunPaths, *args: Any) -> bool:
        for steps in late:
            bring(run, 1, steps)
        late.clear()
        return True

    monkeypatch.setattr(orphans, "_wait", waits)
    assert prepare.prepare({**environ, "TFAGENTS_RESET": "agent"}, None) and sizes(paths) == [12, 4, 5]


def test_what_experts_have_brought_goes_with_the_run_s_own_where_it_is_of_another_task(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the first update; and so does the reason to start without an expert."""
    paths, params = RunPaths(tmp_path / "run"), tmp_path / "mine" / "params.py"
    environ |= {"SAC_EXPERT_WORKERS": "1", "SAC_SHARE_CPUS": "1"}
    params.write_text(EXPERTS)
    assert prepare.prepare(environ, None)
    bring(paths, 0, 4)
    paths.replay.mkdir()
    alone = {**environ, "SAC_EXPERT_WORKERS": "0"}
    assert prepare.prepare(alone, None) and sizes(paths) == [4] and paths.replay.is_dir()
    params.write_text(EXPERTS + "\n    reward_scale_factor = 2.0\n")
    with pytest.raises(UserError, match="nothing could ever be learned"):
        prepare.prepare(alone, None)
    assert prepare.prepare(environ, None) and sizes(paths) == [] and not paths.replay.exists()
    assert "it starts over" in capsys.readouterr().out


def test_a_trainer_elsewhere_neither_makes_prior_data_nor_asks_for_experts(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params, keys = tmp_path / "mine" / "params.py", tmp_path / "keys"
    keys.mkdir()
    params.write_text(EXPERTS)
    environ |= {"SAC_TRAINER_SERVER": "node7:8443", "SAC_CREDENTIALS_DIR": str(keys), "SAC_EXPERT_WORKERS": "1"}
    assert prepare.prepare(environ, None) and not RunPaths(tmp_path / "run").prior_data.exists()
    assert "n_expert_episodes" not in capsys.readouterr().out


def test_an_agent_that_began_without_room_for_experts_does_not_get_it(environ: dict[str, str], tmp_path: Path) -> None:
    paths, params = RunPaths(tmp_path / "run"), tmp_path / "mine" / "params.py"
    assert prepare.prepare(environ, None)
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    params.write_text(TOGETHER)
    taking = {**environ, "SAC_EXPERT_WORKERS": "1", "SAC_SHARE_CPUS": "1", "TFAGENTS_EDITS": "take"}
    with pytest.raises(UserError, match=r"n_expert_episodes_in_prior_data=5: the agent of this run began without it"):
        prepare.prepare(taking, None)


@pytest.mark.parametrize(
    ("values", "prior_data", "told"),
    [
        (
            {"max_workers": 1},
            None,
            "error: .*, none can join, and there is no prior_data: nothing could ever be learned",
        ),
        ({"max_workers": 2}, None, "note: .*: nothing is learned until one joins"),
        ({"max_workers": 2, "eval_workers": 1}, None, "error: .*"),
        ({"max_workers": 1}, "demos.npz", "note: .*, and none can join: set SAC_EXPERT_WORKERS=1"),
        ({"max_workers": 2}, "demos.npz", ""),
        ({"max_workers": 2, "expert_workers": 1}, None, ""),
        ({"server": "node7:8008"}, None, ""),
        ({"trainer_server": "node7:8008"}, None, ""),
    ],
)
def test_what_is_said_of_experts_that_nobody_starts(values: dict[str, Any], prior_data: Any, told: str) -> None:
    params = SimpleNamespace(n_expert_episodes_in_prior_data=5, prior_data=prior_data)
    check = Check("params")
    check_prior_experts(cast(TrainParamsBase, params), {"num_collect_workers": 1, **values}, check)
    found = [f"error: {each}" for each in check.errors] + [f"note: {each}" for each in check.notes]
    assert len(found) == bool(told) and all(re.match(told, each) for each in found)


def test_experts_that_nobody_starts_are_told_with_the_rest(environ: dict[str, str], tmp_path: Path) -> None:
    params = tmp_path / "mine" / "params.py"
    params.write_text(EXPERTS.replace("num_iter = 3", "num_iter = 3\n    prior_data_share = 0.001"))
    with pytest.raises(UserError) as raised:
        prepare.prepare(environ, None)
    told = str(raised.value)
    assert "the run starts no expert (SAC_EXPERT_WORKERS=0), none can join, and there is no prior_data" in told
    assert "prior_data_share=0.001 of train_batch_size=32 is 0 samples" in told
