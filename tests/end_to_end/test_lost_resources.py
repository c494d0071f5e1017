"""No disk, no file descriptors, no run directory: told in words, the last checkpoint is intact, and the run resumes."""

import contextlib
import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.faults.campaign import ITERATION_SECS, UPDATES, Campaign, NumberedRun
from tfagents_system import run_checkpoints
from tfagents_system.launch.run_paths import TRAINER

pytestmark = pytest.mark.slow

ITERATIONS = 120


@contextlib.contextmanager
def training(folder, **variables):
    """A run that trains, with one checkpoint at least."""
    # Saving in the end is tried once.
    run = NumberedRun(folder, ITERATIONS, save_deadline_secs=15, **variables)
    campaign = Campaign(run, seed=0, say=print)
    try:
        run.set_pace(ITERATION_SECS / 4)
        campaign.start()
        assert campaign.wait_until(lambda: newest(run) is not None and campaign.iteration_of(TRAINER) > 10, 60.0)
        yield run, campaign
    finally:
        campaign.close()
    assert campaign.violations == []


def newest(run):
    return run_checkpoints.newest_complete(run.paths.trainer_checkpoints)


def fails(campaign, *words):
    """The run ends with exit code 1, in these words, and leaves nothing behind."""
    campaign.run.set_pace(0.0)
    code = campaign.wait_for_end(90.0)
    output = campaign.run.output.read_text()
    assert code == 1, output
    assert "error: " in output
    for word in words:
        assert word in output
    assert "Traceback" not in output
    campaign.check_nothing_left()


def resumes(campaign):
    """The same command goes on from the last checkpoint to the end; every step is accounted for."""
    run, checkpoint = campaign.run, newest(campaign.run)
    assert checkpoint is not None
    campaign.start()
    assert run.trainer()["resumed_at_step"] == checkpoint.train_step
    assert campaign.finish() == 0
    assert run.trainer()["train_step"] == ITERATIONS * UPDATES
    assert run.balance().violations == []


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 48 MB; root can mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder):
    """Takes all the space there is; returns the file that has it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(64 * 1024))
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1))
    return filler


def test_a_full_disk(small_disk, tmp_path):
    with training(tmp_path, exp_dir=small_disk / "run") as (run, campaign):
        filler = fill(small_disk)
        fails(campaign, "No space left on device", "checkpoint")
        filler.unlink()
        resumes(campaign)


def test_no_file_descriptors_left(tmp_path):
    with training(tmp_path) as (run, campaign):
        pid = campaign.pid(TRAINER)
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, used))
        fails(campaign, "Too many open files", "checkpoint")
        resumes(campaign)


def test_a_run_directory_that_is_moved_away(tmp_path):
    with training(tmp_path) as (run, campaign):
        run.exp_dir.rename(tmp_path / "elsewhere")
        fails(campaign, "was removed or replaced while the run was going")
        shutil.rmtree(run.exp_dir, ignore_errors=True)  # What roles had written meanwhile.
        (tmp_path / "elsewhere").rename(run.exp_dir)
        resumes(campaign)
