"""What a sample is, and draws of minibatches from the ring, all steps that it holds equally likely, or by priority.

Each step is stored once: what a sample consists of is decided when it is drawn, by the run's form. A form names the
arrays of its samples, says which steps around the one that is drawn it needs, and draws. It knows nothing of
TensorFlow: agents/minibatch.py makes Transitions and Trajectories of its arrays. Training is never given what is held
out, and validation nothing else.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tfagents_system.agents import algorithms
from tfagents_system.checks.schedules import Schedule
from tfagents_system.envs.gym_driver import GoalFunctions
from tfagents_system.hyperparameters import RACE_END_STEPS, FrameStack
from tfagents_system.replay.hindsight import Hindsight, Relabelled
from tfagents_system.replay.priorities import NO_ROW, Priorities
from tfagents_system.replay.ring import STEP_FIRST, Ring, is_held_out, is_repeated, kind_of_step
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport import tables
from tfagents_system.transport.segments import Layout

_REJECTION_ROUNDS = 8
# Distinguish the random numbers of drawing from those of other roles.
_DRAW_STREAM, _HELD_OUT_STREAM, _OFFLINE_STREAM = 1, 2, 3


# Samples.

# The kinds of the arrays of samples that are not float32: those of a nest's leaves, and other numbers.
_KINDS = {
    "observation": "observation",
    "next_observation": "observation",
    "action": "action",
    "step_type": "int32",
    "row": "int64",
}


class Samples:
    """K minibatches of B samples. A subclass is a dataclass, and its fields are a block's arrays, in their order.

    A list of arrays is a nest's leaves. A field with the default None is in some runs only.
    """

    def to_arrays(self) -> list[np.ndarray]:
        """The arrays of a block; each leaf of a nest is one."""
        arrays: list[np.ndarray] = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not None:
                arrays += value if isinstance(value, list) else [value]
        return arrays


@dataclasses.dataclass
class Transitions(Samples):
    """K minibatches of B transitions, each of one step or of up to n.

    Attributes:
      observation: Leaves `[K, B, ...]`.
      action: Leaves `[K, B, ...]`, in [-1, 1].
      reward: `[K, B]` float32.
      discount: `[K, B]` float32: 0 where the episode terminated in this transition. An agent multiplies it with gamma
        once; a transition of m steps has gamma^(m - 1) in it. Also 0 where a mini-race is over.
      next_observation: Leaves `[K, B, ...]`.
      returns: `[K, B]` float32, where the ring has them: the discounted sum of the episode's rewards up to this step.
      horizon_time, next_horizon_time: `[K, B]` float32, of mini-races: t / T of both observations.
      weight: `[K, B]` float32, where steps are drawn by priorities: how much the losses of the sample count.
      row: `[K, B]` int64, likewise: the number of the row whose priority its TD error becomes; -1: of none.
    """

    observation: list[np.ndarray]
    action: list[np.ndarray]
    reward: np.ndarray
    discount: np.ndarray
    next_observation: list[np.ndarray]
    returns: np.ndarray | None = None
    horizon_time: np.ndarray | None = None
    next_horizon_time: np.ndarray | None = None
    weight: np.ndarray | None = None
    row: np.ndarray | None = None


@dataclasses.dataclass
class Sequences(Samples):
    """K minibatches of B sequences of L transitions, as L + 1 time steps.

    Where an episode has fewer steps, its first or last one fills the places before or behind it, with weight 0.

    Attributes:
      step_type: `[K, B, L + 1]` int32.
      observation: Leaves `[K, B, L + 1, ...]`.
      action: Leaves `[K, B, L + 1, ...]`; the last time step's is not part of a transition.
      reward: `[K, B, L + 1]` float32, of the transition that starts at the time step.
      discount: `[K, B, L + 1]` float32, likewise.
      weight: `[K, B, L + 1]` float32: how much the loss of the transition counts. 0 in the burn-in and where a place is
        only filled; those of a sequence add up to the steps behind its burn-in.
      returns: `[K, B, L + 1]` float32, see Transitions.
    """

    step_type: np.ndarray
    observation: list[np.ndarray]
    action: list[np.ndarray]
    reward: np.ndarray
    discount: np.ndarray
    weight: np.ndarray
    returns: np.ndarray | None = None


# Draws.


@dataclasses.dataclass(frozen=True)
class PriorData:
    """The experience of others that minibatches have beside the run's own (RLPD, Ball et al., arXiv 2302.02948).

    Attributes:
      ring: Where it is.
      samples: Of each minibatch, behind those of the run's own: n.
      offline_env_steps: Of the run at its agent's offline updates, for schedules.
    """

    ring: Ring
    samples: int
    offline_env_steps: int = 0


@dataclasses.dataclass(frozen=True)
class DrawSettings:
    """How minibatches are drawn.

    Attributes:
      batch_size: Samples of a minibatch.
      form: What a sample is.
      max_block_minibatches: Minibatches of one block, at most.
      seed: Of the run.
      discount: gamma, for samples of several steps.
      held_out: Draw from the held-out episodes, instead of all others.
      held_out_minibatches: Minibatches of held-out experience that come with each iteration, once there is any.
      frame_stack: How many frames of which leaves are stacked.
      whole_bootstrap: `discount` of transitions has gamma^m in it: the whole factor of the next value.
      prior: Where a part of each minibatch is drawn from; None: all of it is from the run's own ring.
      goals: The environment's functions of goals, where the form has hindsight.
      priorities: Of the ring's steps, for a form with `is_prioritized`; None: all are alike, and none has a priority.
      beta: Exponent of the importance weights (N P(i))^-beta.
      schedules, goals_at: What `discount` and `beta`, and `goals`, follow; see `at`.
    """

    batch_size: int
    form: SampleForm
    max_block_minibatches: int
    seed: int
    discount: float = 1.0
    held_out: bool = False
    held_out_minibatches: int = 0
    frame_stack: FrameStack = 1
    whole_bootstrap: bool = False
    prior: PriorData | None = None
    goals: GoalFunctions | None = None
    priorities: Priorities | None = None
    beta: float = 1.0
    schedules: Mapping[str, Schedule] = dataclasses.field(default_factory=dict)
    goals_at: Callable[[int], GoalFunctions] | None = None

    def at(self, env_steps: int, train_steps: int, iteration: int) -> DrawSettings:
        """Those of an iteration; arguments as of `Schedule.value`, where its draws begin (of OFFLINE without steps)."""
        if iteration == tables.OFFLINE and self.prior is not None:
            env_steps = self.prior.offline_env_steps
        position = env_steps, train_steps, iteration
        followed: dict[str, Any] = {name: schedule.value(*position) for name, schedule in self.schedules.items()}
        if self.goals_at is not None:
            followed["goals"] = self.goals_at(iteration)
        return dataclasses.replace(self, **followed)


def make_block(ring: Ring, settings: DrawSettings, request: tables.Request, done: int, count: int) -> tables.Block:
    """Draws the next minibatches of a request; behind the last ones come those that are held out, to be measured.

    Random numbers depend only on the position in the run, so nothing has to be saved for a restart.

    Args:
      ring, settings: What is drawn from, with a step to train on, and how.
      request, done: Its `count` is known; minibatches of it that are sent already.
      count: Those of this block; 0 where the request has none.
    """
    first, is_offline = request.first + done, request.iteration == tables.OFFLINE
    is_last = count > 0 and done + count == request.count
    measured = settings.held_out_minibatches if is_last and not is_offline and ring.held_out_steps else 0
    arrays: list[np.ndarray] = []
    if count:
        where = [_OFFLINE_STREAM] if is_offline else [_DRAW_STREAM, request.iteration]
        rng = _rng(settings.seed, *where, first, request.recoveries)
        arrays = draw(ring, rng, settings, count, is_offline=is_offline)
    if measured:
        rng = _rng(settings.seed, _HELD_OUT_STREAM, request.iteration, request.recoveries)
        held_out = draw(ring, rng, dataclasses.replace(settings, held_out=True), measured)
        arrays = [np.concatenate(pair) for pair in zip(arrays, held_out, strict=True)]
    env_steps, total = 0 if is_offline else ring.env_steps, request.first + request.count
    return tables.Block(request.session, request.iteration, first, count, env_steps, total, measured, arrays)


def _rng(*position: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(position))


def draw(
    ring: Ring, rng: np.random.Generator, settings: DrawSettings, num_minibatches: int, *, is_offline: bool = False
) -> list[np.ndarray]:
    """Draws minibatches as a run's settings say: the arrays of its form's samples.

    With prior data there are two of each: those of the run's own samples `[K, B - n, ...]`, then, in the same order,
    those of the n prior ones. One array for both would be another copy of all.

    Args:
      ring, settings: What is drawn from, with a step of the kind, and how.
      rng: Decides what is drawn.
      num_minibatches: K.
      is_offline: Draw from prior data alone.
    """
    prior, held_out, drawn = settings.prior, settings.held_out, list[Samples]()
    rings = (ring, ring) if prior is None or held_out else (prior.ring if is_offline else ring, prior.ring)
    sizes = [settings.batch_size] if prior is None else [settings.batch_size - prior.samples, prior.samples]
    for source, size in zip(rings, sizes, strict=False):
        priorities = settings.priorities if source is ring and not held_out else None
        part = dataclasses.replace(settings, batch_size=size, priorities=priorities)
        drawn.append(part.form.draw(source, rng, part, num_minibatches))
    _scale_weights([part.weight for part in drawn if isinstance(part, Transitions) and part.weight is not None])
    return [array for samples in drawn for array in samples.to_arrays()]


def _scale_weights(weights: Sequence[np.ndarray]) -> None:
    """Divides the importance weights of each minibatch by the largest: they only make updates smaller."""
    largest = np.max([weight.max(axis=1, keepdims=True) for weight in weights], axis=0) if weights else 1.0
    for weight in weights:
        weight /= largest


# Forms.


class SampleForm(abc.ABC):
    """What a sample is. TrainParams.sample_form_ctor may return a subclass of a user's own.

    Attributes:
      samples: Type of what is drawn, which names the arrays.
      sequence_length: Transitions of a sample with an axis of time, those of its burn-in included; None: a sample is
        one transition.
      burn_in: Transitions of a sequence that only produce the state in which its losses begin.
      cuts_at_exploration: The ring is to say which actions explored.
      hindsight: Some samples get another goal: the ring is to say of which episode a row is, and
        `DrawSettings.goals` are the environment's functions of goals.
      is_prioritized: It draws by the priorities of the run, and its samples have `weight` and `row`.
    """

    samples: ClassVar[type[Samples]]
    sequence_length: int | None = None
    burn_in: int = 0
    cuts_at_exploration: bool = False
    hindsight: Hindsight | None = None
    is_prioritized: bool = False

    @property
    def has_horizon_time(self) -> bool:
        """Whether the policy's observation has a `horizon_time` beside what the environment gives.

        Samples have it as `horizon_time` and `next_horizon_time`.
        """
        return False

    @property
    @abc.abstractmethod
    def reach(self) -> tuple[int, int]:
        """Steps of the same episode before and behind the one that is drawn, which its sample may need."""

    @abc.abstractmethod
    def draw(self, ring: Ring, rng: np.random.Generator, settings: DrawSettings, num_minibatches: int) -> Samples:
        """Draws minibatches: arrays `[K, B, ...]`, or `[K, B, sequence_length + 1, ...]`. See `sampling.draw`."""

    def arrays(self, *, has_returns: bool) -> dict[str, str]:
        """The arrays of a block in their order, each with its kind: `observation`, `action`, or a number's dtype.

        Args:
          has_returns: The ring has the returns of steps.
        """
        in_some_runs = {"returns": has_returns, "weight": self.is_prioritized, "row": self.is_prioritized}
        return {
            field.name: _KINDS.get(field.name, "float32")
            for field in dataclasses.fields(self.samples)  # type: ignore[arg-type]
            if field.default is dataclasses.MISSING or in_some_runs.get(field.name, self.has_horizon_time)
        }

    def sample_bytes(self, layout: Layout, frame_stack: FrameStack) -> int:
        """What a sample takes in a block, as a bound."""
        return ((self.sequence_length or 1) + 1) * layout.stacked_step_bytes(frame_stack)


@dataclasses.dataclass(frozen=True)
class TransitionForm(SampleForm):
    """Transitions of up to n steps.

    Attributes:
      n_step: n.
      cuts_at_exploration: A transition ends before the next action that explored.
      races: They are those of mini-races, drawn in this way.
      hindsight: As of SampleForm.
      is_prioritized: As of SampleForm.
    """

    samples = Transitions
    n_step: int = 1
    cuts_at_exploration: bool = False
    races: MiniRaces | None = None
    hindsight: Hindsight | None = None
    is_prioritized: bool = False

    @property
    def reach(self) -> tuple[int, int]:
        return 0, self.n_step - 1

    @property
    def has_horizon_time(self) -> bool:
        return self.races is not None

    def draw(self, ring: Ring, rng: np.random.Generator, settings: DrawSettings, num_minibatches: int) -> Transitions:
        """Draws with replacement, all transitions equally likely, or by priority; shapes rewards by potentials."""
        shape, stack = (num_minibatches, settings.batch_size), settings.frame_stack
        with ring.lock:
            rows, of_steps = self._choose_rows(ring, rng, shape[0] * shape[1], settings)
            relabelled = None
            # Of few samples, such as those of prior data, none may get another goal.
            if self.hindsight is not None and self.hindsight.count(settings.batch_size):
                assert settings.goals is not None, "hindsight needs the environment's functions of goals"
                relabelled = Relabelled(ring, rng, rows, shape, self.hindsight, settings.goals)
            ahead = self._experience(ring, rows, settings.discount, relabelled)
            next_rows = (rows + ahead.n_steps) % ring.num_rows
            reward, discount = ahead.rewards[-1], ahead.discounts[-1]
            if self.races is not None:
                reward, discount = self._race(self.races, ahead, rng, of_steps)
            if ring.potential is not None:  # R + g Phi(s') - Phi(s), g = gamma * discount (Ng, Harada, Russell, 1999)
                g = np.float32(settings.discount) * discount
                reward = reward + g * ring.potential[next_rows] - ring.potential[rows]
            del ahead  # Before the large arrays come: freed behind them, it makes the heap shrink each time.
            of_steps |= {"reward": reward, "discount": discount}
            drawn = Transitions(
                observation=_take_observation(ring, rows, shape, stack),
                action=[_take(column, rows, shape) for column in ring.action],
                next_observation=_take_observation(ring, next_rows, shape, stack),
                returns=None if ring.returns is None else _take(ring.returns, rows, shape),
                **{name: array.reshape(shape) for name, array in of_steps.items()},
            )
            if relabelled is not None:
                relabelled.replace_goals((drawn.observation, drawn.next_observation))
        if settings.whole_bootstrap:
            drawn.discount *= np.float32(settings.discount)
        return drawn

    def _choose_rows(
        self, ring: Ring, rng: np.random.Generator, count: int, settings: DrawSettings
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """`[count]` rows at which a transition starts, and `weight` and `row`, if any."""
        if self.is_prioritized and settings.priorities is not None:
            rows, likelihood = settings.priorities.draw(rng, count)
            weight = (likelihood**-settings.beta).astype(np.float32)
            return rows, {"weight": weight, "row": settings.priorities.numbers(rows)}
        rows = draw_rows(ring, rng, count, settings.held_out)
        if not self.is_prioritized:
            return rows, {}
        return rows, {"weight": np.ones(count, np.float32), "row": np.full(count, NO_ROW)}

    def _experience(self, ring: Ring, rows: np.ndarray, gamma: float, relabelled: Relabelled | None) -> Experience:
        """What follows the steps in these rows `[N]`."""
        behind = [rows, *((rows + k) % ring.num_rows for k in range(1, self.n_step))]
        has_cuts = self.cuts_at_exploration and ring.explored is not None
        explored = [ring.explored[k] for k in behind] if has_cuts and ring.explored is not None else None
        steps_left = None if self.n_step == 1 else ring.steps_left[rows]
        reward, discount = ([column[k] for k in behind] for column in (ring.reward, ring.discount))
        if relabelled is not None:
            relabelled.judge(reward, discount)
        return experience(reward, discount, steps_left, gamma, explored)

    def _race(
        self, races: MiniRaces, ahead: Experience, rng: np.random.Generator, of_steps: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rewards and discounts `[N]` of mini-races at drawn times; these times become arrays of the samples, too."""
        t = draw_times(rng, len(ahead.rewards[0]), races)
        of_steps["horizon_time"] = (t / races.steps).astype(np.float32)
        of_steps["next_horizon_time"] = ((t + ahead.n_steps) / races.steps).astype(np.float32)
        if "row" in of_steps:
            of_steps["row"][t >= races.steps - RACE_END_STEPS] = NO_ROW
        return mini_race(ahead, t, races.steps)


