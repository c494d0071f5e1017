"""Laps on held-out tracks, with the curriculum's last values."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks.learning import laps
from tfagents_system.errors import UserError
from tfagents_system.examples.racing.real_time import RacingDevice
from tfagents_system.run_files.run_paths import RunPaths

ROOT = Path(__file__).resolve().parents[2]
GAS, BRAKE = np.array([1.0, -1.0, 0.0], np.float32), np.array([-1.0, 1.0, 0.0], np.float32)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """A run of an example, as far as laps need it."""

    def made(example: str = "racing", **config: Any) -> Path:
        paths = RunPaths(tmp_path)
        shutil.copy(ROOT / f"tfagents_system/examples/{example}/params.py", paths.params)
        shipped = json.loads((ROOT / f"tfagents_system/examples/{example}/config.json").read_text())
        paths.config.write_text(json.dumps(shipped | config))
        return tmp_path

    return made


class Always:
    """A policy that always does the same; it knows what it saw, and how many steps each lap had."""

    def __init__(self, action: np.ndarray) -> None:
        self.action, self.seen, self.steps = action, [], []  # type: ignore[var-annotated]

    def reset(self) -> None:
        self.steps.append(0)

    def __call__(self, observation: Any) -> np.ndarray:
        self.steps[-1] += 1
        self.seen.append(observation)
        return self.action


def test_the_drivers_laps_are_those_of_the_documents(run: Callable[..., Path]) -> None:
    assert laps.driver_laps(run()) == {
        f"closed/held_out/{k}": pytest.approx(seconds, abs=0.005)
        for k, seconds in enumerate((34.03, 29.26, 33.48, 31.53, 25.77))
    }


def test_a_car_that_stands_finishes_no_lap(run: Callable[..., Path]) -> None:
    policy: Any = Always(BRAKE)
    assert laps.policy_laps(run(), policy) == {f"closed/held_out/{k}": None for k in range(5)}
    assert policy.steps == [100] * 5, "stuck after 5 s; each lap is an episode of its own"


def test_a_policy_of_real_time_drives_its_own_race(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """In wall time, with the actions before, on held-out tracks; the device's process ends with the laps."""
    folder = run("racing_real_time", horizon=30, racing={"observations": ["motion"], "held_out_tracks": 2})
    pids, real = [], RacingDevice.__init__

    def noted(self: Any, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        pids.append(self.pid)

    monkeypatch.setattr(RacingDevice, "__init__", noted)
    policy: Any = Always(GAS)
    assert laps.policy_laps(folder, policy) == {"closed/held_out/0": None, "closed/held_out/1": None}
    assert {part: value.shape for part, value in policy.seen[0].items()} == {"motion": (4,), "action_history": (9,)}
    assert policy.steps == [30, 30] and policy.seen[29]["action_history"].tolist() == [*GAS] * 3
    assert max(seen["motion"][0] for seen in policy.seen) > 1.0
    assert len(pids) == 1 and not psutil.pid_exists(pids[0])


def test_what_is_no_race_is_refused(run: Callable[..., Path]) -> None:
    folder = run("pendulum")
    policy: Any = Always(np.zeros(1, np.float32))
    with pytest.raises(UserError, match="its environment is no race on closed/held_out/0: give runs of"):
        laps.policy_laps(folder, policy)
