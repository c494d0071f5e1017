"""Checkpoints are complete or absent; what is damaged is passed over; nothing else is ever deleted."""

import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.kept_checkpoints import DamagedCheckpointError
from tfagents_system.run_files.run_lock import TOKEN_VARIABLE, RunLock
from tfagents_system.run_files.run_paths import RunPaths


def write(folder, train_step, content=b"weights", replay=b"rows", signature=None):
    partial = kept_checkpoints.begin(folder, train_step)
    (partial / "agent.index").write_bytes(b"index")
    (partial / "agent.data-00000-of-00001").write_bytes(content * 50)
    if replay is not None:
        (partial / "replay.bin").write_bytes(replay)
    return kept_checkpoints.finish(partial, train_step, train_step // 10, {"env_steps": 7}, signature)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_is_found_with_what_it_holds(tmp_path):
    assert kept_checkpoints.newest_complete(tmp_path / "absent") is None
    write(tmp_path, 990)
    write(tmp_path, 1000, replay=None)
    found = kept_checkpoints.newest_complete(tmp_path)
    assert (found.name, found.train_step, found.iteration) == ("checkpoint_0000001000", 1000, 100)
    assert not found.has_replay
    assert found.agent == tmp_path / "checkpoint_0000001000" / "agent"
    assert json.loads((found.folder / "manifest.json").read_text())["env_steps"] == 7


def test_files_are_on_the_disk_before_the_name_that_says_so_and_that_before_it_counts(tmp_path, monkeypatch):
    """After a power cut a file may be empty that was not synced, and a name may be missing whose folder was not."""
    done = []
    fsync, rename = os.fsync, os.rename

    def record_fsync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        done.append(("fsync", path.name))
        fsync(descriptor)

    def record_rename(source, target):
        done.append(("rename", Path(target).name))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "rename", record_rename)
    folder = tmp_path / "checkpoints"
    write(folder, 10)
    name = "checkpoint_0000000010"
    files = {"agent.index", "agent.data-00000-of-00001", "replay.bin", "manifest.json"}
    assert set(done[: len(files)]) == {("fsync", file) for file in files}
    assert done[len(files) :] == [("fsync", f"{name}.partial"), ("rename", name), ("fsync", "checkpoints")]


def test_none_is_completed_once_another_start_has_taken_the_run_over(tmp_path, monkeypatch):
    folder = tmp_path / "run" / "checkpoints"
    with RunLock(RunPaths(tmp_path / "run")) as lock:
        monkeypatch.setenv(TOKEN_VARIABLE, lock.token)
        write(folder, 10)
        lock._path.write_text('{"host": "node2", "token": "other"}')
        with pytest.raises(OSError, match="another start of this run has taken its directory over"):
            write(folder, 20)
        assert names(folder) == ["checkpoint_0000000010", "checkpoint_0000000020.partial"]
        assert kept_checkpoints.newest_complete(folder).train_step == 10


def test_an_agent_of_another_makeup_is_told_with_both_sides_and_the_remedy(tmp_path):
    signature = {"class": "Redq", "4x8": 6, "8": 9}
    written = write(tmp_path, 10, signature=signature)
    found = kept_checkpoints.newest_complete(tmp_path)
    assert found == written and found.signature == signature
    assert kept_checkpoints.why_not_of(found, dict(signature)) == ""
    reason = kept_checkpoints.why_not_of(found, {"class": "Sac", "4x8": 4, "8": 9, "16": 1})
    pairs = "variables of shape 16: 0 and 1, variables of shape 4x8: 6 and 4, class Redq and Sac"
    assert f"checkpoint_0000000010 and TrainParams have different agents ({pairs}): " in reason
    assert reason.endswith("or choose another SAC_EXP_NAME")


def test_a_second_one_of_the_same_train_step_is_newer_and_leaves_the_first(tmp_path):
    write(tmp_path, 20)
    write(tmp_path, 20, content=b"changed")
    for number in (3, 4):
        write(tmp_path, 20)
        assert kept_checkpoints.newest_complete(tmp_path).name == f"checkpoint_0000000020_{number}"
    write(tmp_path, 30)
    assert kept_checkpoints.newest_complete(tmp_path).train_step == 30


def test_one_that_was_not_finished_does_not_count(tmp_path):
    good = write(tmp_path, 10)
    partial = kept_checkpoints.begin(tmp_path, 20)
    (partial / "agent.index").write_bytes(b"index")
    assert kept_checkpoints.newest_complete(tmp_path) == good
    (partial / "manifest.json").write_text("{}")
    assert kept_checkpoints.newest_complete(tmp_path) == good
    kept_checkpoints.prune(tmp_path)
    assert names(tmp_path) == [good.name]


