"""The algorithms that TrainParams.algorithm can name. A new one is one file in this folder and one row here.

Imports no TensorFlow: the checks before a start read it as well.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """What is known of an algorithm without building it.

    Attributes:
      module: File in this folder with `build_agent(params, time_step_spec, action_spec, train_step)`.
      defaults: The paper's values of the attributes that are None in TrainParams, or functions of the params. Where
        it names none they are SAC's.
      fixed: Attributes of which it has no choice, and why; they must be None.
      why_not_recurrent: Why its networks can't be recurrent; empty if they can.
      has_quantiles: Its critics give `num_quantiles` values.
      has_targets: It has target critics.
      adam_beta_1: Of the critics' and the actor's Adam unless their settings say otherwise.
    """

    module: str
    defaults: Mapping[str, Any]
    fixed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    why_not_recurrent: str = ""
    has_quantiles: bool = False
    has_targets: bool = True
    adam_beta_1: float = 0.9

    def value(self, params: Any, name: str) -> Any:
        """An attribute of TrainParams, or the paper's value where that is None."""
        own = getattr(params, name)
        if own is not None:
            return own
        default = self.defaults.get(name, _OF_SAC.get(name))
        return default(params) if callable(default) else default


def _updates_of_a_step(params: Any) -> int:
    """Between two updates of the actor, where it is to have one for each step of the environment."""
    ratio = params.max_updates_per_env_step if params.asynchronous else params.updates_per_env_step
    return max(1, round(ratio or 1))


_OF_SAC = {
    "num_critics": 2,
    "actor_update_period": 1,
    "critic_layer_norm": False,
    "critic_dropout": 0.0,
    "batch_renormalization": False,
}
ALGORITHMS: dict[str, Algorithm] = {
    "sac": Algorithm(
        "sac",
        {},
        {
            "num_critics": "it has two critics",
            "num_target_critics": "it has two critics",
            "actor_update_period": "its actor is updated each time",
        },
    ),
    "redq": Algorithm("redq", {"num_critics": 10, "num_target_critics": 2, "actor_update_period": _updates_of_a_step}),
    "droq": Algorithm(
        "droq",
        {
            "num_target_critics": 2,
            "actor_update_period": _updates_of_a_step,
            "critic_layer_norm": True,
            "critic_dropout": 0.01,
        },
    ),
    "tqc": Algorithm(
        "tqc",
        {"num_critics": 5},
        {"num_target_critics": "it pools the quantiles of all critics and drops the largest"},
        has_quantiles=True,
    ),
    "crossq": Algorithm(
        "crossq",
        {"actor_update_period": 3, "batch_renormalization": True},
        {"num_target_critics": "its minimum is over all critics"},
        has_targets=False,
        why_not_recurrent=(
            "its batch statistics would be taken over neighbouring, dependent steps, and over states just after zeros"
        ),
        adam_beta_1=0.5,  # The paper's table of hyperparameters.
    ),
}


def value(params: Any, name: str) -> Any:
    """An attribute of TrainParams; None there is what the algorithm's paper has."""
    return ALGORITHMS[params.algorithm].value(params, name)


def num_critic_outputs(params: Any) -> int:
    """Values that a critic gives for an observation and action."""
    return int(params.num_quantiles) if ALGORITHMS[params.algorithm].has_quantiles else 1


def build_agent(params: Any, time_step_spec: Any, action_spec: Any, train_step: Any) -> Any:
    """The agent of `params.algorithm`; arguments as of `TrainParamsBase.agent_ctor`."""
    module = importlib.import_module(f"tfagents_system.agents.{ALGORITHMS[params.algorithm].module}")
    return module.build_agent(params, time_step_spec, action_spec, train_step)
