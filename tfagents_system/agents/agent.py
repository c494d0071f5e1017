"""The base of the toolkit's algorithms: a TFAgent with networks, optimizers and an update.

An algorithm is a file beside this one with a subclass, which builds its networks and defines `update` and `losses`.
`BlockUpdate` compiles the update; a TFAgent of any other class is trained by its own `train`. Workers build only the
part that acts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.agents import data_converter, tf_agent
from tf_agents.policies import tf_policy
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common, eager_utils

from tfagents_system.agents import algorithms
from tfagents_system.agents.algorithms import CLONING_WEIGHT, PARTS, clones_behaviour, optimizer_settings
from tfagents_system.agents.encoder import ImageEncoder
from tfagents_system.agents.minibatch import Measured, Minibatch, Noise
from tfagents_system.agents.normalization import MAX_NORMALIZED, RewardScale, RunningNormalization
from tfagents_system.checks.rules import Rule, broken, is_number
from tfagents_system.checks.schedules import Schedule, initial_value, is_schedule, schedulable
from tfagents_system.envs.history import policy_time_step_spec
from tfagents_system.errors import UserError, shown
from tfagents_system.hyperparameters import described_by
from tfagents_system.train_params_base import TrainParamsBase, overrides_any

Optimizer = Any  # tf.keras.optimizers.legacy.Optimizer, which has no types.
_RATES = tuple(f"{part}_learning_rate" for part in PARTS)


@dataclasses.dataclass(frozen=True)
class Acting:
    """The part of an agent that acts; workers use it as the agent.

    Attributes:
      network: An actor, with an encoder that is its own, or the network whose values choose actions.
      policy: Takes environments' observations, the parts that the actor sees.
      collect_policy: The one that explores.
      encoder: Of images, in front of the network and shared with the critics; None: there is none.
      encoded_spec: Spec of the network's input.
    """

    network: Any
    policy: tf_policy.TFPolicy
    collect_policy: tf_policy.TFPolicy
    encoder: ImageEncoder | None = None
    encoded_spec: Any = None


class Agent(tf_agent.TFAgent):
    """A TFAgent that says how a minibatch updates it.

    A subclass takes the first four arguments. It raises UserError if the actions are others, or networks that a hook
    has built can't be used.

    Args:
      params: Hyperparameters.
      time_step_spec, action_spec, train_step: As of `TrainParamsBase.agent_ctor`.
      acting: Its part that acts.
      critics, targets: Networks; one target for each critic, or none.
      is_recurrent: Whether the networks have a memory, and learn from sequences.

    Attributes:
      actor: Network that learns to act; None: a critic acts.
      encoder: Of images, shared by actor and critics; None: there is none.
      log_alpha: Logarithm of the entropy coefficient, a scalar variable; None: there is none.
      critic_optimizer, actor_optimizer, alpha_optimizer: None where nothing learns.
      copies_statistics: Whether targets get the batch statistics of the critics.
    """

    actor: Any = None
    encoder: Any = None
    log_alpha: tf.Variable | None = None
    actor_optimizer: Optimizer | None = None
    alpha_optimizer: Optimizer | None = None
    copies_statistics = True

    @staticmethod
    def build_acting(params: TrainParamsBase, time_step_spec: Any, action_spec: Any) -> Acting:
        """The part that acts, which is all that workers build."""
        raise NotImplementedError

    def __init__(
        self,
        params: TrainParamsBase,
        time_step_spec: Any,
        action_spec: Any,
        train_step: tf.Variable,
        acting: Acting,
        critics: Sequence[Any],
        targets: Sequence[Any],
        is_recurrent: bool = False,
    ) -> None:
        tf.Module.__init__(self, name=type(self).__name__)
        self.acting = acting
        # Before the policies, which may hold them, too: so checkpoints name their variables `critics/0/...`.
        self.critics, self.targets = list(critics), list(targets)
        super().__init__(
            time_step_spec,
            action_spec,
            policy=acting.policy,
            collect_policy=acting.collect_policy,
            train_sequence_length=None if is_recurrent else 2,
            train_step_counter=train_step,
        )
        self.critic_optimizer = build_optimizer(params, "critic")
        self.target_update_tau, self.target_update_period = params.target_update_tau, params.target_update_period
        self.gradient_clipping = params.gradient_clipping
        self.as_transition = data_converter.AsTransition(self.data_context, squeeze_time_dim=not is_recurrent)
        self.initialize()

    def learn_actor(self, params: TrainParamsBase) -> None:
        """Gives an agent with an actor the optimizer of that, and an entropy coefficient that is learned or fixed."""
        self.actor = self.acting.network
        self.actor_optimizer = build_optimizer(params, "actor")
        self.log_alpha = tf.Variable(params.sac_log_alpha, dtype=tf.float32, name="log_alpha")
        self.alpha_optimizer = build_optimizer(params, "alpha") if params.learn_entropy_coef else None

    # Cached properties: TensorFlow does not track these, so checkpoints name variables by their networks.

    @functools.cached_property
    def critic_variables(self) -> list[tf.Variable]:
        """Trainable ones of all critics."""
        return unique_variables(self.critics)

    @functools.cached_property
    def actor_variables(self) -> list[tf.Variable]:
        """Trainable ones of the actor."""
        return unique_variables([] if self.actor is None else [self.actor])

    # What an algorithm defines.

    def update(self, minibatch: Minibatch, noise: Noise) -> Measured:
        """One update of everything that learns, the train step's counter included.

        Returns:
          Losses by name; with importance weights `TD_ERRORS`, too.
        """
        raise NotImplementedError

    def losses(self, minibatch: Minibatch, noise: Noise) -> dict[str, tf.Tensor]:
        """The same losses without learning: networks run in inference mode and nothing changes."""
        raise NotImplementedError

    @property
    def optimized(self) -> dict[str, tuple[Optimizer, list[tf.Variable]]]:
        """By part, its optimizer and the variables that this steps."""
        of_encoder = [] if self.encoder is None else self.encoder.trainable_variables
        parts = {
            "critic": (self.critic_optimizer, [*self.critic_variables, *of_encoder]),
            "actor": (self.actor_optimizer, self.actor_variables),
            "alpha": (self.alpha_optimizer, [self.log_alpha]),
        }
        return {part: pair for part, pair in parts.items() if pair[0] is not None}

    @property
    def scheduled(self) -> dict[str, tf.Variable]:
        """Variables that a run's schedules change, by their attributes of TrainParams.

        float32, not trainable; an agent of one's own may have such a mapping, too. Those of the collect policy travel
        with its weights.
        """
        rates = {
            f"{part}_learning_rate": optimizer.scheduled_rate
            for part, (optimizer, _) in self.optimized.items()
            if hasattr(optimizer, "scheduled_rate")
        }
        return rates | getattr(self.collect_policy, "rates", {})

    # What all algorithms do alike.

    def minimize(
        self, loss_of: Callable[[], Any], variables: Sequence[tf.Variable], optimizer: Optimizer
    ) -> tuple[Any, Sequence[Any]]:
        """One step down the gradient of `loss_of()[0]`.

        Returns:
          What `loss_of` returned, and the gradients.
        """
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss, *others = loss_of()
        gradients = tape.gradient(loss, variables)
        self.apply(gradients, variables, optimizer)
        return (loss, *others), gradients

    def apply(self, gradients: Sequence[Any], variables: Sequence[tf.Variable], optimizer: Optimizer) -> None:
        """One step of an optimizer; `gradient_clipping` limits the norm of each variable's gradient."""
        grads_and_vars = list(zip(gradients, variables, strict=True))
        if self.gradient_clipping is not None:
            grads_and_vars = eager_utils.clip_gradient_norms(grads_and_vars, self.gradient_clipping)
        optimizer.apply_gradients(grads_and_vars)

    def move_targets(self) -> None:
        """Moves targets in every `target_update_period`-th update, after the train step was incremented."""
        if self.targets and self.target_update_period == 1:
            self._move_targets()
        elif self.targets:
            is_due = tf.equal(self.train_step_counter % self.target_update_period, 0)
            tf.cond(is_due, self._move_targets, lambda: None)

    def _move_targets(self) -> None:
        """Target <- target + tau * (critic - target); untrained values are copied (`copies_statistics`)."""
        tau = self.target_update_tau
        pairs = {
            target.ref(): (target, source)
            for critic, target_critic in zip(self.critics, self.targets, strict=True)
            for source, target in zip(critic.variables, target_critic.variables, strict=True)
        }
        for target, source in pairs.values():
            if not target.trainable and not self.copies_statistics:
                continue
            if not target.trainable or tau == 1.0:
                target.assign(source)
            elif tau > 0.0:  # One fused operation.
                tf.raw_ops.ResourceApplyGradientDescent(var=target.handle, alpha=tau, delta=target - source)

    def networks(self) -> dict[str, list[Any]]:
        """Those that learn and their targets; lists are empty where there is none."""
        return {
            "actor": [] if self.actor is None else [self.actor],
            "critics": list(self.critics),
            "targets": list(self.targets),
            "encoder": [] if self.encoder is None else [self.encoder],
        }

    def redraw(self, fresh: Agent) -> None:
        """Begins again with the networks and the entropy coefficient of `fresh`, which was never trained.

        All optimizers forget their moments (Nikishin et al., arXiv 2205.07802; D'Oro et al., Sample-efficient
        reinforcement learning by breaking the replay ratio barrier, 2023). Counters and the running statistics of
        observations stay.
        """
        drawn = fresh.networks()
        for part, networks in self.networks().items():
            for network, fresh_network in zip(networks, drawn[part], strict=True):
                kept = {variable.ref() for variable in statistics_of(network)}
                for variable, value in zip(network.variables, fresh_network.variables, strict=True):
                    if variable.ref() not in kept:
                        variable.assign(value)
        if self.log_alpha is not None:
            self.log_alpha.assign(fresh.log_alpha)
        for optimizer, _ in self.optimized.values():
            for variable in optimizer.variables():
                variable.assign(tf.zeros_like(variable))

    def _initialize(self) -> None:
        for critic, target in zip(self.critics, self.targets, strict=False):
            common.soft_variables_update(critic.variables, target.variables, tau=1.0)

    def _train(self, experience: Any, weights: Any = None) -> tf_agent.LossInfo:
        noise = Noise(0, self.train_step_counter)
        with noise.of_dropout():
            measured = self.update(Minibatch(experience, weights), noise)
        losses = {name: value for name, (value, _) in measured.items()}
        return tf_agent.LossInfo(loss=losses["critic_loss"] + losses.get("actor_loss", 0.0), extra=losses)


