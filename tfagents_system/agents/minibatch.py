"""What an update learns from: a minibatch of the replay server's arrays, and its steps as losses see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common

from tfagents_system.envs.history import with_horizon_time, without_horizon_time

if TYPE_CHECKING:
    from tfagents_system.replay.sampling import SampleForm

Measured = dict[str, tuple[tf.Tensor, tf.Tensor]]
"""By name: a value, and 1 or 0 for whether this update has measured it. Unmeasured values are 0."""
TD_ERRORS = "td_errors"
"""In Measured where samples have weights `[B]`: |y - Q(s, a)| `[B]`, mean over the critics, of means of quantiles."""


class Minibatch(NamedTuple):
    """What one update learns from.

    Attributes:
      experience: A Transition `[B, ...]`, or for recurrent networks a Trajectory `[B, T + 1, ...]`.
      weight: Weight of each transition in all losses, `[B, T]` including the burn-in; the mean after the burn-in is 1,
        see `Sequences`. Or importance weights of samples, `[B]`. None: all weights are equal.
      burn_in_steps: The first steps of each sequence only produce the state in which the losses of the others begin
        (Kapturowski et al., Recurrent Experience Replay in Distributed RL, 2019).
    """

    experience: Any
    weight: tf.Tensor | None = None
    burn_in_steps: int = 0


class Views(NamedTuple):
    """In the place of an observation, where actor and critics do not see the same.

    Attributes:
      actor: The parts that the actor sees; of images the pixels, for an encoder of its own.
      critics: All of it, with features for images.
    """

    actor: Any
    critics: Any


class Steps(NamedTuple):
    """Steps in the losses and, for recurrent networks, the steps before them.

    Attributes:
      time_steps: `[B, (T,) ...]`.
      actions: Taken there, `[B, (T,) ...]`; None where only the actor's own ones are wanted.
      past: The burn-in before them with its actions, or None.
      weight: Weight of each step's loss, `[B, T]`, or of each sample's, `[B]`; None: all weights are equal.
    """

    time_steps: ts.TimeStep
    actions: Any
    past: tuple[ts.TimeStep, Any] | None = None
    weight: tf.Tensor | None = None


def of_actor(time_steps: ts.TimeStep) -> ts.TimeStep:
    """What the actor sees of encoded time steps."""
    return _view(time_steps, "actor")


def of_critics(time_steps: ts.TimeStep) -> ts.TimeStep:
    """What the critics see of encoded time steps."""
    return _view(time_steps, "critics")


def _view(time_steps: ts.TimeStep, name: str) -> ts.TimeStep:
    observation = time_steps.observation
    return time_steps._replace(observation=getattr(observation, name)) if isinstance(observation, Views) else time_steps


def cut_burn_in(steps: Steps, next_time_steps: ts.TimeStep, burn_in_steps: int) -> tuple[Steps, Steps]:
    """Steps and next steps of a sequence after its burn-in, each with the burn-in as its past."""
    if burn_in_steps == 0:
        return steps, Steps(next_time_steps, None)
    head, tail = slice(None, burn_in_steps), slice(burn_in_steps, None)
    past = _cut(steps.time_steps, head), _cut(steps.actions, head)
    # The actions at next observations are the sequence's following actions.
    next_past = _cut(next_time_steps, head), _cut(steps.actions, slice(1, burn_in_steps + 1))
    weight = None if steps.weight is None else steps.weight[:, tail]
    return (
        Steps(_cut(steps.time_steps, tail), _cut(steps.actions, tail), past, weight),
        Steps(_cut(next_time_steps, tail), None, next_past),
    )


def _cut(nest: Any, steps: slice) -> Any:
    """Of tensors `[B, T, ...]`."""
    return tf.nest.map_structure(lambda tensor: tensor[:, steps], nest)


def all_measured(values: dict[str, tf.Tensor]) -> Measured:
    """Values of an update that measures each of them."""
    return {name: (value, tf.constant(1.0)) for name, value in values.items()}


def weighted_mean(values: tf.Tensor, weight: tf.Tensor | None) -> tf.Tensor:
    """Of what was drawn with importance weights: sum(w v) / sum(w); the mean where there are none."""
    if weight is None:
        return tf.reduce_mean(values)
    return tf.reduce_sum(values * weight) / tf.reduce_sum(weight)


def batch_mean(per_example: tf.Tensor, weight: tf.Tensor | None, regularization: Any = None) -> tf.Tensor:
    """Mean over the batch of the weighted sum over time, if any, plus the networks' own losses."""
    if weight is not None:
        per_example *= weight
    if per_example.shape.rank > 1:
        per_example = tf.reduce_sum(per_example, range(1, per_example.shape.rank))
    return common.aggregate_losses(per_example_loss=per_example, regularization_loss=regularization).total_loss


