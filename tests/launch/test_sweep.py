"""Sweeps: which tasks there are, what they have, and what is refused before any starts."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines import flat
from tests.support.sweeps import PARAMS, grid_file
from tests.support.waiting import gone
from tfagents_system.errors import UserError
from tfagents_system.launch import sweep, sweep_plan
from tfagents_system.launch.sweep import parse_seeds
from tfagents_system.launch.sweep_tasks import Place, Task
from tfagents_system.machine.topology import split_cpus

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "seeds"), [("0-2", [0, 1, 2]), ("7", [7]), ("3,0-1", [3, 0, 1]), (" 1 , 5-6", [1, 5, 6])]
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "2-1", "-1", "1,,2", "0-99999999", "4294967296", "1-3,2"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--seeds"):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("cpus", "held", "parallel", "needed", "share", "places"),
    [
        (8, (), 2, 4, False, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (8, (), 2, 3, False, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (8, (0, 5), 2, 3, False, [[1, 2, 3], [4, 6, 7]]),
        (7, (), 3, 5, True, [[0, 1, 2], [3, 4], [5, 6]]),
        (2, (), 2, 4, True, [[0], [1]]),
        (2, (0, 1), 2, 4, True, [[0], [1]]),
        (2, (), 3, 4, True, [[0], [1], [0]]),
        (4, (), 1, 9, True, [[0, 1, 2, 3]]),
    ],
)
def test_runs_at_once_have_cpus_of_their_own(
    cpus: int, held: tuple[int, ...], parallel: int, needed: int, share: bool, places: list[list[int]]
) -> None:
    assert split_cpus(flat(range(cpus)), parallel, needed, held=held, share=share) == places


def test_a_runs_place_has_room_for_its_experts(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    vars_file.write_text(vars_file.read_text().replace("SAC_SHARE_CPUS=1", "SAC_EXPERT_WORKERS=2"))
    monkeypatch.setattr(sweep_plan, "cores_of", lambda ids: flat(range(12)))
    monkeypatch.setattr(sweep_plan, "held_cpus", dict)
    monkeypatch.setattr(sweep_plan, "cgroup_quota", lambda: None)
    needed = []

    def split(cores: Any, parallel: int, count: int, **more: Any) -> list[list[int]]:
        needed.append(count)
        return [[0]] * parallel

    monkeypatch.setattr(sweep_plan, "split_cpus", split)
    expert = "\n    def expert_policy_ctor(self):\n        return lambda observation: observation\n"
    (vars_file.parent / "p.py").write_text(PARAMS + expert)
    sweep.main([str(vars_file), "--seeds", "0-1", "--parallel", "2"])
    assert needed == [5]


def test_too_few_cpus_are_told_with_numbers() -> None:
    with pytest.raises(UserError, match="2 runs of 5 CPUs need 10, 7 are free"):
        split_cpus(flat(range(8)), 2, 5, held=[3])


def test_a_sweep_is_not_called_as_a_task_of_another_one(vars_file: Path, started: list[Task]) -> None:
    vars_file.write_text(vars_file.read_text() + "SAC_EXP_NAME=try_task_1\n")
    with pytest.raises(UserError, match="tasks 0, 2: SAC_EXP_NAME=try_task_1 must not end in _task_1 in a sweep"):
        sweep.main([str(vars_file), "--seeds", "0-2"])
    assert not started


def test_a_large_sweep_has_the_time_of_its_tasks(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_slowly(environ: Mapping[str, str], *_: object) -> list[str]:
        time.sleep(secs[int(environ["SAC_SEED"]) % len(secs)])
        return []

    secs = [0.4]
    monkeypatch.setattr(sweep_plan, "_CHECK_SECS", 2.0)
    monkeypatch.setattr(sweep_plan, "check_inputs", check_slowly)
    assert sweep.main([str(vars_file), "--seeds", "0-7"]) == 0 and len(started) == 8
    secs.append(60.0)  # Of the second task.
    with pytest.raises(UserError, match="configuration of task 1 has not ended within 2 s"):
        sweep.main([str(vars_file), "--seeds", "0-1"])


def test_each_task_is_a_run_with_its_settings(vars_file: Path, started: list[Task]) -> None:
    grid = grid_file(vars_file.parent, {"batch_size": [64, 128]})
    assert sweep.main([str(vars_file), "--grid", grid, "--seeds", "5-6", "--set", "config.horizon=9"]) == 0
    assert [dict(t.settings) for t in started] == [
        {"batch_size": size, "SAC_SEED": seed, "config.horizon": 9} for size in (64, 128) for seed in (5, 6)
    ]
    assert [t.paths.exp_dir for t in started] == [vars_file.parent / f"logs/try_task_{k}" for k in range(4)]
    words = [word for word in started[2].command if word != "--set"]
    assert words[1:] == ["SAC_GRID=", "batch_size=128", "SAC_SEED=5", "config.horizon=9", str(vars_file)]
    assert started[2].environ["SLURM_ARRAY_TASK_ID"] == "2" and started[2].command[0] == str(
        ROOT / "tfagents_system/launch/run_script.sh"
    )


@pytest.mark.parametrize(
    ("visible", "more", "options", "gpus"),
    [
        ("0,1,2", "", ["--parallel", "2"], ["0", "1"]),
        ("0,1,2", "", ["--parallel", "1"], ["0"]),
        ("7", "", ["--parallel", "3", "--set", "SAC_TRAIN_GPUS=0"], [None] * 2),
        ("GPU-1,GPU-2", "", ["--parallel", "3"], ["GPU-1", "GPU-2"]),  # Two tasks: no third run goes on at once.
        ("0", "CUDA_VISIBLE_DEVICES=4,5\n", ["--parallel", "2"], ["4", "5"]),  # The vars file's word counts.
    ],
)
def test_runs_at_once_have_gpus(
    vars_file: Path,
    started_places: list[Place],
    started: list[Task],
    monkeypatch: pytest.MonkeyPatch,
    visible: str,
    more: str,
    options: list[str],
    gpus: list[str | None],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with vars_file.open("a") as file:
        file.write(f"SAC_TRAIN_GPUS=1\n{more}")
    assert sweep.main([str(vars_file), "--seeds", "0-1", *options]) == 0
    assert [place.gpu for place in started_places] == gpus


@pytest.mark.parametrize(("visible", "number"), [("3", 1), ("", 0)])
def test_fewer_gpus_than_runs_are_refused(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch, visible: str, number: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    options = ["--seeds", "0-2", "--parallel", "2", "--set", "SAC_TRAIN_GPUS=1"]
    with pytest.raises(
        UserError, match=f"2 runs at once need a GPU each, {number} may be used here .*: lower --parallel"
    ):
        sweep.main([str(vars_file), *options])
    assert not started


def test_runs_at_once_of_tasks_that_come_later_have_gpus(vars_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2,GPU-3")
    for parallel in (3, 4):
        plan = sweep_plan.SweepPlan(vars_file, {0: {}, 1: {}}, ["SAC_TRAIN_GPUS=1"], parallel, is_open=True)
        if parallel == 3:
            plan.raise_findings()
            assert [place.gpu for place in plan.places] == ["GPU-1", "GPU-2", "GPU-3"]
    with pytest.raises(UserError, match="4 runs at once need a GPU each, 3 may be used here"):
        plan.raise_findings()


def test_the_check_of_params_sees_no_gpu(vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    seen = "import os, pathlib; pathlib.Path('seen').write_text(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    (vars_file.parent / "p.py").write_text(seen + PARAMS)
    assert sweep.main([str(vars_file), "--seeds", "0"]) == 0
    assert Path("seen").read_text() == "-1" and started[0].environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_check_of_params_has_the_environment_of_the_task(vars_file: Path, started: list[Task]) -> None:
    """Whatever that of the sweep is: variables of the user's own, and where modules are."""
    (vars_file.parent / "mine").mkdir()
    (vars_file.parent / "mine/on_the_path.py").write_text("")
    with vars_file.open("a") as file:
        file.write('export MY_ENV_NAME=Arm-v0 "PYTHONPATH=$PWD/mine:${PYTHONPATH:-}"\n')
    reads = "import os\nimport on_the_path\n" + "".join(
        f"assert os.environ['{name}'] {value}\n" for name, value in [("MY_ENV_NAME", "== 'Arm-v0'"), ("SAC_SEED", "")]
    )
    (vars_file.parent / "p.py").write_text(reads + PARAMS)
    before = dict(os.environ), list(sys.path)
    assert sweep.main([str(vars_file), "--seeds", "0-2"]) == 0 and len(started) == 3
    assert (dict(os.environ), sys.path) == before


