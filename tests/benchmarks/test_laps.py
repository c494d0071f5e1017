"""Laps on held-out tracks, with the curriculum's last values."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning.laps import laps
from tfagents_system.run_files.run_paths import RunPaths

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of the example, as far as laps need it."""
    paths = RunPaths(tmp_path)
    shutil.copy(ROOT / "tfagents_system/examples/racing/params.py", paths.params)
    shutil.copy(ROOT / "config/racing.json", paths.config)
    return tmp_path


def test_the_drivers_laps_are_those_of_the_documents(run: Path) -> None:
    found = laps(run, lambda env, observation: env.driver_action())
    assert found == {
        f"closed/held_out/{k}": pytest.approx(seconds, abs=0.005)
        for k, seconds in enumerate((34.03, 29.26, 33.48, 31.53, 25.77))
    }


def test_a_car_that_stands_finishes_no_lap(run: Path) -> None:
    found = laps(run, lambda env, observation: np.array([-1.0, 1.0, 0.0], np.float32))
    assert list(found.values()) == [None] * 5
