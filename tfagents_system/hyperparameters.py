"""Hyperparameters: every attribute of TrainParams, its default, and what is known about it.

    target_update_period: Annotated[Count, "updates", Unless("algorithm", "crossq")] = 1

One entry defines everything about an attribute: its type with the rule for its values, its unit (a text, with "per
worker" or "in total"), the values of other attributes with which it has an effect (`When`, `Unless`; otherwise always),
and the values of algorithms that replace None (`ByAlgorithm`) or a default that nobody has replaced (`DefaultOf`).
docs/reference/parameters.md shows the same as tables.

This module needs nothing but Python 3.9: processes of users' environments load TrainParams, too.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union

from tfagents_system.checks import rules
from tfagents_system.checks.rules import (
    REQUIRED,
    TRUE_OR_FALSE,
    Option,
    Rule,
    broken_keys,
    integer_from,
    is_integer,
    number_above,
    number_in,
    number_where,
    one_of,
    options,
    or_none,
)
from tfagents_system.checks.schedules import SchedulableFraction, SchedulablePositive
from tfagents_system.errors import UserError, shown

_Settings = TypeVar("_Settings")
Count = Annotated[int, integer_from(1)]
CountOrZero = Annotated[int, integer_from(0)]
Number = Annotated[float, rules.NUMBER]
Positive = Annotated[float, number_above(0)]
Layers = Annotated[Sequence[int], rules.LAYERS]
_FRAMES = integer_from(1).or_else(
    '{}, or a dictionary of those such as {{"lidar": 4, "camera": 4}}',
    lambda value: (
        isinstance(value, Mapping)
        and all(isinstance(name, str) and is_integer(count) and count >= 1 for name, count in value.items())
    ),
)
FrameStack = Union[int, Mapping[str, int]]  # noqa: UP007  (Python 3.9)
_BETA = number_where("a number of at least 0 and below 1", lambda value: 0 <= value < 1)
Optimizer = Annotated[
    Mapping[str, Any],
    options(
        name=Option("adam", one_of(("adam", "adamw", "sgd")), "Which one."),
        beta_1=Option(None, _BETA, "Decay rate of Adam's first moment; None: 0.9, with crossq 0.5."),
        beta_2=Option(0.999, _BETA, "Decay rate of Adam's second moment."),
        epsilon=Option(1e-7, number_above(0), "Added by Adam to the square root of the second moment."),
        momentum=Option(0.0, _BETA, "Of SGD."),
        weight_decay=Option(
            None,
            rules.NOT_NEGATIVE,
            "AdamW: each step subtracts it times the learning rate times the weights, 0.01 where it is not set. Adam "
            "and SGD: it times the weights joins the gradient, 0 where it is not set.",
        ),
        global_clipnorm=Option(
            None, or_none(number_above(0)), "Maximum norm of the gradients of all variables together; None: no limit."
        ),
    ),
]


class When(NamedTuple):
    """What another attribute must be for this one to have an effect.

    Attributes:
      attribute: The other attribute.
      value: Its value; True and False also match whatever is truthy or falsy, such as an empty tuple. A tuple matches
        any of its values.
      is_equal: If False, it must be anything else.
    """

    attribute: str
    value: Any = True
    is_equal: bool = True

    def holds(self, found: Any) -> bool:
        """Whether this attribute has an effect when the other one is `found`."""
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        is_it = bool(found) == self.value if isinstance(self.value, bool) else found in values
        return is_it == self.is_equal


def Unless(attribute: str, value: Any) -> When:
    """What another attribute must not be for this one to have an effect."""
    return When(attribute, value, is_equal=False)


class ByAlgorithm:
    """Values from the algorithms' papers, which replace None.

    Args:
      others: For all algorithms that are not named.
      named: By algorithm; a function gets the params.
    """

    def __init__(self, others: Any = None, **named: Any) -> None:
        self.others, self.named = others, named

    def value(self, params: Any) -> Any:
        """The value for `params.algorithm`."""
        found = self.named.get(params.algorithm, self.others)
        return found(params) if callable(found) else found


class DefaultOf(ByAlgorithm):
    """Values that a run of an algorithm begins with where nobody sets the attribute (`load_params.defaults_of`).

    A run of one's own `agent_ctor` begins without them: its agent may not follow a schedule.
    """


class NotDeterministic(NamedTuple):
    """With SAC_DETERMINISTIC=1 it must have its default: `why`."""

    why: str


class MayChange:
    """`--set` may give it to a run that has begun: what was learned and what is stored fit any value."""


# The attributes.

RACE_END_STEPS = 40  # Of a mini-race: errors there say little, and change no priority (as in Linesight).

_WITHOUT_ACTOR = ("dqn", "iqn")
_OF_VALUES = ("dqn", "iqn", "sac_discrete")
CATEGORICAL = ("xqc", "flash_sac")  # Their critics and layers are their own.
_OF_ACTORS = Unless("algorithm", _WITHOUT_ACTOR)
_WITH_PRIOR = Unless("prior_data", None)
_WITH_HINDSIGHT = Unless("hindsight_share", None)
_COMBINED = When("preprocessing_combiner", None)
_TIMING = NotDeterministic("what is collected would depend on timing")


def _learning_rate(params: Hyperparameters) -> Any:
    """As `learning_rate`."""
    return params.learning_rate


def _one_for_each_env_step(params: Hyperparameters) -> int:
    """As many as updates for each environment step, rounded, at least 1."""
    return max(1, round(params.updates_per_env_step or 1))


_ACTOR_PERIODS = ByAlgorithm(1, redq=_one_for_each_env_step, droq=_one_for_each_env_step, crossq=3, xqc=3, flash_sac=2)


def _over_the_run(words: str, *points: tuple[float, float]) -> Callable[[Hyperparameters], dict[str, Any]]:
    """A schedule through points of a share of the run's length and a value, for the page of parameters in words."""

    def schedule(params: Hyperparameters) -> dict[str, Any]:
        steps = params.num_env_steps
        by, length = ("iterations", params.num_iter) if steps is None else ("env_steps", steps)
        return {"points": [[share * length, value] for share, value in points], "by": by}

    schedule.__doc__ = words
    return schedule


