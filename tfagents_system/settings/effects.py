"""When each attribute of TrainParams acts. What was set and has no effect beside the others is told before a start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.agents.algorithms import value as value_of_algorithm
from tfagents_system.errors import shown
from tfagents_system.train_params_base import TrainParamsBase


class Where(NamedTuple):
    """What another attribute must be for this one to act.

    Attributes:
      attribute: The other one; `images`: those in the observations, which the environment decides.
      holds: Whether its value is one with which this one acts. For None it gets what the algorithm has instead.
      is_of_agent: The toolkit's own agent and networks look at it. What a user's hooks build may do otherwise.
    """

    attribute: str
    holds: Callable[[Any], bool]
    is_of_agent: bool = True


_TUNED = (Where("learn_entropy_coef", bool),)
_WITH_QUANTILES = (Where("algorithm", lambda name: ALGORITHMS[name].has_quantiles),)
_WITH_TARGETS = (Where("algorithm", lambda name: ALGORITHMS[name].has_targets),)
_RENORMALIZED = (Where("batch_renormalization", bool),)
_RECURRENT = (Where("recurrent", bool, is_of_agent=False),)
_IN_LOCK_STEP = (Where("asynchronous", lambda value: not value, is_of_agent=False),)
_ASYNCHRONOUS = (Where("asynchronous", bool, is_of_agent=False),)
_WITHOUT_RATIO = (Where("updates_per_env_step", lambda ratio: ratio is None, is_of_agent=False),)
_ON_IMAGES = (Where("images", bool),)
_ENCODED = (Where("preprocessing_combiner", lambda layer: layer is None), *_ON_IMAGES)
_ALWAYS: tuple[Where, ...] = ()  # Or it is refused where it does not: see params_check.py.

ACTS: Mapping[str, tuple[Where, ...]] = {
    "algorithm": _ALWAYS,
    "discount": _ALWAYS,
    "critic_learning_rate": _ALWAYS,
    "actor_learning_rate": _ALWAYS,
    "alpha_learning_rate": _TUNED,
    "target_update_tau": _WITH_TARGETS,
    "target_update_period": _WITH_TARGETS,
    "gradient_clipping": _ALWAYS,
    "learn_entropy_coef": _ALWAYS,
    "sac_log_alpha": _ALWAYS,
    "target_entropy": _TUNED,
    "train_batch_size": _ALWAYS,
    "share_log_pi": _TUNED,
    "matmul_precision": _ALWAYS,
    "num_critics": _ALWAYS,
    "num_target_critics": _ALWAYS,
    "actor_update_period": _ALWAYS,
    "num_quantiles": _WITH_QUANTILES,
    "num_dropped_quantiles": _WITH_QUANTILES,
    "actor_fc_layer_params": _ALWAYS,
    "critic_joint_fc_layer_params": _ALWAYS,
    "recurrent": _ALWAYS,
    "recurrent_sequence_length": _RECURRENT,
    "recurrent_lstm_units": _RECURRENT,
    "preprocessing_combiner": _ALWAYS,
    "network": _ALWAYS,
    "critic_layer_norm": _ALWAYS,
    "critic_dropout": _ALWAYS,
    "batch_renormalization": _ALWAYS,
    "batch_renormalization_warmup_steps": _RENORMALIZED,
    "frame_stack": _ALWAYS,
    "image_encoder_filters": _ENCODED,
    "image_encoder_features": (Where("image_encoder_filters", bool), *_ENCODED),
    "image_augmentation_pixels": _ON_IMAGES,
    "action_history": _ALWAYS,
    "critic_optimizer": _ALWAYS,
    "actor_optimizer": _ALWAYS,
    "alpha_optimizer": _TUNED,
    "normalize_observations": (Where("network", lambda name: name != "simba"),),  # Which always normalises them.
    "normalize_rewards": _ALWAYS,
    "num_iter": _ALWAYS,
    "num_steps_per_iter": _WITHOUT_RATIO,
    "n_train_episodes_per_iter": _ALWAYS,
    "n_buffer_init_episodes": _ALWAYS,
    "n_episodes_in_buffer": _ALWAYS,
    "asynchronous": _ALWAYS,
    "max_policy_lag": _IN_LOCK_STEP,
    "max_updates_per_env_step": _ASYNCHRONOUS,
    "updates_per_env_step": _ALWAYS,
    "n_step": _ALWAYS,
    "recurrent_burn_in": _RECURRENT,
    "validation_share": _ALWAYS,
    "n_eval_episodes": _ALWAYS,
    "eval_period_itrs": _ALWAYS,
    "log_period_itrs": _ALWAYS,
    "checkpoint_period_itrs": _ALWAYS,
    "best_metric": _ALWAYS,
    "stop_when": _ALWAYS,
    "max_hours": _ALWAYS,
}


def without_effect(params: TrainParamsBase, images: bool | None = None) -> list[str]:
    """Attributes that were set, and that nothing looks at beside the others, one sentence each.

    Args:
      params: Their values must be right, each by itself and together.
      images: Whether there are any in the observations; None where that is not known yet.
    """
    told = []
    for name, conditions in ACTS.items():
        because = next((why for where in conditions if (why := _why_not(params, where, images))), "")
        if because and getattr(params, name) != getattr(TrainParamsBase, name):
            told.append(f"TrainParams.{name}={shown(getattr(params, name))} has no effect {because}")
    return told


def _why_not(params: TrainParamsBase, where: Where, images: bool | None) -> str:
    """Why a condition does not hold, with the remedy; empty if it does, or nobody can know."""
    if where.is_of_agent and _has_own_agent(params):
        return ""
    if where.attribute == "images":
        return "with observations without images: remove it" if images is False else ""
    value = value_of_algorithm(params, where.attribute)
    return "" if where.holds(value) else f"with {where.attribute}={shown(value)}: remove it, or change that"


def _has_own_agent(params: TrainParamsBase) -> bool:
    hooks = ("agent_ctor", "actor_ctor", "critic_ctor")
    return any(getattr(getattr(params, hook), "__func__", None) is not getattr(TrainParamsBase, hook) for hook in hooks)
