"""requeue.py, attempt after attempt, with a SLURM that only notes what it is asked; tests/slurm has a real one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfagents_system.cluster import requeue

FAKE_SCONTROL = """#!/usr/bin/env bash
echo "scontrol $*" >>"$CALLS"
case "$*" in
  --oneliner*)
    echo "JobId=7 JobState=RUNNING Requeue=${REQUEUE:-1} Restarts=${RESTARTS:-0}" \\
      "DerivedExitCode=$(cat "$0.derived" 2>/dev/null || echo 0:0)"
    ;;
esac
"""
FAKE_SQUEUE = """#!/usr/bin/env bash
echo "${STATE:-RUNNING}|${REASON:-None}"
"""
# The last of an array's tasks: SLURM_JOB_ID is then the array's own.
OF_ARRAY = {"SLURM_JOB_ID": "5", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "4"}


class Job:
    """One attempt after another at a run of which only the exit codes and the files exist."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.exp_dir, self.calls_file = folder, folder / "a run", folder / "calls"
        self.tools, self.snapshot = folder / "tools", folder / "snapshot"
        (self.snapshot / "package/tfagents_system/launch").mkdir(parents=True)
        self.tools.mkdir()
        self.write("srun", '#!/usr/bin/env bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
        self.write("scontrol", FAKE_SCONTROL)
        self.write("squeue", FAKE_SQUEUE)

    def write(self, name: str, text: str) -> None:
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def begin(self, code: int, *options: str, does: str = "", **environ: str) -> subprocess.Popen[str]:
        """Has the run do something and end with a code."""
        run = self.snapshot / "package/tfagents_system/launch/run_script.sh"
        run.write_text(
            f"#!/usr/bin/env bash\nexp_dir='{self.exp_dir}'${{SLURM_ARRAY_TASK_ID:+_task_4}}\n{does}\nexit {code}\n"
        )
        run.chmod(0o755)
        self.calls_file.write_text("")
        base = {"PATH": f"{self.tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "CALLS": str(self.calls_file)}
        return subprocess.Popen(
            [sys.executable, "-I", requeue.__file__, str(self.snapshot), str(self.exp_dir), "3", *options],
            env={**base, **environ}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def attempt(self, code: int, *options: str, does: str = "", **environ: str) -> tuple[int, str]:
        """The job's exit code and output."""
        process = self.begin(code, *options, does=does, **environ)
        output, _ = process.communicate(timeout=30)
        return process.returncode, output

    @property
    def calls(self) -> list[str]:
        return [call for call in self.calls_file.read_text().splitlines() if "--oneliner" not in call]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


TRAINS = (
    'mkdir -p "$exp_dir/heartbeats"; sleep 0.02; echo \'{"state": "updating"}\' >"$exp_dir/heartbeats/trainer.json"\n'
)
DIES = TRAINS + "kill -KILL $PPID\n"


def saves(step: int) -> str:
    folder = f'"$exp_dir/checkpoints/checkpoint_{step:010d}"'
    return f"{TRAINS}mkdir -p {folder} && touch {folder}/manifest.json\n"


def collects(env_steps: int) -> str:
    """Before the first update: the trainer waits."""
    content = f'{{"capacity_steps": 9, "env_steps": {env_steps}, "ring_steps": 3}}'
    return f"{TRAINS.replace('updating', 'waiting')}echo '{content}' >\"$exp_dir/heartbeats/replay.json\"\n"


# Progress.


def test_saved_runs_are_requeued_as_long_as_they_get_on(job: Job) -> None:
    for step in (100, 200, 300):
        code, output = job.attempt(75, does=saves(step))
        assert code == 75 and job.calls == ["scontrol requeue 7"], output
    assert "from train step 200" in output
    code, output = job.attempt(0, "--set=a=1", does='echo "run gets ${*:2}"')
    assert code == 0 and job.calls == [] and "finished" in output and "run gets --set=a=1\n" in output


def test_five_attempts_without_progress_are_the_last(job: Job) -> None:
    for _ in range(4):
        assert job.attempt(75, does=TRAINS)[0] == 75
    code, output = job.attempt(75, does=TRAINS)
    assert code == 1 and job.calls == [] and "5 attempts in a row have saved no update after step 0" in output
    job.snapshot.rename(job.folder / "second")
    job.snapshot = job.folder / "second"
    assert job.attempt(75, does=TRAINS)[0] == 75, "whoever submits it anew has changed something"


def test_saved_experience_is_progress_too(job: Job) -> None:
    for env_steps in (0, 500, 1000):
        assert job.attempt(75, does=collects(env_steps))[0] == 75 and job.calls == ["scontrol requeue 7"]
    idle = [json.loads((job.exp_dir / "requeues").read_text())["idle"]]
    assert job.attempt(75, does=collects(1000))[0] == 75
    assert [*idle, json.loads((job.exp_dir / "requeues").read_text())["idle"]] == [0, 1]


def test_deaths_without_a_word_are_limited_too(job: Job) -> None:
    for step in (1, 2):
        assert job.attempt(0, does=saves(step) + DIES)[0] == -9
    for _ in range(5):
        assert job.attempt(0, does=DIES)[0] == -9
    code, output = job.attempt(0)
    assert code == 1 and "not started: 5 attempts in a row have saved no update after step 2" in output


# Signals.


def test_a_signal_reaches_the_run_as_sigusr1(job: Job) -> None:
    does = f"stop() {{\necho told\n{saves(5)}\nexit 75\n}}\ntrap stop USR1\necho up\nwhile :; do sleep 0.05; done"
    process = job.begin(1, does=does)
    assert process.stdout is not None
    try:
        assert "from train step 0" in process.stdout.readline() and process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 75 and "told" in output and job.calls == ["scontrol requeue 7"], output


# What an end means.


@pytest.mark.parametrize(
    ("environ", "words", "calls"),
    [
        ({"STATE": "COMPLETING"}, "it was cancelled", []),
        ({"STATE": "COMPLETING", "RESTARTS": "1"}, "saved, and requeued by SLURM", []),
        ({"STATE": "COMPLETING", "RESTARTS": "1", "SLURM_RESTART_COUNT": "1"}, "it was cancelled", []),
        ({"STATE": "COMPLETING", "REASON": "TimeLimit"}, "saved, and requeued", ["scontrol requeue 7"]),
        ({"REQUEUE": "0"}, "not requeued (--no-requeue)", []),
    ],
)
def test_who_requeues(job: Job, environ: dict[str, str], words: str, calls: list[str]) -> None:
    code, output = job.attempt(75, does=saves(1), **environ)
    assert (code, job.calls) == (75, calls) and words in output


def test_a_site_that_forbids_requeue_is_said_to(job: Job) -> None:
    job.write("scontrol", FAKE_SCONTROL + "[[ $1 != requeue ]]\n")
    code, output = job.attempt(75, **OF_ARRAY, does=saves(1))
    assert (code, job.calls) == (75, ["scontrol requeue 5_4"]) and "SLURM does not requeue it" in output
    assert f"{job.exp_dir}_task_4" in output


@pytest.mark.parametrize("code", [1, 2])
def test_failures_end_the_job(job: Job, code: int) -> None:
    done, output = job.attempt(code, does=saves(1))
    assert done == code and job.calls == [] and "not requeued" in output


def test_a_stop_that_could_not_save_all_is_no_failure(job: Job) -> None:
    stopped = 'echo \'{"run": {"message": "stopped by SIGUSR1, not everything was saved"}}\' >"$exp_dir/status.json"\n'
    assert job.attempt(1, does=saves(1) + stopped)[0] == 75 and job.calls == ["scontrol requeue 7"]
    assert job.attempt(1, does=saves(2))[0] == 1  # What an earlier attempt said counts no more.


@pytest.mark.parametrize("code", [1, 137])
def test_a_lack_of_memory_is_named_and_not_retried(job: Job, code: int) -> None:
    lacks = f"{saves(1)}echo 0:125 >{job.tools}/scontrol.derived"
    done, output = job.attempt(code, does=lacks)
    assert done == 1 and job.calls == [] and "lack of memory: ask for more (--mem)" in output
    # What SLURM still says of an earlier attempt counts no more, and who has saved continues.
    assert job.attempt(137, does=saves(2))[0] == 75 and job.calls == ["scontrol requeue 7"]
    (job.tools / "scontrol.derived").unlink()
    assert job.attempt(75, does=lacks + saves(3))[0] == 75


# Further nodes.

JOINS = """#!/usr/bin/env bash
echo "joins $* since $TFAGENTS_SINCE"
trap 'echo "is told to leave"; exit 0' TERM
until [[ -e {over} ]]; do sleep 0.1; done
echo "sees the end"
"""


@pytest.mark.parametrize(
    ("code", "does", "last_words"),
    [
        (0, "sleep 0.5; mkdir -p '{run}'; touch '{run}/status.json' {over}", "sees the end"),
        (0, "sleep 0.5", "is told to leave"),  # It is finished already: nobody says that it is over.
    ],
)
def test_further_nodes_join_and_leave(job: Job, code: int, does: str, last_words: str) -> None:
    over = job.folder / "over"
    job.write("../snapshot/package/tfagents_system/launch/join_script.sh", JOINS.format(over=over))
    job.write("srun", '#!/usr/bin/env bash\necho "srun ${*:1:4}"\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
    began = time.time()
    environ = {"SLURM_JOB_NUM_NODES": "3", "SLURM_CPUS_PER_TASK": "9"}
    ended, output = job.attempt(code, does=does.format(run=job.exp_dir, over=over), **environ)
    assert ended == code
    since = int(re.search(r"since (\d+)", output)[1])  # type: ignore[index]
    assert int(began) <= since <= time.time(), "whatever is older is of another attempt"
    assert "srun --nodes=1 --ntasks=1 --relative=0 --cpus-per-task=9" in output
    assert "srun --nodes=2 --ntasks=2 --relative=1 --cpus-per-task=9" in output
    assert f"joins {job.snapshot}/variables.sh --to {job.exp_dir} --workers 3" in output
    assert last_words in output
