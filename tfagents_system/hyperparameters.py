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
        name=Option("adam", one_of(("adam", "adamw", "sgd")), "Adam (arXiv 1412.6980), AdamW (1711.05101) or SGD."),
        beta_1=Option(None, _BETA, "Decay of Adam's first moment; None: 0.9, with `crossq` 0.5."),
        beta_2=Option(0.999, _BETA, "Decay of Adam's second moment."),
        epsilon=Option(1e-7, number_above(0), "Added to the root of Adam's second moment."),
        momentum=Option(0.0, _BETA, "SGD: velocity <- momentum * velocity - rate * gradient."),
        weight_decay=Option(
            None,
            rules.NOT_NEGATIVE,
            "AdamW subtracts rate * weight_decay * weights in each step (None: 0.01). Adam and SGD add weight_decay * "
            "weights to the gradient (None: 0).",
        ),
        global_clipnorm=Option(
            None, or_none(number_above(0)), "Maximum norm of the gradients of all variables together."
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
_WITH_PRIOR = When("prior_data")
_WITH_HINDSIGHT = When("hindsight_share")
_COMBINED = When("preprocessing_combiner", None)
_TIMING = NotDeterministic("what is collected would depend on timing")


def _learning_rate(params: Hyperparameters) -> Any:
    """As `learning_rate`."""
    return params.learning_rate


def _one_for_each_env_step(params: Hyperparameters) -> int:
    """`updates_per_env_step` (rounded)."""
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

    value.__doc__ = f"`{for_cpus}` (preset `paper`: `{of_paper}`)."
    return value


def _with_categories(params: Hyperparameters) -> bool:
    """True with categorical critics."""
    return params.algorithm in CATEGORICAL or params.critic_head == "categorical"


def _rate_of_xqc(params: Hyperparameters) -> Any:
    """3e-4 (preset `paper`: falling to 3e-5 over the run)."""
    return _FALLING_TO_A_TENTH(params) if params.preset == "paper" else 3e-4


class Hyperparameters:
    """What a TrainParams file may set.

    "In total" and "per worker" say how a count is shared: 10 episodes in total with 4 workers are 3, 3, 2 and 2.
    """

    algorithm: Literal["sac", "redq", "droq", "tqc", "crossq", "xqc", "flash_sac", "dqn", "iqn", "sac_discrete"] = "sac"
    """Learning algorithm, see docs/reference/algorithms.md. Attributes left at None use the values of its paper."""
    preset: Annotated[Literal["cpu", "paper"], When("algorithm", (*CATEGORICAL, "iqn"))] = "cpu"
    """Sizes of networks and minibatches and the update ratio, unless set: `cpu` suits two cores, `paper` is as
    published."""

    # What all algorithms share: SAC (Haarnoja et al., arXiv 1812.05905).
    discount: Annotated[SchedulableFraction, "per environment step", DefaultOf(xqc=_by_horizon), MayChange] = 0.99
    """Discount factor gamma. Only `dqn`, `iqn` and `sac_discrete` accept a schedule."""
    learning_rate: Annotated[
        SchedulablePositive,
        DefaultOf(
            **dict.fromkeys(("redq", "droq", "tqc"), 3e-4),
            xqc=_rate_of_xqc,
            flash_sac=_FALLING_TO_HALF,
            **dict.fromkeys(_OF_VALUES, _FALLING_RATE),
        ),
        MayChange,
    ] = 1e-3
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
    """Learning rate of log(alpha)."""
    target_update_tau: Annotated[
        float,
        number_above(0, at_most=1),
        DefaultOf(iqn=1.0, sac_discrete=0.02, flash_sac=0.01),
        Unless("algorithm", "crossq"),
        MayChange,
    ] = 0.005
    """Soft update of the target critics: target <- (1 - tau) * target + tau * critic."""
    target_update_period: Annotated[Count, "updates", DefaultOf(iqn=100), Unless("algorithm", "crossq"), MayChange] = 1
    """Interval between soft updates of the target critics. Setting either this or `target_update_tau` drops the
    algorithm's defaults for both."""
    gradient_clipping: Positive | None = None
    """Maximum norm of each variable's gradient. To limit the norm over all variables, set an optimizer's
    `global_clipnorm`."""
    learn_entropy_coef: Annotated[bool, _OF_ACTORS] = True
    """True: tunes alpha, the entropy coefficient, towards `target_entropy`. False: keeps it at exp(sac_log_alpha)."""
    sac_log_alpha: Annotated[
        float,
        number_where("a number of at most 50", lambda value: value <= 50),
        DefaultOf(**dict.fromkeys(CATEGORICAL, -4.605)),
        _OF_ACTORS,
        MayChange,
    ] = 0.0
    """Initial log(alpha). In a run that has begun, a change acts only with `learn_entropy_coef = False`."""
    target_entropy: Annotated[Number | None, "nats", When("learn_entropy_coef"), _OF_ACTORS] = None
    """Target entropy of actions scaled to [-1, 1]. None: -dim(action); about half of that with `xqc` and `flash_sac`;
    0.3 log(n) for n legal discrete actions."""
    batch_size: Annotated[
        Count,
        "samples",
        DefaultOf(dqn=64, iqn=_sized(64, 512), sac_discrete=64, flash_sac=_sized(256, 512)),
        MayChange,
    ] = 256
    """Minibatch size in transitions, or in sequences with `recurrent`."""
    matmul_precision: Annotated[
        Literal["float32", "bfloat16", "auto"], NotDeterministic("a measurement decides whether it is used")
    ] = "float32"
    """`bfloat16`: the trainer multiplies hidden layers in bfloat16 if each start measures at least 1.2 times the speed
    (CPUs with AMX or AVX512-BF16). Otherwise it warns and uses float32. `auto`: the same without the warning. Weights,
    optimizers and losses stay float32."""

    # Other algorithms.
    num_critics: Annotated[Count | None, ByAlgorithm(2, redq=10, tqc=5)] = None
    """Number of critics, N."""
    num_target_critics: Annotated[Count | None, ByAlgorithm(redq=2, droq=2)] = None
    """M: targets use the minimum over M of the N critics, drawn for each update."""
    actor_update_period: Annotated[Count | None, "updates", _ACTOR_PERIODS] = None
    """Critic updates per update of actor and alpha."""
    critic_head: Annotated[
        Literal["scalar", "categorical"] | None, ByAlgorithm("scalar", xqc="categorical", flash_sac="categorical")
    ] = None
    """Output of the critics of `sac`, `redq`, `droq` and `crossq`. `scalar`: a value. `categorical`: a distribution
    over fixed values (C51, Bellemare et al., arXiv 1707.06887) of scaled rewards (`normalize_rewards`). The loss is the
    cross-entropy to the target of the critic with the lower mean."""
    categorical: Annotated[
        Mapping[str, Any],
        options(
            num_atoms=Option(101, integer_from(2), "Number of values."),
            value_range=Option((-5.0, 5.0), rules.RANGE, "Their range, in standard deviations of the return."),
        ),
        When("critic_head", "categorical"),
    ] = {}
    """Values of categorical critics. Targets beyond `value_range` are clipped; the metric `clipped_mass` is their
    share."""
    tqc: Annotated[
        Mapping[str, Any],
        options(
            num_quantiles=Option(25, integer_from(2), "Quantiles of each critic."),
            num_dropped_quantiles=Option(
                2, integer_from(0), "Targets drop the largest of all critics' quantiles.", "per critic"
            ),
        ),
        When("algorithm", "tqc"),
    ] = {}
    """Quantiles of TQC."""

    # Learners of the values of discrete actions.
    double_q: Annotated[bool | None, When("algorithm", _WITHOUT_ACTOR), ByAlgorithm(False, dqn=True)] = None
    """True: the online network chooses the next action, the target network evaluates it (van Hasselt et al., arXiv
    1509.06461). False: the target network does both."""
    dueling: Annotated[bool | None, When("algorithm", _WITHOUT_ACTOR), ByAlgorithm(False, iqn=True)] = None
    """Separate heads for V(s) and A(s, a): Q = V + A - mean_a A (Wang et al., arXiv 1511.06581)."""
    value_head_units: Annotated[
        Count, DefaultOf(iqn=_sized(64, 512)), When("algorithm", _WITHOUT_ACTOR), When("dueling")
    ] = 512
    """Units of each head's hidden layer."""
    exploration_epsilon: Annotated[
        SchedulableFraction,
        When("algorithm", _WITHOUT_ACTOR),
        DefaultOf(**dict.fromkeys(_WITHOUT_ACTOR, _FALLING_EPSILON)),
        MayChange,
    ] = 0.1
    """Share of uniformly random actions."""
    boltzmann_epsilon: Annotated[SchedulableFraction, When("algorithm", _WITHOUT_ACTOR), MayChange] = 0.0
    """Share of the other actions that maximize Q + 0.01 * normal noise, to vary actions of nearly equal value."""
    iqn: Annotated[
        Mapping[str, Any],
        options(
            num_quantiles=Option(
                8, rules.EVEN, "N and N', quantiles of a sample and of its target, in pairs tau and 1 - tau."
            ),
            num_acting_quantiles=Option(
                32, integer_from(1), "K: actions maximize the mean of the fixed quantiles (k + 1/2) / K."
            ),
            num_cosines=Option(64, integer_from(1), "Features cos(pi i tau) of a fraction tau."),
            huber_kappa=Option(1.0, number_above(0), "Error below which the loss is quadratic."),
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
    """Units of the actor's hidden layers (after the LSTM with `recurrent`)."""
    critic_joint_fc_layer_params: Annotated[
        Layers,
        DefaultOf(
            iqn=_sized((128, 128), (512,)),
            sac_discrete=(128, 128),
            xqc=_sized((256, 256), (512,) * 4),
            flash_sac=_sized((128, 128), (256, 256)),
        ),
    ] = (256, 256)
    """Units of each critic's hidden layers over observation and action."""
    recurrent: Annotated[
        bool | Mapping[str, Any],
        options(
            lstm_units=Option(64, integer_from(1), "Units of each LSTM."),
            sequence_length=Option(
                20, integer_from(1), "Length of a sequence; a shorter episode is one sequence.", "transitions"
            ),
            burn_in=Option(
                0, integer_from(0), "Transitions before a sequence that only compute the LSTMs' state.", "transitions"
            ),
        ),
    ] = False
    """LSTMs in actor and critics, trained on sequences (docs/explanations/experience.md)."""
    preprocessing_combiner: Annotated[Any | None, Rule("a Keras layer, a function that returns one", callable)] = None
    """Turns an observation into one tensor `[B, n]`. Merging layers (Concatenate, Add) get a list of its leaves, other
    layers its nest. None: encodes images (`image_encoder_layers`), then flattens and concatenates all leaves. Small
    uint8 arrays that the encoder cannot take count as numbers."""
    network: Annotated[Literal["mlp", "simba"], Unless("algorithm", CATEGORICAL)] = "mlp"
    """`mlp`: plain layers. `simba`: residual blocks on normalised observations, one per entry of the layer sizes
    (docs/reference/networks.md)."""
    critic_layer_norm: Annotated[bool | None, ByAlgorithm(False, droq=True)] = None
    """Layer normalisation before each activation of the critics (`dqn`, `iqn`: of the only network)."""
    # Dropout draws in steps of 1/65536: a smaller rate would be none at all, a larger one would keep nothing.
    critic_dropout: Annotated[
        float | None,
        number_where("0 or a number in [0.0001, 0.99]", lambda rate: rate == 0 or 1e-4 <= rate <= 0.99),
        ByAlgorithm(0.0, droq=0.01),
    ] = None
    """Dropout rate of the critics' hidden layers, in updates only."""
    batch_renormalization: Annotated[
        bool | Mapping[str, Any] | None,
        options(
            warmup_steps=Option(
                100_000,
                integer_from(0),
                "Start with plain batch normalisation, as in CrossQ.",
                "updates",
            )
        ),
        ByAlgorithm(False, crossq=True),
    ] = None
    """Batch renormalisation (Ioffe, arXiv 1702.03275) before the first and after each hidden layer of actor and
    critics. Not for discrete actions."""
    reset_period_updates: Annotated[Count | None, "updates"] = None
    """Interval at which actor, critics, encoder, alpha and optimizer moments are re-initialised, against primacy bias
    at high update ratios (Nikishin et al., arXiv 2205.07802; BRO, arXiv 2405.16158). Replay, counters and settings
    stay."""

    # Images and histories.
    frame_stack: Annotated[int | Mapping[str, int], _FRAMES] = 1
    """Frames that networks see at once, oldest first. A number stacks images (uint8, `[height, width, channels]`) along
    the channels. A dictionary stacks parts of the observation along their last axis; a nested part is `sensors/touch`,
    an observation without parts `observation`. Each frame is stored once."""
    actor_observations: Annotated[Sequence[str] | None, rules.PARTS_OF_OBSERVATION] = None
    """Parts of the observation, named as in `frame_stack`, that the actor sees; saved and exported policies ask for
    these alone. Critics see all, such as a simulator's state (Pinto et al., arXiv 1710.06542). A name includes the
    parts within it. `action_history` is always seen. None: all parts."""
    image_encoder_layers: Annotated[Sequence[Any], rules.CONVOLUTIONS, _COMBINED] = (32, 32, 32, 32)
    """Convolutions that the default actor and critics share. Filters alone are 3 x 3, the first with stride 2 (DrQ-v2,
    Yarats et al., arXiv 2107.09645). `()` flattens images."""
    image_encoder_features: Annotated[Count, When("image_encoder_layers"), _COMBINED] = 50
    """Features that actor and critics each compute from the encoder's output, with layer normalisation and tanh."""
    image_augmentation_pixels: Annotated[CountOrZero | None, "pixels"] = None
    """Largest random shift of images in minibatches. None: 4 if images are encoded, else 0."""
    action_history: CountOrZero = 0
    """Previous actions in the observation, in [-1, 1] or one-hot, oldest first: for systems with delay. They start as
    zeros, in real time as the default action."""
    action_bounds: Annotated[Sequence[Any] | None, rules.BOUNDS] = None
    """Actions in the environment's units, to which the policy's [-1, 1] is scaled. They must be within the Box's
    bounds. None: the Box's bounds, which must be finite."""
    action_table: Annotated[Sequence[Sequence[float]] | None, rules.ROWS] = None
    """Turns a Box into a choice between these actions, in the environment's units."""

    # Optimizers and normalisation.
    critic_optimizer: Optimizer = {}
    """Optimizer of the critics, such as `{"name": "adamw", "weight_decay": 0.01}`; {} is Adam."""
    actor_optimizer: Annotated[Optimizer, _OF_ACTORS] = {}
    """Optimizer of the actor."""
    alpha_optimizer: Annotated[Optimizer, When("learn_entropy_coef"), _OF_ACTORS] = {}
    """Optimizer of log(alpha)."""
    normalize_observations: Annotated[bool, Unless("network", "simba")] = False
    """Normalises observations to mean 0 and variance 1 with running statistics, clipped to [-10, 10]; images stay as
    they are. SimBa always does."""
    strict_observation_bounds: bool = False
    """True: an observation beyond its space's finite bounds is a fault of the environment. False: it is kept and logged
    once."""
    normalize_rewards: Annotated[bool | None, ByAlgorithm(_with_categories)] = None
    """Divides rewards (with `n_step` > 1 their n-step sums) by the running standard deviation of the discounted return,
    and clips them to [-10, 10] unless critics are categorical. Cannot change within a run."""

    # The iteration: collect, push, draw, update, publish.
    num_iter: Annotated[Count, "iterations", MayChange] = 1000
    """Length of the run. With `num_env_steps` it is an upper bound, if you set it."""
    num_env_steps: Annotated[Count | None, "steps in total", MayChange] = None
    """Length of the run in environment steps of all workers, random ones included. The last iteration is completed."""
    env_steps_per_iter: Annotated[Count | None, "steps in total"] = None
    """Environment steps of all planned workers in an iteration; workers that join add theirs. Episodes continue in the
    next iteration with the newest policy. None: whole episodes. If neither this, `num_train_episodes_per_iter` nor
    `updates_per_iter` is set: 200, or a twentieth of a shorter `num_env_steps`, at least one step per worker."""
    updates_per_iter: Annotated[Count, "updates", When("env_steps_per_iter", None), MayChange] = 1000
    """Updates per iteration. For one per environment step, `updates_per_env_step = 1` is simpler."""
    num_train_episodes_per_iter: Annotated[Count, "episodes per worker", When("env_steps_per_iter", None)] = 1
    """Episodes that each worker collects in an iteration."""
    num_initial_episodes: Annotated[CountOrZero, "episodes in total", When("initial_collect_steps", None)] = 10
    """Episodes with uniformly random actions before the first iteration."""
    initial_collect_steps: Annotated[CountOrZero | None, "steps in total"] = None
    """Steps with uniformly random actions before the first iteration. None: `num_initial_episodes` episodes. If neither
    is set, iterations of steps begin with 1000, or a tenth of a shorter run."""
    buffer_size: Annotated[Count, "steps in total"] = 1_000_000
    """Capacity of the replay buffer, at least one full-length episode."""
    asynchronous: Annotated[bool, _TIMING] = False
    """False: pipelined lock-step iterations with a policy lag of at most `max_policy_lag`. True: workers never wait for
    a policy; `updates_per_env_step` limits updates, `min_updates_per_env_step` workers."""
    max_policy_lag: Annotated[Literal[0, 1], "iterations", Unless("asynchronous", True)] = 1
    """1: each iteration is collected while the previous one is trained on. 0: collecting and training alternate, so
    workers always act with the newest policy (as with SAC_DETERMINISTIC=1)."""
    max_unsent_mb: Annotated[Count, "MiB per worker", MayChange] = 256
    """In real time (docs/tutorials/real_robot.md): experience that a worker keeps while the replay server accepts none.
    Beyond that it drops the oldest. Other workers wait for the server."""
    min_updates_per_env_step: Annotated[Positive | None, "updates per step", When("asynchronous")] = None
    """Workers wait while fewer updates per step have been done, not counting the random steps. None: they never
    wait."""
    publish_period_updates: Annotated[Count | None, "updates", When("asynchronous"), MayChange, _TIMING] = None
    """Interval between policies published within an iteration; its last one is always published. None: only that
    one."""
    policy_refresh_steps: Annotated[
        Count | None, "steps of each environment", When("asynchronous"), MayChange, _TIMING
    ] = None
    """Interval at which a worker looks for a newer policy within episodes. None: only at an iteration's start."""

    # Episodes: how they are collected, and which are kept.
    greedy_episode_share: Annotated[float, number_in(0, 1), MayChange] = 0.0
    """Share of each worker's episodes, after the random ones, that the greedy policy collects."""
    noise_hold_steps: Annotated[
        int | None,
        rules.integer_in(1, 1000),
        "steps",
        ByAlgorithm(1, flash_sac=16),
        Unless("algorithm", _OF_VALUES),
        MayChange,
    ] = None
    """Longest time K that exploration noise is held: each draw lasts k = 1 to K steps with probability proportional to
    k^-2 (FlashSAC, arXiv 2604.04539). Only for actors that workers compute in NumPy, so not for images."""
    keep_best_episodes: Annotated[CountOrZero, "episodes in total", MayChange] = 0
    """Episodes with the highest returns since the last edit, kept step by step in `episodes/`. Each episode then has
    its own seed, so `run.py --replay-actions` can repeat it."""

    # Experience: what is drawn, and how much of it.
    updates_per_env_step: Annotated[
        Positive | None, "updates per step", DefaultOf(xqc=_sized(1, 2), **dict.fromkeys(_WITHOUT_ACTOR, 0.5))
    ] = None
    """Updates-to-data ratio: floor(ratio * steps) updates after each iteration, not counting the first random steps.
    With `asynchronous` it is an upper limit. None: 1 with `env_steps_per_iter` or `asynchronous`, otherwise
    `updates_per_iter` decides. Algorithms' defaults are for iterations of steps."""
    n_step: Annotated[Count, "steps", DefaultOf(**dict.fromkeys(_WITHOUT_ACTOR, 3))] = 1
    """Rewards that a transition sums, discounted, before the critic's value."""
    cut_at_exploration: Annotated[bool | None, ByAlgorithm(False, dqn=True, iqn=True), Unless("n_step", 1)] = None
    """Ends a transition before the next action that differs from the policy's greedy one (`explored`, 1 byte per step),
    because the policy would not earn what follows."""
    mini_race: Annotated[
        Mapping[str, Any] | None,
        options(
            steps=Option(REQUIRED, integer_from(1), "Length of a mini-race.", "steps"),
            oversampling=Option(
                (40, 5),
                rules.OVERSAMPLING,
                "(a, b): times 1 to a - 2b are drawn twice as often as later ones, 0 is drawn 2b + 1 times as often.",
            ),
        ),
    ] = None
    """Gives each sample a random time t in a mini-race and ends its episode at time `steps`
    (docs/explanations/experience.md). With `discount = 1`, a value is the sum of the rewards left. Observations get
    `horizon_time`, t / `steps`, 0 when a policy acts."""
    hindsight_share: Annotated[float | None, number_above(0, at_most=1)] = None
    """Share of each minibatch with a goal that its episode achieved, and the reward for it (HER, Andrychowicz et al.,
    arXiv 1707.01495): for environments with goals. The paper's k = 4 is 0.8."""
    hindsight_strategy: Annotated[rules.GoalStrategy, _WITH_HINDSIGHT] = "future"
    """Where the episode achieved that goal: later, at its end, or anywhere."""
    priority_exponent: Annotated[
        float | None,
        number_above(0, at_most=1),
        MayChange,
        NotDeterministic("what is drawn would depend on when TD errors come"),
    ] = None
    """alpha of prioritised replay (Schaul et al., arXiv 1511.05952): steps are drawn with probability proportional to
    the alpha-th power of their TD error. New steps count as twice the mean. None: uniform draws."""
    priority_beta: Annotated[SchedulableFraction, When("priority_exponent"), MayChange] = 1.0
    """beta: losses have the importance weights (N P(i))^-beta, divided by the minibatch's largest. 1 fully corrects the
    means of losses."""
    validation_share: Annotated[float, number_in(0, 0.5)] = 0.0
    """Share of each worker's episodes held out from training. Their losses are logged as `validation/critic_loss` and
    so on."""

    # Prior data.
    prior_data: Annotated[Any | None, rules.PATHS] = None
    """Demonstrations and other data: run directories, folders of `experience import`, `.npz`, `minari:NAME`. Relative
    paths start at the params file's folder. The run keeps all of it as a second ring."""
    prior_data_share: Annotated[float, rules.SHARE, _WITH_PRIOR, MayChange] = 0.5
    """Share of each minibatch drawn from prior data (RLPD, Ball et al., arXiv 2302.02948: 0.5)."""
    offline_updates: Annotated[CountOrZero, "updates", _WITH_PRIOR] = 0
    """Updates on prior data alone before the first iteration. `updates_per_env_step` does not count them."""
    behaviour_cloning_weight: Annotated[
        float, rules.NOT_NEGATIVE, Unless("algorithm", _OF_VALUES), When("offline_updates")
    ] = 0.0
    """Weight w of a term that keeps the actor near the data in offline updates: w * mean(abs(Q)) * mean((a_pi - a)^2).
    TD3+BC (Fujimoto and Gu, arXiv 2106.06860) has w = 1 / 2.5."""

    # Evaluations, periods and the end of a run.
    num_eval_episodes: Annotated[CountOrZero, "episodes in total", MayChange] = 10
    """Episodes of one evaluation with the greedy policy. 0: no evaluations and no best policy; curves show training
    returns."""
    eval_period_iters: Annotated[Count, "iterations", MayChange, When("num_eval_episodes")] = 10
    """Interval between evaluations; the first and last policies are always evaluated. Default of runs of fewer than 100
    iterations of episodes: a tenth of the run."""
    eval_period_env_steps: Annotated[Count | None, "steps in total", MayChange, When("num_eval_episodes")] = None
    """The interval in environment steps, up to an iteration's end. If neither is set, iterations of steps and runs of
    `num_env_steps` have 9 * `num_eval_episodes` * horizon (a tenth of all steps), or less, for at least ten
    evaluations."""
    log_period_iters: Annotated[Count, "iterations", MayChange] = 1
    """Interval between rows of metrics. Default of iterations of steps: about 1000 steps, in a short run 20 rows."""
    checkpoint_period_iters: Annotated[Count, "iterations", MayChange] = 50
    """Interval between checkpoints of agent, optimizers, counters and policy."""
    checkpoint_period_env_steps: Annotated[Count | None, "steps in total", MayChange] = None
    """The interval in environment steps. If neither is set, iterations of steps have 50,000."""
    keep_policies: Annotated[bool, MayChange, When("num_eval_episodes", 0)] = True
    """False keeps only the newest policy on disk."""
    best_metric: Annotated[Literal["return", "success"], MayChange, When("num_eval_episodes")] = "return"
    """Chooses the best policy by an evaluation's mean return, or by its success rate and then its return. The search
    restarts when a curriculum with `apply_to_eval` changes the task."""
    stop_when: Annotated[Mapping[str, float] | None, rules.CONDITIONS, MayChange] = None
    """Ends the run early, as if complete: after so many `evaluations` in a row (default 1) with at least this
    `eval_success`, `eval_return`, or both; or after `no_improvement_env_steps` steps without a better evaluation by
    `best_metric`. With `apply_to_eval`, only evaluations with a curriculum's last values count."""
    max_hours: Annotated[
        Positive | None, "hours", MayChange, NotDeterministic("a clock would decide how long the run is")
    ] = None
    """Maximum training time over all starts of the run. It ends after the iteration."""


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