def make_agent(
    params: TrainParamsBase, observation_spec: Any, action_spec: Any, train_step: tf.Variable
) -> tf_agent.TFAgent:
    """The agent with its reward scale, which workers do not need.

    Raises:
      UserError: `agent_ctor` returns none.
    """
    agent = params.agent_ctor(policy_time_step_spec(params, observation_spec), action_spec, train_step)
    if not isinstance(agent, tf_agent.TFAgent):
        raise UserError(f"agent_ctor must return a TFAgent, found {shown(agent)}")
    if algorithms.value(params, "normalize_rewards"):
        limit = None if algorithms.has_categories(params) else MAX_NORMALIZED
        agent.reward_scale = RewardScale(limit)  # `BlockUpdate` finds it there, and checkpoints of the agent hold it.
    return agent


def make_worker_agent(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any) -> Any:
    """What a worker uses as its agent: `Acting`, without critics, targets and optimizers, or the whole agent.

    The whole agent if the user's hooks build it or its critics, which may share layers with the actor.
    """
    if overrides_any(params, "agent_ctor", "critic_ctor"):
        return params.agent_ctor(time_step_spec, action_spec, tf.Variable(0, dtype=tf.int64, name="train_step"))
    return algorithms.agent_class(params).build_acting(params, time_step_spec, action_spec)


