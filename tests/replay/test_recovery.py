"""A killed server continues with all that it had; after anything else the ring is that of the newest checkpoint."""

import json
import os
import shutil
import subprocess

import numpy as np
import pytest

from tests.support.run_for_tests import RunFolders
from tests.support.segments_for_tests import LAYOUT, append_more, content, filled_ring
from tests.support.waiting import until
from tfagents_system.errors import UserError
from tfagents_system.replay import recovery
from tfagents_system.replay.priorities import EPSILON
from tfagents_system.replay.ring import Ring
from tfagents_system.run_files import kept_checkpoints


@pytest.fixture
def machine_was_off(tmp_path, monkeypatch):
    """Calling it gives the machine another boot id."""

    def switch():
        path = tmp_path / "another_boot_id"
        path.write_text("another\n")
        monkeypatch.setattr(recovery, "_BOOT_ID", path)

    return switch


def copy_run(source, target):
    """Plain file copies, as `cp -r` makes them."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    return target


def test_a_killed_server_goes_on_with_all_that_was_stored(tmp_path):
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 13)
    run.checkpoint(10)
    append_more(run.ring, 2)
    before = content(run.ring)
    assert content(RunFolders(tmp_path / "run").ring) == before
    assert before["counters"][0] == 75


def test_priorities_are_those_of_the_newest_checkpoint_and_of_the_same_rows(tmp_path, machine_was_off):
    run = RunFolders(tmp_path / "run", priority_exponent=0.6)
    append_more(run.ring, 13)
    run.priorities.measure(np.arange(30, 70), np.arange(40, dtype=np.float32))
    at_checkpoint = run.priorities.snapshot()
    run.checkpoint(10)
    append_more(run.ring, 2)
    run.priorities.measure(np.arange(40, 85), np.full(45, 100, np.float32))
    killed = RunFolders(tmp_path / "run", priority_exponent=0.6)
    assert killed.ring.worker(0).number == 14, "the rows are as a killed server left them"
    values = np.frombuffer(killed.priorities.snapshot(), np.float32, offset=8)
    starts = np.array([row for row in range(42, 70) if row % 6 != 5])  # A segment's last row starts no transition.
    np.testing.assert_allclose(values[starts], starts - 30 + EPSILON)
    assert not values[:6].any(), "of the two segments that came later nothing is known"
    machine_was_off()
    assert RunFolders(tmp_path / "run", priority_exponent=0.6).priorities.snapshot() == at_checkpoint
    RunFolders(tmp_path / "run").checkpoint(20)  # Of a start without priorities.
    new = RunFolders(tmp_path / "run", priority_exponent=0.6).priorities.snapshot()
    assert len(new) == len(at_checkpoint) and not any(new[8:])


def test_what_no_checkpoint_has_is_given_up_after_a_power_cut_and_in_a_copied_run(tmp_path, machine_was_off):
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 13)
    run.checkpoint(10)
    at_checkpoint = content(run.ring)
    append_more(run.ring, 2)
    now = content(run.ring)
    copied = RunFolders(copy_run(tmp_path / "run", tmp_path / "copied"))
    assert content(copied.ring) == at_checkpoint
    append_more(copied.ring, 1)
    assert content(RunFolders(tmp_path / "run").ring) == now, "the original is untouched"
    machine_was_off()
    again = RunFolders(tmp_path / "run")
    assert content(again.ring) == at_checkpoint
    append_more(again.ring, 1)
    assert content(RunFolders(tmp_path / "run").ring) == content(again.ring), "this boot's ring is gone on with"


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, machine_was_off):
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 13)
    run.checkpoint(10)
    first = content(run.ring)
    append_more(run.ring, 2)
    newest = run.checkpoint(20)
    append_more(run.ring, 1)
    newest.replay.write_bytes(newest.replay.read_bytes()[:-1] + b"x")
    machine_was_off()
    assert content(RunFolders(tmp_path / "run").ring) == first


def test_a_ring_is_not_emptied_where_its_checkpoints_are_lost(tmp_path, machine_was_off):
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 13)
    newest = run.checkpoint(10)
    at_checkpoint, good = content(run.ring), newest.replay.read_bytes()
    newest.replay.write_bytes(good[:-1])
    machine_was_off()
    for loses in (lambda: None, lambda: newest.folder.rename(tmp_path / "elsewhere")):
        loses()
        kept_checkpoints.remember(tmp_path / "run/saved.json", 10)
        with pytest.raises(UserError, match="has had a checkpoint after 10 updates"):
            RunFolders(tmp_path / "run")
    (tmp_path / "elsewhere").rename(newest.folder)
    newest.replay.write_bytes(good)
    assert content(RunFolders(tmp_path / "run").ring) == at_checkpoint


def test_without_a_checkpoint_the_run_begins_with_an_empty_ring_and_says_so(tmp_path, machine_was_off, caplog):
    append_more(RunFolders(tmp_path / "run").ring, 3)
    machine_was_off()
    ring = RunFolders(tmp_path / "run").ring
    assert (ring.env_steps, ring.filled_rows, ring.worker(0).number) == (0, 0, -1)
    assert "no complete checkpoint to go back to" in caplog.text


def test_a_checkpoint_without_the_servers_part_leaves_what_is_whole(tmp_path, machine_was_off, caplog):
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 13)
    run.checkpoint(10, with_replay=False)
    run.ring.reward[(6 * 6) % run.ring.num_rows] += 1
    machine_was_off()
    assert RunFolders(tmp_path / "run").ring.ring_steps == 45
    assert "has no part of the replay server" in caplog.text and "5 of 50 steps" in caplog.text


def test_files_that_were_cut_off_or_lost_cost_only_what_was_in_them(tmp_path):
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 13)
    run.checkpoint(10)
    copied = copy_run(tmp_path / "run", tmp_path / "copied")
    reward = copied / "replay" / "reward.bin"
    reward.write_bytes(reward.read_bytes()[: 4 * 40])  # Rows 40 to 77 are gone, and 18 to 41 of segments 3 to 6 stay.
    (copied / "replay" / "header.bin").write_bytes(b"")
    ring = RunFolders(copied).ring
    assert ring.ring_steps == 15
    copied = copy_run(tmp_path / "run", tmp_path / "again")
    (copied / "replay" / "reward.bin").unlink()
    again = RunFolders(copied).ring
    assert (again.ring_steps, again.env_steps, again.worker(0).number) == (0, 0, -1), "nothing is left: it starts anew"


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_a_server_that_was_killed_while_it_recovered_recovers_again(tmp_path, monkeypatch, from_checkpoint):
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 13)
    run.checkpoint(10)
    at_checkpoint = content(run.ring)
    append_more(run.ring, 1)
    if not from_checkpoint:
        run.ring._slots["env_steps"] += 1  # Damaged: an empty header is made first.
    with monkeypatch.context() as patch:
        patch.setattr(recovery, "_recover", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            RunFolders(tmp_path / "run", from_checkpoint=from_checkpoint)
    assert content(RunFolders(tmp_path / "run").ring) == at_checkpoint


def test_a_restored_backup_is_not_taken_for_the_folder_that_it_replaces(tmp_path):
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 13)
    origin = json.loads((tmp_path / "run/replay/origin.json").read_text())
    backup = copy_run(tmp_path / "run", tmp_path / "backup")
    shutil.rmtree(tmp_path / "run")
    copy_run(backup, tmp_path / "run")
    found = recovery._origin_of(tmp_path / "run/replay")
    assert found["boot_id"] == origin["boot_id"]
    assert found["made_ns"] != origin["made_ns"], "whichever inode it got"
    assert RunFolders(tmp_path / "run").ring.env_steps == 0


# The ring on node-local scratch.


def test_scratch_that_was_cleared_is_filled_from_the_run_directory_exactly(tmp_path):
    run = RunFolders(tmp_path / "run", tmp_path / "scratch")
    append_more(run.ring, 13)
    run.checkpoint(10)
    append_more(run.ring, 2)
    run.checkpoint(20)
    at_checkpoint = content(run.ring)
    append_more(run.ring, 3)
    shutil.rmtree(tmp_path / "scratch")
    for scratch in (tmp_path / "scratch", tmp_path / "another_node"):
        again = RunFolders(tmp_path / "run", scratch)
        assert content(again.ring) == at_checkpoint
        assert again.ring.folder == scratch
    append_more(again.ring, 1)
    assert content(RunFolders(tmp_path / "run", tmp_path / "another_node").ring) == content(again.ring)


def test_a_checkpoint_copies_what_is_new_and_no_more(tmp_path, monkeypatch):
    written = []
    write = Ring.make_durable
    monkeypatch.setattr(Ring, "make_durable", lambda self, snapshot: written.append(write(self, snapshot)))
    run = RunFolders(tmp_path / "run", tmp_path / "scratch")
    row_bytes = sum(column.step_bytes for column in run.ring.files.columns)
    append_more(run.ring, 13)
    run.checkpoint(10)
    append_more(run.ring, 2)
    run.checkpoint(20)
    run.checkpoint(30)
    again = RunFolders(tmp_path / "run", tmp_path / "scratch")  # A killed server knows what is copied.
    append_more(again.ring, 1)
    again.checkpoint(40)
    assert written == [60 * row_bytes, 12 * row_bytes, 0, 6 * row_bytes]
    filled = RunFolders(tmp_path / "run", tmp_path / "another_node")  # From the copy: nothing of it is new there.
    append_more(filled.ring, 2)
    filled.checkpoint(50)
    assert written[4:] == [12 * row_bytes]
    for column in again.ring.files.columns:
        own = (tmp_path / "scratch" / again.ring.files.column(column).name).read_bytes()
        copied = (tmp_path / "run/replay" / again.ring.files.column(column).name).read_bytes()
        first = 6 * 6 * column.step_bytes  # Segments 0 to 2 were given up before the first copy.
        assert copied[first : 13 * 6 * column.step_bytes] == own[first : 13 * 6 * column.step_bytes]


def test_after_going_back_the_copy_gets_what_replaces_the_rows_it_has(tmp_path):
    run = RunFolders(tmp_path / "run", tmp_path / "scratch")
    append_more(run.ring, 13)
    run.checkpoint(10)
    append_more(run.ring, 2)
    damaged = run.checkpoint(20)
    damaged.replay.write_bytes(b"")
    shutil.rmtree(tmp_path / "scratch")
    again = RunFolders(tmp_path / "run", tmp_path / "scratch")
    assert again.ring.worker(0).number == 12
    append_more(again.ring, 2, steps=4)
    again.checkpoint(30)
    expected = content(again.ring)
    shutil.rmtree(tmp_path / "scratch")
    assert content(RunFolders(tmp_path / "run", tmp_path / "scratch").ring) == expected


def test_a_run_moves_to_scratch_and_back_and_old_rings_are_not_taken_for_its_own(tmp_path):
    home = RunFolders(tmp_path / "run")
    append_more(home.ring, 13)
    home.checkpoint(10)
    at_checkpoint = content(home.ring)
    append_more(home.ring, 1)
    moved = RunFolders(tmp_path / "run", tmp_path / "scratch")
    assert content(moved.ring) == at_checkpoint, "from the run directory, which is its copy from now on"
    append_more(moved.ring, 2)
    moved.checkpoint(20)
    second = content(moved.ring)
    append_more(moved.ring, 1)
    back = RunFolders(tmp_path / "run")
    assert content(back.ring) == second
    append_more(back.ring, 3)
    back.checkpoint(30)
    third = content(back.ring)
    assert content(RunFolders(tmp_path / "run", tmp_path / "scratch").ring) == third, "the old ring lies there still"


def test_a_copy_that_can_not_be_read_is_told(tmp_path):
    run = RunFolders(tmp_path / "run", tmp_path / "scratch")
    run.checkpoint(10, with_replay=False)
    run.ring.copy.header.unlink()
    run.ring.copy.header.mkdir()
    with pytest.raises(UserError, match=r"in .*run/replay \(Is a directory\)"):
        RunFolders(tmp_path / "run", tmp_path / "another_node")


# Scratch that is shared with other users.


def test_the_ring_on_scratch_is_its_users_alone_and_an_earlier_ones_is_closed(tmp_path):
    scratch = tmp_path / "shared/run"
    run = RunFolders(tmp_path / "run", scratch)
    assert scratch.stat().st_mode & 0o7777 == 0o700
    append_more(run.ring, 3)
    expected = content(run.ring)
    scratch.chmod(0o755)
    assert content(RunFolders(tmp_path / "run", scratch).ring) == expected, "it is found again"
    assert scratch.stat().st_mode & 0o7777 == 0o700


def as_link(scratch, tmp_path):
    scratch.rename(tmp_path / "elsewhere")
    scratch.symlink_to(tmp_path / "elsewhere")


def as_file(scratch, tmp_path):
    shutil.rmtree(scratch)
    scratch.write_text("")


def shared_by_all(scratch, tmp_path):
    scratch.chmod(0o1777)  # Such as /tmp itself: it must not be closed.


@pytest.mark.parametrize("plant", [as_link, as_file, shared_by_all])
def test_what_others_may_have_put_on_scratch_is_refused(plant, tmp_path):
    scratch = tmp_path / "shared/run"
    RunFolders(tmp_path / "run", scratch)
    plant(scratch, tmp_path)
    before = os.lstat(scratch)
    with pytest.raises(UserError, match="is a link, another user's, or can be written by others: remove it, or set"):
        RunFolders(tmp_path / "run", scratch)
    assert (os.lstat(scratch).st_mode, os.lstat(scratch).st_ctime_ns) == (before.st_mode, before.st_ctime_ns)


# The snapshot writer.


def test_a_snapshot_is_of_the_moment_that_it_was_asked_for(tmp_path):
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 12)
    partial = kept_checkpoints.begin(run.checkpoints, 10)
    name = kept_checkpoints.finished_name(partial)
    assert run.snapshots.take(name)
    expected = content(run.ring)
    append_more(run.ring, 2)
    run.snapshots.close(20.0)
    assert not run.snapshots.take(name), "asked for again: it is there"
    run.ring.rollback((partial / kept_checkpoints.REPLAY).read_bytes())
    assert content(run.ring) == expected
    assert sorted(path.name for path in partial.iterdir()) == ["replay.bin"]
    assert [path.name for path in run.checkpoints.iterdir()] == [partial.name]


def test_rows_that_are_overwritten_while_they_are_written_make_no_snapshot(tmp_path, monkeypatch):
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 12)
    monkeypatch.setattr(run.ring, "make_durable", lambda snapshot: append_more(run.ring, 5))
    partial = kept_checkpoints.begin(run.checkpoints, 10)
    assert run.snapshots.take("checkpoint_0000000010")
    run.snapshots.close(10.0)
    assert list(partial.iterdir()) == []
    assert "have been overwritten" in run.snapshots.error


def test_a_checkpoint_is_wanted_before_the_kept_ones_can_be_overwritten(tmp_path, monkeypatch):
    monkeypatch.setattr("tfagents_system.replay.recovery._LOOK_SECS", 0.0)
    run = RunFolders(tmp_path / "run")
    train_step, oldest_held = 0, []
    for _ in range(40):
        append_more(run.ring, 1)
        if run.snapshots.is_wanted:
            train_step += 1
            run.checkpoint(train_step)
            assert not run.snapshots.is_wanted
        for folder in run.checkpoints.glob("checkpoint_*"):
            run.ring.check_covered((folder / "replay.bin").read_bytes())
            oldest_held.append(folder.name)
    assert train_step == 20, "every 12 rows: 10 and more are 40% of the slack of 24"
    assert len(set(oldest_held)) == 20
    again = RunFolders(tmp_path / "run")
    assert not again.snapshots.is_wanted, "a restarted server knows the checkpoints that there are"


def test_there_is_room_while_the_newest_complete_checkpoint_can_be_gone_back_to(tmp_path, monkeypatch):
    monkeypatch.setattr("tfagents_system.replay.recovery._LOOK_SECS", 0.0)
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 12)
    assert run.snapshots.has_room(20), "there is nothing to go back to"
    run.checkpoint(1)
    [snapshot] = [path.read_bytes() for path in run.checkpoints.glob("checkpoint_*/replay.bin")]
    begun = run.ring.total_rows
    partial = kept_checkpoints.begin(run.checkpoints, 2)
    assert run.snapshots.take(kept_checkpoints.finished_name(partial))
    until((partial / "replay.bin").exists, 20.0, "the copy of the ring")
    while run.snapshots.has_room(6):
        append_more(run.ring, 1)
        run.ring.check_covered(snapshot)
    assert run.ring.total_rows - begun == 24, "the whole slack; one that is not complete does not count"
    assert run.snapshots.has_room(25), "no checkpoint could leave that much"
    run.checkpoint(3)
    assert run.snapshots.has_room(6)
    append_more(run.ring, 4)
    assert not run.snapshots.has_room(6)


# Full disks, quotas and read-only folders: told clearly, and nothing that was stored is lost.


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