def test_each_task_is_checked_with_the_modules_beside_its_own_params(vars_file: Path, started: list[Task]) -> None:
    for name, steps in (("a", 10), ("b", -20)):
        (vars_file.parent / name).mkdir()
        (vars_file.parent / name / "helper_of_p.py").write_text(f"STEPS = {steps}\n")
        own = PARAMS.replace("num_iter = 3", "num_iter = helper_of_p.STEPS")
        (vars_file.parent / name / "p.py").write_text("import helper_of_p\n" + own)
    grid = grid_file(vars_file.parent, {"SAC_PARAMS": ["a/p.py", "b/p.py"]})
    with pytest.raises(UserError) as error:
        sweep.main([str(vars_file), "--grid", grid])
    assert error.value.findings == ("task 1: TrainParams.num_iter must be an integer of at least 1, found -20",)


def test_modules_are_imported_once_for_all_tasks_that_share_them(vars_file: Path, started: list[Task]) -> None:
    (vars_file.parent / "slow_to_import.py").write_text("open('imported', 'a').write('1')\n")
    (vars_file.parent / "p.py").write_text("import slow_to_import\n" + PARAMS)
    grid = grid_file(vars_file.parent, {"discount": [0.9, 0.99], "SAC_TRAIN_CPUS": [1, 2]})
    assert sweep.main([str(vars_file), "--grid", grid, "--seeds", "0-2"]) == 0 and len(started) == 12
    assert Path("imported").read_text() == "11"


