"""Programs are given their deadline, and nothing of them is left."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks.processes import ROOT, end_session, run_json

CHATTY = "import json; print('chatter'); print(json.dumps({'a': 1}))"


def is_gone(pid):
    deadline = time.monotonic() + 20.0
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_the_last_line_is_the_result():
    assert run_json([sys.executable, "-c", CHATTY], 60.0) == {"a": 1}


def test_modules_of_the_repository_are_found_in_any_folder(tmp_path):
    program = "import os, json, benchmarks.processes as p; print(json.dumps([str(p.ROOT), os.getcwd()]))"
    assert run_json([sys.executable, "-c", program], 60.0, folder=tmp_path) == [str(ROOT), str(tmp_path)]


def test_a_failure_shows_what_was_written():
    program = "import sys; print('the reason', file=sys.stderr); sys.exit(3)"
    with pytest.raises(RuntimeError, match="(?s)exit code 3.*the reason"):
        run_json([sys.executable, "-c", program], 60.0)


def test_an_output_without_json_is_an_error():
    with pytest.raises(RuntimeError, match="(?s)no JSON.*hello"):
        run_json([sys.executable, "-c", "print('hello')"], 60.0)


def test_at_the_deadline_children_end_too(tmp_path):
    pid_file = tmp_path / "pid"
    program = (
        "import pathlib, subprocess, sys, time\n"
        "sleep, null = 'import time; time.sleep(200)', subprocess.DEVNULL\n"
        "child = subprocess.Popen([sys.executable, '-c', sleep], stdout=null, stderr=null)\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))\n"
        "time.sleep(100)\n"
    )
    with pytest.raises(RuntimeError, match="not done within 5 s"):
        run_json([sys.executable, "-c", program], 5.0)
    assert is_gone(int(pid_file.read_text()))


def test_a_benchmark_that_is_told_to_end_ends_what_it_started(tmp_path):
    """The inner program leads a session of its own, which a signal to the outer one does not reach."""
    pid_file = tmp_path / "pid"
    inner = f"import os, pathlib, time; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(100)"
    outer = (
        "import sys\n"
        "from benchmarks.processes import end_on_sigterm, run_json\n"
        "end_on_sigterm()\n"
        f"run_json([sys.executable, '-c', {inner!r}], 100.0)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", outer], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60.0
        while not (pid_file.exists() and pid_file.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        end_session(process)
    assert is_gone(int(pid_file.read_text()))