def set_fixed_alpha(agent: Any, params: TrainParamsBase) -> None:
    """Gives a restored agent the entropy coefficient of its params if it is not learned."""
    if isinstance(agent, Agent) and agent.log_alpha is not None and agent.alpha_optimizer is None:
        agent.log_alpha.assign(params.sac_log_alpha)


def unique_variables(networks: Sequence[Any]) -> list[tf.Variable]:
    """The networks' trainable variables in a fixed order, each once, since networks may share layers."""
    return list({variable.ref(): variable for net in networks for variable in net.trainable_variables}.values())


def statistics_of(network: Any) -> list[tf.Variable]:
    """The running statistics of observations in a network: what it has seen, not what it has learned."""
    layers = [layer for layer in network.submodules if isinstance(layer, RunningNormalization)]
    return [variable for layer in layers for variable in layer.variables]


# Schedules.


def _attribute(params: TrainParamsBase, name: str) -> Any:
    return algorithms.value(params, name) if name in _RATES else getattr(params, name)


def check_scheduled(params: TrainParamsBase, agent: Any) -> None:
    """Checks that attributes and variables fit: each variable has a number or a schedule, each schedule a variable.

    Raises:
      UserError: They do not; all that is wrong at once.
    """
    variables: dict[str, tf.Variable] = dict(getattr(agent, "scheduled", None) or {})
    findings: list[str] = []
    for name in variables:
        if not hasattr(params, name):
            findings.append(f"agent.scheduled has {name!r}, which TrainParams has no attribute for: add it")
        else:
            rule = schedulable(Rule("a finite number", is_number))
            findings += broken(rule, f"TrainParams.{name}", _attribute(params, name))
    if overrides_any(params, "agent_ctor"):
        # The replay server follows `discount` and `priority_beta` when it draws.
        followed = {*variables, "discount", "priority_beta"}
        if any(rate in variables for rate in _RATES):
            followed.add("learning_rate")
        wanted = {name: "is a schedule" for name in _schedules() if is_schedule(getattr(params, name))}
        if clones_behaviour(params):
            wanted[CLONING_WEIGHT] = f"is {params.behaviour_cloning_weight:g} for offline updates"
        findings += [
            f"TrainParams.{name} {fact}, but the agent of agent_ctor does not follow it: give it a variable in "
            f"agent.scheduled[{name!r}], or set another number"
            for name, fact in wanted.items()
            if name not in followed
        ]
    if findings:
        raise UserError(*findings)


