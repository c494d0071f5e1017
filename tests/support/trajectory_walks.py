"""Walks along a recorded trajectory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tfagents_system.envs.trajectory_reward import TrajectoryReward, TrajectoryRewardSettings


def follow(points: np.ndarray, places: Iterable[Any], **settings: Any) -> tuple[list[float], list[int], str]:
    """Rewards, indices and the last step's end of a walk; it stops where the episode does."""
    reward = TrajectoryReward(points, TrajectoryRewardSettings(**settings))
    rewards, indices = [], []
    for place in places:
        paid, is_over = reward.step(place)
        rewards.append(paid)
        indices.append(reward.index)
        assert is_over == (reward.end != "")
        if is_over:
            break
    return rewards, indices, reward.end