@dataclasses.dataclass(frozen=True)
class SequenceForm(SampleForm):
    """Sequences of one episode, for recurrent networks.

    Attributes:
      sequence_length, burn_in: As of SampleForm.
    """

    samples = Sequences
    sequence_length: int
    burn_in: int = 0

    @property
    def reach(self) -> tuple[int, int]:
        return self.sequence_length - 1, self.sequence_length - self.burn_in - 1

    def draw(self, ring: Ring, rng: np.random.Generator, settings: DrawSettings, num_minibatches: int) -> Sequences:
        """Draws sequences within one segment so that the expected weight of every step in the ring is the same.

        A step is drawn, and its place in the window of L steps that the losses are on, both uniformly. The part of the
        window within the segment is given, v steps of weight L / v. A window is drawn with probability v / (N L) in a
        ring of N steps, and a step is in L windows: its expected weight is L / N everywhere. Where the segment has
        fewer steps before the window than the burn-in, its first one is a FIRST: memories begin there.
        """
        length, burn_in, stack = self.sequence_length, self.burn_in, settings.frame_stack
        with ring.lock:
            shape, size = (num_minibatches, settings.batch_size, length + 1), length - burn_in
            drawn = draw_rows(ring, rng, num_minibatches * settings.batch_size, settings.held_out)[:, None]
            place = rng.integers(size, size=drawn.shape)
            earlier = _steps_before(ring, drawn, length - 1)
            start = np.minimum(place, earlier)  # Steps from the beginning of the window's part to the one drawn.
            valid = start + np.minimum(size - place, ring.steps_left[drawn])
            begin = -np.minimum(burn_in, earlier - start)
            step = np.arange(length + 1) - burn_in  # From the beginning of the window's part.
            # Never a row of another segment, nor the transition of a segment's last row: they hold any number, NaN too.
            rows = (drawn - start + np.clip(step, begin, valid)) % ring.num_rows
            transition_rows = (drawn - start + np.clip(step, begin, valid - 1)) % ring.num_rows
            step_type = kind_of_step(ring.step_type[rows])
            step_type[(step == begin) & (begin > -burn_in)] = STEP_FIRST
            return Sequences(
                step_type=step_type.reshape(shape),
                observation=_take_observation(ring, rows, shape, stack),
                action=[_take(column, transition_rows, shape) for column in ring.action],
                reward=_take(ring.reward, transition_rows, shape),
                discount=_take(ring.discount, transition_rows, shape),
                weight=np.where((step >= 0) & (step < valid), size / valid, 0).astype(np.float32).reshape(shape),
                returns=None if ring.returns is None else _take(ring.returns, transition_rows, shape),
            )