class MinibatchArrays:
    """The arrays of a minibatch as a form of samples names them, and the Minibatch that they make.

    Args:
      agent: For the specs of observations and actions, and its `reward_scale`, if any.
      form: What a sample is.
      batch_size: B.

    Attributes:
      specs: Of each array: `[B, ...]`, or `[B, T + 1, ...]` of sequences.
    """

    def __init__(self, agent: tf_agent.TFAgent, form: SampleForm, batch_size: int) -> None:
        self._form = form
        self.reward_scale = getattr(agent, "reward_scale", None)
        observation_spec = agent.time_step_spec.observation
        if form.has_horizon_time:
            observation_spec = without_horizon_time(observation_spec)
        nests = {"observation": observation_spec, "action": agent.action_spec}
        self._of_one_step: dict[str, Any] = {
            name: nests.get(kind) or tf.TensorSpec((), kind)
            for name, kind in form.arrays(has_returns=self.reward_scale is not None).items()
        }
        outer = (batch_size,) if form.sequence_length is None else (batch_size, form.sequence_length + 1)
        leaves = tf.nest.flatten(tuple(self._of_one_step.values()))
        self.specs = [tf.TensorSpec((*outer, *spec.shape), spec.dtype) for spec in leaves]

    def named(self, arrays: list[tf.Tensor]) -> dict[str, Any]:
        """The nests of a block's or a minibatch's arrays; observations as the agent takes them."""
        specs = self._of_one_step
        # A tuple: tf.nest would sort the keys of a dictionary.
        named = dict(zip(specs, tf.nest.pack_sequence_as(tuple(specs.values()), arrays), strict=True))
        if self._form.has_horizon_time:
            for name in ("observation", "next_observation"):
                time = named[name.replace("observation", "horizon_time")]
                named[name] = with_horizon_time(named[name], time[..., None])
        return named

    def minibatch(self, arrays: list[tf.Tensor]) -> Minibatch:
        """What an update of the agent learns from."""
        named = self.named(arrays)
        if self._form.sequence_length is not None:
            return Minibatch(self._to_trajectory(named), named["weight"][:, :-1], self._form.burn_in)
        return Minibatch(self._to_transition(named), named["weight"] if self._form.is_prioritized else None)

    def rows(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The numbers of rows `[K, B]` among the arrays of a block, of its one or two parts."""
        lengths = {name: len(tf.nest.flatten(spec)) for name, spec in self._of_one_step.items()}
        place = sum(lengths[name] for name in list(lengths)[: list(lengths).index("row")])
        return np.concatenate(arrays[place :: sum(lengths.values())], axis=1)

    def _to_transition(self, named: dict[str, Any]) -> trajectory.Transition:
        reward, discount = self._scaled(named["reward"]), named["discount"]
        mid = tf.fill(tf.shape(reward), ts.StepType.MID)
        # The next time step: a discount of 0 is a termination.
        next_step_type = tf.where(discount == 0.0, ts.StepType.LAST, mid)
        return trajectory.Transition(
            ts.TimeStep(mid, tf.zeros_like(reward), tf.ones_like(reward), named["observation"]),
            policy_step.PolicyStep(named["action"]),
            ts.TimeStep(next_step_type, reward, discount, named["next_observation"]),
        )

    def _to_trajectory(self, named: dict[str, Any]) -> trajectory.Trajectory:
        step_type, reward = named["step_type"], self._scaled(named["reward"])
        next_step_type = tf.concat([step_type[:, 1:], step_type[:, -1:]], axis=1)
        return trajectory.Trajectory(
            step_type, named["observation"], named["action"], (), next_step_type, reward, named["discount"]
        )

    def _scaled(self, reward: tf.Tensor) -> tf.Tensor:
        return reward if self.reward_scale is None else self.reward_scale(reward)
