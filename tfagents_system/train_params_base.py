"""TrainParamsBase: what a user's params file derives from, with every hook that it may override.

A user writes one file with `class TrainParams(TrainParamsBase)`, implements `env_ctor`, and changes other attributes:

    class TrainParams(TrainParamsBase):
        discount = 0.98

        def env_ctor(self, *args, seed=None, **kwargs):
            return gymnasium.make("Pendulum-v1", **kwargs)

Attributes may be set on the class, as above, or in `__init__` after `super().__init__(env_config)`. hyperparameters.py
describes each of them.

This module needs nothing but Python 3.9: the defaults that need TensorFlow or Reverb import them when they are called.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfagents_system.hyperparameters import Hyperparameters

if TYPE_CHECKING:
    from tfagents_system.envs.env_process import ProcessSettings
    from tfagents_system.replay.sampling import SampleForm
    from tfagents_system.trainer.training_log import Logged

EnvArgsKwargs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class ParamsSource:
    """The source of TrainParams, from which another process can load the same.

    Attributes:
      path: The file.
      origin: Where it was copied from; None: it is the original.
      env_config, compute_config: What the constructor got, and what was filled in.
      attributes: What was overridden.
      process: Of each environment; None: it runs where it is built.
    """

    path: Path
    origin: Path | None
    env_config: dict[str, Any]
    compute_config: dict[str, Any]
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    process: ProcessSettings | None = None


class TrainParamsBase(Hyperparameters, abc.ABC):
    """Hyperparameters of an algorithm and the hooks that build its parts.

    Args:
      env_config: The dictionary read from SAC_CONFIG. Its key `horizon` is the maximum number of steps of an episode;
        without it a start takes the environment's own time limit.
      compute_config: What the run may use: `num_collect_workers`, `collect_worker_cpus`, `train_cpus`, `reverb_cpus`
        and `seed`. A constructor with this argument gets it, otherwise it is filled in after the constructor. Empty
        where a policy is only played: ask it by `get`.
    """

    _source: ParamsSource | None = None

    def __init__(self, env_config: Mapping[str, Any], compute_config: Mapping[str, Any] | None = None) -> None:
        self.env_config: dict[str, Any] = dict(env_config)
        self.compute_config: dict[str, Any] = dict(compute_config or {})

    @property
    def horizon(self) -> int:
        """Maximum steps of an episode; an episode that reaches it is truncated, not terminated."""
        return int(self.env_config["horizon"])

    # Environments.

    @abc.abstractmethod
    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        """Builds one environment.

        Args:
          *args: The tuple of `collect_env_args_kwargs` or `eval_env_args_kwargs`.
          seed: Differs between workers, between collecting and evaluating, and between two starts of a worker.
          **kwargs: The dictionary of the same two hooks.

        Returns:
          A TF-Agents PyEnvironment, or a Gymnasium or gym environment as it is.
        """

    def collect_env_args_kwargs(self, id: int = 0) -> EnvArgsKwargs:
        """Arguments of `env_ctor` for a collect environment; an override may take no arguments.

        Args:
          id: Number of the worker, from 0; with several environments a worker, worker * SAC_ENVS_PER_WORKER + index.
        """
        del id
        return (), {}

    def eval_env_args_kwargs(self, id: int = 0, collect_env: Any = None) -> EnvArgsKwargs:
        """Arguments of `env_ctor` for an evaluation environment; an override may take no arguments.

        An environment with a method `set_evaluation_episode(number)` is told which of an evaluation's episodes begins.

        Args:
          id: As of the collect environment beside it.
          collect_env: What `env_ctor` returned for the collect environment beside it. Where there is none (a worker
            that only evaluates, `sac play`, SAC_ENV_PYTHON): one that is built for this call, and closed after it.
        """
        del id, collect_env
        return (), {}

    # Networks and agent.

    def actor_ctor(self, observation_spec: Any, action_spec: Any) -> Any:
        """Builds the actor: a TF-Agents network from observations to action distributions within `action_spec`."""
        from tfagents_system.agents.networks import build_actor

        return build_actor(self, observation_spec, action_spec)

    def critic_ctor(self, observation_spec: Any, action_spec: Any) -> Any:
        """Builds one critic: a TF-Agents network from (observation, action) to Q-values `[B]` (`[B, T]` recurrent).

        Where `algorithm` is `tqc`: to quantiles, with an axis of `num_quantiles` behind these.
        """
        from tfagents_system.agents import algorithms
        from tfagents_system.agents.networks import build_critic

        return build_critic(self, observation_spec, action_spec, algorithms.num_critic_outputs(self))

    def agent_ctor(self, time_step_spec: Any, action_spec: Any, train_step: Any) -> Any:
        """Builds the TFAgent that is trained.

        Args:
          time_step_spec: TimeStep of TensorSpecs, without batch dimension.
          action_spec: BoundedTensorSpec, or a nest of them: floats with bounds -1 and 1, to which environments' own
            bounds are scaled, or an int32 scalar from 0 to n - 1, the number of one of n actions.
          train_step: int64 scalar variable, which the agent counts up by one in each update.
        """
        from tfagents_system.agents import algorithms

        return algorithms.agent_class(self)(self, time_step_spec, action_spec, train_step)

    def sample_form_ctor(self) -> SampleForm:
        """Says what a sample is: what is drawn from the ring and how, the arrays of a minibatch, and their names.

        Replay server, trainer and workers each call it. An override may return a subclass of a form of
        replay/sampling.py, whose `draw` changes what is drawn.
        """
        from tfagents_system.replay import sampling

        return sampling.form_of(self)

    def callbacks_ctor(self) -> Sequence[Callable[[Logged], str | bool | None]]:
        """Callbacks in the trainer, called after each block of updates, each evaluation and each checkpoint.

        They decide from what is logged alone, so that a start after a kill decides the same. A text (or True) ends the
        run after its iteration as its normal end does, and is logged as the reason. One that raises ends the run as bad
        input does, with everything saved.
        """
        return ()

    def expert_policy_ctor(self) -> Callable[[Any], Any] | None:
        """What a worker of kind `expert` acts with, where SAC_EXPERT_POLICY names no saved policy.

        Returns:
          A function from an observation (a nest of arrays, unbatched) to an action in the environment's own units.
        """
        return None

    def potential(self, observation: Any) -> float:
        """How good it is to be at an observation: Phi of potential-based reward shaping (Ng, Harada and Russell, 1999).

        Called in each worker with every observation that is stored, as the policy gets it: an unbatched nest of arrays.
        With an override, samples have the reward r + g Phi(s') - Phi(s), g the whole factor of the next value: what is
        optimal stays so. Where a call raises, or the number is not finite, the environment counts as faulty.
        """
        del observation
        return 0.0

    # Observers: called in each worker with every Trajectory (unbatched numpy arrays), as TF-Agents' drivers do.

    def train_observers_ctor(self) -> Sequence[Callable[[Any], None]]:
        """Observers of collected steps. Those with `name` and `result()` (PyMetrics) are logged as `train/<name>`."""
        return ()

    def eval_observers_ctor(self) -> Sequence[Callable[[Any], None]]:
        """Observers of evaluation steps; those with `name` and `result()` are logged as `eval/<name>`."""
        return ()


def overrides_any(params: TrainParamsBase, *hooks: str) -> bool:
    """Whether a user's class or object has one of these hooks of its own."""
    return any(getattr(getattr(params, hook), "__func__", None) is not getattr(TrainParamsBase, hook) for hook in hooks)
