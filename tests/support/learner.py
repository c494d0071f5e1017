"""A learner in the tests' process: the way of the data as in a run, without its processes and server.

Environment, episodes, segments, ring, draws, updates, and the policy that workers act with: all the toolkit's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support.acting import action
from tfagents_system.agents.agent import ScheduledValues, make_agent
from tfagents_system.agents.block_update import make_block_update
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.policies import weights
from tfagents_system.policies.worker_policy import LaneSteps, make_worker_policy
from tfagents_system.replay import sampling
from tfagents_system.replay.ring import Ring, ring_rows
from tfagents_system.replay.server import draw_settings
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.segments import run_layout
from tfagents_system.worker.actors import PolicyActor, RandomActor
from tfagents_system.worker.rollout import Rollout, SegmentBuilder, segment_builder

_SEED = 5
_BLOCK = 100


class Learner:
    """One worker, one ring and one trainer, in turn.

    Args:
      folder: Of the ring.
      env_ctor: Builds the environment, in Gymnasium's way.
      horizon: Steps of an episode.
      attributes: Of TrainParams.
    """

    def __init__(self, folder: Path, env_ctor: Callable[[], Any], horizon: int, **attributes: Any) -> None:
        own = {"buffer_size": 1000 * horizon, **attributes, "env_ctor": lambda self, **_: env_ctor()}
        params_class = type("TrainParams", (TrainParamsBase,), own)
        self.params: TrainParamsBase = params_class({"horizon": horizon})
        self.env = TrainingEnvironment(self.params.env_ctor(), horizon, seed=_SEED)
        observation_spec, action_spec = self.env.observation_spec(), self.env.action_spec()
        self.layout = run_layout(self.params, observation_spec, action_spec)
        self.ring = Ring.open(folder, self.layout, *ring_rows(self.params, self.layout))
        tf.keras.utils.set_random_seed(_SEED)
        seen, acted = tensor_spec.from_spec((observation_spec, action_spec))
        self.agent = make_agent(self.params, seen, acted, tf.Variable(0, dtype=tf.int64))
        self._scheduled = ScheduledValues(self.params, self.agent)
        self.update = make_block_update(self.params, self.agent, self.params.matmul_precision, _SEED)
        goals = self.env.goal_functions
        self._settings = dataclasses.replace(draw_settings(self.params, self.layout, _SEED), goals=goals)
        self._rng = np.random.default_rng(_SEED)
        self._policy = make_worker_policy(self.agent, _SEED)
        self._trained = weights.named_variables(self.agent.collect_policy)
        self._segments = 0
        self.actor()  # Workers get the policy before the first update, too.

    def collect(self, episodes: int) -> None:
        """Adds whole episodes of uniformly random actions to the ring."""
        actor = RandomActor(self.env.action_spec(), self._rng)
        Rollout([self.env], actor, new_builder=self._new_builder).episodes(episodes)

    def _new_builder(self) -> SegmentBuilder:
        return segment_builder(self.params, self.layout, self._store, held_out=False, number=self._segments)

    def train(self, updates: int) -> dict[str, float]:
        """So many updates; the losses of the last block."""
        losses: dict[str, float] = {}
        while updates > 0:
            count = min(updates, _BLOCK)
            self._scheduled.assign(0, int(self.agent.train_step_counter), 0)
            losses = self.update(sampling.draw(self.ring, self._rng, self._settings, count))
            updates -= count
        return losses

    def actor(self, greedy: bool = True) -> PolicyActor:
        """The policy as a worker has it, with the weights of now."""
        self._policy.assign(weights.read_weights(self._trained))
        return PolicyActor(self._policy, greedy)

    def greedy_choice(self, observation: Any) -> int:
        """The worker's greedy action, one of n."""
        actor = self.actor()
        actor.reset([0])
        return int(action(actor, ts.restart(observation)))

    def q_of_each(self, observations: Any, actions: np.ndarray) -> np.ndarray:
        """Values `[critics, B]` of B observations, each with one of B actions, in units of the reward.

        Of quantiles their mean, of categories the expected value.
        """
        batch = tf.nest.map_structure(tf.constant, observations)
        outputs = [critic((batch, tf.constant(actions, tf.float32)))[0] for critic in self.agent.critics]
        values = np.array([self.agent.value_of(output) for output in outputs])
        return values * self.reward_divisor

    @property
    def reward_divisor(self) -> float:
        """Of rewards that are learned from."""
        scale = getattr(self.agent, "reward_scale", None)
        return 1.0 if scale is None else float(scale.divisor)

    def sampled_actions(self, observation: Any, count: int) -> np.ndarray:
        """Actions `[count, dim]` of the worker's policy at an observation."""
        self.actor()  # With the weights of now.
        first = LaneSteps.of([ts.restart(observation)] * count)
        return self._policy.with_lanes(count).act(first, False)[0]

    def _store(self, segment: Any) -> None:
        segment.incarnation, segment.number = 1, self._segments
        assert self.ring.append(segment)
        self._segments += 1
