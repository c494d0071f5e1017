"""Forms of samples: what one draw from the ring is, as replay server, trainer and workers read it.

A form names the arrays of its samples, says which steps around the one that is drawn it needs, and draws. It knows
nothing of TensorFlow: agents/block_update.py makes Transitions and Trajectories of its arrays.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from tfagents_system.agents import algorithms
from tfagents_system.checks.frame_stacks import FrameStack
from tfagents_system.replay import sampling
from tfagents_system.replay.hindsight import Hindsight, Relabelled
from tfagents_system.replay.n_step import MiniRaces
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.samples import SampleArray, Samples, Sequences, Transitions
from tfagents_system.replay.sampling import DrawSettings
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.layout import Layout


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
        """See SampleForm."""
        transitions = sampling.draw_transitions(
            ring,
            rng,
            num_minibatches,
            settings.batch_size,
            n_step=self.n_step,
            gamma=settings.discount,
            held_out=held_out,
            frame_stack=settings.frame_stack,
            cuts_at_exploration=self.cuts_at_exploration,
            races=self.races,
            relabel=self._relabel(settings),
            prioritized=settings.prioritized if self.is_prioritized else None,
        )
        if settings.whole_bootstrap:
            transitions.discount *= np.float32(settings.discount)
        return transitions

    def _relabel(self, settings: DrawSettings) -> Callable[..., Relabelled] | None:
        if self.hindsight is None or not self.hindsight.count(settings.batch_size):
            return None  # Of few samples, such as those of prior data, none may get another goal.
        assert settings.goals is not None, "hindsight needs the environment's functions of goals"
        return functools.partial(Relabelled, hindsight=self.hindsight, functions=settings.goals)


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
        """See SampleForm."""
        return sampling.draw_sequences(
            ring,
            rng,
            num_minibatches,
            settings.batch_size,
            self.sequence_length,
            burn_in=self.burn_in,
            held_out=held_out,
            frame_stack=settings.frame_stack,
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
