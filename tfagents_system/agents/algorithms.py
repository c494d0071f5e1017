"""The algorithms that TrainParams.algorithm can name. A new one is one file in this folder and one row here.

Imports no TensorFlow: the checks before a start read it as well.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any, Literal

from tfagents_system.checks.hyperparameters import described_by
from tfagents_system.train_params_base import TrainParamsBase

ActionKind = Literal["continuous", "discrete"]


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
      module: File in this folder with `build_agent(params, time_step_spec, action_spec, train_step)`; empty: the
        algorithm's name.
    """

    fixed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    why_not_recurrent: str = ""
    has_quantiles: bool = False
    adam_beta_1: float = 0.9
    has_actor: bool = True
    actions: ActionKind = "continuous"
    takes_bootstrap_factor: bool = False
    module: str = ""


_NO_MEMORY = "its networks have no LSTM"


def _of_values(why_one_critic: str) -> Algorithm:
    """One network of the values of all actions, without an actor."""
    return Algorithm(
        {name: why_one_critic for name in ("num_critics", "num_target_critics", "actor_update_period")},
        why_not_recurrent=_NO_MEMORY,
        has_actor=False,
        actions="discrete",
        takes_bootstrap_factor=True,
    )


ALGORITHMS: dict[str, Algorithm] = {
    "sac": Algorithm(
        {
            "num_critics": "it has two critics",
            "num_target_critics": "it has two critics",
            "actor_update_period": "its actor is updated each time",
        },
    ),
    "redq": Algorithm(),
    # Algorithm 2 of Hiraoka et al. (arXiv 2110.02034) is REDQ's with N = M = 2. Dropout and layer normalisation in the
    # critics stand in for the large ensemble, in targets and in the actor's loss as well.
    "droq": Algorithm(module="redq"),
    "tqc": Algorithm(
        {"num_target_critics": "it pools the quantiles of all critics and drops the largest"}, has_quantiles=True
    ),
    "crossq": Algorithm(
        {"num_target_critics": "its minimum is over all critics"},
        why_not_recurrent=(
            "its batch statistics would be taken over neighbouring, dependent steps, and over states just after zeros"
        ),
        adam_beta_1=0.5,  # The paper's table of hyperparameters.
    ),
    "dqn": _of_values("it has one network of values and no actor"),
    "iqn": _of_values("it has one network of quantiles and no actor"),
    "sac_discrete": Algorithm(
        {
            "num_critics": "it has two critics",
            "num_target_critics": "it has two critics",
            "actor_update_period": "its actor is updated each time",
        },
        why_not_recurrent=_NO_MEMORY,
        actions="discrete",
        takes_bootstrap_factor=True,
    ),
}


def value(params: Any, name: str) -> Any:
    """An attribute of TrainParams, dictionaries of options with all keys; None means the value of the paper."""
    described, own = described_by(TrainParamsBase)[name], getattr(params, name)
    own = own if own is not None else described.by_algorithm.value(params)
    return own if described.options is None else described.options.filled(own)


def num_critic_outputs(params: Any) -> int:
    """Number of values that a critic returns for an observation and action."""
    return int(value(params, "tqc")["num_quantiles"]) if ALGORITHMS[params.algorithm].has_quantiles else 1


def build_agent(params: Any, time_step_spec: Any, action_spec: Any, train_step: Any) -> Any:
    """The agent of `params.algorithm`; arguments as of `TrainParamsBase.agent_ctor`."""
    return module_of(params).build_agent(params, time_step_spec, action_spec, train_step)


def module_of(params: Any) -> Any:
    """The file of `params.algorithm` in this folder."""
    return importlib.import_module(f"tfagents_system.agents.{ALGORITHMS[params.algorithm].module or params.algorithm}")
