"""What is drawn: minibatches of samples, and the names and kinds of their arrays, which the trainer reads as well."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np

# Metadata of the fields of `Samples`: what a sample has there. A list of arrays is a nest's leaves.
OBSERVATION: Mapping[str, str] = {"kind": "observation"}
ACTION: Mapping[str, str] = {"kind": "action"}
FLOAT32: Mapping[str, str] = {"kind": "float32"}
INT32: Mapping[str, str] = {"kind": "int32"}
INT64: Mapping[str, str] = {"kind": "int64"}


@dataclasses.dataclass(frozen=True)
class SampleArray:
    """An entry of a block.

    Attributes:
      name: Such as `next_observation`.
      kind: `observation` or `action`, which have the arrays of such a nest's leaves, or the dtype of a number.
    """

    name: str
    kind: str


class Samples:
    """K minibatches of B samples. A subclass is a dataclass, and its fields are a block's arrays, in their order.

    A field with the default None is in some runs only.
    """

    def to_arrays(self) -> list[np.ndarray]:
        """The arrays of a block; each leaf of a nest is one."""
        arrays: list[np.ndarray] = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not None:
                arrays += value if isinstance(value, list) else [value]
        return arrays

    @classmethod
    def described(cls, optional: Collection[str]) -> tuple[SampleArray, ...]:
        """Its fields: all that are always there, and those of the optional ones."""
        return tuple(
            SampleArray(field.name, field.metadata["kind"])
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]
            if field.default is dataclasses.MISSING or field.name in optional
        )


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

    observation: list[np.ndarray] = dataclasses.field(metadata=OBSERVATION)
    action: list[np.ndarray] = dataclasses.field(metadata=ACTION)
    reward: np.ndarray = dataclasses.field(metadata=FLOAT32)
    discount: np.ndarray = dataclasses.field(metadata=FLOAT32)
    next_observation: list[np.ndarray] = dataclasses.field(metadata=OBSERVATION)
    returns: np.ndarray | None = dataclasses.field(default=None, metadata=FLOAT32)
    horizon_time: np.ndarray | None = dataclasses.field(default=None, metadata=FLOAT32)
    next_horizon_time: np.ndarray | None = dataclasses.field(default=None, metadata=FLOAT32)
    weight: np.ndarray | None = dataclasses.field(default=None, metadata=FLOAT32)
    row: np.ndarray | None = dataclasses.field(default=None, metadata=INT64)


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

    step_type: np.ndarray = dataclasses.field(metadata=INT32)
    observation: list[np.ndarray] = dataclasses.field(metadata=OBSERVATION)
    action: list[np.ndarray] = dataclasses.field(metadata=ACTION)
    reward: np.ndarray = dataclasses.field(metadata=FLOAT32)
    discount: np.ndarray = dataclasses.field(metadata=FLOAT32)
    weight: np.ndarray = dataclasses.field(metadata=FLOAT32)
    returns: np.ndarray | None = dataclasses.field(default=None, metadata=FLOAT32)
