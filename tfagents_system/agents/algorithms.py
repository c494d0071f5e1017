"""The algorithms that TrainParams.algorithm can name. A new one is one file in this folder and one row here.

Imports no TensorFlow: the checks before a start read it as well.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from tfagents_system.agents.iteration_counts import offline_updates
from tfagents_system.hyperparameters import described_by
from tfagents_system.train_params_base import TrainParamsBase

ActionKind = Literal["continuous", "discrete"]
LogStd = Literal["clip_20", "clip_10", "tanh"]


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """Facts of an algorithm that need no agent; hyperparameters.py has its paper's values of attributes.

    Attributes:
      fixed: Attributes that the algorithm fixes, and why; they must be None.
      why_not_recurrent: Why its networks can't be recurrent; empty if they can.
      has_quantiles: Its critics return `tqc.num_quantiles` values.
      adam_beta_1: Of the critics' and the actor's Adam unless their settings say otherwise.
      has_actor: What acts is another network than its critics.
      actions: What it learns to choose: vectors of numbers, or one of n actions (envs/actions.py).
      takes_bootstrap_factor: The arrays named `discount` have the whole factor of the next value, gamma^m or 0; others
        multiply theirs with gamma once.
      agent: File in this folder and its subclass of Agent.
      entropy_per_number: Target entropy for each number of an action, in nats.
      residual_blocks: Its networks consist of these, of one width.
      log_std: How its actor's log standard deviation is bounded, see `networks.Actor`.
    """

    agent: str
    fixed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    why_not_recurrent: str = ""
    has_quantiles: bool = False
    adam_beta_1: float = 0.9
    has_actor: bool = True
    actions: ActionKind = "continuous"
    takes_bootstrap_factor: bool = False
    entropy_per_number: float = -1.0
    residual_blocks: bool = False
    log_std: LogStd = "clip_20"


_NO_MEMORY = "its networks have no LSTM"


def _of_values(agent: str, why_one_critic: str) -> Algorithm:
    """One network of the values of all actions, without an actor."""
    return Algorithm(
        agent,
        {name: why_one_critic for name in ("num_critics", "num_target_critics", "actor_update_period", "critic_head")},
        why_not_recurrent=_NO_MEMORY,
        has_actor=False,
        actions="discrete",
        takes_bootstrap_factor=True,
    )


_TWO_CRITICS = {
    "num_critics": "it has two critics",
    "num_target_critics": "it has two critics",
    "actor_update_period": "its actor is updated each time",
}

_DEPENDENT = "its batch statistics would be taken over neighbouring, dependent steps, and over states just after zeros"


def _with_batch_norm(agent: str, **facts: Any) -> Algorithm:
    """Categorical critics with batch normalisation, and weights of norm 1."""
    fixed = {
        "num_target_critics": "its targets follow the lowest of all critics",
        "critic_head": "it is categorical",
    }
    layers = dict.fromkeys(("batch_renormalization", "critic_layer_norm", "critic_dropout"), "its layers are its own")
    return Algorithm(agent, fixed | layers, why_not_recurrent=_DEPENDENT, **facts)


ALGORITHMS: dict[str, Algorithm] = {
    "sac": Algorithm("sac.Sac", _TWO_CRITICS),
    "redq": Algorithm("redq.Redq"),
    "droq": Algorithm("redq.Redq"),
    "tqc": Algorithm(
        "tqc.Tqc",
        {
            "num_target_critics": "it pools the quantiles of all critics and drops the largest",
            "critic_head": "its critics have quantiles",
        },
        has_quantiles=True,
    ),
    "crossq": Algorithm(
        "crossq.Crossq",
        {"num_target_critics": "its minimum is over all critics"},
        why_not_recurrent=_DEPENDENT,
        adam_beta_1=0.5,  # The paper's table of hyperparameters.
    ),
    "xqc": _with_batch_norm("xqc.Xqc", entropy_per_number=-0.5, log_std="clip_10"),
    "flash_sac": _with_batch_norm(
        "flash_sac.FlashSac",
        # That of a normal distribution with a deviation of 0.15 of the action's half range.
        entropy_per_number=0.5 * math.log(2.0 * math.pi * math.e * 0.15**2),
        residual_blocks=True,
        log_std="tanh",
    ),
    "dqn": _of_values("dqn.Dqn", "it has one network of values and no actor"),
    "iqn": _of_values("iqn.Iqn", "it has one network of quantiles and no actor"),
    "sac_discrete": Algorithm(
        "sac_discrete.SacDiscrete",
        _TWO_CRITICS | {"critic_head": "its critics have a value of each action"},
        why_not_recurrent=_NO_MEMORY,
        actions="discrete",
        takes_bootstrap_factor=True,
    ),
}


def value(params: Any, name: str) -> Any:
    """An attribute of TrainParams, dictionaries of options with all keys; None means the value of the paper."""
    described, own = described_by(TrainParamsBase)[name], getattr(params, name)
    if own is None and not described.replaces_default(params.algorithm):
        own = described.by_algorithm.value(params)
    return described.filled(own)


def num_critic_outputs(params: Any) -> int:
    """Number of values that a critic returns for an observation and action."""
    if ALGORITHMS[params.algorithm].has_quantiles:
        return int(value(params, "tqc")["num_quantiles"])
    return int(value(params, "categorical")["num_atoms"]) if has_categories(params) else 1


def has_categories(params: Any) -> bool:
    """Whether critics return a distribution over fixed values."""
    return bool(value(params, "critic_head") == "categorical")


def agent_class(params: Any) -> Any:
    """The class of `params.algorithm`; importing it imports TensorFlow."""
    module, _, name = ALGORITHMS[params.algorithm].agent.partition(".")
    return getattr(importlib.import_module(f"tfagents_system.agents.{module}"), name)


CLONING_WEIGHT = "behaviour_cloning_weight"


def clones_behaviour(params: Any) -> bool:
    """Whether the actor's loss has a term of behaviour cloning in some update of a run."""
    return bool(params.behaviour_cloning_weight > 0 and offline_updates(params) > 0)


