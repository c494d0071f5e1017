"""One attempt at a run, in its job: a run that was stopped and saved is requeued until it is finished or gets nowhere.

    python3 requeue.py SNAPSHOT RUN_DIRECTORY WORKERS_PER_NODE [OPTION_OF_RUN_SCRIPT]...

The job script becomes this program. It starts the run on the job's first node, and workers that join it on all others.
SLURM's signals reach this program alone; it passes them on as SIGUSR1.

The node's own python3 may have to run this file: it needs nothing but Python 3.9.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FAILED, BAD_INPUT, RESUMABLE = 1, 2, 75  # See errors.py.
MOST_IDLE = 5  # Attempts in a row that have saved nothing new.
_LEAVE_SECS, _ANSWER_SECS = 30, 30
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# Exit codes of a run that was stopped.
_STOPPED = (RESUMABLE, *(128 + number for number in (signal.SIGINT, *_SIGNALS)))
# Before SLURM's programs: the end of this job, which may begin before they have their answer, spares them.
_DEAF = ("sh", "-c", "trap '' TERM USR1 USR2; exec \"$@\"", "sh")


class Job:
    """This job, as SLURM sees it.

    Attributes:
      name: As SLURM's commands take it. The id won't do in an array, whose last task has the id of the whole array.
      signal: The last one that has come; 0: none.
      run: `srun` of the run, once it is started.
    """

    def __init__(self) -> None:
        self.id, self.task = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_ARRAY_TASK_ID", "")
        self.name = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{self.task}" if self.task else self.id
        self.restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        self.signal = 0
        self.run: subprocess.Popen[bytes] | None = None

    def stop(self, number: int, frame: object = None) -> None:
        """Lets the run save. `srun` passes SIGUSR1 on; at SIGTERM it would kill."""
        self.signal = number
        if self.run is not None:
            self.run.send_signal(signal.SIGUSR1)

    def say(self, text: str) -> None:
        print(f"{time.strftime('%F %T')} job {self.name}: {text}", flush=True)

    def facts(self) -> dict[str, str]:
        """What `scontrol` says, such as Restarts, Requeue and DerivedExitCode."""
        text = _ask("scontrol", "--oneliner", "--details", "show", "job", self.name)
        return dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", text))

    def was_cancelled(self) -> bool:
        """SLURM ends a job at its time limit as it ends a cancelled one: only the reason differs."""
        text = _ask("squeue", "--noheader", "--states=all", f"--jobs={self.name}", "--format=%T|%r")
        state, _, reason = text.partition("\n")[0].strip().partition("|")
        if not state:  # It does not answer.
            return self.signal == signal.SIGTERM
        return state != "RUNNING" and reason != "TimeLimit"

    def lacked_memory(self) -> bool:
        """SLURM's word on the steps of this attempt, and of earlier ones."""
        return self.facts().get("DerivedExitCode") == "0:125"

    def requeue(self) -> tuple[int, str]:
        """Has the job continue after this attempt; (exit code, words)."""
        facts = self.facts()
        if int(facts.get("Restarts", 0)) > self.restarts:
            return RESUMABLE, "and requeued by SLURM"
        if facts.get("Requeue") == "0":
            return RESUMABLE, "and not requeued (--no-requeue): submit it again to continue"
        if self.was_cancelled():
            return RESUMABLE, "and not requeued: it was cancelled: submit it again to continue"
        if subprocess.call((*_DEAF, "scontrol", "requeue", self.name)) == 0:
            return RESUMABLE, "and requeued"
        return RESUMABLE, "but SLURM does not requeue it, see above: submit it again to continue"


def _ask(*command: str) -> str:
    """What one of SLURM's programs prints; nothing if it is missing, fails or hangs."""
    with contextlib.suppress(subprocess.SubprocessError):
        return subprocess.check_output((*_DEAF, *command), stderr=subprocess.DEVNULL, text=True, timeout=_ANSWER_SECS)
    return ""


class Progress:
    """Whether a run that is requeued repeatedly gets on; kept in `requeues` of the run directory.

    Whoever submits the run again has changed something: for another snapshot the count begins anew.

    Attributes:
      step: Train step of the newest complete checkpoint.
      idle: Attempts in a row that added neither a checkpoint nor saved experience, the one under way included.
    """

    def __init__(self, exp_dir: Path, snapshot: Path) -> None:
        self._exp_dir, self._snapshot = exp_dir, str(snapshot)
        before = _read_json(exp_dir / "requeues")
        before = before if before.get("snapshot") == self._snapshot else {}
        self.step, self._stored_steps = saved_step(exp_dir), before.get("stored_steps", stored_steps(exp_dir))
        self.idle = before.get("idle", 0) if before.get("step") == self.step else 0

    def begin(self) -> None:
        """Counts the attempt that begins as idle: it may die without a word."""
        self.idle += 1
        self._write()

    def end(self, *, has_saved: bool) -> None:
        """Looks at what the attempt has added. Where it has saved all, experience counts, too: there are no updates
        while the first is collected.
        """
        step, stored = saved_step(self._exp_dir), stored_steps(self._exp_dir) if has_saved else self._stored_steps
        if step != self.step or stored > self._stored_steps:
            self.step, self._stored_steps, self.idle = step, stored, 0
        self._write()

    def _write(self) -> None:
        values = {"step": self.step, "stored_steps": self._stored_steps, "idle": self.idle, "snapshot": self._snapshot}
        self._exp_dir.mkdir(parents=True, exist_ok=True)
        (self._exp_dir / "requeues.new").write_text(json.dumps(values))
        os.replace(self._exp_dir / "requeues.new", self._exp_dir / "requeues")

    def why_idle(self) -> str:
        return (
            f"{self.idle} attempts in a row have saved no update after step {self.step}, nor more experience: give it "
            f"more time (--time), save more often (SAC_CHECKPOINT_MINUTES), or see {self._exp_dir}/logs for what is in "
            "its way"
        )