def _schedules() -> list[str]:
    """Attributes that may be schedules."""
    return [name for name, described in described_by(TrainParamsBase).items() if described.takes_schedule]


class ScheduledValues:
    """Gives the agent's variables the values of a position in the run, on which alone they depend.

    Args:
      params: Has a number or a schedule for each variable.
      agent: The agent that is trained.
    """

    def __init__(self, params: TrainParamsBase, agent: Any) -> None:
        self._variables: dict[str, tf.Variable] = dict(getattr(agent, "scheduled", None) or {})
        self._values = {name: Schedule.of(_attribute(params, name)) for name in self._variables}
        attributes: dict[str, Any] = {name: getattr(params, name, None) for name in [*_schedules(), *self._variables]}
        self._changing = {name: Schedule.of(value) for name, value in attributes.items() if is_schedule(value)}

    def assign(self, env_steps: int, train_steps: int, iteration: int) -> None:
        """Sets all variables; arguments as of `Schedule.value`, iterations from -1, the offline one."""
        for name, variable in self._variables.items():
            is_over = name == CLONING_WEIGHT and iteration >= 0
            variable.assign(0.0 if is_over else self._values[name].value(env_steps, train_steps, iteration))

    def metrics(self, env_steps: int, train_steps: int, iteration: int) -> dict[str, float]:
        """`schedule/<name>` of each attribute that is a schedule; arguments as of `Schedule.value`."""
        return {
            f"schedule/{name}": schedule.value(env_steps, train_steps, iteration)
            for name, schedule in self._changing.items()
        }


# Optimizers. All are legacy Keras ones, whose Adam is one fused operation per variable.


def build_optimizer(params: TrainParamsBase, part: str) -> Optimizer:
    """The optimizer of one part with its learning rate. Where that is a schedule, `scheduled_rate` is its variable.

    Adam (Kingma and Ba, arXiv 1412.6980): theta <- theta - rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) +
    epsilon), the form before the paper's section 2.1. SGD: velocity <- momentum * velocity - rate * gradient, theta <-
    theta + velocity. Their weight decay is an L2 term: that times the weights joins the gradient.
    """
    settings, rate = optimizer_settings(params, part), algorithms.value(params, f"{part}_learning_rate")
    variable = None
    if is_schedule(rate):
        variable = tf.Variable(initial_value(rate), trainable=False, name=f"{part}_learning_rate")
    name, decay = settings["name"], settings["weight_decay"]
    options: dict[str, Any] = {"global_clipnorm": settings["global_clipnorm"]}
    if name == "sgd":
        momentum = settings["momentum"]
        kind, options["momentum"] = tf.keras.optimizers.legacy.SGD, _not_saved(momentum) if momentum else 0.0
    else:
        kind = AdamW if name == "adamw" else tf.keras.optimizers.legacy.Adam
        options |= {"beta_1": _not_saved(settings["beta_1"]), "beta_2": _not_saved(settings["beta_2"])}
        options["epsilon"] = settings["epsilon"]
    names = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
    optimizer = kind(_not_saved(rate if variable is None else variable), name=names[name], **options)
    if name == "adamw":
        optimizer.weight_decay_share = decay
    elif decay:  # Behind the clipping.
        optimizer.gradient_transformers.append(lambda pairs: [(grad + decay * var, var) for grad, var in pairs])
    if variable is not None:
        optimizer.scheduled_rate = variable
    return optimizer


def _not_saved(number: Any) -> Callable[[], Any]:
    """A number outside checkpoints: Keras would save it, and a resumed run would keep its original value."""
    return lambda: number


class AdamW(tf.keras.optimizers.legacy.Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2).

    theta <- theta - rate * (Adam's direction + weight_decay_share * theta), with the scheduled rate in both terms. All
    variables decay, biases among them.
    """

    weight_decay_share = 0.0

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable, apply_state: Any = None) -> tf.Operation:
        of_variable = var.device, var.dtype.base_dtype
        state = (apply_state or {}).get(of_variable) or self._fallback_apply_state(*of_variable)
        # Adam's direction does not depend on the weights, so decaying first decays the weights before the step.
        decay = tf.raw_ops.ResourceApplyGradientDescent(
            var=var.handle, alpha=state["lr_t"] * self.weight_decay_share, delta=var.read_value()
        )
        with tf.control_dependencies([] if decay is None else [decay]):  # None: done already, outside of a graph.
            return super()._resource_apply_dense(grad, var, apply_state)
