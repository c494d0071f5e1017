"""Nothing makes a run directory again that was moved away: it may be put back."""

import contextlib
from pathlib import Path
from types import ModuleType

import pytest
import tensorflow as tf

from tests.support.agent_for_tests import build_quiet
from tests.support.checkpoints_for_tests import checkpoints_of
from tests.support.numpy_actors import ACTION, VECTOR, build
from tfagents_system.envs.actions import actions_of
from tfagents_system.machine.watchdog import Watchdog
from tfagents_system.run_files.heartbeat import Heartbeat
from tfagents_system.run_files.rows_file import RowsFile
from tfagents_system.run_files.run_checkpoints import newest_complete
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer import policy_export, trainer_checkpoints
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.trainer.session import next_session
from tfagents_system.trainer.trainer_checkpoints import SaveError


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    (tmp_path / "run").mkdir()
    return RunPaths(tmp_path / "run")


def moved_while_it_is_written(monkeypatch: pytest.MonkeyPatch, module: ModuleType, exp_dir: Path) -> None:
    """The directory is moved to `elsewhere` after all preparations, before TensorFlow writes."""
    held = module.held

    @contextlib.contextmanager
    def moving(folder: Path):
        with held(folder) as path:
            exp_dir.rename(exp_dir.with_name("elsewhere"))
            yield path

    monkeypatch.setattr(module, "held", moving)


@pytest.mark.parametrize("write", ["save_models", "save_checkpoint"])
def test_policies(paths, monkeypatch, write):
    export = PolicyExport(paths, build(VECTOR), actions_of(ACTION), tf.Variable(7, dtype=tf.int64))
    with monkeypatch.context() as patch:
        moved_while_it_is_written(patch, policy_export, paths.exp_dir)
        with pytest.raises(FileNotFoundError):  # The folder that was written can't be put in its place.
            getattr(export, write)()
    assert not paths.exp_dir.exists()
    paths.exp_dir.with_name("elsewhere").rename(paths.exp_dir)
    export.save_models()
    assert export.has_models(), "put back, it goes on"


def test_checkpoints(paths, monkeypatch):
    folder = paths.trainer_checkpoints
    checkpoints, _ = checkpoints_of(folder, build_quiet())
    with monkeypatch.context() as patch:
        moved_while_it_is_written(patch, trainer_checkpoints, paths.exp_dir)
        with pytest.raises(SaveError, match="can't be written"):
            checkpoints.save(5.0, {}, wait=True)
    assert not paths.exp_dir.exists()
    paths.exp_dir.with_name("elsewhere").rename(paths.exp_dir)
    checkpoints.save(5.0, {}, wait=True)
    assert newest_complete(folder) is not None


def test_what_a_role_that_is_started_again_begins_with(paths):
    paths.exp_dir.rename(paths.exp_dir.with_name("elsewhere"))
    Heartbeat(paths.heartbeat("trainer"), "trainer").beat("starting")
    assert next_session(paths.trainer_session, last=0) > 0
    RowsFile(paths.metrics_csv, ["train_step"], "metrics").add([{"train_step": 1}])
    with pytest.raises(FileNotFoundError):
        Watchdog(paths.hang("worker_0"), 10.0)
    assert not paths.exp_dir.exists()


def test_reasons_are_those_of_the_system(tmp_path):
    tensor = tf.zeros(3)
    with pytest.raises(tf.errors.OpError) as caught:
        (tmp_path / "file").touch()
        tf.io.write_file(str(tmp_path / "file" / "below"), tf.io.serialize_tensor(tensor))
    assert trainer_checkpoints.reason_of(caught.value) == "Not a directory"
    assert trainer_checkpoints.reason_of(OSError(28, "No space left on device")) == "No space left on device"
