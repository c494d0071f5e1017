"""Assigns slot numbers to workers that join a run.

A run has SAC_MAX_WORKERS slots. The first SAC_NUM_COLLECT_WORKERS are planned ones, and of these the first
SAC_LOCAL_WORKERS belong to the workers that the run itself starts. The next SAC_EXPERT_WORKERS are its experts', the
SAC_EVAL_WORKERS behind them its evaluators'; all others are for those who join.

Whoever talks to the replay server claims the slot on that server's machine (see machine/claims.py): a worker of the
same machine, or the gateway for a worker of another.
"""

from __future__ import annotations

import dataclasses

from tfagents_system.errors import UserError
from tfagents_system.machine.claims import Claims

# Kinds of workers (see worker/kinds.py). Only the first may have a planned slot: the run waits for its experience.
COLLECT, EVAL, EXPERT, TEST = "collect", "eval", "expert", "test"
KINDS = (COLLECT, EVAL, EXPERT, TEST)


@dataclasses.dataclass(frozen=True)
class SlotCounts:
    """How many slots a run has.

    Attributes:
      local: Workers that the run itself starts.
      planned: Planned workers, including the local ones.
      most: All slots.
      experts, evaluators: Experts, and workers that only evaluate, which the run itself starts; their slots follow
        the planned ones. With any of these all planned workers are local.
    """

    local: int
    planned: int
    most: int
    experts: int = 0
    evaluators: int = 0

    @property
    def beside(self) -> range:
        """Slots of the workers that the run starts beside the planned ones."""
        return range(self.planned, self.planned + self.experts + self.evaluators)

    @property
    def sharing_evaluations(self) -> range:
        """Workers among whom each evaluation is divided: the run's evaluators, without any the planned workers."""
        return self.beside[self.experts :] if self.evaluators else range(self.planned)

    def for_kind(self, kind: str) -> range:
        """The slots that a worker of this kind may have when it joins."""
        if kind == COLLECT and self.local < self.planned:
            return range(self.local, self.most)
        return range(self.beside.stop, self.most)

    def refusal(self, kind: str) -> str:
        """The message for a worker of this kind that gets no slot."""
        remedy = "start the run with a larger SAC_MAX_WORKERS"
        if not (fitting := self.for_kind(kind)):
            return f"this run has no slot for a worker of kind {kind} that joins ({self}): {remedy}"
        what = f"all {len(fitting)} slots for workers of kind {kind} that join are taken"
        return f"{what} ({self}): {remedy}, or end some workers"

    def __str__(self) -> str:
        experts = f", SAC_EXPERT_WORKERS={self.experts}" if self.experts else ""
        evaluators = f", SAC_EVAL_WORKERS={self.evaluators}" if self.evaluators else ""
        return f"SAC_MAX_WORKERS={self.most}, SAC_NUM_COLLECT_WORKERS={self.planned}{experts}{evaluators}"


def claim_of(port: int, slot: int) -> str:
    """Name by which a slot is claimed on the machine of the replay server, whose port tells runs apart."""
    return f"slot/{port}/{slot}"


def take_slot(claims: Claims, port: int, counts: SlotCounts, kind: str, wanted: int | None = None) -> int:
    """Claims a slot for a worker that joins: the `wanted` one if it is free and fits the kind, else the first of those.

    Args:
      claims: This process's, which holds none yet.
      port: The replay server's on this machine, which tells runs apart.

    Raises:
      UserError: There is none.
    """
    fitting = counts.for_kind(kind)
    for slot in [*([wanted] if wanted is not None and wanted in fitting else []), *fitting]:
        if claims.take(claim_of(port, slot)):
            return slot
    raise UserError(counts.refusal(kind))
