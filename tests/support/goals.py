"""A line on which goals are, and episodes on it in a ring: each observation says where it is from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from tf_agents.trajectories import time_step as ts

from tests.support.fakes import FakeParams
from tests.support.fed_builder import FedEpisode
from tfagents_system.replay.ring import Ring
from tfagents_system.transport.segments import Layout, Segment, from_wire
from tfagents_system.worker.rollout import SegmentBuilder

REACH = 1.5  # A goal is reached within that.


class Line(gymnasium.Env):
    """A place that an action moves by up to 1; the episode ends where the goal is reached."""

    observation_space = gymnasium.spaces.Dict(
        {
            name: gymnasium.spaces.Box(-50.0, 50.0, (size,))
            for name, size in (("observation", 2), ("achieved_goal", 1), ("desired_goal", 1))
        }
    )
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.goal = 0.0, float(self.np_random.integers(3, 6))
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.place += float(action[0])
        achieved, desired = np.array([self.place], np.float32), np.array([self.goal], np.float32)
        reward = float(self.compute_reward(achieved, desired, {}))
        return self._observation(), reward, bool(self.compute_terminated(achieved, desired, {})), False, {}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > REACH).astype(np.float64)

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        return np.linalg.norm(achieved_goal - desired_goal, axis=-1) <= REACH

    def _observation(self) -> dict[str, np.ndarray]:
        numbers = {"observation": [self.place, 0.0], "achieved_goal": [self.place], "desired_goal": [self.goal]}
        return {name: np.array(value, np.float32) for name, value in numbers.items()}


class GoalParams(FakeParams):
    """Params of a run with hindsight on the line."""

    hindsight_share = 0.8

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        return Line()


def goal_layout() -> Layout:
    spec = {
        name: np.zeros(size, np.float32)
        for name, size in (("observation", 3), ("achieved_goal", 1), ("desired_goal", 1))
    }
    return Layout.from_specs(spec, np.zeros(1, np.float32), ["episode"])


@dataclasses.dataclass
class Writer:
    """Writes episodes into a ring as workers do, a step at a time.

    Observations are `[worker, episode, step]`, the goal achieved in step t of episode e of worker w is
    1000 w + 100 e + t, the desired one -1 unless another is given. Rewards are -100 - t, so a relabelled one is seen.

    Attributes:
      ring: Gets the segments.
      max_steps, look_ahead, history: Of segments.
    """

    ring: Ring
    max_steps: int = 4
    look_ahead: int = 0
    history: int = 0
    numbers: dict[int, int] = dataclasses.field(default_factory=dict)

    def begin(self, worker: int, episode: int, *, held_out: bool = False, desired: float = -1.0) -> Episode:
        return Episode(self, worker, episode, held_out, desired)

    def whole(self, worker: int, episode: int, steps: int, *, terminates: bool = False, held_out: bool = False) -> None:
        """An episode from its beginning to its end."""
        under_way = self.begin(worker, episode, held_out=held_out)
        for step in range(steps):
            under_way.step(terminates=terminates and step == steps - 1)
        under_way.end()

    def send(self, worker: int, segment: Segment) -> None:
        number = self.numbers[worker] = self.numbers.get(worker, -1) + 1
        sent = dataclasses.replace(segment, worker_id=worker, incarnation=1, number=number)
        assert self.ring.append(from_wire(sent.to_wire(), self.ring.layout)[0])


class Episode:
    """An episode under way."""

    def __init__(self, writer: Writer, worker: int, episode: int, held_out: bool, desired: float) -> None:
        self.worker, self.episode, self.t, self.desired = worker, episode, 0, desired
        builder = SegmentBuilder(
            writer.ring.layout,
            writer.max_steps,
            lambda segment: writer.send(worker, segment),
            held_out=held_out,
            history=writer.history,
            look_ahead=writer.look_ahead,
            number=episode,
        )
        self._fed = FedEpisode(builder, ts.restart(self._seen()))

    def step(self, *, terminates: bool = False) -> None:
        reward = np.float32(-100 - self.t)
        self.t += 1
        discount = np.float32(0.0 if terminates else 1.0)
        self._fed.add(np.zeros(1, np.float32), ts.TimeStep(1, reward, discount, self._seen()))

    def cut(self) -> None:
        self._fed.pause()

    def end(self) -> None:
        self._fed.finish()

    def _seen(self) -> dict[str, np.ndarray]:
        numbers = {
            "observation": [self.worker, self.episode, self.t],
            "achieved_goal": [1000 * self.worker + 100 * self.episode + self.t],
            "desired_goal": [self.desired],
        }
        return {name: np.array(value, np.float32) for name, value in numbers.items()}


def goal_ring(folder: Path, capacity: int = 400, slack: int = 100, layout: Layout | None = None) -> Ring:
    return Ring.open(folder, layout or goal_layout(), capacity, slack)


def leaf(ring: Ring, name: str) -> np.ndarray:
    """A column of the observation, by its key."""
    names = [column.name for column in ring.layout.observation]
    return ring.observation[names.index(f"observation/{name}")]
