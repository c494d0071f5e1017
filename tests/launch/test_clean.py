"""What nobody needs goes, and all else stays: snapshots, environments, temporary folders, rings of finished runs."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tfagents_system.launch import clean

ROOT = Path(__file__).resolve().parents[2]
CLEAN = ROOT / "tfagents_system/launch/clean.py"
DAY = 24 * 3600.0


def age(path: Path, secs: float) -> None:
    os.utime(path, (time.time() - secs,) * 2)


class Cluster:
    """Run directories, and a `squeue` that says what it is told."""

    def __init__(self, folder: Path) -> None:
        self.logs, self.tools, self.scratch = folder / "a user's logs", folder / "tools", folder / "scratch"
        for path in (self.logs, self.tools, self.scratch):
            path.mkdir()
        self.set_queue("")

    def set_queue(self, scripts: str, code: int = 0) -> None:
        (self.tools / "jobs").write_text(scripts)
        (self.tools / "squeue").write_text(f"#!/bin/sh\ncat {shlex.quote(str(self.tools / 'jobs'))}\nexit {code}\n")
        (self.tools / "squeue").chmod(0o755)

    def snapshot(self, directory: str, number: int, *, secs: float = 2 * 3600.0, header: str = "") -> Path:
        path = self.logs / directory / f"snapshot/20260101-00000{number}-{number}"
        (path / "params").mkdir(parents=True)
        (path / "job.sbatch").write_text(f"#!/bin/bash\n#SBATCH --nodes=1\n{header}\nexec x --clusters\n")
        age(path, secs)
        return path

    def environment(self, name: str, secs: float, *, host: str = os.uname().nodename) -> Path:
        path = self.scratch / f"sac_env_{os.getuid()}_{name * 12}_{host}"
        (path / "env/bin").mkdir(parents=True)
        (path / ".lock").touch()
        age(path, secs)
        age(path / ".lock", secs)
        return path

    def clean(
        self, *arguments: object, answer: str = "", python: str = sys.executable
    ) -> subprocess.CompletedProcess[str]:
        path = f"{self.tools}:{os.environ['PATH']}"
        return subprocess.run(
            [python, "-S", "-E", str(CLEAN), *map(str, arguments)], cwd=self.logs, input=answer,
            env={"PATH": path, "TMPDIR": str(self.scratch)}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    made.clean("--unasked")  # What is in /tmp itself is found as well.
    return made


def test_snapshots_go_that_no_job_and_no_run_needs(cluster: Cluster) -> None:
    queued, source, young, foreign, old, older = (
        cluster.snapshot("run", number, secs=60.0 if number == 3 else 7200.0) for number in range(1, 7)
    )
    (foreign / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --time 5 --clusters=other\n")
    age(foreign, 7200.0)
    (cluster.logs / "run/run.json").write_text(json.dumps({"params_source": f"{source}/params/my_params.py"}))
    others = [cluster.logs / "run/snapshot/mine", cluster.logs / "run/logs"]
    for path in others:
        path.mkdir()
        age(path, 9 * DAY)
    cluster.set_queue(f"/elsewhere/x.sbatch\n/other/way/to/snapshot/{queued.name}/job.sbatch 101\n")
    asked = cluster.clean("run")
    assert asked.returncode == 0 and "Remove them? [y/N]" in asked.stdout and "nothing was removed" in asked.stdout
    assert str(old) in asked.stdout and str(older) in asked.stdout and "in 2 folders" in asked.stdout
    assert cluster.clean("run", answer="y\n").returncode == 0
    assert sorted(path.name for path in (cluster.logs / "run/snapshot").iterdir()) == sorted(
        path.name for path in (queued, source, young, foreign, others[0])
    )
    assert others[1].exists() and "nothing to remove" in cluster.clean("run", "--yes").stdout


def test_an_arrays_snapshots_are_those_of_its_tasks(cluster: Cluster) -> None:
    needed, unneeded = cluster.snapshot("run_array", 1), cluster.snapshot("run_array", 2)
    for task in (3, 14):
        (cluster.logs / f"run_task_{task}").mkdir()
        source = needed if task == 14 else cluster.logs
        (cluster.logs / f"run_task_{task}/run.json").write_text(json.dumps({"params_source": f"{source}/params/p.py"}))
    done = cluster.clean("--unasked", "run_array")
    assert done.stdout == "note: removed 1 folder of earlier runs and jobs that nobody needs any more\n"
    assert needed.exists() and not unneeded.exists()
    assert cluster.clean("--unasked", "run_array").stdout == ""


# As SLURM's: a job in a hidden partition is told to who asks for all of them, and not where a variable names others.
HIDING_SQUEUE = """#!/bin/sh
[ "$SQUEUE_STATES" ] || case " $* " in *" --all "*) echo /x/job.sbatch ;; esac
"""


@pytest.mark.parametrize("states", ["", "RUNNING"])
def test_jobs_count_that_squeue_would_hide(cluster: Cluster, states: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (cluster.tools / "squeue").write_text(HIDING_SQUEUE)
    monkeypatch.setenv("SQUEUE_STATES", states)
    monkeypatch.setenv("PATH", f"{cluster.tools}:{os.environ['PATH']}")
    assert clean.queued_jobs() == "/x/job.sbatch\n"


def test_where_the_queue_is_not_known_snapshots_stay(cluster: Cluster) -> None:
    path = cluster.snapshot("run", 1)
    cluster.set_queue("", code=1)
    assert "squeue does not say what is queued: all snapshots stay" in cluster.clean("run", "--yes").stdout
    assert path.exists()


def test_an_environment_goes_a_day_after_its_last_use(cluster: Cluster, tmp_path: Path) -> None:
    unused, recent, running, locked, link = (
        cluster.environment(name, DAY / 2 if name == "b" else 2 * DAY) for name in "abcde"
    )
    shutil.rmtree(link)
    (tmp_path / "other").mkdir()
    link.symlink_to(tmp_path / "other")
    program = subprocess.Popen(["sleep", "60"], env={**os.environ, "VIRTUAL_ENV": f"{running}/env"})
    try:
        with (locked / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            age(locked / ".lock", 2 * DAY)
            assert "removed 1 folder" in cluster.clean("--unasked").stdout
    finally:
        program.kill()
        program.wait()
    assert sorted(cluster.scratch.iterdir()) == sorted([recent, running, locked, link])
    assert not unused.exists()


def test_environments_of_other_machines_are_left_to_them(cluster: Cluster) -> None:
    """Scratch may be a shared file system: what uses an environment elsewhere is in no /proc here."""
    host = os.uname().nodename
    others = [cluster.environment("a", 9 * DAY, host=name) for name in ("node7", f"{host}7", f"7{host}", f"x_{host}")]
    earlier = cluster.scratch / f"sac_env_{os.getuid()}_0123456789ab"  # Of a version that did not say whose it is.
    shutil.copytree(others[0], earlier)
    for path in (earlier, earlier / ".lock"):
        age(path, 9 * DAY)
    assert "nothing to remove" in cluster.clean("--yes").stdout
    assert sorted(cluster.scratch.iterdir()) == sorted([*others, earlier])


def lock_it(path: Path) -> Callable[[], object]:
    lock = (path / ".lock").open()  # As a start has it that unpacks, or looks whether all is there.
    fcntl.flock(lock, fcntl.LOCK_EX)
    age(path / ".lock", 2 * DAY)
    return lock.close


def use_it(path: Path) -> Callable[[], object]:
    (path / ".lock").open("w").close()  # A start has been there and gone on.
    return lambda: None


def run_in_it(path: Path) -> Callable[[], object]:
    program = subprocess.Popen(["sleep", "60"], env={**os.environ, "VIRTUAL_ENV": f"{path}/env"})

    def end() -> None:
        program.kill()
        program.wait()

    return end


@pytest.mark.parametrize("begin", [lock_it, use_it, run_in_it])
def test_what_is_used_again_after_it_was_found_stays(
    cluster: Cluster, begin: Callable[[Path], Callable[[], object]]
) -> None:
    path = cluster.environment("a", 2 * DAY)
    (found,) = clean.unused_environments(str(cluster.scratch))
    end = begin(path)
    try:
        assert found.remove() == "it is in use again" and (path / "env/bin").is_dir()
    finally:
        end()
    for file in (path, path / ".lock"):
        age(file, 2 * DAY)
    assert found.remove() == "" and not list(cluster.scratch.iterdir())
    assert found.remove() == ""  # Another clean-up was faster.


def test_a_ring_that_is_trained_on_again_stays(cluster: Cluster) -> None:
    run = cluster.logs / "run"
    (run / "replay").mkdir(parents=True)
    (run / "status.json").write_text(json.dumps({"run": {"state": "done"}}))
    (run / "run.lock").touch()
    age(run / "replay", 7200.0)
    (found,) = clean.rings_of_finished_runs(str(run))
    with (run / "run.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert found.remove() == "it is in use again"
    (run / "status.json").write_text(json.dumps({"run": {"state": "stopped"}}))
    assert found.remove() == "it is in use again" and (run / "replay").is_dir()


def test_the_lock_is_held_until_the_folder_is_renamed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cluster.environment("a", 2 * DAY)
    (found,) = clean.unused_environments(str(cluster.scratch))
    rename, was_free = os.rename, []

    def rename_slowly(source: str, target: str) -> None:
        with (path / ".lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                was_free.append(True)
            except BlockingIOError:
                was_free.append(False)
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_slowly)
    assert found.remove() == "" and was_free == [False]


def test_the_rest_of_an_interrupted_clean_up_goes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, joined = cluster.snapshot("run", 1), cluster.snapshot("run", 2)
    (cluster.logs / "run/joined/snapshot").mkdir(parents=True)
    joined = joined.rename(cluster.logs / "run/joined/snapshot" / joined.name)
    (cluster.logs / "run/replay").mkdir()
    made = [snapshot, joined, cluster.logs / "run/replay", cluster.environment("a", 60.0, host="node7")]
    made += [cluster.scratch / "sac_params_x"]
    made[-1].mkdir()

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupt)
        for path in made:
            with pytest.raises(KeyboardInterrupt):
                clean.Leftover(str(path), "").remove()
    mine = cluster.logs / "run/snapshot/mine.removed_7"
    mine.mkdir()
    shown = cluster.clean("run", answer="n\n").stdout
    assert "in 5 folders" in shown and shown.count("rest of an interrupted clean-up") == 5
    assert "removed 5 folders" in cluster.clean("run", "--unasked").stdout
    left = [path for path in (*cluster.logs.rglob("*.removed_*"), *cluster.scratch.iterdir())]
    assert left == [mine]


def test_temporary_folders_of_killed_starts_go_after_a_day(cluster: Cluster) -> None:
    names = ("sac_check_a_b1", "sac_params_x", "sac_prior_z", "sac_check_young", "sac_other", "my_sac_params_y")
    folders = [cluster.scratch / name for name in names]
    for folder in folders:
        (folder / "deep").mkdir(parents=True)
        age(folder, DAY / 2 if "young" in folder.name else 2 * DAY)
    (cluster.scratch / "sac_params_link").symlink_to(folders[4])
    if os.geteuid() == 0:
        foreign = cluster.scratch / "sac_params_foreign"
        foreign.mkdir()
        age(foreign, 2 * DAY)
        os.chown(foreign, 65534, 65534)
        folders.append(foreign)
    assert "removed 3 folders" in cluster.clean("--unasked").stdout
    expected = [*folders[3:], cluster.scratch / "sac_params_link"]
    assert sorted(cluster.scratch.iterdir()) == sorted(expected)


def test_rings_of_finished_runs_go_where_that_is_asked_for(cluster: Cluster) -> None:
    for name, state in (("done", "done"), ("stopped", "stopped"), ("again", "done")):
        (cluster.logs / name / "replay").mkdir(parents=True)
        (cluster.logs / name / "status.json").write_text(json.dumps({"run": {"state": state}}))
        (cluster.logs / name / "run.lock").touch()
        age(cluster.logs / name / "replay", 7200.0)
    assert "nothing to remove" in cluster.clean("done", "stopped", "again", "--yes").stdout
    with (cluster.logs / "again/run.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = cluster.clean("done", "stopped", "again", "--rings", "--yes")
    assert "experience of a finished run" in done.stdout and "in 1 folder\n" in done.stdout
    assert [(cluster.logs / name / "replay").exists() for name in ("done", "stopped", "again")] == [False, True, True]


def test_it_needs_nothing_but_python(cluster: Cluster) -> None:
    path = cluster.snapshot("run", 1)
    done = cluster.clean("run", "--yes", python="/usr/bin/python3")
    assert done.returncode == 0 and not path.exists(), done.stderr


def test_as_a_module(cluster: Cluster) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tfagents_system.launch.clean", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and "RUN_DIRECTORY" in done.stdout
