"""Which number a worker gets that joins a run.

A run has SAC_MAX_WORKERS slots. The first SAC_NUM_COLLECT_WORKERS are planned ones, and of these the first
SAC_LOCAL_WORKERS belong to the workers that the run itself starts. The next SAC_EXPERT_WORKERS are its experts'; all
others are for those who join.

A slot is claimed on the replay server's machine (see machine/claims.py) by whoever speaks to that server: a worker of
the same machine, or the gateway for one of another. The kernel lets go of it with the process that has claimed it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.machine.claims import Claims

# Kinds of workers (see worker/kinds.py). Only the first may have a planned slot: the run waits for its experience.
COLLECT, EVAL, EXPERT, TEST = "collect", "eval", "expert", "test"
KINDS = (COLLECT, EVAL, EXPERT, TEST)


@dataclasses.dataclass(frozen=True)
class SlotCounts:
    """How many slots a run has.

    Attributes:
      local: Of the workers that the run itself starts.
      planned: Planned workers, those included.
      most: All slots.
      experts: Of the experts that the run itself starts, behind the planned ones. Then all planned ones are local.
    """

    local: int
    planned: int
    most: int
    experts: int = 0

    @classmethod
    def of_run(cls, run: Mapping[str, Any]) -> SlotCounts:
        """From run.json."""
        settings = run["settings"]
        planned = int(settings["num_collect_workers"])
        local, most = settings.get("local_workers"), settings.get("max_workers")
        experts = int(settings.get("expert_workers") or 0)
        return cls(planned if local is None else int(local), planned, int(most or planned + experts), experts)

    def for_kind(self, kind: str) -> range:
        """The slots that a worker of this kind may have when it joins."""
        if kind == COLLECT and self.local < self.planned:
            return range(self.local, self.most)
        return range(self.planned + self.experts, self.most)

    def __str__(self) -> str:
        experts = f", SAC_EXPERT_WORKERS={self.experts}" if self.experts else ""
        return f"SAC_MAX_WORKERS={self.most}, SAC_NUM_COLLECT_WORKERS={self.planned}{experts}"


def claim_of(port: int, slot: int) -> str:
    """Name by which a slot is claimed on the machine of the replay server, whose port tells runs apart."""
    return f"slot/{port}/{slot}"


class Slots:
    """Claims slots of one run for workers that join; they are held until this object's process ends.

    Args:
      port: The replay server's on this machine, which tells runs apart.
      counts: How many there are.
      claims: Where they are held; its own by default.
    """

    def __init__(self, port: int, counts: SlotCounts, claims: Claims | None = None) -> None:
        self._port = port
        self._counts = counts
        self._claims = claims or Claims()
        self._taken: set[int] = set()

    def take(self, kind: str, wanted: int | None = None) -> int:
        """The slot that is `wanted`, where it is free and fits the kind, else the first such one.

        Raises:
          UserError: There is none.
        """
        fitting = self._counts.for_kind(kind)
        first = [wanted] if wanted is not None and wanted in fitting else []
        for slot in [*first, *fitting]:
            if slot not in self._taken and self._claims.take(claim_of(self._port, slot)):
                self._taken.add(slot)
                return slot
        if not fitting:
            raise UserError(
                f"this run has no slot for a worker of kind {kind} that joins ({self._counts}): start the run with a "
                "larger SAC_MAX_WORKERS"
            )
        raise UserError(
            f"all {len(fitting)} slots for workers of kind {kind} that join are taken ({self._counts}): start the run "
            "with a larger SAC_MAX_WORKERS, or end some workers"
        )

    def release(self, slot: int) -> None:
        """Lets go of a slot: its worker has left."""
        self._claims.release(claim_of(self._port, slot))
        self._taken.discard(slot)