PARTS = ("critic", "actor", "alpha")
_OF_ALL, _ADAM = ("name", "weight_decay", "global_clipnorm"), ("beta_1", "beta_2", "epsilon")
_SETTINGS = {"adam": (*_OF_ALL, *_ADAM), "adamw": (*_OF_ALL, *_ADAM), "sgd": (*_OF_ALL, "momentum")}
_ADAMW_DECAY = 0.01  # As AdamW has it in PyTorch and in SimBa.


def optimizer_settings(params: Any, part: str) -> dict[str, Any]:
    """Settings of TrainParams for `critic`, `actor` or `alpha` that act, all filled in, by name."""
    settings = value(params, f"{part}_optimizer")
    if settings["weight_decay"] is None:
        settings["weight_decay"] = _ADAMW_DECAY if settings["name"] == "adamw" else 0.0
    if settings["beta_1"] is None:
        settings["beta_1"] = 0.9 if part == "alpha" else ALGORITHMS[params.algorithm].adam_beta_1
    return {name: settings[name] for name in _SETTINGS[settings["name"]]}


def optimizer_findings(params: Any) -> Iterator[str]:
    """Settings that do not fit the optimizer or the part, one sentence each; each is right by itself."""
    for part in PARTS:
        where, given = f"{part}_optimizer", getattr(params, f"{part}_optimizer")
        name = given.get("name", "adam")
        for key in given:
            if key not in _SETTINGS[name]:
                yield f'{where}["{key}"] is no setting of {name}: remove it, or choose another name'
        if part == "alpha" and optimizer_settings(params, part)["weight_decay"]:
            yield (
                f"{where} has a weight decay, which would pull log(alpha) to 0 whatever the entropy is: use adam or "
                'sgd with "weight_decay": 0'
            )
