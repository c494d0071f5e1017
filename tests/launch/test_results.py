"""What a finished run leaves for its user: whatever goes wrong with it is a line, and changes nothing."""

import os
import subprocess
import sys
import threading

import pytest

from tests.support.fake_run import ProgramStarter
from tests.support.waiting import until
from tfagents_system.launch import role_process, supervisor
from tfagents_system.machine.signals import StopFlag
from tfagents_system.run_files.run_paths import RunPaths

DOING = "drawing the learning curve", "playing one episode of the trained policy for a video", "writing the report"


@pytest.fixture
def paths(tmp_path):
    paths = RunPaths(tmp_path / "run")
    paths.logs.mkdir(parents=True)
    return paths


def results(paths, monkeypatch, programs, **more):
    """The lines, with these programs (Python) for the plot and the video."""
    return results_with(paths, monkeypatch, programs, StopFlag(signals=()), **more)


def results_with(paths, monkeypatch, programs, stop, begun=None, **more):
    """Their time counts from when they make the file `begun`."""
    real, left = subprocess.Popen, list(programs)

    def popen(command, **arguments):
        del command
        process = real([sys.executable, "-c", left.pop(0)], **arguments)
        if begun is not None:
            until(begun.exists, 60.0, "the program has begun")
        return process

    monkeypatch.setattr(subprocess, "Popen", popen)
    return supervisor.write_results(paths, ProgramStarter(), cpus=(), environ=dict(os.environ), stop=stop, **more)


def last_lines(paths):
    further = f"next:   sac play {paths.exp_dir} --num-episodes 5, or sac export {paths.exp_dir}"
    return [f"policy: {paths.policies / 'greedy_policy'}", further]


def test_programs_that_fail_are_lines_with_their_last_words(paths, monkeypatch):
    fails = "import os; os.kill(os.getpid(), 9)"
    lines = results(
        paths, monkeypatch, ["raise ValueError('no rows')", fails, "import sys; sys.exit('error: no plotly')"]
    )
    assert lines == [
        f"note: {DOING[0]} failed: ValueError: no rows (log in {paths.log('plot')})",
        f"note: {DOING[1]} failed: exit code -9 (log in {paths.log('video')})",
        f"note: {DOING[2]} failed: no plotly (log in {paths.log('report')})",
        *last_lines(paths),
    ]


def test_what_waits_in_files_is_not_called_sent(paths, monkeypatch):
    monkeypatch.setattr(role_process, "print", lambda *args, **how: os.write(-1, b""), raising=False)
    where = "Weights & Biases: in files; to send them: wandb sync logs/run/wandb/offline-run-1"
    lines = results(paths, monkeypatch, [f"print({where!r})"], tracking=True, report=False)
    assert lines[0] == f"track:  {where}"


def test_why_there_is_no_video_is_found_among_other_lines_and_bytes(paths, monkeypatch):
    paths.log("video").write_text("note: no video: of an earlier start\n")
    tells = "import os; os.write(1, b'\\xff\\nnote: no video: no frames\\n' + 5 * b'playing\\n')"
    assert results(paths, monkeypatch, ["", tells, ""])[1] == "video:  note: no video: no frames"


def test_a_disk_that_nothing_can_be_written_to_is_told(paths, monkeypatch):
    paths.logs.rmdir()
    paths.logs.write_text("")  # Whoever is root may write into read-only folders.
    lines = results(paths, monkeypatch, [])
    for line, doing, log in zip(lines, DOING, ("plot", "video", "report"), strict=False):
        assert line == f"note: {doing} failed: {paths.log(log)}: Not a directory"
    assert lines[3:] == last_lines(paths)


def test_no_process_or_log_left_is_told(paths, monkeypatch):
    def popen(*args, **arguments):
        raise OSError(11, "Resource temporarily unavailable")

    removes = f"import shutil, sys; shutil.rmtree({str(paths.logs)!r}); sys.exit(1)"
    lines = results(paths, monkeypatch, [removes])
    assert lines[0] == f"note: {DOING[0]} failed: {paths.log('plot')}: No such file or directory"
    monkeypatch.setattr(subprocess, "Popen", popen)
    paths.logs.mkdir()
    lines = supervisor.write_results(paths, ProgramStarter(), cpus=(), environ={}, stop=StopFlag(signals=()))
    assert lines[0] == f"note: {DOING[0]} failed: {paths.log('plot')}: Resource temporarily unavailable"
    assert lines[2] == f"note: {DOING[2]} failed: {paths.log('report')}: Resource temporarily unavailable"


@pytest.mark.parametrize("insists", [False, True])
def test_what_is_cut_short_has_time_to_tell_a_device_to_wait_unless_the_user_insists(paths, monkeypatch, insists):
    monkeypatch.setattr(supervisor, "_DEADLINE_SECS", 0.2)
    stop, told, begun = StopFlag(signals=()), paths.exp_dir / "told", paths.exp_dir / "begun"
    program = (
        "import pathlib, signal, sys, time\n"
        f"told = pathlib.Path({str(told)!r})\n"
        "def tell(what):\n"
        "    told.with_name('new').write_text(what)\n"  # Who waits for the file finds the word in it.
        "    told.with_name('new').rename(told)\n"
        "def end(number, frame):\n"
        "    tell('ends')\n"
        f"    time.sleep({100.0 if insists else 0.5})\n"
        "    tell('waits')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"pathlib.Path({str(begun)!r}).touch()\n"
        "time.sleep(100)\n"
    )
    if insists:
        threading.Thread(target=lambda: (until(told.exists, 20.0, "SIGTERM"), setattr(stop, "count", 2))).start()
    lines = results_with(paths, monkeypatch, [program, "", ""], stop, begun)
    assert lines[0].startswith(f"note: {DOING[0]} failed: it took more than 0.2 s")
    assert told.read_text() == ("ends" if insists else "waits")