_FALLING_RATE = _over_the_run("From 1e-3 to 1e-4 over the run.", (0, 1e-3), (1, 1e-4))
_FALLING_TO_A_TENTH = _over_the_run("From 3e-4 to 3e-5 over the run.", (0, 3e-4), (1, 3e-5))
_FALLING_TO_HALF = _over_the_run(
    "From 3e-4 to 1.5e-4 over the run, along a cosine.",
    *((share, round(2.25e-4 + 0.75e-4 * math.cos(math.pi * share), 7)) for share in (0, 0.25, 0.5, 0.75, 1)),
)
_FALLING_EPSILON = _over_the_run("From 1 to 0.04 over the first 16 % of the run.", (0, 1.0), (0.16, 0.04))


def _by_horizon(params: Hyperparameters) -> float:
    """1 - 5 / `horizon`, within 0.95 and 0.995."""
    return min(max(1.0 - 5.0 / params.horizon, 0.95), 0.995)  # type: ignore[attr-defined]


def _sized(for_cpus: Any, of_paper: Any) -> Callable[[Hyperparameters], Any]:
    """Values by `preset`."""

    def value(params: Hyperparameters) -> Any:
        return of_paper if params.preset == "paper" else for_cpus

    value.__doc__ = f"`{for_cpus}` (`{of_paper}` of the preset `paper`)."
    return value


def _with_categories(params: Hyperparameters) -> bool:
    """True with categorical critics."""
    return params.algorithm in CATEGORICAL or params.critic_head == "categorical"


def _rate_of_xqc(params: Hyperparameters) -> Any:
    """3e-4 (with the preset `paper` falling from there to 3e-5 over the run)."""
    return _FALLING_TO_A_TENTH(params) if params.preset == "paper" else 3e-4


