"""A process that stores and checkpoints without pause; its folder, copied or left behind at random moments."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.run_for_tests import RunFolders
from tests.support.segments_for_tests import content
from tfagents_system.run_files import kept_checkpoints

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
COPIES = 8
KILLS = 3

SIZE = {"capacity": 900, "slack": 600}

# Says what the ring holds at each checkpoint before that is complete, and what is stored after each segment.
STORE_AND_CHECKPOINT = """
import json, sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import numpy as np
from tests.support.run_for_tests import RunFolders
from tests.support.segments_for_tests import numbered_segment
from test_power_cut import SIZE, digest
from tfagents_system.run_files import kept_checkpoints
exp_dir = Path(sys.argv[3])
run = RunFolders(exp_dir, Path(sys.argv[4]) if len(sys.argv) > 4 else None, **SIZE)
moments = (exp_dir / "moments.jsonl").open("a", buffering=1)
stored = (exp_dir / "stored.txt").open("a", buffering=1)
newest = kept_checkpoints.newest_complete(run.checkpoints)
train_step, partial, number = (newest.train_step if newest else 0), None, run.ring.worker(0).number + 1
rng = np.random.default_rng(number + 1)
while True:
    steps = int(rng.integers(1, 8))
    if run.snapshots.has_room(steps + 1):
        assert run.ring.append(numbered_segment(number=number, steps=steps))
        stored.write(f"{number} {steps}\\n")
        number += 1
    time.sleep(0.003)  # A copy of the folder must take less time than the slack lasts.
    if partial is None and run.snapshots.is_wanted:
        train_step += 1
        partial = kept_checkpoints.begin(run.checkpoints, train_step)
        (partial / "agent.index").write_bytes(b"index")
        name = kept_checkpoints.finished_name(partial)
        moments.write(json.dumps([name, digest(run.ring), run.ring.env_steps]) + "\\n")
        assert run.snapshots.take(name)
    if partial is not None and (partial / "replay.bin").exists():
        kept_checkpoints.finish(partial, train_step, train_step, {})
        kept_checkpoints.prune(run.checkpoints)
        partial = None
"""


def start(exp_dir, *scratch):
    exp_dir.mkdir(exist_ok=True)
    command = [sys.executable, "-c", STORE_AND_CHECKPOINT, str(TESTS.parents[1]), str(TESTS), str(exp_dir), *scratch]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def wait_for_checkpoints(exp_dir, process, count):
    deadline = time.monotonic() + 60
    path = exp_dir / "moments.jsonl"
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert process.poll() is None, process.stderr.read().decode()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def copy_while_it_changes(source, target):
    """What a power cut may leave: what was made durable before a checkpoint is there, the rest is of any moment."""
    for _ in range(100):
        try:
            shutil.copytree(source / "checkpoints", target / "checkpoints", copy_function=shutil.copyfile)
            break
        except (shutil.Error, OSError):  # A checkpoint was renamed or deleted meanwhile.
            shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source / "replay", target / "replay", copy_function=copy_unless_renamed)
    return target


def copy_unless_renamed(path, target):
    """Copy a file of the ring; the temporary file of an atomic write may have got its name between listing and copy."""
    try:
        shutil.copyfile(path, target)
    except FileNotFoundError:
        assert path.endswith(".tmp"), path


def moments(exp_dir):
    """What the ring held at each checkpoint, by its name."""
    lines = (exp_dir / "moments.jsonl").read_text().splitlines()
    return {name: (digest, env_steps) for name, digest, env_steps in map(json.loads, lines)}


def rows_after(exp_dir, env_steps):
    """At most so many rows have been stored behind the first `env_steps` steps: one more a segment than its steps."""
    lines = [line.split() for line in (exp_dir / "stored.txt").read_text().splitlines()]
    steps = np.array([int(count) for _, count in lines])
    in_hand = 8  # Stored, and not noted yet.
    return int((steps + 1)[steps.cumsum() > env_steps].sum()) + in_hand


def digest(ring):
    return hashlib.sha256(json.dumps(content(ring), default=str).encode()).hexdigest()


def end(process):
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    process.stderr.close()


@pytest.mark.parametrize("on_scratch", [False, True], ids=["in the run directory", "on scratch"])
def test_a_copy_of_any_moment_opens_as_its_newest_checkpoint_exactly(tmp_path, on_scratch):
    exp_dir, rng = tmp_path / "run", np.random.default_rng(int(on_scratch))
    scratch = [str(tmp_path / "scratch")] if on_scratch else []
    process = start(exp_dir, *scratch)
    copies = []
    try:
        wait_for_checkpoints(exp_dir, process, 2)
        for number in range(COPIES):
            time.sleep(float(rng.uniform(0, 0.2)))
            copied = copy_while_it_changes(exp_dir, tmp_path / f"copy_{number}")
            newest = kept_checkpoints.newest_complete(copied / "checkpoints")
            # Else both were deleted, or the slack was used up, while they were copied.
            if newest is not None and rows_after(exp_dir, moments(exp_dir)[newest.name][1]) <= SIZE["slack"]:
                copies.append(copied)
        assert process.poll() is None, process.stderr.read().decode()[-2000:]
    finally:
        end(process)
    expected, found = moments(exp_dir), set()
    for copied in copies:
        newest = kept_checkpoints.newest_complete(copied / "checkpoints")
        assert newest is not None and newest.has_replay
        run = RunFolders(copied, tmp_path / f"{copied.name}_scratch" if on_scratch else None, **SIZE)
        assert (digest(run.ring), run.ring.env_steps) == expected[newest.name], f"{copied}: {newest.name}"
        found.add(newest.name)
    assert len(found) > 1, "of different moments"


def test_kill_9_at_any_moment_loses_no_segment_and_doubles_none(tmp_path):
    exp_dir, rng = tmp_path / "run", np.random.default_rng(0)
    before = -1
    for _ in range(KILLS):
        process = start(exp_dir)
        try:
            deadline = time.monotonic() + 60
            path = exp_dir / "stored.txt"
            size = path.stat().st_size if path.exists() else 0
            while not path.exists() or path.stat().st_size <= size:
                assert process.poll() is None, process.stderr.read().decode()[-2000:]
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(float(rng.uniform(0, 0.1)))
        finally:
            end(process)
        lines = [line.split() for line in path.read_text().splitlines() if len(line.split()) == 2]
        steps = {int(number): int(count) for number, count in lines}
        run = RunFolders(exp_dir, **SIZE)
        last = run.ring.worker(0).number
        # The last segment may be in the ring with its line unwritten.
        assert last in (max(steps), max(steps) + 1)
        assert last > before
        assert len(lines) == len(steps), "none was stored twice"
        rows = run.ring.held_rows[run.ring.steps_left[run.ring.held_rows] > 0]
        held = run.ring.observation[0][rows].astype(int)[:, 1:].tolist()
        for number in sorted({episode for episode, _ in held})[1:]:  # The oldest may be cut.
            count = steps.get(number, run.ring.worker(0).number == number and len([e for e, _ in held if e == number]))
            assert [step for episode, step in held if episode == number] == list(range(count))
        run.ring.rollback(run.ring.snapshot())
        assert run.ring.verify() == 0
        assert os.path.exists(exp_dir / "replay" / "origin.json")
        if last not in steps:
            with path.open("a") as file:
                file.write(f"{last} {len([e for e, _ in held if e == last])}\n")
        before = last
