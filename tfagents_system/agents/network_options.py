"""The parts of the default networks: the algorithm's own unless TrainParams set others."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfagents_system.agents import algorithms

SIMBA_EXPANSION = 4


@dataclasses.dataclass(frozen=True)
class NetworkOptions:
    """The parts of actor and critics beside their sizes.

    Attributes:
      is_simba: Residual blocks behind normalised observations, in place of plain layers.
      critic_layer_norm: Layer normalisation before each activation of the critics.
      critic_dropout: Rate of the dropout before that; 0: none.
      batch_renormalization: In actor and critics, in front of the first layer and behind each hidden one.
      batch_renormalization_warmup_steps: Updates with plain batch normalisation before that.
      normalizes_observations: By running statistics; a part of SimBa.
    """

    is_simba: bool
    critic_layer_norm: bool
    critic_dropout: float
    batch_renormalization: bool
    batch_renormalization_warmup_steps: int
    normalizes_observations: bool

    def of_actor(self) -> NetworkOptions:
        """Without what critics alone have, for a network that may have either."""
        return dataclasses.replace(self, critic_layer_norm=False, critic_dropout=0.0)

    @property
    def has_plain_actor(self) -> bool:
        """Whether TF-Agents' own actor networks suffice."""
        return not (self.is_simba or self.batch_renormalization)

    @property
    def has_plain_critic(self) -> bool:
        """Whether TF-Agents' own critic networks suffice."""
        return self.has_plain_actor and not (self.critic_layer_norm or self.critic_dropout)


def network_options(params: Any) -> NetworkOptions:
    """The options of TrainParams; None there means the value of the algorithm's paper."""
    renormalization = algorithms.value(params, "batch_renormalization")
    return NetworkOptions(
        is_simba=params.network == "simba",
        critic_layer_norm=algorithms.value(params, "critic_layer_norm"),
        critic_dropout=float(algorithms.value(params, "critic_dropout")),
        batch_renormalization=bool(renormalization),
        batch_renormalization_warmup_steps=renormalization["warmup_steps"] if renormalization else 0,
        normalizes_observations=params.normalize_observations or params.network == "simba",
    )


def network_findings(params: Any) -> list[str]:
    """The networks' parts that exclude each other, one sentence each; every value is valid by itself."""
    options = network_options(params)
    if options.is_simba:
        return _simba_findings(params, options)
    if params.batch_renormalization and params.recurrent:
        return [
            "TrainParams.batch_renormalization=True does not work with recurrent=True, its statistics would be taken "
            "over neighbouring, dependent steps, and over states just after zeros: set one of them to False"
        ]
    return []


def _simba_findings(params: Any, options: NetworkOptions) -> list[str]:
    findings = [
        f"TrainParams.{name} does not work with network='simba', {why}: {remedy}"
        for name, is_wanted, why, remedy in (
            ("recurrent=True", params.recurrent, "its residual blocks have no memory", "set it to False"),
            (
                "critic_layer_norm=True",
                options.critic_layer_norm,
                "whose blocks have their own layer normalisation",
                "set it to False",
            ),
            (
                f"critic_dropout={options.critic_dropout:g}",
                options.critic_dropout > 0,
                "DroQ's dropout belongs into plain layers",
                "set it to 0",
            ),
            (
                "batch_renormalization=True",
                options.batch_renormalization,
                "which normalises layers already",
                "set it to False",
            ),
        )
        if is_wanted
    ]
    for name in ("actor_fc_layer_params", "critic_joint_fc_layer_params"):
        units = tuple(getattr(params, name))
        if not units or len(set(units)) != 1:
            findings.append(
                f"TrainParams.{name}={units} must be one width, once for each residual block, with network='simba': "
                "write it as in (256, 256)"
            )
    return findings
