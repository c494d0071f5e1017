"""What a finished run leaves for its user: the learning curve, a video and a report. None of them can fail a run."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tfagents_system.launch.role_process import RoleStarter
from tfagents_system.machine.processes import KILL_SECS, kill_session, wait_until
from tfagents_system.machine.signals import StopFlag
from tfagents_system.report.long_work import LongWork
from tfagents_system.report.tracking.settings import TrackingSettings
from tfagents_system.run_files.best import read_best
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import read_run

_PLOT_DEADLINE_SECS = 120.0  # Also of the report.
_VIDEO_DEADLINE_SECS = 600.0
_TRACKING_DEADLINE_SECS = 120.0
_END_SECS = 30.0  # From SIGTERM to SIGKILL, unless the user insists: a device is told to wait.
# In this order: the video is in the report.
_PLOT, _VIDEO, _REPORT, _SEND = "the learning curve", "a video", "the report", "sending the rest of the metrics"


def write_results(
    paths: RunPaths,
    starter: RoleStarter,
    *,
    cpus: Sequence[int],
    environ: Mapping[str, str],
    stop: StopFlag,
    report: bool = True,
    tracking: TrackingSettings | None = None,
) -> list[str]:
    """Draws the learning curve, plays the best policy for one episode and writes the report, on the trainer's CPUs.

    Args:
      starter: Starts the programs that do it.
      cpus: Where to do it; empty: any.
      report: SAC_REPORT: all but the metrics, of which the rest is sent.

    Returns:
      Lines for the user: where the plot, the video, the report and the policy are, or why there is none.
    """
    sends = tracking is not None and tracking.is_wanted
    wanted = [*([_PLOT, _VIDEO, _REPORT] if report else []), *([_SEND] if sends else [])]
    lines = []
    with LongWork("results", len(wanted), by_looks=True) as work:
        run = _Runner(starter, cpus, environ, stop, work.look)
        for name in wanted:
            work.doing = name
            lines.append(_made(name, paths, run))
            work.advance()
    return [*lines, f"policy: {paths.policies / 'policy'}"]


def _made(name: str, paths: RunPaths, run: _Runner) -> str:
    """Makes one of the results; returns where it is, or why there is none."""
    if name == _PLOT:
        problem = run("tfagents_system.report.plots", [str(paths.exp_dir)], paths.log("plots"), _PLOT_DEADLINE_SECS)
        return f"note: no plot: {problem}" if problem else f"plot:   {paths.learning_curve}"
    if name == _VIDEO:
        try:
            return _film(paths, run)
        except OSError as error:
            return f"note: no video: {error}"
    if name == _REPORT:
        module = "tfagents_system.report.page.write"
        problem = run(module, [str(paths.exp_dir)], paths.log("report"), _PLOT_DEADLINE_SECS)
        return f"note: no report: {problem}" if problem else f"report: {paths.report}"
    return _send_rest(paths, run)


def _send_rest(paths: RunPaths, run: _Runner) -> str:
    """Sends the metrics that wait; returns where the run is to be seen, or how to send them."""
    module = "tfagents_system.report.tracking.tracker"
    log = paths.log("tracking")
    if problem := run(module, [str(paths.exp_dir)], log, _TRACKING_DEADLINE_SECS):
        return f"note: not all metrics were sent, {problem}; this does: python -m {module} {paths.exp_dir}"
    return f"track:  {log.read_text(encoding='utf-8').splitlines()[-1]}"


def _film(paths: RunPaths, run: _Runner) -> str:
    """Plays the best policy; returns where the video is, or why there is none."""
    checkpoint = "latest" if read_best(paths) is None else "best"
    seed = read_run(paths.run_json).get("seed", 0)
    play = ["--params", str(paths.params), "--config", str(paths.config), "--exp_dir", str(paths.exp_dir)]
    play += ["--num_episodes", "1", "--checkpoint", checkpoint, "--seed", str(seed)]
    videos_before = set(paths.videos.glob("*.mp4"))
    print("playing one episode of the trained policy for a video", flush=True)
    video_problem = run("tfagents_system.run", play, paths.log("video"), _VIDEO_DEADLINE_SECS)
    videos = sorted(paths.videos.glob("*.mp4"), key=lambda path: path.stat().st_mtime)
    made = [video for video in videos if video not in videos_before] or videos[-1:]
    return f"note: no video: {video_problem}" if video_problem or not made else f"video:  {made[-1]}"


class _Runner:
    """Runs programs that may fail, take too long, or be cut short by a stop signal."""

    def __init__(
        self,
        starter: RoleStarter,
        cpus: Sequence[int],
        environ: Mapping[str, str],
        stop: StopFlag,
        look: Callable[[], None],
    ) -> None:
        self._starter = starter
        self._cpus = cpus
        self._environ = dict(environ)
        self._stop = stop
        self._look = look

    def __call__(self, module: str, arguments: Sequence[str], log: Path, deadline_secs: float) -> str | None:
        """Returns None when it succeeded, else why it did not, with the last line that it wrote."""
        if self._stop.is_set():
            return "stopped by a signal"
        try:
            return self._run(module, arguments, log, deadline_secs)
        except OSError as error:  # A read-only or a full disk, no process left.
            return f"{log}: {error.strerror or error}"

    def _run(self, module: str, arguments: Sequence[str], log: Path, deadline_secs: float) -> str | None:
        start = log.stat().st_size if log.exists() else 0
        process = self._starter.start_module(module, arguments, self._cpus, self._environ, log)
        deadline = time.monotonic() + deadline_secs
        try:
            while process.poll() is None:
                self._look()
                if self._stop.wait(0.1):
                    return "stopped by a signal"
                if time.monotonic() > deadline:
                    return f"it took more than {deadline_secs:g} s (log in {log})"
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                wait_until(lambda: process.poll() is not None or self._stop.count > 1, _END_SECS)
                process.kill()
                wait_until(lambda: process.poll() is not None, KILL_SECS)
            kill_session(process.pid)
        if process.returncode == 0:
            return None
        written = log.read_bytes()[start:].decode(errors="replace")
        lines = [line.strip() for line in written.splitlines() if line.strip()]
        last = lines[-1].removeprefix("error: ") if lines else f"exit code {process.returncode}"
        return f"{last} (log in {log})"
