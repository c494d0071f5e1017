"""What a finished run leaves for its user: the learning curve, a video and a report. None of them can fail a run."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfagents_system.launch.forks import RoleStarter
from tfagents_system.machine.files import read_json
from tfagents_system.machine.processes import KILL_SECS, kill_session, wait_until
from tfagents_system.machine.signals import StopFlag
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import read_run

_DEADLINE_SECS = 120.0
_VIDEO_DEADLINE_SECS = 600.0
_END_SECS = 30.0  # From SIGTERM to SIGKILL, unless the user insists: a device is told to wait.
_TRACKER = "tfagents_system.report.tracking"


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
    run, checkpoint = str(paths.exp_dir), "latest" if read_json(paths.best_json) is None else "best"
    play = ["--params", str(paths.params), "--config", str(paths.config), "--exp_dir", run]
    play += ["--num_episodes", "1", "--checkpoint", checkpoint, "--seed", str(read_run(paths.run_json).get("seed", 0))]
    programs = [  # In this order: the video is in the report.
        ("plot", "drawing the learning curve", "tfagents_system.report.plots", [run], "plots"),
        ("video", "playing one episode of the trained policy for a video", "tfagents_system.run", play, "video"),
        ("report", "writing the report", "tfagents_system.report.page", [run], "report"),
    ]
    programs = [
        *(programs if report else []),
        *([("track", "sending metrics", _TRACKER, [run], "tracking")] * tracking),
    ]
    lines = []
    for name, doing, module, arguments, log_name in programs:
        with contextlib.suppress(OSError):  # A closed terminal or a full disk behind the output.
            print(doing, flush=True)
        log = paths.log(log_name)
        try:
            problem = _run(starter, module, arguments, cpus, environ, log, stop)
            where = _where_it_is(name, paths, log) if problem is None else ""
        except OSError as error:  # A read-only or a full disk, no process left.
            problem = f"{error.filename or log}: {error.strerror or error}"
        if problem is None:
            lines.append(f"{name + ':':<7} {where}")
        elif name == "track":
            lines.append(f"note: not all metrics were sent, {problem}; this does: python -m {module} {run}")
        else:
            lines.append(f"note: no {name}: {problem}")
    return [*lines, f"policy: {paths.policies / 'greedy_policy'}"]


def _where_it_is(name: str, paths: RunPaths, log: Path) -> str:
    """The result of a program that has succeeded."""
    if name == "video":
        videos = sorted(paths.videos.glob("*.mp4"), key=lambda path: path.stat().st_mtime)
        return str(videos[-1] if videos else paths.videos)
    if name == "track":
        return log.read_text(encoding="utf-8").splitlines()[-1]
    return str(paths.learning_curve if name == "plot" else paths.report)


def _run(
    starter: RoleStarter,
    module: str,
    arguments: Sequence[str],
    cpus: Sequence[int],
    environ: Mapping[str, str],
    log: Path,
    stop: StopFlag,
) -> str | None:
    """Runs a program that may fail, take too long, or be cut short by a stop signal.

    Returns:
      None when it succeeded, else why it did not, with the last line that it wrote.

    Raises:
      OSError: It can't be started, or its log can't be read.
    """
    if stop.is_set():
        return "stopped by a signal"
    start = log.stat().st_size if log.exists() else 0
    process = starter.start_module(module, arguments, cpus, environ, log)
    deadline_secs = _VIDEO_DEADLINE_SECS if module == "tfagents_system.run" else _DEADLINE_SECS
    deadline = time.monotonic() + deadline_secs
    try:
        while process.poll() is None:
            if stop.wait(0.1):
                return "stopped by a signal"
            if time.monotonic() > deadline:
                return f"it took more than {deadline_secs:g} s (log in {log})"
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: process.poll() is not None or stop.count > 1, _END_SECS)
            process.kill()
            wait_until(lambda: process.poll() is not None, KILL_SECS)
        kill_session(process.pid)
    if process.returncode == 0:
        return None
    written = log.read_bytes()[start:].decode(errors="replace")
    lines = [line.strip() for line in written.splitlines() if line.strip()]
    last = lines[-1].removeprefix("error: ") if lines else f"exit code {process.returncode}"
    return f"{last} (log in {log})"
