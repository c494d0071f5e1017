"""A disk or directory that is lost: told in words, the last checkpoint is intact, and the run resumes."""

import contextlib
import os
import subprocess

import numpy as np
import pytest

from tests.faults import ledger
from tests.faults.campaign import ITERATION_SECS, UPDATES, Campaign, NumberedRun
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.run_paths import TRAINER

pytestmark = pytest.mark.slow

ITERATIONS_AFTER = 20  # Made once all is well again.
CHECKPOINT_SECS = 6.0  # SAC_CHECKPOINT_MINUTES of a NumberedRun


@contextlib.contextmanager
def training(folder, iterations, command_prefix=(), **variables):
    """A run that trains, with one checkpoint at least.

    Args:
      iterations: What is lost may end a run only when it saves for the last time: a few more than it makes until then.
    """
    # Saving in the end is tried once.
    run = NumberedRun(folder, iterations, num_collect_workers=1, save_deadline_secs=15, **variables)
    run.command_prefix = command_prefix
    campaign = Campaign(run, seed=0, say=print)
    try:
        run.set_pace(ITERATION_SECS / 2)
        campaign.start()
        assert campaign.wait_until(lambda: newest(run) is not None and campaign.iteration_of(TRAINER) > 5, 300.0)
        yield run, campaign
    finally:
        campaign.close()
    assert campaign.violations == []


def newest(run):
    return kept_checkpoints.newest_complete(run.paths.trainer_checkpoints)


def num_episodes(run):
    """That its workers have begun."""
    return sum(len(np.unique(start.steps["episode"])) for start in ledger.read_journals(run.journal))


def fails(campaign, *words, pace=ITERATION_SECS / 8):
    """The run ends with exit code 1, in these words, and leaves nothing behind."""
    campaign.run.set_pace(pace)
    code = campaign.process.wait(400.0)
    output = campaign.run.output.read_text()
    assert code == 1, output
    assert "error: " in output
    for word in words:
        assert word in output
    assert "Traceback" not in output
    campaign.check_nothing_left()


def resumes(campaign):
    """The same command continues from the last checkpoint to the end, soon now; every step is accounted for."""
    run, checkpoint = campaign.run, newest(campaign.run)
    assert checkpoint is not None
    end = run.iterations = checkpoint.iteration + ITERATIONS_AFTER
    campaign.start("--set", f"num_iter={end}")
    assert run.beat(TRAINER)["resumed_at_step"] == checkpoint.train_step
    assert campaign.finish() == 0
    assert run.trainer()["train_step"] == end * UPDATES
    assert run.balance().violations == []


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 320 MB, as much as a start asks for; root can mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=320m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder):
    """Takes all the space there is; returns the file that has it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for num_bytes in (2**20, 2**12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(num_bytes))
    return filler


# Root may write into any folder, unless it gave that up.
AS_ANYBODY = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []


def set_writable(folder, is_writable):
    """Whether files can be made in it and below; those that are there stay as they are."""
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o755 if is_writable else 0o555)


def test_a_full_disk_a_read_only_directory_and_one_that_is_gone(small_disk, tmp_path):
    with training(tmp_path, 300, AS_ANYBODY, exp_dir=small_disk / "run", max_restarts=1) as (run, campaign):
        run.set_pace(ITERATION_SECS)
        filler = fill(small_disk)
        # Logs, heartbeats and the checkpoint that is due every 6 s can't be written: training continues, as
        # the journals of the environments say. A worker collects no iteration before the updates of the last but one.
        episodes, checkpoint = num_episodes(run), newest(run)
        iterations = int(2.5 * CHECKPOINT_SECS / ITERATION_SECS)
        assert campaign.wait_until(lambda: num_episodes(run) >= episodes + iterations, 300.0)
        assert newest(run) == checkpoint
        assert "No space left on device" in run.log(TRAINER)
        output = run.output.read_text()
        assert f"{run.exp_dir} can't be written (No space left on device)" in output and "no heartbeat" not in output
        filler.unlink()
        assert campaign.wait_until(lambda: newest(run) != checkpoint, 300.0), "saving is tried again"

        run.set_pace(ITERATION_SECS / 4)
        set_writable(run.exp_dir, False)
        try:
            fails(campaign, "Permission denied", str(run.exp_dir))
        finally:
            set_writable(run.exp_dir, True)

        run.command_prefix = ()  # Where all is imported already.
        run.set_pace(ITERATION_SECS / 4)
        checkpoint = newest(run)
        campaign.start()
        assert run.beat(TRAINER)["resumed_at_step"] == checkpoint.train_step
        elsewhere = run.exp_dir.with_name("elsewhere")
        run.exp_dir.rename(elsewhere)
        fails(campaign, f"the run directory {run.exp_dir} was removed or replaced", pace=ITERATION_SECS)
        elsewhere.rename(run.exp_dir)

        resumes(campaign)