def form_of(params: TrainParamsBase) -> SampleForm:
    """What the toolkit draws, as the parameters say."""
    if recurrent := algorithms.value(params, "recurrent"):
        return SequenceForm(recurrent["burn_in"] + recurrent["sequence_length"], recurrent["burn_in"])
    # An action that is the only one of its transition cuts nothing.
    cuts = params.n_step > 1 and bool(algorithms.value(params, "cut_at_exploration"))
    races = None
    if mini_race := algorithms.value(params, "mini_race"):
        first, second = mini_race["oversampling"]
        races = MiniRaces(mini_race["steps"], (first, second))
    hindsight = None
    if params.hindsight_share is not None:
        hindsight = Hindsight(params.hindsight_share, params.hindsight_strategy)
    return TransitionForm(params.n_step, cuts, races, hindsight, params.priority_exponent is not None)


# Several steps, and mini-races.

# A mini-race is a transition with a time t of its own, drawn with it: the episode counts as over T steps after its
# beginning, wherever that was. Networks see t / T beside the observation, so with gamma = 1 a value is the sum of the
# rewards of the T - t steps to come. It comes from Linesight, whose names `experience` and `mini_race` have.


@dataclasses.dataclass(frozen=True)
class MiniRaces:
    """How mini-races are drawn.

    Attributes:
      steps: T.
      oversampling: (a, b): the times 1 to a - 2b are twice as likely as those behind them, and 0 is 2b + 1 times as
        likely, see `draw_times`. Linesight's oversample_long_term_steps and oversample_maximum_term_steps.
    """

    steps: int
    oversampling: tuple[int, int] = (40, 5)


