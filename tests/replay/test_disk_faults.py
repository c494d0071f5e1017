"""Full disks, quotas and read-only folders: told clearly, and nothing that was stored is lost."""

import contextlib
import mmap  # noqa: F401  NumPy imports it with the first file that it maps; only root may read the files of root's Python.
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.run_for_tests import RunFolders
from tests.support.segments_for_tests import LAYOUT, append_more, content, filled_ring
from tfagents_system.errors import UserError
from tfagents_system.replay.ring import Ring
from tfagents_system.run_files import kept_checkpoints

TESTS = Path(__file__).parent
MIB = 2**20
_NOBODY = 65534


def mount(*arguments):
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, timeout=20)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", folder)
    if mounted.returncode:
        pytest.skip(f"a file system can be mounted by root alone: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=20)


@contextlib.contextmanager
def as_ordinary_user() -> Iterator[None]:
    """What is done inside has the rights of a user without any, where the tests are run by root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def ordinary_users_folder() -> Iterator[Path]:
    """An empty folder that belongs to this user; pytest's own lie below folders that root alone may enter."""
    with tempfile.TemporaryDirectory(prefix="ordinary_") as folder:
        if os.geteuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
        yield Path(folder)


def fill(disk):
    """Takes all the space that is left; returns the file to delete."""
    path = disk / "others"
    with path.open("wb") as file:
        try:
            while True:
                file.write(bytes(MIB // 4))
                file.flush()
        except OSError:
            pass
    return path


def test_a_disk_that_is_too_small_is_told_at_the_start_and_a_larger_one_is_taken(small_disk):
    capacity = 20 * MIB // LAYOUT.step_bytes
    with pytest.raises(UserError, match=r"needs [\d,]+ bytes .*No space left on device.*SAC_REPLAY_DIR"):
        Ring.open(small_disk / "ring", LAYOUT, capacity)
    assert mount("-o", "remount,size=40m", small_disk).returncode == 0
    ring = Ring.open(small_disk / "ring", LAYOUT, capacity)
    append_more(ring, 3)
    assert ring.ring_steps == 15


def test_a_ring_with_its_space_reserved_works_on_a_disk_that_others_have_filled(small_disk):
    ring = filled_ring(small_disk / "ring", segments=0, capacity=20_000, slack=8000)
    fill(small_disk)
    append_more(ring, 40, steps=999)
    ring.make_durable()
    assert ring.ring_steps == 20 * 999
    assert ring.verify() == 0


APPEND = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from tests.support.segments_for_tests import append_more, filled_ring
ring = filled_ring(Path(sys.argv[3]), segments=0, capacity=20_000, slack=8000)
while True:
    append_more(ring, 1, steps=999)
    print(ring.env_steps, flush=True)
"""


def test_a_disk_that_could_not_be_reserved_kills_the_server_and_loses_nothing(small_disk, monkeypatch):
    """As a quota or a copy-on-write file system may do: the pages get their space when they are written."""
    monkeypatch.setattr(os, "posix_fallocate", lambda descriptor, _, size: os.ftruncate(descriptor, size))
    folder = small_disk / "ring"
    filled_ring(folder, segments=0, capacity=20_000, slack=8000)
    others = fill(small_disk)
    with others.open("r+b") as file:
        file.truncate(others.stat().st_size - 350_000)
    # The space is not reserved there either: on this file system it could be, and would be told as in the next test.
    script = "import os; os.posix_fallocate = lambda descriptor, _, size: os.ftruncate(descriptor, size)\n" + APPEND
    command = [sys.executable, "-c", script, str(TESTS.parents[1]), str(TESTS), str(folder)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert killed.returncode == -signal.SIGBUS, killed.stderr
    stored = int(killed.stdout.splitlines()[-1])
    monkeypatch.undo()
    with pytest.raises(UserError, match="No space left on device"):
        Ring.open(folder, LAYOUT, 20_000)
    others.unlink()
    ring = Ring.open(folder, LAYOUT, 20_000)
    assert (ring.env_steps, ring.ring_steps) == (stored, stored)
    assert stored > 999
    assert ring.verify() == 0
    append_more(ring, 12, steps=999)
    assert ring.env_steps == stored + 12 * 999


def test_a_read_only_folder_is_told_with_its_reason(small_disk):
    filled_ring(small_disk / "ring")
    assert mount("-o", "remount,ro", small_disk).returncode == 0
    for folder in (small_disk / "ring", small_disk / "another"):
        with pytest.raises(UserError, match=rf"in {folder} \(Read-only file system\)"):
            Ring.open(folder, LAYOUT, 60)


def test_a_folder_without_permission_is_told_with_its_reason(ordinary_users_folder):
    with as_ordinary_user():
        filled_ring(ordinary_users_folder / "ring")
        for path in (ordinary_users_folder / "ring").iterdir():
            path.chmod(0o444)
        with pytest.raises(UserError, match="Permission denied"):
            Ring.open(ordinary_users_folder / "ring", LAYOUT, 60)


def test_a_full_disk_costs_a_checkpoint_its_replay_part_and_nothing_else(small_disk):
    run = RunFolders(small_disk / "run")
    append_more(run.ring, 13)
    good = run.checkpoint(10)
    before = content(run.ring)
    partial = kept_checkpoints.begin(run.places.checkpoints, 20)
    others = fill(small_disk)
    assert run.snapshots.take(kept_checkpoints.finished_name(partial))
    run.snapshots.close(10.0)
    assert "No space left on device" in run.snapshots.error
    assert list(partial.iterdir()) == []
    append_more(run.ring, 1)
    others.unlink()
    assert kept_checkpoints.newest_complete(run.places.checkpoints) == good
    again = RunFolders(small_disk / "run", from_checkpoint=True)
    assert content(again.ring) == before
    again.checkpoint(20)
    assert kept_checkpoints.newest_complete(run.places.checkpoints).train_step == 20


def test_a_run_directory_that_is_gone_is_told_and_the_ring_on_scratch_goes_on(tmp_path):
    run = RunFolders(tmp_path / "run", tmp_path / "scratch")
    append_more(run.ring, 13)
    run.checkpoint(10)
    partial = kept_checkpoints.begin(run.places.checkpoints, 20)
    shutil.rmtree(tmp_path / "run" / "replay")
    assert run.snapshots.take(kept_checkpoints.finished_name(partial))
    run.snapshots.close(10.0)
    assert "No such file or directory" in run.snapshots.error
    append_more(run.ring, 3)
    assert run.ring.worker(0).number == 15