class Hyperparameters:
    """What a TrainParams file may set.

    "In total" and "per worker" say how a count is shared: 10 episodes in total with 4 workers are 3, 3, 2 and 2.
    """

    algorithm: Literal["sac", "redq", "droq", "tqc", "crossq", "xqc", "flash_sac", "dqn", "iqn", "sac_discrete"] = "sac"
    """See docs/reference/algorithms.md. An attribute that is None takes the value of its paper."""
    preset: Annotated[Literal["cpu", "paper"], When("algorithm", (*CATEGORICAL, "iqn"))] = "cpu"
    """Sizes of networks and minibatches, and updates for each step, where params say nothing of these: `cpu` for two
    cores, `paper` as published."""

    # What all algorithms share: SAC (Haarnoja et al., arXiv 1812.05905).
    discount: Annotated[SchedulableFraction, "per environment step", DefaultOf(xqc=_by_horizon), MayChange] = 0.99
    """Discount factor gamma of later rewards. A schedule works with `dqn`, `iqn` and `sac_discrete`."""
    learning_rate: Annotated[
        SchedulablePositive,
        DefaultOf(xqc=_rate_of_xqc, flash_sac=_FALLING_TO_HALF, **dict.fromkeys(_OF_VALUES, _FALLING_RATE)),
        MayChange,
    ] = 3e-4
    """Learning rate of critics, actor and log(alpha)."""
    critic_learning_rate: Annotated[SchedulablePositive | None, ByAlgorithm(_learning_rate), MayChange] = None
    """Learning rate of the critics."""
    actor_learning_rate: Annotated[SchedulablePositive | None, ByAlgorithm(_learning_rate), _OF_ACTORS, MayChange] = (
        None
    )
    """Learning rate of the actor."""
    alpha_learning_rate: Annotated[
        SchedulablePositive | None, ByAlgorithm(_learning_rate), When("learn_entropy_coef"), _OF_ACTORS, MayChange
    ] = None
    """Learning rate of log(alpha), of the entropy coefficient."""
    target_update_tau: Annotated[
        float,
        number_above(0, at_most=1),
        DefaultOf(iqn=1.0, sac_discrete=0.02, flash_sac=0.01),
        Unless("algorithm", "crossq"),
        MayChange,
    ] = 0.005
    """Weight of the critic in each soft update of its target: target <- (1 - tau) * target + tau * critic."""
    target_update_period: Annotated[Count, "updates", DefaultOf(iqn=100), Unless("algorithm", "crossq"), MayChange] = 1
    """Interval between two soft updates of the target critics. Who sets it or `target_update_tau` has neither default
    of the algorithm."""
    gradient_clipping: Positive | None = None
    """Maximum norm of each variable's gradient, of critics, actor and log(alpha) alike; None does not clip.
    `global_clipnorm` of an optimizer is one for all variables of its part together."""
    learn_entropy_coef: Annotated[bool, _OF_ACTORS] = True
    """True: alpha, the entropy coefficient, is tuned. False: it stays exp(sac_log_alpha), also after a resume."""
    sac_log_alpha: Annotated[
        float,
        number_where("a number of at most 50", lambda value: value <= 50),
        DefaultOf(**dict.fromkeys(CATEGORICAL, -4.605)),
        _OF_ACTORS,
        MayChange,
    ] = 0.0
    """log(alpha) before the first update; of a run that has begun it changes where `learn_entropy_coef` is False."""
    target_entropy: Annotated[Number | None, "nats", When("learn_entropy_coef"), _OF_ACTORS] = None
    """Entropy of the action, scaled to [-1, 1], that alpha is tuned towards; None is -dim(action), with `xqc` and
    `flash_sac` about half of that, and of n discrete actions 0.3 log(n); with a mask n of each state are the legal
    ones."""
    batch_size: Annotated[
        Count,
        "samples",
        DefaultOf(dqn=64, iqn=_sized(64, 512), sac_discrete=64, flash_sac=_sized(256, 512)),
        MayChange,
    ] = 256
    """Size of a minibatch, in transitions, or in sequences where `recurrent`."""
    matmul_precision: Annotated[
        Literal["float32", "bfloat16", "auto"], NotDeterministic("a measurement decides whether it is used")
    ] = "float32"
    """`bfloat16`: hidden layers are multiplied in bfloat16 by the trainer where its CPU does that faster (AMX,
    AVX512-BF16); elsewhere it logs that and uses float32. `auto`: the same without a warning. Each start measures
    anew. Weights, optimizers and losses stay float32."""

    # What the other algorithms have beside that.
    num_critics: Annotated[Count | None, ByAlgorithm(2, redq=10, tqc=5)] = None
    """N, the critics of the ensemble."""
    num_target_critics: Annotated[Count | None, ByAlgorithm(redq=2, droq=2)] = None
    """M: the minimum is over M of the N critics, drawn anew in each update."""
    actor_update_period: Annotated[Count | None, "updates", _ACTOR_PERIODS] = None
    """Actor and alpha step in every so many updates, the critics in each."""
    critic_head: Annotated[
        Literal["scalar", "categorical"] | None, ByAlgorithm("scalar", xqc="categorical", flash_sac="categorical")
    ] = None
    """What critics return, with `sac`, `redq`, `droq` and `crossq`. `scalar`: a value. `categorical`: a distribution
    over fixed values (C51, Bellemare et al., arXiv 1707.06887); its target is the distribution of the critic with the
    lower mean, its loss the cross-entropy, and rewards are scaled (`normalize_rewards`)."""
    categorical: Annotated[
        Mapping[str, Any],
        options(
            num_atoms=Option(101, integer_from(2), "Values that the distribution is over."),
            value_range=Option(
                (-5.0, 5.0), rules.RANGE, "The lowest and the highest of them, in deviations of the return."
            ),
        ),
        When("critic_head", "categorical"),
    ] = {}
    """Categories of critics. What targets have beyond `value_range` is clipped: `clipped_mass` is its share."""
    tqc: Annotated[
        Mapping[str, Any],
        options(
            num_quantiles=Option(25, integer_from(2), "Quantiles of each critic."),
            num_dropped_quantiles=Option(
                2,
                integer_from(0),
                "Largest quantiles that the target leaves out, of those of all critics together.",
                "per critic",
            ),
        ),
        When("algorithm", "tqc"),
    ] = {}
    """Quantiles of TQC."""

    # Learners of the values of discrete actions.
    double_q: Annotated[bool | None, When("algorithm", _WITHOUT_ACTOR), ByAlgorithm(False, dqn=True)] = None
    """True: the online network chooses the next action, and its target says what it is worth (van Hasselt et al., arXiv
    1509.06461). False: the target does both."""
    dueling: Annotated[bool | None, When("algorithm", _WITHOUT_ACTOR), ByAlgorithm(False, iqn=True)] = None
    """Heads for V(s) and A(s, a) with Q = V + A - mean_a A (Wang et al., arXiv 1511.06581)."""
    value_head_units: Annotated[
        Count, DefaultOf(iqn=_sized(64, 512)), When("algorithm", _WITHOUT_ACTOR), When("dueling")
    ] = 512
    """Units of the hidden layer in each of the two heads."""
    exploration_epsilon: Annotated[
        SchedulableFraction,
        When("algorithm", _WITHOUT_ACTOR),
        DefaultOf(**dict.fromkeys(_WITHOUT_ACTOR, _FALLING_EPSILON)),
        MayChange,
    ] = 0.1
    """Share of actions that are uniformly random."""
    boltzmann_epsilon: Annotated[SchedulableFraction, When("algorithm", _WITHOUT_ACTOR), MayChange] = 0.0
    """Share of the other actions that are the best of Q + 0.01 * normal noise: those of nearly equal value vary."""
    iqn: Annotated[
        Mapping[str, Any],
        options(
            num_quantiles=Option(
                8,
                rules.EVEN,
                "N and N', the quantiles of a sample that are compared with as many of its target, in pairs tau and "
                "1 - tau.",
            ),
            num_acting_quantiles=Option(
                32, integer_from(1), "K, the fixed quantiles (k + 1/2) / K whose mean chooses actions."
            ),
            num_cosines=Option(64, integer_from(1), "Features cos(pi i tau) of a quantile's fraction tau."),
            huber_kappa=Option(1.0, number_above(0), "Error below which the loss of a quantile is quadratic."),
        ),
        When("algorithm", "iqn"),
    ] = {}
    """Quantiles of IQN."""

    # Networks.
    actor_fc_layer_params: Annotated[
        Layers,
        DefaultOf(sac_discrete=(128, 128), xqc=_sized((256, 256), (256,) * 4), flash_sac=_sized((64, 64), (128, 128))),
        _OF_ACTORS,
    ] = (256, 256)
    """Units of the actor's hidden layers (behind the LSTM where `recurrent`)."""
    critic_joint_fc_layer_params: Annotated[
        Layers,
        DefaultOf(
            iqn=_sized((128, 128), (512,)),
            sac_discrete=(128, 128),
            xqc=_sized((256, 256), (512,) * 4),
            flash_sac=_sized((128, 128), (256, 256)),
        ),
    ] = (256, 256)
    """Units of each critic's hidden layers, over observation and action together."""
    recurrent: Annotated[
        bool | Mapping[str, Any],
        options(
            lstm_units=Option(64, integer_from(1), "Units of the LSTM of actor and critics."),
            sequence_length=Option(
                20,
                integer_from(1),
                "Length of a training sequence; a shorter episode is one whole sequence.",
                "transitions",
            ),
            burn_in=Option(
                0,
                integer_from(0),
                "Transitions before each training sequence that only produce the LSTMs' state.",
                "transitions",
            ),
        ),
    ] = False
    """Actor and critics with an LSTM, trained on sequences."""
    preprocessing_combiner: Annotated[Any | None, Rule("a Keras layer, a function that returns one", callable)] = None
    """Turns the observations into one tensor `[B, n]`. Merging layers (Concatenate, Add) get the list of leaves, all
    others the nest as the environment gives it. None concatenates all leaves, flattened; images are encoded before that
    (`image_encoder_layers`). uint8 that is no image, or too small for the encoder, are numbers like all others."""
    network: Annotated[Literal["mlp", "simba"], Unless("algorithm", CATEGORICAL)] = "mlp"
    """`mlp`: plain layers. `simba`: normalised observations and residual blocks (Lee et al., arXiv 2410.09754), whose
    width is the first entry of the layer sizes and whose number is how many entries there are. The paper has
    `actor_fc_layer_params = (128,)` and `critic_joint_fc_layer_params = (512, 512)`."""
    critic_layer_norm: Annotated[bool | None, ByAlgorithm(False, droq=True)] = None
    """Layer normalisation before each activation of the critics; with `dqn` and `iqn` of the network that acts, too."""
    # Dropout draws in steps of 1/65536: a smaller rate would be none at all, a larger one would keep nothing.
    critic_dropout: Annotated[
        float | None,
        number_where("0 or a number in [0.0001, 0.99]", lambda rate: rate == 0 or 1e-4 <= rate <= 0.99),
        ByAlgorithm(0.0, droq=0.01),
    ] = None
    """Rate of the dropout behind each hidden layer's product in the critics, in updates: policies drop nothing."""
    batch_renormalization: Annotated[
        bool | Mapping[str, Any] | None,
        options(
            warmup_steps=Option(
                100_000,
                integer_from(0),
                "Time with plain batch normalisation before batch renormalisation begins, as CrossQ has it.",
                "updates",
            )
        ),
        ByAlgorithm(False, crossq=True),
    ] = None
    """Batch renormalisation in front of the first and behind each hidden layer of actor and critics (Ioffe, arXiv
    1702.03275); not with discrete actions."""

    # Networks drawn anew, against the primacy bias.
    reset_period_updates: Annotated[Count | None, "updates"] = None
    """Interval at which actor, critics, encoder, alpha and the optimizers' moments begin anew while replay, counters
    and settings stay (Nikishin et al., arXiv 2205.07802; BRO, arXiv 2405.16158): for many updates per environment step.
    None never does."""

    # Images and histories.
    frame_stack: Annotated[int | Mapping[str, int], _FRAMES] = 1
    """A number: frames of each image (uint8, `[height, width, channels]`) that networks see at once, along the channel
    axis, the oldest first. A dictionary names the parts of the observation that are stacked, images, vectors or others,
    along their last axis: `{"lidar": 4, "camera": 4}`; a part within a part is `sensors/touch`, an observation without
    parts `observation`. Each frame is stored once."""
    actor_observations: Annotated[Sequence[str] | None, rules.PARTS_OF_OBSERVATION] = None
    """Parts of the observation, named as in `frame_stack`, that the actor sees: policies in workers, in SavedModels and
    in exported files ask for these alone. Critics see all, such as the state of a simulator (Pinto et al., arXiv
    1710.06542). A name stands for all parts within its part; `action_history` is always seen. None: all parts."""
    image_encoder_layers: Annotated[Sequence[Any], rules.CONVOLUTIONS, _COMBINED] = (32, 32, 32, 32)
    """Convolutions that the default actor and critics share: filters (of 3 x 3, the first with stride 2, as in DrQ-v2,
    Yarats et al., arXiv 2107.09645), or (filters, kernel, stride). `()`: images are flattened, as those are that are
    too small for them."""
    image_encoder_features: Annotated[Count, When("image_encoder_layers"), _COMBINED] = 50
    """Units that actor and critics each make of the encoder's features, with layer normalisation and tanh."""
    image_augmentation_pixels: Annotated[CountOrZero | None, "pixels"] = None
    """Largest random shift of images in minibatches; 0 shifts none. None: 4 where images are encoded, else 0."""
    action_history: CountOrZero = 0
    """Actions before the current one that are part of the observation, in [-1, 1] or one-hot, oldest first: for systems
    that act with a delay. Before an episode's start zeros, or in real time the default action."""
    action_bounds: Annotated[Sequence[Any] | None, rules.BOUNDS] = None
    """(low, high) of actions in the environment's units, to which an actor's [-1, 1] is scaled: one number for all, or
    a list with one for each, within the bounds of the Box. None: those of the Box, which must be finite then."""
    action_table: Annotated[Sequence[Sequence[float]] | None, rules.ROWS] = None
    """Actions to choose from where the environment's action is a Box, a row of numbers in its units each."""

    # Optimizers.
    critic_optimizer: Optimizer = {}
    """Optimizer of the critics, such as `{"name": "adamw", "weight_decay": 0.01}`; {} is Adam."""
    actor_optimizer: Annotated[Optimizer, _OF_ACTORS] = {}
    """Optimizer of the actor; {} is Adam."""
    alpha_optimizer: Annotated[Optimizer, When("learn_entropy_coef"), _OF_ACTORS] = {}
    """Optimizer of log(alpha); {} is Adam."""

    # Normalisation.
    normalize_observations: Annotated[bool, Unless("network", "simba")] = False
    """Observations reach the networks with mean 0 and variance 1, by running statistics of the experience that is
    learned from, clipped to [-10, 10]; pixels of images are left alone. SimBa always normalises them."""
    strict_observation_bounds: bool = False
    """An observation beyond the finite bounds of its space is a fault of the environment. Otherwise it is kept, and the
    log names it once."""
    normalize_rewards: Annotated[bool | None, ByAlgorithm(_with_categories)] = None
    """Rewards (with `n_step` > 1: their sums over n steps) are divided by the running standard deviation of the
    discounted return, and clipped to [-10, 10] unless critics are categorical, before they are learned from. Can't be
    switched within a run."""

    # The iteration: collect, push, draw, update, publish.
    num_iter: Annotated[Count, "iterations", MayChange] = 1000
    """Length of the whole run; with `num_env_steps` only a bound, and where it is not set none."""
    num_env_steps: Annotated[Count | None, "steps in total", MayChange] = None
    """Length of the whole run in environment steps of all workers, random ones included, up to an iteration's end."""
    env_steps_per_iter: Annotated[Count | None, "steps in total"] = None
    """What the planned workers together collect in an iteration, and those that join on top; an episode that is under
    way continues in the next iteration, with the newest policy. None: an iteration is of whole episodes,
    `num_train_episodes_per_iter`. A run that sets none of this, `num_train_episodes_per_iter` and `updates_per_iter`
    has 200, a short one a twentieth of `num_env_steps`, or one of each worker if these are more."""
    updates_per_iter: Annotated[Count, "updates", When("env_steps_per_iter", None), MayChange] = 1000
    """Minibatches of an iteration. For one per environment step: workers * episodes * steps of an episode."""
    num_train_episodes_per_iter: Annotated[Count, "episodes per worker", When("env_steps_per_iter", None)] = 1
    """What each worker collects in an iteration."""
    num_initial_episodes: Annotated[CountOrZero, "episodes in total", When("initial_collect_steps", None)] = 10
    """Experience with uniformly random actions, collected before the first iteration, once in a run."""
    initial_collect_steps: Annotated[CountOrZero | None, "steps in total"] = None
    """The same, counted in steps. None: `num_initial_episodes` whole episodes. If neither is set, iterations of steps
    begin with 1000, or a tenth of the run if that is less."""
    buffer_size: Annotated[Count, "steps in total"] = 1_000_000
    """Capacity of the replay buffer, at least an episode of full length."""
    asynchronous: Annotated[bool, _TIMING] = False
    """False: lock-step iterations, pipelined, with at most `max_policy_lag` iterations of policy lag. True: workers
    wait for no policy; updates are held back by `updates_per_env_step`, workers by `min_updates_per_env_step`."""
    max_policy_lag: Annotated[Literal[0, 1], "iterations", Unless("asynchronous", True)] = 1
    """How far the policy that collects in lock-step may be behind. 1: an iteration is collected while the one before it
    is trained on. 0: with the newest policy always, and the trainer waits meanwhile; so it is with
    SAC_DETERMINISTIC=1."""
    max_unsent_mb: Annotated[Count, "MiB per worker", MayChange] = 256
    """In real time (docs/tutorials/real_robot.md): segments that a worker keeps while the replay server does not take
    them. Beyond that the oldest are dropped. Other workers wait for the server."""
    min_updates_per_env_step: Annotated[Positive | None, "updates per step", When("asynchronous")] = None
    """Workers wait while fewer updates have been done for each step after the random ones. None: they never do."""
    publish_period_updates: Annotated[Count | None, "updates", When("asynchronous"), MayChange, _TIMING] = None
    """Interval between two policies that are published within an iteration; the one at its end is always published.
    None: that one alone."""
    policy_refresh_steps: Annotated[
        Count | None, "steps of each environment", When("asynchronous"), MayChange, _TIMING
    ] = None
    """Interval at which a worker looks for a newer policy within episodes. None: it collects a whole iteration with the
    newest one at its start."""

    # Episodes: how they are collected, and which are kept.
    greedy_episode_share: Annotated[float, number_in(0, 1), MayChange] = 0.0
    """Share of each worker's episodes, after the first random ones, that the greedy policy collects."""
    noise_hold_steps: Annotated[
        int | None,
        rules.integer_in(1, 1000),
        "steps",
        ByAlgorithm(1, flash_sac=16),
        Unless("algorithm", _OF_VALUES),
        MayChange,
    ] = None
    """Longest time K that exploration noise is held: each draw is for k = 1 to K steps, with a probability proportional
    to k^-2 (FlashSAC, arXiv 2604.04539), with the newest mean and deviation in each of them. Actors that workers
    can't compute in NumPy, such as those of images, can't; there the default is 1."""
    keep_best_episodes: Annotated[CountOrZero, "episodes in total", MayChange] = 0
    """Of the episodes collected since files were last edited, those of the highest returns are kept step by step in
    `episodes/`. Each episode then begins with a seed of its own, so that `run.py --replay-actions` can repeat it."""

    # Experience: what is drawn, and how much of it.
    updates_per_env_step: Annotated[
        Positive | None, "updates per step", DefaultOf(xqc=_sized(1, 2), **dict.fromkeys(_WITHOUT_ACTOR, 0.5))
    ] = None
    """Updates-to-data ratio: after each iteration floor(updates_per_env_step * steps) updates have been done, of all
    steps after the first random ones, however long episodes are and however many workers there are. With
    `asynchronous` it is the most that is allowed. None: 1 with `env_steps_per_iter` or `asynchronous`, otherwise as
    many as `updates_per_iter` says. The defaults of algorithms are for iterations of steps."""
    n_step: Annotated[Count, "steps", DefaultOf(**dict.fromkeys(_WITHOUT_ACTOR, 3))] = 1
    """Length of a transition: rewards of so many steps are summed up, discounted, before the critic's value counts."""
    cut_at_exploration: Annotated[bool | None, ByAlgorithm(False, dqn=True, iqn=True), Unless("n_step", 1)] = None
    """A transition ends before the next action that is another one than the policy's greedy one (`explored`, 1 byte a
    step in the replay buffer): what comes after it is not what the policy would have got."""
    mini_race: Annotated[
        Mapping[str, Any] | None,
        options(
            steps=Option(REQUIRED, integer_from(1), "How long a mini-race is.", "steps"),
            oversampling=Option(
                (40, 5),
                rules.OVERSAMPLING,
                "(a, b): the times 1 to a - 2b are drawn twice as often as those behind them, and 0 is 2b + 1 times as "
                "often.",
            ),
        ),
    ] = None
    """Transitions are drawn with a time of their own, and an episode counts as over after so many `steps` of it: with
    `discount = 1`, a value is the sum of the rewards up to then. Observations get `horizon_time`, the share of the time
    that is over, 0 where a policy acts. None: a transition has no time."""
    hindsight_share: Annotated[float | None, number_above(0, at_most=1)] = None
    """Share of each minibatch that gets another goal, one that its episode has achieved, and the reward for it (HER,
    Andrychowicz et al., arXiv 1707.01495): for environments with goals. 0.8 is four for each that keeps its own."""
    hindsight_strategy: Annotated[rules.GoalStrategy, _WITH_HINDSIGHT] = "future"
    """Which goal: one achieved later in the episode, the last one, or any of the episode."""
    priority_exponent: Annotated[
        float | None,
        number_above(0, at_most=1),
        MayChange,
        NotDeterministic("what is drawn would depend on when TD errors come"),
    ] = None
    """alpha of prioritised replay (Schaul et al., arXiv 1511.05952): a step is drawn with a probability proportional to
    the alpha-th power of its newest TD error, a new one as if that were twice the mean. None: all are drawn alike."""
    priority_beta: Annotated[SchedulableFraction, Unless("priority_exponent", None), MayChange] = 1.0
    """beta: samples have the importance weights (N P(i))^-beta, divided by the largest of the minibatch, in all losses.
    1 makes up for all that priorities change in the means of losses."""
    validation_share: Annotated[float, number_in(0, 0.5)] = 0.0
    """Share of each worker's episodes that is never trained on: the losses on them are logged beside the others, as
    `validation/critic_loss` and so on."""

    # The experience of others, drawn beside the run's own.
    prior_data: Annotated[Any | None, rules.PATHS] = None
    """Demonstrations and other data: run directories, folders of `experience import`, `.npz`,
    `minari:NAME`. Relative paths are looked for beside the params file. The run keeps all of it as a second ring."""
    prior_data_share: Annotated[float, rules.SHARE, _WITH_PRIOR, MayChange] = 0.5
    """Share of each minibatch that is drawn from prior data (RLPD, Ball et al., arXiv 2302.02948: 0.5)."""
    offline_updates: Annotated[CountOrZero, "updates", _WITH_PRIOR] = 0
    """Updates on prior data alone before the first iteration. They don't count for `updates_per_env_step`."""
    behaviour_cloning_weight: Annotated[
        float, rules.NOT_NEGATIVE, Unless("algorithm", _OF_VALUES), When("offline_updates")
    ] = 0.0
    """Weight w of the term that keeps the actor near the data in offline updates: w mean|Q| |a_pi - a|^2, the mean of
    the squares. TD3+BC (Fujimoto and Gu, arXiv 2106.06860) has w = 1 / 2.5."""

    # Periods.
    num_eval_episodes: Annotated[CountOrZero, "episodes in total", MayChange] = 10
    """Size of one evaluation with the greedy policy. 0: nothing is evaluated, there is no best policy, and curves show
    the returns of training episodes."""
    eval_period_iters: Annotated[Count, "iterations", MayChange, When("num_eval_episodes")] = 10
    """Interval between two evaluations; the policy before the first and after the last is always evaluated. A run of
    fewer than 100 iterations of episodes is evaluated ten times at least."""
    eval_period_env_steps: Annotated[Count | None, "steps in total", MayChange, When("num_eval_episodes")] = None
    """The same in environment steps: due after the iteration in which their number reaches a multiple. If neither is
    set, iterations of steps and runs of `num_env_steps` have 9 * `num_eval_episodes` * horizon, so that a tenth of all
    steps is of these evaluations, or less: a run is evaluated ten times at least."""
    log_period_iters: Annotated[Count, "iterations", MayChange] = 1
    """Interval between two rows of metrics. If it is not set, iterations of steps have a row about every 1000 steps."""
    checkpoint_period_iters: Annotated[Count, "iterations", MayChange] = 50
    """Interval between two checkpoints of agent, optimizers, counters and policy."""
    checkpoint_period_env_steps: Annotated[Count | None, "steps in total", MayChange] = None
    """The same in environment steps; if neither is set, iterations of steps have 50,000."""
    keep_policies: Annotated[bool, MayChange, When("num_eval_episodes", False)] = True
    """Whether the policies of earlier checkpoints stay on disk; False: the newest alone, where nothing is evaluated."""
    best_metric: Annotated[Literal["return", "success"], MayChange, When("num_eval_episodes")] = "return"
    """`return`: the best policy is that of the highest mean return of an evaluation. `success`: of the highest success
    rate, and of the highest return among equal ones. It restarts when the task of evaluations changes (a curriculum
    with `apply_to_eval`)."""

    # The end of a run before `num_iter` or `num_env_steps`.
    stop_when: Annotated[Mapping[str, float] | None, rules.CONDITIONS, MayChange] = None
    """Ends the run as its normal end does, such as `{"eval_success": 0.95, "evaluations": 3}`: so many evaluations in a
    row (without that key: one) with at least this `eval_success` or `eval_return` or both; or
    `{"no_improvement_env_steps": 200_000}`: none was better, by `best_metric`, for so many environment steps. Only
    evaluations count that have the last values of a curriculum with `apply_to_eval`. None never does."""
    max_hours: Annotated[
        Positive | None, "hours", MayChange, NotDeterministic("a clock would decide how long the run is")
    ] = None
    """Training time of a run, all of its starts together; it ends with the iteration. None: no limit."""


