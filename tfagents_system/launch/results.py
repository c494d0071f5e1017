"""Results of a finished run, by programs that may fail: learning curve, a video of the best policy, report."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tfagents_system.errors import EXIT_DONE, EXIT_FAILED
from tfagents_system.launch.forks import ForkedProcess, RoleStarter
from tfagents_system.launch.role_process import say
from tfagents_system.machine.processes import KILL_SECS, kill_session, wait_until
from tfagents_system.machine.signals import StopFlag
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import read_run

_DEADLINE_SECS, _VIDEO_DEADLINE_SECS = 120.0, 600.0
_END_SECS = 30.0  # From SIGTERM to SIGKILL, unless the user insists: a device is told to wait.
_ABOUT_A_VIDEO = "episode 1: ", "note: no video: "  # Lines of run.py.


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
    programs = {  # In this order: the video is in the report.
        "plot": ("drawing the learning curve", [run], report),
        "video": ("playing one episode of the trained policy for a video", play, report),
        "report": ("writing the report", [run], report),
        "track": ("sending metrics", [run], tracking),
    }
    lines = []
    for name, (doing, arguments, is_wanted) in programs.items():
        if not is_wanted:
            continue
        log = paths.log(name)
        try:
            say(doing)
            code, text = _run(name, functools.partial(starter.start, name, cpus, environ, log, arguments), log, stop)
        except OSError as error:  # A full or read-only disk, no process left.
            code, text = EXIT_FAILED, f"{error.filename or log}: {error.strerror or error}"
        result = text.removeprefix("error: ").removeprefix(f"{name}: ")
        if name == "track" and code != EXIT_DONE:
            result += f"; `sac track {run}` sends the rest"
        lines.append(f"{name + ':':<7} {result}" if code == EXIT_DONE else f"note: {doing} failed: {result}")
    return [*lines, f"policy: {paths.policies / 'greedy_policy'}"]


def _run(name: str, start: Callable[[], ForkedProcess], log: Path, stop: StopFlag) -> tuple[int, str]:
    """Runs a program that may fail, take too long, or be cut short by a stop signal.

    Returns:
      The exit code, and what says where its result is, or why there is none.

    Raises:
      OSError: It can't be started, or its log can't be read.
    """
    if stop.is_set():
        return EXIT_FAILED, "stopped by a signal"
    size = log.stat().st_size if log.exists() else 0
    process, deadline_secs = start(), _VIDEO_DEADLINE_SECS if name == "video" else _DEADLINE_SECS
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
    written = log.read_bytes()[size:].decode(errors="replace")
    lines = [line.strip() for line in written.splitlines() if line.strip()] or [f"exit code {code}"]
    if code != EXIT_DONE:
        return code, f"{lines[-1]} (log in {log})"
    return code, next((line for line in lines if line.startswith(_ABOUT_A_VIDEO)), lines[-1])