def damage_flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def damage_shorten(path):
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("file", ["agent.index", "agent.data-00000-of-00001", "replay.bin", "manifest.json"])
@pytest.mark.parametrize("damage", [damage_shorten, damage_flip, lambda path: path.unlink()])
def test_a_damaged_one_is_passed_over(tmp_path, file, damage, caplog):
    before = write(tmp_path, 10)
    newest = write(tmp_path, 20)
    damage(newest.folder / file)
    assert kept_checkpoints.newest_complete(tmp_path) == before
    assert newest.name in caplog.text


def test_two_good_ones_are_kept_whatever_else_there_is(tmp_path):
    for step in (10, 20, 30, 40, 50):
        write(tmp_path, step)
    damage_flip(tmp_path / "checkpoint_0000000040" / "agent.index")
    (tmp_path / "my_notes").mkdir()
    kept_checkpoints.prune(tmp_path)
    left = [*(f"checkpoint_00000000{step}" for step in (30, 40, 50)), "my_notes"]
    assert names(tmp_path) == left, "the damaged one stays beside two good ones, for whoever wants to look at it"


def test_the_one_that_was_just_written_is_kept_beside_later_ones(tmp_path):
    for step in (190, 200):
        write(tmp_path, step)
    written = write(tmp_path, 5).folder
    kept_checkpoints.prune(tmp_path, written=written)
    assert names(tmp_path) == ["checkpoint_0000000005", "checkpoint_0000000200"]
    kept_checkpoints.delete_later(written)
    assert names(tmp_path) == ["checkpoint_0000000005"]


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_one_that_cant_be_read_now_is_no_damaged_one(tmp_path, monkeypatch, number):
    """An older one would be used, and what is written after that be taken for older than this one."""
    write(tmp_path, 10)
    newest = write(tmp_path, 20)
    opened = Path.open

    def refuse(self, *args, **options):
        if self == newest.folder / "agent.index":
            raise OSError(number, os.strerror(number), str(self))
        return opened(self, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refuse)
        with pytest.raises(OSError, match=re.escape(os.strerror(number))) as raised:
            kept_checkpoints.newest_complete(tmp_path)
        assert (raised.value.errno, raised.value.filename) == (number, str(newest.folder))
        with pytest.raises(OSError, match=re.escape(os.strerror(number))):
            kept_checkpoints.why_lost(tmp_path, None)
        kept_checkpoints.prune(tmp_path, keep=1)
        assert names(tmp_path) == ["checkpoint_0000000010", "checkpoint_0000000020"]
    assert kept_checkpoints.newest_complete(tmp_path) == newest


def test_a_run_that_has_lost_its_checkpoints_is_told_from_one_that_had_none(tmp_path):
    record, folder = tmp_path / "saved.json", tmp_path / "checkpoints"
    assert kept_checkpoints.why_lost(folder, record) == ""
    first = write(folder, 0)
    kept_checkpoints.remember(record, 0)
    damage_flip(first.folder / "agent.index")
    assert kept_checkpoints.why_lost(folder, record) == "", "it begins at 0 in any case"
    shutil.rmtree(folder)
    assert kept_checkpoints.why_lost(folder, record) == ""
    kept_checkpoints.remember(record, 30)
    reason = kept_checkpoints.why_lost(folder, record)
    assert reason == (
        f"the run has had a checkpoint after 30 updates in {folder}, and there is none in it: put back one that is "
        "whole, or begin another run (SAC_EXP_NAME)"
    )
    for step in (20, 40):
        damage_flip(write(folder, step).folder / "agent.index")
    assert "after 40 updates" in kept_checkpoints.why_lost(folder, None)
    assert "and all 2 in it are damaged: put back one" in kept_checkpoints.why_lost(folder, record)


def test_checkpoints_whose_agent_is_elsewhere_are_no_lost_ones(tmp_path):
    kept_checkpoints.finish(kept_checkpoints.begin(tmp_path, 20), 20, 0, {}, has_agent=False)
    assert kept_checkpoints.newest_complete(tmp_path, with_agent=True) is None
    assert kept_checkpoints.why_lost(tmp_path, None) == ""


@pytest.mark.parametrize(
    "manifest",
    [b"", b"\xff", b"[]", b"3", b"{}", b'{"files": 3}', b'{"files": {"../x": 1}}', b'{"files": {}, "train_step": "x"}'],
)
def test_no_manifest_is_more_than_damaged(tmp_path, manifest):
    good = write(tmp_path, 10)
    newest = write(tmp_path, 20)
    (newest.folder / "manifest.json").write_bytes(manifest)
    with pytest.raises(DamagedCheckpointError):
        kept_checkpoints.read(newest.folder)
    assert kept_checkpoints.newest_complete(tmp_path) == good