# What is known about them.


@dataclasses.dataclass(frozen=True)
class Hyperparameter:
    """What is known about one attribute.

    Attributes:
      acts: Conditions that must all hold for it to have an effect.
    """

    name: str
    default: Any
    rule: Rule
    unit: str
    acts: tuple[When, ...]
    by_algorithm: ByAlgorithm
    may_change: bool
    not_deterministic: NotDeterministic | None

    @property
    def takes_schedule(self) -> bool:
        """Whether a schedule may be in the place of its number."""
        return self.rule.details is not None and self.rule.keys is None

    def replaces_default(self, algorithm: str) -> bool:
        """Whether a run of the algorithm begins with a value of its own where nobody sets the attribute."""
        return isinstance(self.by_algorithm, DefaultOf) and algorithm in self.by_algorithm.named

    def filled(self, value: Any) -> Any:
        """A value with all keys, if it is a dictionary of options or True; others stay what they are."""
        if self.rule.keys is None or value is None or value is False:
            return value
        return {key: option.default for key, option in self.rule.keys.items()} | (value if value is not True else {})


@functools.cache
def described_by(params_class: type) -> Mapping[str, Hyperparameter]:
    """The public annotated attributes of a class by name, in its order.

    Raises:
      KeyError: One has a type without a rule.
    """
    hints = typing.get_type_hints(params_class, include_extras=True)
    return {name: _described(params_class, name, hint) for name, hint in hints.items() if not name.startswith("_")}


