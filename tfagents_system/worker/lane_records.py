"""Records the episodes of a vector environment, each lane's apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from tfagents_system.envs.batched_environment import BatchStep
from tfagents_system.envs.info_keys import RECORD_PREFIX
from tfagents_system.report.episodes import Episode
from tfagents_system.worker.recording import EpisodeRecord


class LaneRecords:
    """The records of the episodes under way.

    Args:
      new_record: Makes one for a lane.
      action_spec: The agent's, of one lane.
    """

    def __init__(self, new_record: Callable[[int], EpisodeRecord], action_spec: Any) -> None:
        self._new_record = new_record
        self._action_spec = action_spec
        self._records: dict[int, EpisodeRecord] = {}

    def begin(self, lane: int) -> None:
        """An episode that counts begins; one that was under way there is given up."""
        self._records[lane] = self._new_record(lane)

    def add(self, action: Sequence[np.ndarray], step: BatchStep, running: np.ndarray) -> None:
        """A step of the lanes with an episode that counts."""
        infos = [(_records_in(info), mask) for info, mask in step.infos]
        for lane in np.flatnonzero(running):
            of_lane = {
                key: values[lane]
                for info, mask in infos
                for key, (values, own) in info.items()
                if (mask is None or mask[lane]) and (own is None or own[lane])
            }
            taken = tree.unflatten_as(self._action_spec, [leaf[lane].copy() for leaf in action])
            self._records[int(lane)].add(taken, step.reward[lane], of_lane)

    def end(self, lane: int, episode: Episode) -> None:
        """The lane's episode has ended."""
        self._records.pop(lane).end(episode)


def _records_in(info: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What is recorded of an info: values of all lanes, and which lanes have one (Gymnasium's `_<key>`; None: all)."""
    return {
        key: (info[key], info.get(f"_{key}")) for key in info if isinstance(key, str) and key.startswith(RECORD_PREFIX)
    }