class Experience(NamedTuple):
    """What follows N steps, up to n more of them each; the last of `rewards` and `discounts` make n-step returns.

    Attributes:
      n_steps: n of each, `[N]`, or one number for all.
      rewards: As many arrays `[N]` float32 as n may be: rewards[j] = sum_{k<=j} gamma^k (prod_{l<k} d_l) r_k, r and d
        the environment's rewards and discounts. From n on they stay the same (Sutton and Barto, section 7.1).
      discounts: Likewise: gamma^j prod_{k<=j} d_k, 0 from the step on that terminates the episode. Linesight's
        gammas[j] are gamma * discounts[j]; n' >= its terminal_actions is discounts[n' - 1] = 0.
    """

    n_steps: np.ndarray | int
    rewards: Sequence[np.ndarray]
    discounts: Sequence[np.ndarray]


def experience(
    reward: Sequence[np.ndarray],
    discount: Sequence[np.ndarray],
    steps_left: np.ndarray | None,
    gamma: float,
    explored: Sequence[np.ndarray] | None = None,
) -> Experience:
    """Sums up the rewards of n = min(n_step, steps_left, first k >= 1 with explored[k]) steps.

    Args:
      reward, discount: n_step arrays `[N]` float32: of the k-th step. Those behind a segment may be anything.
      steps_left: `[N]`: steps to the end of the segment, which ends with its episode at the latest. Where that
        terminated, the discount is 0; where a time limit, a stop or the bound of a segment's length cut it, the value
        of the observation after the last step counts. None: one step at least, and n_step is 1.
      gamma: The agent's discount.
      explored: n_step arrays `[N]`: whether the k-th action is another one than the greedy one. What comes after such
        an action is not what the policy would have got. None: it does not matter.
    """
    most = len(reward)
    n_steps: np.ndarray | int = 1 if steps_left is None else np.minimum(most, steps_left)
    for k in range(1, most if explored is not None else 0):
        assert explored is not None
        n_steps = np.where(explored[k], np.minimum(n_steps, k), n_steps)
    rewards, discounts = [reward[0]], [discount[0]]
    for k in range(1, most):
        is_inside = k < n_steps
        before = np.where(is_inside, np.float32(gamma) * discounts[k - 1], discounts[k - 1])
        # Not a product with is_inside: rows behind a segment hold any number, NaN too.
        rewards.append(rewards[k - 1] + np.where(is_inside, before * reward[k], np.float32(0)))
        discounts.append(np.where(is_inside, before * discount[k], before))
    return Experience(n_steps, rewards, discounts)


