"""A small run that is prepared and not started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tfagents_system.launch import forks, prepare
from tfagents_system.launch.run_settings import RunSettings
from tfagents_system.run_files.run_paths import RunPaths

PARAMS = """
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase

class TrainParams(TrainParamsBase):
    num_iter = 3
    updates_per_iter = 5
    batch_size = 32
    buffer_size = 200

    def env_ctor(self, *args, seed=None, **kwargs):
        return gymnasium.make("Pendulum-v1")
"""


def variables_of_run(tmp_path: Path) -> dict[str, str]:
    """The environment of its start; writes its files."""
    (tmp_path / "params.py").write_text(PARAMS)
    (tmp_path / "config.json").write_text('{"horizon": 20}')
    sizes = {
        "SAC_REVERB_CPUS": "1",
        "SAC_TRAIN_CPUS": "1",
        "SAC_NUM_COLLECT_WORKERS": "1",
        "SAC_COLLECT_WORKER_CPUS": "1",
    }
    inputs = {"SAC_PARAMS": str(tmp_path / "params.py"), "SAC_CONFIG": str(tmp_path / "config.json")}
    run = {"SAC_EXP_NAME": "try", "SAC_EXP_DIR": str(tmp_path / "run"), "SAC_SHARE_CPUS": "1", "SAC_SEED": "5"}
    return {**os.environ, **sizes, **inputs, **run}


def train(paths: RunPaths) -> None:
    """As if updates had been done."""
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')


def prepare_run(environ: Mapping[str, str], settings: RunSettings | None = None) -> bool:
    """Prepares it as a start does, and gives it back; False if the run is finished already."""
    prepared = prepare.prepare(prepare.Preparation(environ, None, settings))
    if prepared is not None:
        prepared[1].release()
    return prepared is not None


def try_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial of a user's code is no fork: a fork of a process with TensorFlow's threads would hang."""
    monkeypatch.setattr(forks, "call", lambda function, *_: function(lambda inspection: None))
    monkeypatch.setattr(forks, "import_all", lambda look: None)
