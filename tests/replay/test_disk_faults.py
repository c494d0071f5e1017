"""Full disks, quotas and read-only folders: told clearly, and nothing that was stored is lost."""

import shutil
import subprocess

import pytest

from tests.support.run_for_tests import RunFolders
from tests.support.segments_for_tests import LAYOUT, append_more, content, filled_ring
from tfagents_system.errors import UserError
from tfagents_system.replay.ring import Ring
from tfagents_system.run_files import kept_checkpoints

MIB = 2**20


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


def test_a_read_only_folder_is_told_with_its_reason(small_disk):
    filled_ring(small_disk / "ring")
    assert mount("-o", "remount,ro", small_disk).returncode == 0
    for folder in (small_disk / "ring", small_disk / "another"):
        with pytest.raises(UserError, match=rf"in {folder} \(Read-only file system\)"):
            Ring.open(folder, LAYOUT, 60)


def test_a_full_disk_costs_a_checkpoint_its_replay_part_and_nothing_else(small_disk):
    run = RunFolders(small_disk / "run")
    append_more(run.ring, 13)
    good = run.checkpoint(10)
    before = content(run.ring)
    partial = kept_checkpoints.begin(run.checkpoints, 20)
    others = fill(small_disk)
    assert run.snapshots.take(kept_checkpoints.finished_name(partial))
    run.snapshots.close(10.0)
    assert "No space left on device" in run.snapshots.error
    assert list(partial.iterdir()) == []
    append_more(run.ring, 1)
    others.unlink()
    assert kept_checkpoints.newest_complete(run.checkpoints) == good
    again = RunFolders(small_disk / "run", from_checkpoint=True)
    assert content(again.ring) == before
    again.checkpoint(20)
    assert kept_checkpoints.newest_complete(run.checkpoints).train_step == 20


def test_a_run_directory_that_is_gone_is_told_and_the_ring_on_scratch_goes_on(tmp_path):
    run = RunFolders(tmp_path / "run", tmp_path / "scratch")
    append_more(run.ring, 13)
    run.checkpoint(10)
    partial = kept_checkpoints.begin(run.checkpoints, 20)
    shutil.rmtree(tmp_path / "run" / "replay")
    assert run.snapshots.take(kept_checkpoints.finished_name(partial))
    run.snapshots.close(10.0)
    assert "No such file or directory" in run.snapshots.error
    append_more(run.ring, 3)
    assert run.ring.worker(0).number == 15
