"""A worker's policy, or an actor, asked for the actions of time steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.policies.worker_policy import LaneSteps, WorkerPolicy


def actions(policy: WorkerPolicy, time_steps: Mapping[int, ts.TimeStep], greedy: bool) -> dict[int, np.ndarray]:
    """The actions in all lanes, by their numbers."""
    (chosen,) = policy.act(LaneSteps.of([time_steps[lane] for lane in range(policy.num_lanes)]), greedy)
    return dict(enumerate(chosen))


def action(policy: Any, time_step: ts.TimeStep, *greedy: bool) -> np.ndarray:
    """The action in the only lane, of a policy or of an actor."""
    return policy.act(LaneSteps.of([time_step]), *greedy)[0][0]


def steps_of(leaves: list[np.ndarray], spec: Any, *, is_first: bool = False) -> LaneSteps:
    """Of all lanes, from the leaves of their observations."""
    types, ones = np.full(len(leaves[0]), 0 if is_first else 1, np.int32), np.ones(len(leaves[0]), np.float32)
    return LaneSteps(types, 0 * ones, ones, leaves, tree.map_structure(lambda leaf: leaf, spec))


class LaneActor:
    """An actor that is asked lane by lane: `action(lane, time_step)`, and `begin(lane)` for each episode."""

    q_values: np.ndarray | None = None
    explored = was_greedy = np.zeros(64, np.bool_)

    def begin(self, lane: int) -> None:
        """An episode begins."""

    def action(self, lane: int, time_step: ts.TimeStep) -> np.ndarray:
        """The action in a lane."""
        raise NotImplementedError

    def reset(self, lanes: Any) -> None:
        for lane in lanes:
            self.begin(int(lane))

    def act(self, steps: LaneSteps) -> list[np.ndarray]:
        lanes = {lane for lane, step_type in enumerate(steps.step_type) if step_type != ts.StepType.LAST}
        actions = {lane: self.action(lane, steps.row(lane)) for lane in lanes}
        nothing = np.zeros_like(next(iter(actions.values())))
        return [np.stack([actions.get(lane, nothing) for lane in range(len(steps.step_type))])]
