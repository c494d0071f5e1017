"""What a run needs against what there is: an error where it can't fit, a note where it is tight."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import psutil
import pytest

from tfagents_system.checks.findings import Findings
from tfagents_system.launch import machine_checks, required_packages
from tfagents_system.machine import processes

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (200 * MIB, "200 MiB"), (GIB, "1.0 GiB"),
     (1500 * GIB, "1,500 GiB"), (10**400, "more than 1,000,000 GiB")],
)  # fmt: skip
def test_bytes_in_words(num_bytes: int, text: str) -> None:
    assert machine_checks.in_words(num_bytes) == text


@pytest.mark.parametrize(("free", "errors", "notes"), [(10, 1, 0), (11, 0, 1), (13, 0, 1), (14, 0, 0)])
def test_disk_is_added_up_for_each_file_system(
    free: int, errors: int, notes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = machine_checks.shutil._ntuple_diskusage(99, 9, free * MIB)
    monkeypatch.setattr(machine_checks.shutil, "disk_usage", lambda path: usage)
    findings = Findings()
    machine_checks.check_disk(findings, {tmp_path / "a/b": ("ring", 6 * MIB), tmp_path / "c": ("rest", 5 * MIB)})
    assert (len(findings.errors), len(findings.notes)) == (errors, notes)
    if errors:
        (error,) = findings.errors
        assert "needs 11.0 MiB of disk (6.0 MiB ring + 5.0 MiB rest in " in error and "10.0 MiB are free" in error
    assert not list(tmp_path.iterdir())


def test_disk_of_a_run(tmp_path: Path) -> None:
    # 3 checkpoints, 2 best agents, a SavedModel, and 10 + 2 policies for 100 iterations with one every 10.
    base = machine_checks.disk_of_run(0, 0, 10)
    assert machine_checks.disk_of_run(1000, 0, 10) - base == 5 * 1000
    assert machine_checks.disk_of_run(0, 1000, 10) - base == (1 + 12) * 1000
    (tmp_path / "reward.bin").write_bytes(b"x" * 100_000)
    assert 100_000 <= machine_checks.bytes_in(tmp_path) < 120_000, "of a ring that is there, and not needed again"
    assert machine_checks.bytes_in(tmp_path / "nowhere") == 0


def memory(free: int, workers: int = 10, own: int = 90 * MIB, experience: int = 0, server: int = 0) -> Findings:
    findings = Findings()
    machine_checks.check_memory(findings, workers, own, experience, server, (free, "of this machine's memory"))
    return findings


def test_memory() -> None:
    # 10 workers of 90 + 10, and 600 + 90 for the others: 1690 MiB.
    assert "10 workers of 100 MiB" in memory(1689 * MIB).errors[0]
    assert "lower SAC_NUM_COLLECT_WORKERS" in memory(1689 * MIB).errors[0]
    assert memory(1699 * MIB, server=10 * MIB).errors and not memory(1700 * MIB, server=10 * MIB).errors
    tight, enough = memory(1690 * MIB), memory(2113 * MIB)
    assert (len(tight.errors), len(tight.notes)) == (0, 1) and "memory is tight" in tight.notes[0]
    assert (enough.errors, enough.notes) == ([], [])


def test_experience_beyond_the_memory_is_a_note() -> None:
    assert memory(10 * GIB, experience=8 * GIB).notes == []
    (note,) = memory(10 * GIB, experience=9 * GIB).notes
    assert "(with prior data) has 9.0 GiB, 8.3 GiB of memory are left" in note and "buffer_size" in note


@pytest.mark.parametrize(
    ("line", "folder", "names"),
    [
        ("0::/job", "job", ("memory.max", "memory.current", "")),
        ("4:memory:/job", "memory/job", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")),
    ],
)
def test_the_limit_of_a_cgroup_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, folder: str, names: tuple[str, str, str]
) -> None:
    monkeypatch.setattr(processes, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(processes, "_CGROUPS", tmp_path / "mounts")
    (tmp_path / "membership").write_text(f"1:cpu:/\n{line}\n")
    group = tmp_path / "mounts" / folder
    group.mkdir(parents=True)
    (group / names[0]).write_text("3000000\n")
    (group / names[1]).write_text("2500000\n")
    others = "inactive_anon 7\nactive_anon 7\nworkingset_activate_file 7\nhierarchical_inactive_file 7\n"
    files = "".join(f"{names[2]}{kind}_file {size}\n" for kind, size in (("inactive", 300000), ("active", 100000)))
    (group / "memory.stat").write_text(others + files)
    free, limit = machine_checks.available_memory()
    assert (free, limit) == (900_000, "under the cgroup's limit")
    (group / names[0]).write_text("max\n")
    _, limit = machine_checks.available_memory()
    assert limit == "of this machine's memory"


def test_a_gpu_that_is_not_there_is_told() -> None:
    findings = Findings()
    machine_checks.check_gpu({"TFAGENTS_CUDA_VISIBLE_DEVICES": "-1"}, findings)
    [error] = findings.errors
    assert "SAC_TRAIN_GPUS=1, but there is no GPU" in error and "CUDA_VISIBLE_DEVICES: -1" in error
    findings = Findings()
    machine_checks.check_gpu({"TFAGENTS_CUDA_VISIBLE_DEVICES": "2,3"}, findings)
    assert findings.texts("ok") == ["the trainer's is 2"] and findings.errors == []


def test_a_folder_that_can_be_made_has_no_fault_and_a_link_to_nowhere_is_none(tmp_path: Path) -> None:
    assert machine_checks.folder_fault(tmp_path / "a/b/c", "SAC_LOGS_DIR") is None
    assert machine_checks.folder_fault(tmp_path, "SAC_LOGS_DIR") is None
    assert not list(tmp_path.iterdir())
    (tmp_path / "run").symlink_to(tmp_path / "gone")
    assert "can't be a folder" in str(machine_checks.folder_fault(tmp_path / "run", "SAC_LOGS_DIR"))


# Trackers.


def tracking(values: dict[str, Any], **environ: str) -> list[str]:
    findings = Findings()
    machine_checks.check_tracking(values, {"NETRC": "/nowhere", **environ}, findings)
    return findings.errors


def test_what_keeps_metrics_from_being_sent_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    errors = tracking({"wandb": "online", "mlflow_uri": "http://me:secret@host:5000"})
    assert len(errors) == 4 and not any("secret" in error for error in errors)
    assert "pip install '.[wandb]'" in errors[0] and "pip install '.[mlflow]'" in errors[1]
    assert "WANDB_API_KEY" in errors[2] and "MLFLOW_TRACKING_PASSWORD" in errors[3]


def test_a_key_comes_from_a_variable_or_netrc(tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine wandb.here login user password 0123\n")
    netrc.chmod(0o600)
    (error,) = tracking({"wandb": "online"})
    assert "WANDB_API_KEY" in error and "SAC_WANDB=offline needs none" in error
    assert tracking({"wandb": "online"}, WANDB_API_KEY="0123") == []
    assert tracking({"wandb": "online"}, NETRC=str(netrc), WANDB_BASE_URL="https://wandb.here:80") == []
    assert tracking({"wandb": "offline"}) == []


@pytest.mark.parametrize(
    ("uris", "told"),
    [
        (
            "http://s3cret@host:5000 https://:s3cret@host s3cret@host:5000 ftp://s3cret@host mysql://me:s3cret@host/db "
            "postgresql://host/db?user=me&password=s3cret http://host:5000/?api_token=s3cret http://s3cret\u2100@host",
            "SAC_MLFLOW_URI must not hold a user, password or token",
        ),
        ("http://host:5000 https://host/m sqlite:////a.db file:///tmp/a@b postgresql+psycopg2://me@host/db", ""),
    ],
)
def test_addresses_of_mlflow_are_checked_and_keys_in_them_not_shown(uris: str, told: str) -> None:
    for uri in uris.split():
        errors = tracking({"mlflow_uri": uri})
        assert len(errors) == bool(told) and told in "".join(errors) and "s3cret" not in "".join(errors), uri


def test_pins_that_the_installed_packages_violate_are_errors(tmp_path: Path) -> None:
    numpy = importlib.metadata.version("numpy")
    (tmp_path / "requirements.txt").write_text(
        f"-r other.txt\nnumpy=={numpy}  # As here.\nGymnasium==0.1\nno-such-package==3\ntree>=9\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        "[project]\ndependencies = ['numpy==1.0; python_version > \"3\"', 'rich']\n"
    )
    findings = Findings()
    machine_checks.check_packages(findings, tmp_path)
    gymnasium, pinned = findings.errors
    assert (
        f"requirements.txt pins Gymnasium==0.1, and {importlib.metadata.version('gymnasium')} is installed" in gymnasium
    )
    assert f"run `{sys.executable} -m pip install 'Gymnasium==0.1'`, or change the pin" in gymnasium
    assert f"pyproject.toml pins numpy==1.0, and {numpy} is installed" in pinned


def test_a_package_raised_above_what_tensorflow_takes_is_refused_with_the_line_that_lowers_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = {"typing-extensions": "4.16.0", "numpy": "2.0.2", "rich": "99.0", "gym": None}
    real = importlib.metadata.version
    monkeypatch.setattr(required_packages, "_installed", lambda name: installed.get(name, real(name)))
    findings = Findings()
    machine_checks.check_packages(findings, None)
    wrong = {"gym==0.23.0": "not installed", "numpy>=1.26,<2": "2.0.2", "typing-extensions==4.5.0": "4.16.0"}
    assert len(findings.errors) == len(wrong)
    for error, (requirement, found) in zip(findings.errors, wrong.items(), strict=True):
        assert error.startswith(f"{requirement} is ") and f"{found} i" in error
        assert error.endswith(f": run `{sys.executable} -m pip install '{requirement}'`")
    assert findings.notes == ["rich>=13,<16 is asked for, and 99.0 is installed, which was not tested"]


def limits(monkeypatch: pytest.MonkeyPatch, values: dict[str, Any] | None = None, **limits: int) -> list[str]:
    """What is told of a run of one worker, or these variables, with limits like AS=1000."""
    infinity = machine_checks.resource.RLIM_INFINITY
    by_number = {getattr(machine_checks.resource, f"RLIMIT_{name}"): limit for name, limit in limits.items()}
    own = lambda number: (by_number.get(number, infinity), infinity)  # noqa: E731
    monkeypatch.setattr(machine_checks.resource, "getrlimit", own)
    findings = Findings()
    machine_checks.check_limits(values or {"num_collect_workers": 1}, findings)
    return [*findings.errors, *(f"note: {note}" for note in findings.notes)]


def test_too_few_open_files_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits(monkeypatch) == limits(monkeypatch, NOFILE=72) == []
    (error,) = limits(monkeypatch, NOFILE=71)
    assert error.startswith("a process of the run opens up to 72 files, and 71 are allowed: ulimit -n 72, or as root")


def test_threads_of_all_roles_count_against_what_the_users_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    process = lambda uid, threads: types.SimpleNamespace(  # noqa: E731
        info={"uids": types.SimpleNamespace(real=uid), "num_threads": threads}
    )
    running = [process(1000, 30), process(0, 500), process(1000, 20), process(1000, None)]  # None: it is ending.
    monkeypatch.setattr(psutil, "process_iter", lambda attributes: running)
    monkeypatch.setattr(machine_checks.os, "getuid", lambda: 1000)
    # 80 of the replay server, 24 of the trainer and of each worker.
    two = {"num_collect_workers": 2}
    assert limits(monkeypatch, two, NPROC=50 + 80 + 3 * 24) == []
    (note,) = limits(monkeypatch, two, NPROC=50 + 80 + 3 * 24 - 1)
    words = "about 152 threads and 151 more are allowed (ulimit -u is 201, and this user has 50 now): raise that limit"
    assert note.startswith("note: ") and words in note
    (error,) = limits(monkeypatch, two, NPROC=50 + 75)
    assert "75 more are allowed" in error and not error.startswith("note: ")
    assert limits(monkeypatch, {**two, "server": "node:1"}, NPROC=98) == []
    assert limits(monkeypatch, {**two, "server": "node:1"}, NPROC=97)
    monkeypatch.setattr(machine_checks.os, "getuid", lambda: 0)
    assert limits(monkeypatch, two, NPROC=1) == [], "root has no such limit"


def test_the_pids_of_a_cgroup_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(processes, "_CGROUPS", tmp_path / "mounts")
    (tmp_path / "membership").write_text("0::/job\n")
    group = tmp_path / "mounts/job"
    group.mkdir(parents=True)
    (group / "pids.current").write_text("60\n")
    for most, left in (("100\n", [40]), ("max\n", [])):
        (group / "pids.max").write_text(most)
        found = machine_checks._threads_left()
        assert [count for count, words in found if "pids.max of the cgroup" in words] == left
