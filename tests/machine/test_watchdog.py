"""A process that hangs is ended, also with the GIL held, and leaves a line of ours and its traces."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfagents_system.machine import watchdog

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import ctypes, sys, time
from pathlib import Path
from tfagents_system.machine import watchdog

watchdog._SLACK_SECS = 0.0
doing = sys.argv[2]
watchdog._REARM_SECS = 0.0 if doing == "works" else 60.0
dog = watchdog.Watchdog(Path(sys.argv[1]), 1.5 if doing == "works" else 0.5)


def my_step():
    if doing == "holds the GIL":
        ctypes.PyDLL(None).sleep(60)
    if doing == "works":
        for _ in range(5):
            time.sleep(0.4)
            assert dog.is_due()
            dog.keep()
    if doing == "rests":
        dog.cancel()
        assert dog.is_due()
        dog.keep()
        time.sleep(1.0)


dog.arm("worker 3: environment 0 (about step 12 of episode 4)")
assert dog.is_due() == (doing == "works")
my_step()
"""


def run(tmp_path, doing):
    path = tmp_path / "beats" / "worker_3.hang"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), doing],
        cwd=ROOT, timeout=60, capture_output=True, text=True,
    )  # fmt: skip
    return done, watchdog.take_report(path), time.monotonic() - began


def test_a_hang_ends_the_process_and_tells_where(tmp_path):
    done, report, secs = run(tmp_path, "holds the GIL")
    assert done.returncode == 1 and secs < 30
    assert report[0] == "worker 3: environment 0 (about step 12 of episode 4) has not returned for 0.5 s"
    assert report[1].startswith("Timeout (0:00:00.5")
    line = next(k for k, text in enumerate(PROGRAM.splitlines(), 1) if text.strip().endswith("sleep(60)"))
    assert any(f'File "<string>", line {line} in my_step' in text for text in report), report
    assert watchdog.take_report(tmp_path / "beats" / "worker_3.hang") == [], "taken once"


@pytest.mark.parametrize("doing", ["works", "rests"])
def test_who_works_or_waits_is_left_alone(tmp_path, doing):
    done, report, _ = run(tmp_path, doing)
    assert done.returncode == 0, done.stderr
    assert report == []


def test_what_is_being_done_is_written_where_it_changes(tmp_path):
    """Arming again for the same waits for no disk."""
    path = tmp_path / "x.hang"
    dog = watchdog.Watchdog(path, 100.0)
    for step in (1, 2):
        dog.arm(f"step {step}")
        assert path.read_text().startswith(f"step {step} has not returned for 100 s")
    path.write_text("")
    dog.arm("step 2")
    assert path.read_text() == ""
    dog.cancel()
