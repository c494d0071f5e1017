"""A data set of three episodes of Pendulum, and its import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.experience import data_sets, transfer
from tfagents_system.experience.data_sets import NamedEpisode
from tfagents_system.replay.stored_ring import StoredRing

PARAMS = """
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    discount = 0.5
    normalize_rewards = True

    def env_ctor(self, *args, seed=None, **kwargs):
        return gymnasium.make("Pendulum-v1")
"""


def episode(steps: int, first: float, is_terminated: bool) -> NamedEpisode:
    step = np.arange(steps + 1, dtype=np.float32)
    return NamedEpisode(
        {"": np.stack([np.full(steps + 1, first, np.float32), step, -step], axis=1)},
        {"": (np.arange(steps, dtype=np.float32)[:, None] % 5 - 2)},  # Pendulum's torques are in [-2, 2].
        np.arange(steps, dtype=np.float32),
        is_terminated,
    )


EPISODES = [episode(5, 1, True), episode(7, 2, False), episode(1, 3, True)]


def columns(folder: Path, *episodes: NamedEpisode) -> dict[str, Any]:
    """Those of a file with these episodes, or EPISODES: data.npz in the folder."""
    data_sets.write_npz(folder / "data.npz", episodes or EPISODES)
    with np.load(folder / "data.npz") as file:
        return dict(file)


def imported(source: str, out: Path, files: dict[str, str]) -> tuple[StoredRing, list[str], list[str]]:
    notes: list[str] = []
    lines = transfer.import_into(source, out, None, files["params"], files["config"], notes.append)
    return StoredRing(out), lines, notes
