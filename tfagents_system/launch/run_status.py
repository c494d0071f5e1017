"""What a run's supervisor reports: status.json, the live view, the lines at the end, and a finished run's results."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.forks import RoleStarter
from tfagents_system.machine.processes import KILL_SECS, kill_session, wait_until
from tfagents_system.machine.signals import StopFlag
from tfagents_system.report.status import (
    fault_lines,
    finished_in_words,
    how_far,
    lost_workers,
    numbers,
    time_shares,
)
from tfagents_system.report.terminal import ProgressView
from tfagents_system.run_files.heartbeat import BEAT_SECS, STALE_SECS, read_heartbeat, read_status, write_status
from tfagents_system.run_files.run_paths import TRAINER, RunPaths, worker_role
from tfagents_system.settings.resolved import read_run
from tfagents_system.settings.variables import RunVariables

if TYPE_CHECKING:
    from tfagents_system.launch.supervisor import RoleProcess

_VIEW_SECS = 1.0
_DEADLINE_SECS, _VIDEO_DEADLINE_SECS = 120.0, 600.0
_END_SECS = 30.0  # From SIGTERM to SIGKILL, unless the user insists: a device is told to wait.
_TRACKER = "tfagents_system.report.tracking"
_ABOUT_A_VIDEO = "episode 1: ", "note: no video: "  # Lines of run.py.


class RunStatus:
    """Gathers the content of status.json, shows it, and writes it no more often than heartbeats.

    Attributes:
      state: `starting`, `running`, `done`, `stopped` or `failed`.
      exit_code: None while the run continues.
      view: The live view.
      is_ours: False once another start has taken the run directory over: nothing is written there any more.
    """

    def __init__(
        self, variables: RunVariables, paths: RunPaths, plan: CpuPlan, port: int, roles: Mapping[str, RoleProcess]
    ) -> None:
        self._variables = variables
        self._paths = paths
        self._plan = plan
        self._port = port
        folder = paths.exp_dir.name  # That of a task of an array or a sweep has the task's number at its end.
        self._name = folder if folder.startswith(f"{variables.exp_name}_task_") else variables.exp_name
        self._roles = roles
        self._kinds = {worker_role(number): kind for number, kind in variables.kinds_beside.items()}
        before = read_status(paths.status_json)
        self._before = how_far(paths, before)
        self.view = ProgressView()
        self._started_at = time.time()
        self._view_due = self._status_due = 0.0
        self.state, self.message = "starting", ""
        self.exit_code: int | None = None
        self.is_ours = True

    def tell(self, state: str, message: str) -> None:
        """Sets a new state, which is shown and written at once."""
        self.state, self.message = state, message
        self._view_due = self._status_due = 0.0
        self.show()

    def show(self) -> None:
        """Shows it when that is due, and writes it no more often than heartbeats."""
        now = time.monotonic()
        if now < self._view_due or not self.is_ours:
            return
        self._view_due = now + _VIEW_SECS
        status = self.to_json()
        if now >= self._status_due:
            self._status_due = now + BEAT_SECS
            write_status(self._paths.status_json, status)
        if self.state in ("starting", "running"):
            self.view.update(status)

    def to_json(self) -> dict[str, Any]:
        """The content of status.json: the run, its plan, and every role's last heartbeat."""
        roles = {name: self._role_to_json(name, role) for name, role in self._roles.items()}
        roles |= self._remote_roles()
        run = {
            "name": self._name,
            "exp_dir": str(self._paths.exp_dir),
            "state": self.state,
            "started_at": self._started_at,
            "updated_at": time.time(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "port": self._port,
            "exit_code": self.exit_code,
            "message": self.message,
            **({"before": self._before} if "iteration" not in roles.get(TRAINER, {}) and self._before else {}),
        }
        return {"run": run, "plan": self._plan.to_json(), "pinned": self._plan.pinned, "roles": roles}

    def _role_to_json(self, name: str, role: RoleProcess) -> dict[str, Any]:
        beat = dict(read_heartbeat(self._paths.heartbeat(name)) or {})
        beat |= {"alive": role.is_running(), "restarts": role.restarts, "given_up": role.given_up}
        if role.has_stopped:
            beat["state"] = "stopped"
        optional = {
            "given_up_because": role.given_up_because,
            "failed_with": role.failed_with,
            "has_worked": role.has_worked,
            "kind": self._kinds.get(name),
        }
        return beat | {key: value for key, value in optional.items() if value}

    def _remote_roles(self) -> dict[str, dict[str, Any]]:
        """Heartbeats of roles on other machines, as the gateway writes them."""
        paths = sorted(path for path in self._paths.heartbeats.glob("*.json") if path.stem not in self._roles)
        beats = {path.stem: beat for path in paths if (beat := read_heartbeat(path) or {}).get("remote")}
        oldest = time.time() - STALE_SECS
        return {name: {**beat, "alive": beat.get("time", 0.0) > oldest, "restarts": 0} for name, beat in beats.items()}

    def closing_lines(self, code: int) -> list[str]:
        """For the user, of a run that has ended."""
        status, lines = self.to_json(), []
        if code in (EXIT_DONE, EXIT_RESUMABLE):  # `trainer's time: updates 93%, waiting 4%`.
            for owner, shares in time_shares(status).items():
                lines.append(f"{owner} time: {', '.join(f'{name} {share}' for name, share in shares.items())}")
        lines += [*lost_workers(status), *fault_lines(status)]
        lines += _result_lines("final" if code == EXIT_DONE else "last", status)
        if code == EXIT_DONE:
            trainer = status["roles"].get(TRAINER, {})
            return [*lines, finished_in_words(self._name, trainer.get("ended_early"), trainer.get("num_iter"))]
        if self._paths.metrics_csv.exists():
            lines.append(f"a report so far: sac report {self._paths.exp_dir}")
        if code == EXIT_RESUMABLE:
            end = f"{self._name}: {self.message}; everything is saved, the same command goes on from here"
        else:
            end = f"{self._name} failed: {self.message} (logs in {self._paths.logs})"
        return [*lines, end]


def _result_lines(which: str, status: dict[str, Any]) -> list[str]:
    """`final evaluation: return -310.2 ± 40.1, best -298.7, success 85%`; the training return where there was none."""
    texts = {name: text for name, text in numbers(status["roles"].get(TRAINER, {})).items() if text != "-"}
    results = [f"{name.split()[-1]} {texts[name]}" for name in ("eval return", "best", "success") if name in texts]
    if results:
        return [f"{which} evaluation: {', '.join(results)}"]
    return [f"{which} training return: {texts['train return']}"] if "train return" in texts else []


def write_results(
    paths: RunPaths,
    starter: RoleStarter,
    *,
    cpus: Sequence[int],
    environ: Mapping[str, str],
    stop: StopFlag,
    report: bool = True,
    tracking: bool = False,
) -> list[str]:
    """Draws the learning curve, plays the best policy for one episode and writes the report, on the trainer's CPUs.

    Args:
      starter: Starts the programs that do it.
      cpus: Where to do it; empty: any.
      environ: Of these programs.
      report: SAC_REPORT: all but the metrics.
      tracking: Whether the rest of the metrics is sent to a tracker.

    Returns:
      Lines for the user: where the plot, the video, the report and the policy are, or why there is none.
    """
    run = str(paths.exp_dir)
    play = ["--params", str(paths.params), "--config", str(paths.config), "--exp_dir", run]
    play += ["--num_episodes", "1", "--seed", str(read_run(paths.run_json).get("seed", 0))]
    programs = [  # In this order: the video is in the report.
        ("plot", "drawing the learning curve", "tfagents_system.report.plots", [run]),
        ("video", "playing one episode of the trained policy for a video", "tfagents_system.run", play),
        ("report", "writing the report", "tfagents_system.report.page", [run]),
    ]
    programs = [*(programs if report else []), *([("track", "sending metrics", _TRACKER, [run])] if tracking else [])]
    lines = []
    for name, doing, module, arguments in programs:
        log = paths.log(name)
        try:
            say(doing)
            code, text = _run(starter, module, arguments, cpus, environ, log, stop)
        except OSError as error:  # A full or read-only disk, no process left.
            code, text = EXIT_FAILED, f"{error.filename or log}: {error.strerror or error}"
        result = text.removeprefix("error: ").removeprefix(f"{name}: ")
        if name == "track" and code != EXIT_DONE:
            result += f"; `sac track {run}` sends the rest"
        lines.append(f"{name + ':':<7} {result}" if code == EXIT_DONE else f"note: {doing} failed: {result}")
    return [*lines, f"policy: {paths.policies / 'greedy_policy'}"]


def _run(
    starter: RoleStarter,
    module: str,
    arguments: Sequence[str],
    cpus: Sequence[int],
    environ: Mapping[str, str],
    log: Path,
    stop: StopFlag,
) -> tuple[int, str]:
    """Runs a program that may fail, take too long, or be cut short by a stop signal.

    Returns:
      The exit code, and what says where its result is, or why there is none.

    Raises:
      OSError: It can't be started, or its log can't be read.
    """
    if stop.is_set():
        return EXIT_FAILED, "stopped by a signal"
    start = log.stat().st_size if log.exists() else 0
    process = starter.start_module(module, arguments, cpus, environ, log)
    deadline_secs = _VIDEO_DEADLINE_SECS if module == "tfagents_system.run" else _DEADLINE_SECS
    wait_until(lambda: process.poll() is not None or stop.wait(0.1), deadline_secs)
    if is_late := process.poll() is None:
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: process.poll() is not None or stop.count > 1, _END_SECS)
        process.kill()
        wait_until(lambda: process.poll() is not None, KILL_SECS)
    kill_session(process.pid)
    if is_late:
        words = "stopped by a signal" if stop.is_set() else f"it took more than {deadline_secs:g} s (log in {log})"
        return EXIT_FAILED, words
    code = EXIT_FAILED if process.returncode is None else process.returncode
    written = log.read_bytes()[start:].decode(errors="replace")
    lines = [line.strip() for line in written.splitlines() if line.strip()] or [f"exit code {code}"]
    if code != EXIT_DONE:
        return code, f"{lines[-1]} (log in {log})"
    return code, next((line for line in lines if line.startswith(_ABOUT_A_VIDEO)), lines[-1])


def say(text: str) -> None:
    """Prints a line or more: a closed terminal or a full disk behind the output is no reason to end a run."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def or_why_not(lines: Callable[[], list[str]]) -> list[str]:
    """Lines for the user; an error in making them becomes one of them, and never ends the run."""
    try:
        return lines()
    except Exception as error:
        return [f"note: {type(error).__name__}: {error}"]
