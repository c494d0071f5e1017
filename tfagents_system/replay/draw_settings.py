"""How a run's minibatches are drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from tfagents_system.checks.frame_stacks import FrameStack
from tfagents_system.checks.schedules import Schedule
from tfagents_system.replay.hindsight import GoalFunctions
from tfagents_system.replay.priorities import Prioritized
from tfagents_system.replay.ring import Ring
from tfagents_system.transport.tables import OFFLINE

if TYPE_CHECKING:
    from tfagents_system.replay.sample_forms import SampleForm


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
      gamma: What `discount` follows, see `at`; None: nothing.
      held_out_minibatches: Minibatches of held-out experience that come with each iteration, once there is any.
      frame_stack: How many frames of which leaves are stacked.
      whole_bootstrap: `discount` of transitions has gamma^m in it: the whole factor of the next value.
      prior: Where a part of each minibatch is drawn from; None: all of it is from the run's own ring.
      goals: The environment's functions of goals, where the form has hindsight.
      goals_at: What `goals` follow: those of an iteration; None: nothing.
      prioritized: How a form with `is_prioritized` draws; None: it is none.
      beta: What `prioritized.beta` follows, see `at`; None: nothing.
    """

    batch_size: int
    form: SampleForm
    max_block_minibatches: int
    seed: int
    discount: float = 1.0
    gamma: Schedule | None = None
    held_out_minibatches: int = 0
    frame_stack: FrameStack = 1
    whole_bootstrap: bool = False
    prior: PriorData | None = None
    goals: GoalFunctions | None = None
    goals_at: Callable[[int], GoalFunctions] | None = None
    prioritized: Prioritized | None = None
    beta: Schedule | None = None

    def at(self, env_steps: int, train_steps: int, iteration: int) -> DrawSettings:
        """Those of an iteration; arguments as of `Schedule.value`, where its draws begin (of OFFLINE without steps)."""
        if iteration == OFFLINE and self.prior is not None:
            env_steps = self.prior.offline_env_steps
        position = env_steps, train_steps, iteration
        settings = self
        if self.gamma is not None:
            settings = dataclasses.replace(settings, discount=self.gamma.value(*position))
        if self.goals_at is not None:
            settings = dataclasses.replace(settings, goals=self.goals_at(iteration))
        if self.beta is not None and self.prioritized is not None:
            followed = dataclasses.replace(self.prioritized, beta=self.beta.value(*position))
            settings = dataclasses.replace(settings, prioritized=followed)
        return settings
