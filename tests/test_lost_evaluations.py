"""Which workers the trainer still expects an evaluation from."""

import time
import types

import pytest

from tfagents_system.launch.run_paths import RunPaths
from tfagents_system.report.heartbeat import write_json
from tfagents_system.sac_train import Trainer

STRAGGLER_SECS = 30.0


@pytest.mark.parametrize(
    ("state", "since_secs", "silent_secs", "is_gone"),
    [
        ("evaluating", 600.0, 1.0, False),  # A long episode.
        ("collecting", 600.0, 1.0, False),  # It evaluates when its iteration is collected.
        ("waiting", 29.0, 1.0, False),
        ("waiting", 31.0, 1.0, True),  # It has evaluated and its report was lost, or it does not know that it should.
        ("evaluating", 600.0, 31.0, True),  # Paused or dead.
    ],
)
def test_workers_that_are_silent_or_wait_themselves_are_not_waited_for(
    tmp_path, state, since_secs, silent_secs, is_gone
):
    now = time.time()
    paths = RunPaths(tmp_path)
    beat = {"state": state, "since": now - since_secs, "time": now - silent_secs}
    write_json(paths.heartbeat("worker_3"), beat)
    trainer = Trainer.__new__(Trainer)
    trainer._role = types.SimpleNamespace(paths=paths)
    trainer._straggler_secs = STRAGGLER_SECS
    assert trainer._is_gone(3) == is_gone
    assert trainer._is_gone(4), "it was never heard of"
