"""Numbers of an agent that a run changes while it trains: scalar variables by name.

An agent of one's own exposes some as `agent.scheduled`, a mapping from an attribute of TrainParams to its variable
(float32, not trainable). Those of the collect policy travel with its weights.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfagents_system.agents.algorithms import CLONING_WEIGHT, PARTS, clones_behaviour, value
from tfagents_system.checks.hyperparameters import described_by
from tfagents_system.checks.rules import Rule, broken, is_number
from tfagents_system.checks.schedules import Schedule, is_schedule, schedulable
from tfagents_system.errors import UserError
from tfagents_system.train_params_base import TrainParamsBase, overrides_any

OF_REPLAY = ("discount", "priority_beta")  # The replay server follows them when it draws.
_RATES = tuple(f"{part}_learning_rate" for part in PARTS)
_ANY_NUMBER = schedulable(Rule("a finite number", is_number))


def scheduled_variables(agent: Any) -> dict[str, tf.Variable]:
    """The agent's variables that follow attributes of TrainParams, by the attribute's name."""
    return dict(getattr(agent, "scheduled", None) or {})


def _given(params: TrainParamsBase, name: str) -> Any:
    return value(params, name) if name in _RATES else getattr(params, name)


def check_scheduled(params: TrainParamsBase, agent: Any) -> None:
    """Checks that attributes and variables fit: each variable has a number or a schedule, each schedule a variable.

    Raises:
      UserError: They do not; all that is wrong at once.
    """
    variables = scheduled_variables(agent)
    findings: list[str] = []
    for name in variables:
        if not hasattr(params, name):
            findings.append(f"agent.scheduled has {name!r}, which TrainParams has no attribute for: add it")
        else:
            findings += broken(_ANY_NUMBER, f"TrainParams.{name}", _given(params, name))
    if overrides_any(params, "agent_ctor"):
        followed = {*variables, *OF_REPLAY, *(["learning_rate"] if any(rate in variables for rate in _RATES) else [])}
        findings += [
            f"TrainParams.{name} is a schedule, but the agent of agent_ctor does not follow it: give it a variable in "
            f"agent.scheduled[{name!r}], or set a number"
            for name, described in described_by(TrainParamsBase).items()
            if described.takes_schedule and name not in followed and is_schedule(getattr(params, name))
        ]
        if clones_behaviour(params) and CLONING_WEIGHT not in variables:
            findings.append(
                f"TrainParams.{CLONING_WEIGHT}={params.behaviour_cloning_weight:g} is for offline updates, but the "
                "agent of agent_ctor does not follow it: give it a variable in "
                f"agent.scheduled[{CLONING_WEIGHT!r}], or set 0"
            )
    if findings:
        raise UserError(*findings)


class ScheduledValues:
    """Gives the agent's variables the values of a position in the run, on which alone they depend.

    Args:
      params: Has a number or a schedule for each variable.
      agent: The agent that is trained.
    """

    def __init__(self, params: TrainParamsBase, agent: Any) -> None:
        self._variables = [
            (name, Schedule.of(_given(params, name)), variable) for name, variable in scheduled_variables(agent).items()
        ]
        followed = [name for name, each in described_by(TrainParamsBase).items() if each.takes_schedule]
        names = dict.fromkeys([*followed, *scheduled_variables(agent)])
        given = {name: getattr(params, name, None) for name in names}
        self._changing = {name: Schedule.of(value) for name, value in given.items() if value and is_schedule(value)}

    def assign(self, env_steps: int, train_steps: int, iteration: int) -> None:
        """Sets all variables; arguments as of `Schedule.value`, iterations from -1, the offline one."""
        for name, schedule, variable in self._variables:
            is_over = name == CLONING_WEIGHT and iteration >= 0
            variable.assign(0.0 if is_over else schedule.value(env_steps, train_steps, iteration))

    def metrics(self, env_steps: int, train_steps: int, iteration: int) -> dict[str, float]:
        """`schedule/<name>` of each attribute that is a schedule; arguments as of `Schedule.value`."""
        return {
            f"schedule/{name}": schedule.value(env_steps, train_steps, iteration)
            for name, schedule in self._changing.items()
        }