def _described(params_class: type, name: str, hint: Any) -> Hyperparameter:
    metadata = getattr(hint, "__metadata__", ())
    return Hyperparameter(
        name,
        getattr(params_class, name),
        _rule(hint),
        unit=", ".join(unit for unit in metadata if isinstance(unit, str)),
        acts=tuple(condition for condition in metadata if isinstance(condition, When)),
        by_algorithm=next((values for values in metadata if isinstance(values, ByAlgorithm)), ByAlgorithm()),
        may_change=MayChange in metadata,
        not_deterministic=next((reason for reason in metadata if isinstance(reason, NotDeterministic)), None),
    )


def _rule(hint: Any, given: Sequence[Rule] = ()) -> Rule:
    """The rule given beside a type, else the type's own; `| None` allows None as well, `bool |` True and False."""
    if hasattr(hint, "__metadata__"):
        return _rule(hint.__origin__, given or [rule for rule in hint.__metadata__ if isinstance(rule, Rule)])
    args = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return one_of(args)
    if type(None) in args or bool in args:
        others = [kind for kind in args if kind not in (type(None), bool)]
        rule = _rule(others[0], given) if others else TRUE_OR_FALSE
        if bool in args and others:  # True is the dictionary of all defaults, for which {} would be another word.
            rule = rule.or_else("True, False or {}", lambda value: isinstance(value, bool))
            holds = rule.holds
            rule = rule._replace(holds=lambda value: value != {} and holds(value))
        return or_none(rule) if type(None) in args else rule
    return given[-1] if given else {bool: TRUE_OR_FALSE}[hint]