def test_a_check_that_hangs_leaves_no_process(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = "import os, pathlib, time\npathlib.Path('begun').write_text(str(os.getpid()))\n"
    (vars_file.parent / "p.py").write_text(hangs + "os.replace('begun', 'pid')\ntime.sleep(1000)\n")
    for secs in (1, 4, 16, 64):  # A busy machine may not have come to the import yet.
        monkeypatch.setattr(sweep_plan, "_CHECK_SECS", float(secs))
        with pytest.raises(UserError, match=f"configuration of task 0 has not ended within {secs} s"):
            sweep.main([str(vars_file), "--seeds", "0-1"])
        if Path("pid").exists():
            break
    assert gone(int(Path("pid").read_text()), within_secs=20.0)


def test_a_thread_that_params_leave_holds_up_no_check(vars_file: Path, started: list[Task]) -> None:
    leaves = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
    (vars_file.parent / "p.py").write_text(leaves + PARAMS)
    grid = grid_file(vars_file.parent, {"SAC_TRAIN_CPUS": [1, 2]})
    assert sweep.main([str(vars_file), "--grid", grid]) == 0 and len(started) == 2


def test_without_seeds_all_tasks_have_that_of_the_vars_file(vars_file: Path, started: list[Task]) -> None:
    with vars_file.open("a") as file:
        file.write("SAC_SEED=4\nSAC_GRID=g.json\n")
    grid_file(vars_file.parent, {"discount": [0.9, 0.99]})
    assert sweep.main([str(vars_file)]) == 0
    assert all("SAC_SEED=4" in t.command and "SAC_GRID=" in t.command for t in started) and len(started) == 2


def test_all_findings_come_before_anything_starts(vars_file: Path, started: list[Task]) -> None:
    grid = grid_file(vars_file.parent, [{"discount": 0.9}, {"discount": 7}, {"discont": 0.9}, {"config.horizn": 3}])
    with pytest.raises(UserError) as raised:
        sweep.main([str(vars_file), "--grid", grid, "--set", "SAC_SED=1", "--set", "num_iter=0"])
    findings = "\n".join(raised.value.findings)
    for part in (
        "--set: SAC_SED is not a known variable: SAC_SEED", "TrainParams.num_iter must be an integer",
        "task 1: TrainParams.discount must be a number in [0, 1], or a schedule", "task 2: TrainParams of",
        "task 3: config.horizn is not in SAC_CONFIG",
    ):  # fmt: skip
        assert part in findings
    assert not started and not (vars_file.parent / "logs").exists()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ([], "nothing to sweep over"),
        (["--seeds", "x"], "--seeds must be numbers"),
        (["--grid", "none.json"], "none.json cannot be read"),
        (["--seeds", "0-1", "--set", "SAC_SEED=3"], "SAC_SEED is swept over and given by --set"),
        (
            ["--seeds", "0-1", "--set", "SAC_SHARE_CPUS=0", "--set", "SAC_TRAIN_CPUS=900", "--parallel", "3"],
            "--parallel 2 runs of 902 CPUs need 1804",
        ),
    ],
)
def test_bad_options_are_refused(vars_file: Path, started: list[Task], options: list[str], part: str) -> None:
    with pytest.raises(UserError, match=part):
        sweep.main([str(vars_file), *options])
    assert not started


def test_params_that_end_the_process_are_a_finding(vars_file: Path, started: list[Task]) -> None:
    (vars_file.parent / "p.py").write_text("import os\nos._exit(3)\n")
    with pytest.raises(UserError, match="the process died in the check"):
        sweep.main([str(vars_file), "--seeds", "0-1"])


def test_within_a_job_array_there_is_no_sweep(vars_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    with pytest.raises(UserError, match="this is a task of a job array already"):
        sweep.main([str(vars_file), "--seeds", "0-1"])
