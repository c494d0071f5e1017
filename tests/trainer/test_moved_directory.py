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
from tfagents_system.run_files import metrics
from tfagents_system.run_files.heartbeat import Heartbeat
from tfagents_system.run_files.kept_checkpoints import newest_complete
from tfagents_system.run_files.metrics import MetricsLog, RowsFile, read_rows
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer import policy_export, trainer_checkpoints
from tfagents_system.trainer.policy_export import PolicyExport
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


@pytest.mark.parametrize("write", ["save_model", "save_checkpoint"])
def test_policies(paths, monkeypatch, write):
    export = PolicyExport(paths, build(VECTOR), actions_of(ACTION), tf.Variable(7, dtype=tf.int64))
    with monkeypatch.context() as patch:
        moved_while_it_is_written(patch, policy_export, paths.exp_dir)
        with pytest.raises(FileNotFoundError):  # The folder that was written can't be put in its place.
            getattr(export, write)()
    assert not paths.exp_dir.exists()
    paths.exp_dir.with_name("elsewhere").rename(paths.exp_dir)
    export.save_model()
    assert export.has_model(), "put back, it continues"


def test_checkpoints(paths, monkeypatch):
    folder = paths.trainer_checkpoints
    checkpoints, _ = checkpoints_of(folder, build_quiet())
    with monkeypatch.context() as patch:
        moved_while_it_is_written(patch, trainer_checkpoints, paths.exp_dir)
        with pytest.raises(SaveError, match="can't be written"):
            checkpoints.save(5.0, wait=True)
    assert not paths.exp_dir.exists()
    paths.exp_dir.with_name("elsewhere").rename(paths.exp_dir)
    checkpoints.save(5.0, wait=True)
    assert newest_complete(folder) is not None


@pytest.mark.parametrize("is_prepared", [False, True])
def test_summaries(paths, monkeypatch, is_prepared):
    """With the first row that has a side, such as the first evaluation, TensorFlow makes the folder of its events."""
    log = MetricsLog(paths, [])
    log.write({"train_step": 1, "critic_loss": 0.5})
    moved = paths.exp_dir.with_name("elsewhere")
    if is_prepared:
        moved_while_it_is_written(monkeypatch, metrics, paths.exp_dir)
    else:
        paths.exp_dir.rename(moved)
    log.write({"train_step": 2, "eval_return": 1.0})
    assert not paths.exp_dir.exists()
    assert bool(list(moved.glob("eval/events*"))) == is_prepared
    moved.rename(paths.exp_dir)
    monkeypatch.undo()
    log.write({"train_step": 3, "eval_return": 2.0})
    log.close()
    assert list(paths.eval_summaries.glob("events*")) and list(paths.train_summaries.glob("events*"))
    assert [row["train_step"] for row in read_rows(paths.metrics_csv)] == [1, 2, 3]


def test_what_a_role_that_is_started_again_begins_with(paths):
    paths.exp_dir.rename(paths.exp_dir.with_name("elsewhere"))
    Heartbeat(paths.heartbeat("trainer"), "trainer").beat("starting")
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