def read_section(settings_class: type[_Settings], section: Any, where: str) -> _Settings:
    """Builds the dataclass from an object of the JSON.

    Args:
      settings_class: A dataclass with a default for each field, and a type that has a rule (`Count`, `Annotated`).
      section: What the JSON has; lists become tuples.
      where: Its key in the JSON, named in errors.

    Raises:
      UserError: It is no object, or has unknown keys or impossible values; all of them at once.
    """
    if not isinstance(section, Mapping):
        raise UserError(f'"{where}" must be an object, found {shown(section)}: correct it')
    described: Mapping[str, Hyperparameter] = described_by(settings_class)  # type: ignore[arg-type]
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in section.items()}
    if findings := broken_keys(where, values, {name: field.rule for name, field in described.items()}):
        raise UserError(*findings)
    return settings_class(**values)


# `frame_stack`: how many frames of each part of an observation networks see at once.


def leaf_name(path: Sequence[Any]) -> str:
    """The name of the leaf at a path of an observation: `sensors/touch`, without parts `observation`."""
    return "/".join(map(str, path)) or "observation"


def frames_of_leaves(names: Sequence[str], are_images: Sequence[bool], frame_stack: FrameStack) -> tuple[int, ...]:
    """The frames of each leaf, 1 where it is not stacked. A number stacks all images, a dictionary what it names.

    Args:
      names: Of the leaves, by `leaf_name`.
      are_images: Which leaves are images.
      frame_stack: The hyperparameter.
    """
    if isinstance(frame_stack, Mapping):
        return tuple(int(frame_stack.get(name, 1)) for name in names)
    return tuple(int(frame_stack) if is_image else 1 for is_image in are_images)
