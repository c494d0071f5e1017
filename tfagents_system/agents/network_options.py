"""What the default networks are made of: an algorithm's own parts, unless TrainParams say otherwise."""

from __future__ import annotations

import dataclasses
from typing import Any

SIMBA_EXPANSION = 4
_DROQ_DROPOUT = 0.01  # Hiraoka et al., arXiv 2110.02034, table 4.


@dataclasses.dataclass(frozen=True)
class NetworkOptions:
    """The parts of actor and critics beside their sizes.

    Attributes:
      is_simba: Residual blocks behind normalised observations, in place of plain layers.
      critic_layer_norm: Layer normalisation before each activation of the critics.
      critic_dropout: Rate of the dropout in front of that; 0 has none.
      batch_renormalization: In actor and critics, in front of the first layer and behind each hidden one.
      batch_renormalization_warmup_steps: Updates with plain batch normalisation before that.
    """

    is_simba: bool
    critic_layer_norm: bool
    critic_dropout: float
    batch_renormalization: bool
    batch_renormalization_warmup_steps: int

    @property
    def has_plain_actor(self) -> bool:
        """Whether TF-Agents' own actor networks are all that is wanted."""
        return not (self.is_simba or self.batch_renormalization)

    @property
    def has_plain_critic(self) -> bool:
        """Whether TF-Agents' own critic networks are all that is wanted."""
        return self.has_plain_actor and not (self.critic_layer_norm or self.critic_dropout)


def network_options(params: Any) -> NetworkOptions:
    """Those of TrainParams; None there is what the algorithm's paper has."""
    algorithm = getattr(params, "algorithm", "sac")
    return NetworkOptions(
        is_simba=params.network == "simba",
        critic_layer_norm=_unless_none(params.critic_layer_norm, algorithm == "droq"),
        critic_dropout=float(_unless_none(params.critic_dropout, _DROQ_DROPOUT if algorithm == "droq" else 0.0)),
        batch_renormalization=_unless_none(params.batch_renormalization, algorithm == "crossq"),
        batch_renormalization_warmup_steps=int(params.batch_renormalization_warmup_steps),
    )


def _unless_none(value: Any, default: Any) -> Any:
    return default if value is None else value
