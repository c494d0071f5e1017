"""What a run makes of edits of the user's files, and of its own: of each once, where it is asked to."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.starts_of_a_project import PARAMS, ROOT, Starter, loaded_mass, train, update, write
from tests.support.warm_starts import WarmPopen
from tfagents_system.errors import TERMS
from tfagents_system.machine.files import copy_tree
from tfagents_system.playing.saved_run import load_run_params
from tfagents_system.run_files import install_inputs, params_folder, run_directory, run_inputs
from tfagents_system.run_files.best import edits_taken
from tfagents_system.run_files.metrics import MetricsLog, read_metrics
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings import params_check
from tfagents_system.settings.overrides import Overrides
from tfagents_system.settings.variables import read_variables


def test_edits_are_taken_when_asked_and_what_was_there_is_kept(
    environ: dict[str, str], project: Path, start: Starter
) -> None:
    assert start().code == 0
    paths = RunPaths(Path(environ["SAC_EXP_DIR"]))
    train(paths)
    update(paths, 5)
    (project / "mass_of_robot.py").write_text("MASS = 2\n")
    (project / "params.py").write_text(PARAMS.replace("num_iter = 3", "num_iter = 4"))
    done = start("--take_edits")
    assert done.code == 0, done.told
    assert loaded_mass(paths) == ("2", paths.params_folder / "mass_of_robot.py")
    assert "num_iter = 4" in paths.params.read_text()
    before = paths.exp_dir / "before_edits_1"
    assert (before / "params.py").read_text() == PARAMS and (
        before / "params/mass_of_robot.py"
    ).read_text() == "MASS = 1\n"
    run = run_directory.read_run_json(paths)
    assert [(edit["train_step"], edit["before"]) for edit in run["edits"]] == [(5, "before_edits_1")]
    assert run["num_iter"] == 4
    log = MetricsLog(paths, [])
    log.write({"train_step": 6})
    log.close()
    assert read_metrics(paths.metrics_csv)[-1]["edits"] == 1
    again = start()
    assert again.code == 0 and "edited since" not in again.told


def test_an_edit_of_the_runs_own_files_counts_once_and_a_setting_that_may_change_never(
    environ: dict[str, str], project: Path
) -> None:
    """As a refused `--set` proposes: what was best before was so at another task."""
    paths = write(environ, folder=project)
    train(paths)

    steps = itertools.count(6)

    def edits(**params: Any) -> list[str | None]:
        update(paths, next(steps))
        write(environ, folder=project, overrides=Overrides(params=params))
        return [edit["before"] for edit in run_directory.read_run_json(paths)["edits"]]

    assert edits() == edits(num_iter=5) == []
    paths.config.write_text('{"horizon": 30}')
    assert edits() == edits() == [None]
    paths.params.write_text(PARAMS + "    discount = 0.9\n")
    assert edits() == [None, None] and edits(discount=0.8) == edits(discount=0.8, num_iter=9) == 3 * [None]
    assert edits_taken(paths) == 3


@pytest.mark.parametrize("whose", ["the user's", "the run's own"])
def test_values_that_an_edit_gives_replace_the_defaults_that_the_run_began_with(
    environ: dict[str, str], project: Path, start: Starter, whose: str
) -> None:
    assert start().code == 0
    paths = RunPaths(Path(environ["SAC_EXP_DIR"]))
    began = Overrides.read(paths.overrides).defaults
    assert began["env_steps_per_iter"] == 200 and began["log_period_iters"] == 5
    train(paths)
    update(paths, 5)

    def values_after(edit: str) -> dict[str, Any]:
        edited, options = (project / "params.py", ["--take_edits"]) if whose == "the user's" else (paths.params, [])
        edited.write_text(PARAMS + edit)
        done = start(*options)
        assert done.code == 0, done.told
        kept = Overrides.read(paths.overrides).defaults
        assert run_directory.read_run_json(paths)["defaults"] == kept, "as workers that join are told"
        params = load_run_params(paths, None, None)
        assert params_check.check_params(params) == []
        return {name: getattr(params, name) for name in began}

    given = {"eval_period_env_steps": 20_000, "checkpoint_period_env_steps": 10_000}
    edit = "".join(f"    {name} = {value}\n" for name, value in given.items())
    found = values_after(f"{edit}    log_period_iters = 50\n")
    assert found == {**given, "log_period_iters": 50, "env_steps_per_iter": 200}
    found = values_after("    env_steps_per_iter = 40\n")
    assert found == {**began, "env_steps_per_iter": 40, "log_period_iters": 25}, "and what was undone"


def test_a_job_that_is_requeued_is_never_refused(environ: dict[str, str], project: Path, start: Starter) -> None:
    paths = write(environ, folder=project)
    train(paths)
    (project / "mass_of_robot.py").write_text("MASS = 2\n")
    (project / "config.json").write_text('{"horizon": 30}')
    for requeued in ({"SLURM_RESTART_COUNT": "1"}, {"TFAGENTS_SUBMITTED_AGAIN": "1"}):
        done = start(**requeued)
        assert done.code == 0, done.told
        assert json.loads(paths.config.read_text()) == {"horizon": 20} and loaded_mass(paths)[0] == "1"
    submitted = start("--check", SLURM_JOB_ID="0", TFAGENTS_JOB_MB="4000")
    assert submitted.code == 2 and "config.json" in submitted.told
    assert "another SAC_EXP_NAME begins another run" in submitted.told and "--fresh" not in submitted.told


def test_all_that_is_wrong_comes_with_the_edits(environ: dict[str, str], project: Path, start: Starter) -> None:
    train(write(environ, folder=project))
    (project / "params.py").write_text(PARAMS.replace("num_iter = 3", "num_iter = 9"))
    refused = start("--set", "nosuch=1", SAC_TRAIN_CPUS="none")
    assert refused.code == 2 and "params.py. " in refused.told
    assert "nosuch" in refused.told and "SAC_TRAIN_CPUS=none" in refused.told


def test_a_fresh_run_moves_the_one_before_aside(environ: dict[str, str], project: Path, start: Starter) -> None:
    assert start().code == 0
    paths = RunPaths(Path(environ["SAC_EXP_DIR"]))
    train(paths)
    (project / "params.py").write_text("import no_such_module\n")
    failed = start("--fresh")
    assert failed.code == 2 and "no_such_module" in failed.told
    assert paths.status_json.exists() and paths.params.read_text() == PARAMS, "it stays where it is"
    (project / "params.py").write_text(PARAMS.replace("num_iter = 3", "num_iter = 4"))
    for number in (1, 2):
        done = start("--fresh", "--set", "discount=0.5")
        assert done.code == 0, done.told
        assert not paths.status_json.exists() and "num_iter = 4" in paths.params.read_text()
        aside = RunPaths(paths.exp_dir.with_name(f"run_before_{number}"))
        assert f"is in {aside.exp_dir} now" in done.told and aside.status_json.exists()
        train(paths)
    assert RunPaths(paths.exp_dir.with_name("run_before_1")).params.read_text() == PARAMS
    checked = start("--fresh", "--check")
    assert checked.code == 0 and "a new run, what is there is moved aside" in checked.told
    assert paths.status_json.exists(), "a check moves nothing"


def test_what_a_run_writes_beside_its_params_is_no_edit(environ: dict[str, str], project: Path) -> None:
    paths = write(environ, folder=project)
    (paths.params_folder / "models/robot.xml").write_text("<compiled/>")
    (paths.params_folder / "cache.npz").write_bytes(b"")
    paths.replay.mkdir()
    write(environ, folder=project)
    assert paths.replay.exists(), "nothing of the user's was edited: what was collected stays"


def test_edits_are_taken_once(environ: dict[str, str], project: Path) -> None:
    paths = write(environ, folder=project)
    train(paths)
    for expected in (0, 1, 1):
        write(environ, folder=project, take_edits=True)
        assert len(run_directory.read_run_json(paths)["edits"]) == expected
        (project / "mass_of_robot.py").write_text("MASS = 2\n")
    assert [path.name for path in paths.exp_dir.glob("before_edits_*")] == ["before_edits_1"]


@pytest.mark.parametrize("killed_at", range(8))
def test_copies_are_all_new_or_all_old_whenever_a_start_is_killed(
    killed_at: int, environ: dict[str, str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write(environ, folder=project)
    train(paths)
    (project / "mass_of_robot.py").write_text("MASS = 2\n")
    (project / "params.py").write_text(PARAMS.replace("num_iter = 3", "num_iter = 4"))
    calls = itertools.count()

    def dying(call: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object, **kwargs: object) -> object:
            if next(calls) == killed_at:
                raise KeyboardInterrupt
            return call(*args, **kwargs)

        return run

    with monkeypatch.context() as patched:
        for name in ("rename", "replace", "rmdir"):
            patched.setattr(os, name, dying(getattr(os, name)))
        with contextlib.suppress(KeyboardInterrupt):
            write(environ, folder=project, take_edits=True)
    install_inputs.finish_install(paths)
    run = run_directory.read_run_json(paths)
    is_new = len(run.get("edits", [])) == 1
    assert ("num_iter = 4" in paths.params.read_text()) == is_new
    assert (paths.params_folder / "mass_of_robot.py").read_text() == f"MASS = {2 if is_new else 1}\n"
    digests = params_folder.digests(paths.params_folder, params_folder.files_of(paths.params_folder))
    assert run_inputs.kept_digests(paths) == digests
    write(environ, folder=project, take_edits=True)
    assert len(run_directory.read_run_json(paths)["edits"]) == 1 and "num_iter = 4" in paths.params.read_text()


def test_a_requeued_job_does_once_what_it_asks_for(environ: dict[str, str], project: Path, start: Starter) -> None:
    paths = write(environ, folder=project)
    train(paths)
    job = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}  # Its first start was killed before it came to that.
    done = start("--fresh", **job)
    assert done.code == 0 and "run_before_1" in done.told, done.told
    train(paths)
    done = start("--fresh", **job)
    assert done.code == 0 and "was done by an earlier start" in done.told
    assert not start(SLURM_JOB_ID="8").code, "another job goes on with the run"
    again = start("--fresh", SLURM_JOB_ID="9", TFAGENTS_SUBMITTED_AGAIN="7")
    assert again.code == 0 and "was done by an earlier start" in again.told
    assert json.loads(paths.run_json.read_text())["jobs"] == ["7", "7 --fresh", "8"]
    assert paths.status_json.exists() and len(list(paths.exp_dir.parent.glob("run_before_*"))) == 1


def test_a_fresh_run_has_a_ring_of_its_own_on_scratch(environ: dict[str, str], project: Path, tmp_path: Path) -> None:
    environ["SAC_REPLAY_DIR"] = str(tmp_path / "scratch")
    ring = read_variables(environ, vars_file=None, root=ROOT)[0]["replay_dir"]
    ring.mkdir(parents=True)
    write(environ, folder=project)
    assert not ring.exists(), "it was of a run that is elsewhere now"


@pytest.mark.parametrize(
    ("option", "at", "words"),
    [
        ("--take_edits", "in the installation", "the run has the edited files now: go on without --take_edits"),
        ("--reset_training", "after it", "the reset is done: go on without RESET_TRAINING"),
        ("--keep", "after it", ""),
    ],
)
def test_a_start_that_a_signal_ends_says_what_it_has_done_for_good(
    environ: dict[str, str], project: Path, option: str, at: str, words: str
) -> None:
    paths = write(environ, folder=project)
    train(paths)
    (project / "mass_of_robot.py").write_text("MASS = 2\n")
    place = "install_inputs.finish_install" if at == "in the installation" else "run_directory.write_resolved"
    script = (
        "import os, signal, sys\n"
        "from tfagents_system.launch import forks, prepare\n"
        "from tfagents_system.run_files import install_inputs, run_directory\n"
        "def ended(paths, *rest, **more):\n"
        "    if install_inputs.is_interrupted(paths) or len(rest):\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        f"{place} = ended\nsys.argv = ['prepare', {option!r}, *{['--keep'] * (option == '--reset_training')!r}]\n"
        "forks.end_early_on_signals()\nprepare.main()\n"
    )
    given = {**environ, TERMS: '{"--reset_training": "RESET_TRAINING"}'}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with WarmPopen([sys.executable, "-c", script], exp_dir=paths.exp_dir, cwd=ROOT, env=given, **pipes) as ended:
        out, err = ended.communicate(timeout=100)
    told = "stopped by SIGTERM: nothing was started" + (f"; {words}" if words else "")
    assert (ended.returncode, err.splitlines()[-1]) == (-signal.SIGTERM, told), out


def test_a_disk_that_gets_full_while_a_folder_is_copied_is_told_in_one_line(
    environ: dict[str, str], project: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write(environ, folder=project)
    train(paths)
    (project / "mass_of_robot.py").write_text("MASS = 2\n")

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source)

    copied = paths.exp_dir / "before_edits_1/params/mass_of_robot.py"
    with monkeypatch.context() as patched:
        patched.setattr(install_inputs, "copy_tree", functools.partial(copy_tree, copy_function=full))
        refused = start("--take_edits")
    assert refused.code == 1 and "Traceback" not in refused.told
    (line,) = (line for line in refused.told.splitlines() if line.startswith("error: "))
    assert line.startswith("error: [Errno 28] No space left on device: ") and str(copied.parent) in line
    assert line.endswith(": free space on the disk, then start the same command again")
    assert start("--take_edits").code == 0 and loaded_mass(paths)[0] == "2"


def test_a_finished_run_takes_edits_only_where_it_goes_on_with_them(
    environ: dict[str, str], project: Path, start: Starter
) -> None:
    """What was best would count no more, and nothing would follow that could be."""
    assert start().code == 0
    paths = RunPaths(Path(environ["SAC_EXP_DIR"]))
    paths.status_json.write_text('{"roles": {"trainer": {"state": "done", "num_iter": 3, "train_step": 5}}}')
    (project / "mass_of_robot.py").write_text("MASS = 2\n")
    done = start("--take_edits")
    assert done.code == 0 and "is finished: num_iter=3 is reached" in done.told
    assert "the edited files are not taken: nothing would be trained or evaluated with them" in done.told
    assert edits_taken(paths) == 0 and loaded_mass(paths)[0] == "1"
    done = start("--take_edits", "--set", "num_iter=4")
    assert done.code == 0 and "are not taken" not in done.told
    assert edits_taken(paths) == 1 and loaded_mass(paths)[0] == "2"


@pytest.mark.parametrize(
    ("why", "goes_on"),
    [("the evaluation at 40 steps had eval_return of at least 5 (stop_when)", True), ("max_hours=1 is reached", False)],
)
def test_a_run_that_its_evaluations_ended_goes_on_with_edited_files(
    environ: dict[str, str], start: Starter, project: Path, why: str, goes_on: bool
) -> None:
    """They count no more; hours and steps are used up whatever the files are."""
    ends = ("--set", "max_hours=1", "--set", 'stop_when={"eval_return": 5}')
    assert start(*ends).code == 0
    paths = RunPaths(Path(environ["SAC_EXP_DIR"]))
    ended_for = json.loads(paths.run_json.read_text())["ends_for"]
    trainer = {"state": "done", "num_iter": 3, "train_step": 5, "ended_early": why, "ended_for": ended_for}
    paths.status_json.write_text(json.dumps({"roles": {"trainer": trainer}}))
    assert run_directory.is_finished(paths)
    assert "is finished" in start("--take_edits", *ends).told, "the same files"
    (project / "mass_of_robot.py").write_text("MASS = 1  # a comment\n")
    (project / "plot.png").write_bytes(b"beside")
    done = start("--take_edits", *ends)
    assert "is finished" in done.told and "not taken" not in done.told and edits_taken(paths) == 0
    (project / "mass_of_robot.py").write_text("MASS = 2\n")
    done = start("--take_edits", *ends)
    assert done.code == 0 and ("is finished" not in done.told) == goes_on and edits_taken(paths) == goes_on, done.told
    assert run_directory.is_finished(paths) == (not goes_on)
    paths.status_json.write_text(json.dumps({"roles": {"trainer": {**trainer, "ended_edits": 1}}}))
    assert run_directory.is_finished(paths), "once it has ended so with these, too"
