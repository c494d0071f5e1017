"""What a run needs against what there is: an error where it can't fit, a note where it is tight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfagents_system.checks.checklist import Check
from tfagents_system.launch import resources

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (200 * MIB, "200 MiB"), (GIB, "1.0 GiB"),
     (1500 * GIB, "1,500 GiB"), (10**400, "more than 1,000,000 GiB")],
)  # fmt: skip
def test_bytes_in_words(num_bytes: int, text: str) -> None:
    assert resources.in_words(num_bytes) == text


@pytest.mark.parametrize(
    ("free", "errors", "notes"), [(99, 1, 0), (100, 0, 1), (124, 0, 1), (125, 0, 0), (10**9, 0, 0)]
)
def test_disk(free: int, errors: int, notes: int) -> None:
    check = Check("disk")
    resources.judge_disk(check, 100, free, "the ring")
    assert (len(check.errors), len(check.notes), len(check.facts)) == (errors, notes, 1 - errors)


def test_what_lies_on_one_file_system_is_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources.shutil, "disk_usage", lambda path: resources.shutil._ntuple_diskusage(9, 9, 10 * MIB))
    check = Check("disk")
    resources.check_disk(check, {tmp_path / "a/b": ("ring", 6 * MIB), tmp_path / "c": ("rest", 5 * MIB)})
    (error,) = check.errors
    assert "needs 11.0 MiB of disk (6.0 MiB ring + 5.0 MiB rest in " in error and "10.0 MiB are free" in error
    assert not list(tmp_path.iterdir())


def test_a_ring_that_is_there_already_is_not_needed_again(tmp_path: Path) -> None:
    (tmp_path / "reward.bin").write_bytes(b"x" * 100_000)
    assert 100_000 <= resources.reserved_bytes(tmp_path) < 120_000
    assert resources.reserved_bytes(tmp_path / "nowhere") == 0


def test_disk_of_a_run() -> None:
    # 3 checkpoints, 2 best agents, 3 SavedModels, and 10 + 2 policies for 100 iterations with one every 10.
    base = resources.disk_of_run(0, 0, 10)
    assert resources.disk_of_run(1000, 0, 10) - base == 5 * 1000
    assert resources.disk_of_run(0, 1000, 10) - base == (3 + 12) * 1000


def memory(free: int, workers: int = 10, own: int = 90 * MIB, ring: int = 0, **options: Any) -> Check:
    check = Check("memory")
    resources.check_memory(check, workers, own, ring, available=(free, "of this machine's memory"), **options)
    return check


def test_memory() -> None:
    # 10 workers of 90 + 10, and 600 + 90 for the others: 1690 MiB.
    assert "10 workers of 100 MiB" in memory(1689 * MIB).errors[0]
    assert "lower SAC_NUM_COLLECT_WORKERS" in memory(1689 * MIB).errors[0]
    tight, enough = memory(1690 * MIB), memory(2113 * MIB)
    assert (len(tight.errors), len(tight.notes)) == (0, 1) and "memory is tight" in tight.notes[0]
    assert (enough.errors, enough.notes) == ([], [])


def test_prior_data_beyond_the_memory_is_a_note() -> None:
    check = Check("memory")
    resources.check_memory(check, 1, 0, 100 * MIB, 900 * MIB, available=(1000 * MIB, "of this machine's memory"))
    assert "the replay buffer of 100 MiB and the prior data of 900 MiB do not fit into the" in check.notes[0]


def test_a_replay_buffer_beyond_the_memory_is_a_note() -> None:
    assert memory(10 * GIB, ring=8 * GIB).notes == []
    (note,) = memory(10 * GIB, ring=9 * GIB).notes
    assert "replay buffer of 9.0 GiB does not fit into the 8.3 GiB" in note and "buffer_size" in note


@pytest.mark.parametrize(
    ("line", "folder", "names"),
    [
        ("0::/job", "job", ("memory.max", "memory.current", "")),
        ("4:memory:/job", "memory/job", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")),
    ],
)
def test_the_limit_of_a_cgroup_counts(tmp_path: Path, line: str, folder: str, names: tuple[str, str, str]) -> None:
    (tmp_path / "membership").write_text(f"1:cpu:/\n{line}\n")
    group = tmp_path / "mounts" / folder
    group.mkdir(parents=True)
    (group / names[0]).write_text("3000000\n")
    (group / names[1]).write_text("2500000\n")
    others = "inactive_anon 7\nactive_anon 7\nworkingset_activate_file 7\nhierarchical_inactive_file 7\n"
    files = "".join(f"{names[2]}{kind}_file {size}\n" for kind, size in (("inactive", 300000), ("active", 100000)))
    (group / "memory.stat").write_text(others + files)
    free, limit = resources.available_memory(tmp_path / "membership", tmp_path / "mounts")
    assert (free, limit) == (900_000, "under the cgroup's limit")
    (group / names[0]).write_text("max\n")
    assert resources.available_memory(tmp_path / "membership", tmp_path / "mounts")[1] == "of this machine's memory"


def test_open_files() -> None:
    needed = 64 + 4 * 10
    fine, short = Check("open files"), Check("open files")
    resources.check_open_files(fine, 10, limit=needed)
    resources.check_open_files(short, 10, limit=needed - 1)
    assert fine.errors == []
    (error,) = short.errors
    assert "may open 103 files (ulimit -n)" in error and "run `ulimit -n 104` first" in error


def test_a_folder_that_can_be_made_has_no_fault(tmp_path: Path) -> None:
    assert resources.folder_fault(tmp_path / "a/b/c", "SAC_LOGS_DIR") is None
    assert resources.folder_fault(tmp_path, "SAC_LOGS_DIR") is None
    assert not list(tmp_path.iterdir())


def test_a_link_to_nowhere_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "gone")
    fault = resources.folder_fault(tmp_path / "run", "SAC_LOGS_DIR")
    assert fault is not None and "can't be a folder" in fault
