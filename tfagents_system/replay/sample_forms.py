"""Forms of samples: what one draw from the ring is, as replay server, trainer and workers read it.

A form names the arrays of its samples, says which steps around the one that is drawn it needs, and draws. It knows
nothing of TensorFlow: agents/block_update.py makes Transitions and Trajectories of its arrays.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

import numpy as np

from tfagents_system.agents import algorithms
from tfagents_system.hyperparameters import RACE_END_STEPS, FrameStack
from tfagents_system.replay.hindsight import Hindsight, Relabelled
from tfagents_system.replay.n_step import Experience, MiniRaces, draw_times, experience, mini_race
from tfagents_system.replay.priorities import NO_ROW
from tfagents_system.replay.ring import STEP_FIRST, Ring, kind_of_step
from tfagents_system.replay.samples import SampleArray, Samples, Sequences, Transitions
from tfagents_system.replay.sampling import DrawSettings, choose_rows, draw_rows, first_row, observation_leaves
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.segments import Layout


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
    def draw(
        self,
        ring: Ring,
        rng: np.random.Generator,
        settings: DrawSettings,
        num_minibatches: int,
        *,
        held_out: bool = False,
    ) -> Samples:
        """Draws minibatches: arrays `[K, B, ...]`, or `[K, B, sequence_length + 1, ...]`. See `sampling.draw`."""

    def arrays(self, *, has_returns: bool) -> tuple[SampleArray, ...]:
        """The arrays of a block, in their order. `has_returns`: the ring has the returns of steps."""
        times = ("horizon_time", "next_horizon_time") if self.has_horizon_time else ()
        priorities = ("weight", "row") if self.is_prioritized else ()
        return self.samples.described((*times, *(("returns",) if has_returns else ()), *priorities))

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

    def draw(
        self,
        ring: Ring,
        rng: np.random.Generator,
        settings: DrawSettings,
        num_minibatches: int,
        *,
        held_out: bool = False,
    ) -> Transitions:
        """Draws with replacement, all transitions equally likely, or by priority; shapes rewards by potentials."""
        shape, stack = (num_minibatches, settings.batch_size), settings.frame_stack
        prioritized = settings.prioritized if self.is_prioritized else None
        with ring.lock:
            rows, of_steps = choose_rows(ring, rng, shape[0] * shape[1], held_out, first_row(ring, stack), prioritized)
            relabelled = None
            # Of few samples, such as those of prior data, none may get another goal.
            if self.hindsight is not None and self.hindsight.count(settings.batch_size):
                assert settings.goals is not None, "hindsight needs the environment's functions of goals"
                relabelled = Relabelled(ring, rng, rows, shape, self.hindsight, settings.goals)
            ahead = self._experience(ring, rows, settings.discount, relabelled)
            next_rows = (rows + ahead.n_steps) % ring.num_rows
            reward, discount = ahead.transition() if self.races is None else self._race(ahead, rng, of_steps)
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
                relabelled.replace_goals(drawn)
        if settings.whole_bootstrap:
            drawn.discount *= np.float32(settings.discount)
        return drawn

    def _experience(self, ring: Ring, rows: np.ndarray, gamma: float, relabelled: Relabelled | None) -> Experience:
        """What follows the steps in these rows `[N]`."""
        behind = [rows, *((rows + k) % ring.num_rows for k in range(1, self.n_step))]
        has_cuts = self.cuts_at_exploration and ring.explored is not None
        explored = [ring.explored[k] for k in behind] if has_cuts and ring.explored is not None else None
        steps_left = None if self.n_step == 1 else ring.steps_left[rows]
        reward, discount = ([column[k] for k in behind] for column in (ring.reward, ring.discount))
        if relabelled is not None:
            relabelled.judge(reward, discount)
        ahead = experience(reward, discount, steps_left, gamma, explored)
        if ring.potential is None:
            return ahead
        next_rows = (rows + ahead.n_steps) % ring.num_rows
        return dataclasses.replace(ahead, potential=ring.potential[rows], next_potential=ring.potential[next_rows])

    def _race(
        self, ahead: Experience, rng: np.random.Generator, of_steps: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rewards and discounts `[N]` of mini-races at drawn times; these times become arrays of the samples, too."""
        assert self.races is not None
        t = draw_times(rng, len(ahead.rewards[0]), self.races)
        of_steps["horizon_time"] = (t / self.races.steps).astype(np.float32)
        of_steps["next_horizon_time"] = ((t + ahead.n_steps) / self.races.steps).astype(np.float32)
        if "row" in of_steps:
            of_steps["row"][t >= self.races.steps - RACE_END_STEPS] = NO_ROW
        return mini_race(ahead, t, self.races.steps)


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

    def draw(
        self,
        ring: Ring,
        rng: np.random.Generator,
        settings: DrawSettings,
        num_minibatches: int,
        *,
        held_out: bool = False,
    ) -> Sequences:
        """Draws sequences within one segment so that the expected weight of every step in the ring is the same.

        A step is drawn, and its place in the window of L steps that the losses are on, both uniformly. The part of the
        window within the segment is given, v steps of weight L / v. A window is drawn with probability v / (N L) in a
        ring of N steps, and a step is in L windows: its expected weight is L / N everywhere. Where the segment has
        fewer steps before the window than the burn-in, its first one is a FIRST: memories begin there.
        """
        length, burn_in, stack = self.sequence_length, self.burn_in, settings.frame_stack
        with ring.lock:
            shape, size = (num_minibatches, settings.batch_size, length + 1), length - burn_in
            first = first_row(ring, stack)
            drawn = draw_rows(ring, rng, num_minibatches * settings.batch_size, held_out, first)[:, None]
            place = rng.integers(size, size=drawn.shape)
            earlier = _steps_before(ring, drawn, length - 1, first)
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


def _steps_before(ring: Ring, rows: np.ndarray, most: int, first: int) -> np.ndarray:
    """Transitions of the same segment before each of these rows `[N, 1]`, at most so many."""
    back = np.arange(1, most + 1)
    # Within a segment `steps_left` counts down; before it is the last row of another one, or its history.
    is_same = ring.steps_left[(rows - back) % ring.num_rows] == ring.steps_left[rows] + back
    is_same &= (rows - ring.oldest_row) % ring.num_rows - back >= first
    return np.minimum.accumulate(is_same, axis=1).sum(axis=1, keepdims=True)


def _take(column: np.ndarray, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return column[rows].reshape(shape + column.shape[1:])


def _take_observation(ring: Ring, rows: np.ndarray, shape: tuple[int, ...], stack: FrameStack) -> list[np.ndarray]:
    leaves = observation_leaves(ring, rows.reshape(-1), stack)
    return [leaf.reshape(shape + leaf.shape[1:]) for leaf in leaves]


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