def saved_step(exp_dir: Path) -> int:
    """The train step of the newest complete checkpoint (kept_checkpoints.py); 0 without one."""
    names = (path.parent.name for path in exp_dir.glob("checkpoints/*/manifest.json"))
    matches = (re.fullmatch(r"checkpoint_(\d{10,})(_\d+)?", name) for name in names)
    return max((int(match[1]) for match in matches if match), default=0)


def stored_steps(exp_dir: Path) -> int:
    return int(_read_json(exp_dir / "heartbeats/replay.json").get("env_steps") or 0)


def was_stopped(exp_dir: Path) -> bool:
    """Whether a run that failed was stopped, and ran out of time to save: what it saved before remains."""
    status = exp_dir / "status.json"
    message = str(_read_json(status).get("run", {}).get("message"))
    return _written(status) > _written(exp_dir / "requeues") and message.startswith("stopped by SIG")


def _written(path: Path) -> int:
    """When a file was last written, in ns; 0: never."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def _read_json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return dict(json.loads(path.read_text()))
    return {}


def run_on_nodes(job: Job, snapshot: Path, exp_dir: Path, workers: str, options: list[str]) -> int:
    """Runs the run on the job's first node, and workers that join it on the others; returns the run's exit code."""
    launch, variables = snapshot / "package/tfagents_system/launch", snapshot / "variables.sh"
    status = exp_dir / "status.json"
    before = _written(status)
    # What an earlier attempt has left in the run directory is none of those that join.
    os.environ["TFAGENTS_SINCE"] = str(int(time.time()))
    job.run = _start(1, 0, launch / "run_script.sh", variables, *options)
    if job.signal:
        job.stop(job.signal)
    others = None
    if (further := int(os.environ.get("SLURM_JOB_NUM_NODES") or 1) - 1) > 0:
        others = _start(further, 1, launch / "join_script.sh", variables, "--to", exp_dir, "--workers", workers)
    code = job.run.wait()
    code = code if code >= 0 else 128 - code
    if others is not None:  # They see that the run is over; if it never began, they would wait for it.
        is_seen = code in (0, RESUMABLE) and _written(status) != before
        try:
            others.wait(_LEAVE_SECS if is_seen else 0)
        except subprocess.TimeoutExpired:
            others.terminate()
            others.wait()
    return code


def _start(count: int, first: int, *command: object) -> subprocess.Popen[bytes]:
    cpus = os.environ.get("SLURM_CPUS_PER_TASK") or "1"  # Not every version of `srun` takes it over from `sbatch`.
    nodes = [f"--nodes={count}", f"--ntasks={count}", f"--relative={first}", f"--cpus-per-task={cpus}"]
    return subprocess.Popen(["srun", *nodes, "--export=ALL", "--no-kill", "--kill-on-bad-exit=0", *map(str, command)])


def attempt(job: Job, snapshot: Path, exp_dir: Path, workers: str, options: list[str]) -> tuple[int, str]:
    """Runs until the run ends; (the job's exit code, words)."""
    progress = Progress(exp_dir, snapshot)
    if progress.idle >= MOST_IDLE:
        return FAILED, f"not started: {progress.why_idle()}"
    progress.begin()
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    job.say(f"attempt {job.restarts + 1} on {node}, from train step {progress.step}: {exp_dir}")
    lacked_before = job.lacked_memory()
    code = run_on_nodes(job, snapshot, exp_dir, workers, options)
    if code == 0:
        return code, "finished"
    if code == BAD_INPUT:
        return code, "not requeued: something must be changed first, see above"
    if code != RESUMABLE and job.lacked_memory() and not lacked_before:
        return FAILED, "not requeued: the kernel has killed a process for lack of memory: ask for more (--mem)"
    is_stopped = code in _STOPPED or (code == FAILED and was_stopped(exp_dir))
    if not is_stopped and code <= 128:
        return code, f"failed with exit code {code}, not requeued: see {exp_dir}/logs"
    progress.end(has_saved=code == RESUMABLE)
    if progress.idle >= MOST_IDLE:
        return FAILED, f"not requeued: {progress.why_idle()}"
    outcome = "saved" if code == RESUMABLE else f"ended with exit code {code}"
    code, words = job.requeue()
    return code, f"{outcome}, {words}"


def main() -> int:
    """The program; returns the job's exit code."""
    snapshot, run_directory, workers, *options = sys.argv[1:]
    job = Job()
    for number in _SIGNALS:
        signal.signal(number, job.stop)
    exp_dir = Path(f"{run_directory}_task_{job.task}" if job.task else run_directory)
    for option in options:
        if option.startswith("--study="):  # See tasks/study.py.
            exp_dir = Path(option.partition("=")[2], f"worker_{job.task}")
    code, words = attempt(job, Path(snapshot), exp_dir, workers, options)
    job.say(words)
    return code


if __name__ == "__main__":
    sys.exit(main())