def mini_race(ahead: Experience, t: np.ndarray, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Transitions that are over at time T, as Linesight's buffer_collate_function makes them.

    n' = n - max(0, t + n - T). It is terminal where the episode terminates within n' steps, or where t + n >= T:
    g = 0, else g = gammas[n' - 1]. The reward is rewards[n' - 1].

    Args:
      ahead: The experience, n below T.
      t: `[N]` integers from 0 to T - 1: the times at which it begins.
      num_steps: T.

    Returns:
      Reward and discount `[N]` float32; g is gamma * discount.
    """
    ends = t + ahead.n_steps
    within = ahead.n_steps - np.maximum(0, ends - num_steps)
    place = (within - 1, np.arange(len(t)))
    rewards, discounts = (np.stack(steps)[place] for steps in (ahead.rewards, ahead.discounts))
    return rewards, np.where(ends >= num_steps, np.float32(0), discounts)


def draw_times(rng: np.random.Generator, count: int, races: MiniRaces) -> np.ndarray:
    """`[count]` integers from 0 to T - 1: t = max(0, |u| - b), u uniform in {-(a - b), ..., T + b - 1}."""
    a, b = races.oversampling
    return np.maximum(0, np.abs(rng.integers(b - a, races.steps + b, size=count)) - b)


# Rows.


def draw_rows(ring: Ring, rng: np.random.Generator, count: int, held_out: bool) -> np.ndarray:
    """`[count]` rows at which a transition starts, uniformly, by rejection; the ring has one.

    Nearly every row qualifies, as a rule (one in an episode does not); where few do, they are listed instead.
    """
    accepted: list[np.ndarray] = []
    missing = count
    for _ in range(_REJECTION_ROUNDS):
        size = _round_size(ring, missing, held_out)
        if size is None:
            break
        rows = (ring.oldest_row + rng.integers(0, ring.filled_rows, size=size)) % ring.num_rows
        rows = rows[_are_starts(ring, rows, held_out)][:missing]
        accepted.append(rows)
        missing -= len(rows)
        if missing == 0:
            return np.concatenate(accepted)
    candidates = ring.held_rows[_are_starts(ring, ring.held_rows, held_out)]
    return np.concatenate([*accepted, candidates[rng.integers(len(candidates), size=missing)]])


def _round_size(ring: Ring, missing: int, held_out: bool) -> int | None:
    """Rows to draw so that about `missing` of them are of the wanted episodes; None: listing them costs less."""
    expected = missing
    if ring.held_out_steps or ring.repeated_steps:
        of_kind = ring.held_out_steps if held_out else ring.training_steps
        if missing > of_kind:
            return None
        expected = missing * ring.filled_rows // of_kind
    return expected + missing // 16 + 8


def _are_starts(ring: Ring, rows: np.ndarray, held_out: bool) -> np.ndarray:
    """Where a transition starts."""
    starts = ring.steps_left[rows] >= 1
    if ring.repeated_steps:
        starts &= ~is_repeated(ring.step_type[rows])
    if held_out or ring.held_out_steps:
        starts &= is_held_out(ring.step_type[rows]) == held_out
    return starts


def _steps_before(ring: Ring, rows: np.ndarray, most: int) -> np.ndarray:
    """Transitions of the same segment before each of these rows `[N, 1]`, at most so many."""
    back = np.arange(1, most + 1)
    # Within a segment `steps_left` counts down; before it is the last row of another one, or its history.
    is_same = ring.steps_left[(rows - back) % ring.num_rows] == ring.steps_left[rows] + back
    return np.minimum.accumulate(is_same, axis=1).sum(axis=1, keepdims=True)


def _take(column: np.ndarray, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return column[rows].reshape(shape + column.shape[1:])


def _take_observation(ring: Ring, rows: np.ndarray, shape: tuple[int, ...], stack: FrameStack) -> list[np.ndarray]:
    """Leaves of the observations in rows, none of a segment's history; frames are on the last axis, oldest first."""
    frames, rows = ring.layout.frames(stack), rows.reshape(-1)
    frame_rows = _frame_rows(ring, rows, max(frames, default=1))
    leaves = [
        column[rows] if count == 1 else _stacked(column, frame_rows[-count:])
        for column, count in zip(ring.observation, frames, strict=True)
    ]
    return [leaf.reshape(shape + leaf.shape[1:]) for leaf in leaves]


def _frame_rows(ring: Ring, rows: np.ndarray, num_frames: int) -> list[np.ndarray]:
    """`[n]` each: where the frames are, oldest first.

    They are the rows before, within the segment: it begins with its episode, or with its history, which is as long as
    a stack needs. The row before a segment's first one is the last row of another segment: its `steps_left` is 0.
    """
    frames = [rows]
    for _ in range(num_frames - 1):
        before = (frames[0] - 1) % ring.num_rows
        frames.insert(0, np.where(ring.steps_left[before] == 0, frames[0], before))
    return frames


def _stacked(column: np.ndarray, frame_rows: Sequence[np.ndarray]) -> np.ndarray:
    """`[n, ..., count * size]` of a column `[rows, ..., size]`; a pixel is copied as one item: much faster."""
    *others, size = column.shape[1:]
    pixels, pixel = int(np.prod(others)), np.dtype((np.void, size * column.itemsize))
    stacked = np.empty((len(frame_rows[0]), pixels, len(frame_rows)), pixel)
    for k, rows in enumerate(frame_rows):
        stacked[:, :, k] = column[rows].reshape(len(rows), pixels, size).view(pixel)[..., 0]
    return stacked.view(column.dtype).reshape(-1, *others, len(frame_rows) * size)
