"""The trainer's GPU, and that nobody else sees one."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from tfagents_system.errors import UserError
from tfagents_system.machine.cpus import FOUND_GPUS, usable_gpus
from tfagents_system.trainer.learner import claim_gpu


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ["0", "1", "2"]),  # CUDA numbers those that are there.
        ({FOUND_GPUS: "GPU-8f2a, 3,-1,2"}, ["GPU-8f2a", "3"]),  # CUDA ends at the first that is none.
        ({"CUDA_VISIBLE_DEVICES": "5,6"}, ["5", "6"]),
        ({"CUDA_VISIBLE_DEVICES": "-1", FOUND_GPUS: "1"}, ["1"]),
        ({FOUND_GPUS: ""}, []),
        ({FOUND_GPUS: "NoDevFiles"}, []),
    ],
)
def test_those_that_may_be_used(tmp_path: Path, environ: dict[str, str], expected: list[str]) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia7", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert usable_gpus(environ, tmp_path) == expected


def test_wsl_has_one_device_file_whatever_gpus_there_are(tmp_path: Path) -> None:
    (tmp_path / "dxg").touch()
    assert usable_gpus({}, tmp_path) == ["0"] and usable_gpus({FOUND_GPUS: ""}, tmp_path) == []
    (tmp_path / "nvidia0").touch()
    assert usable_gpus({}, tmp_path) == ["0"]


def test_a_trainer_takes_memory_as_it_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    grown: list[tuple[str, bool]] = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one", "two"] if kind == "GPU" else [])
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, grows: grown.append((gpu, grows)))
    claim_gpu()
    assert grown == [("one", True), ("two", True)]


def test_a_trainer_without_the_gpu_that_was_wanted_says_so() -> None:
    with pytest.raises(UserError, match="TensorFlow finds no GPU"):
        claim_gpu()
