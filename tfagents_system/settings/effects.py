"""Attributes of TrainParams that were set but have no effect beside the others: reported before a start."""

from __future__ import annotations

from tfagents_system.agents.algorithms import value as value_of_algorithm
from tfagents_system.checks.hyperparameters import IMAGES, When, described_by
from tfagents_system.errors import shown
from tfagents_system.settings.own_attributes import is_set
from tfagents_system.settings.run_defaults import OF_ITERATIONS
from tfagents_system.train_params_base import TrainParamsBase, overrides_any


def without_effect(params: TrainParamsBase, images: bool | None = None) -> list[str]:
    """Attributes that were set but have no effect beside the others, one sentence each.

    Args:
      params: Their values must be right, each by itself and together.
      images: Whether there are any in the observations; None where that is not known yet.
    """
    told = []
    for each in described_by(TrainParamsBase).values():
        because = next((why for when in each.acts if (why := _why_not(params, when, images))), "")
        value = getattr(params, each.name) if because else each.default
        # Of these, one that is set is meant, though it is the default: it decides what an iteration is.
        if value != each.default or (because and each.name in OF_ITERATIONS and is_set(params, each.name)):
            told.append(f"TrainParams.{each.name}={shown(value)} has no effect {because}")
    return told


def _why_not(params: TrainParamsBase, when: When, images: bool | None) -> str:
    """Why a condition does not hold, with the remedy; empty if it does, or nobody can know."""
    if when.of_agent and overrides_any(params, "agent_ctor", "actor_ctor", "critic_ctor"):
        return ""
    if when.attribute == IMAGES:
        return "with observations without images: remove it" if images is False else ""
    if when.or_with and getattr(params, when.or_with):
        return ""
    value = value_of_algorithm(params, when.attribute)
    return "" if when.holds(value) else f"with {when.attribute}={shown(value)}: remove it, or change that"
