"""What `stop_when` of TrainParams can say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from tfagents_system.checks.rules import Rule, integer_from, is_kept, is_number, mapping_such_as, number_above

EVALUATIONS, NO_IMPROVEMENT = "evaluations", "no_improvement_env_steps"
_THRESHOLDS: dict[str, Rule] = {
    "eval_success": number_above(0, at_most=1),
    "eval_return": Rule("a finite number", is_number),
}
_RULES = {**_THRESHOLDS, EVALUATIONS: integer_from(1), NO_IMPROVEMENT: integer_from(1)}


def _are_conditions(value: Mapping[str, Any]) -> bool:
    is_patient = NO_IMPROVEMENT in value and EVALUATIONS not in value
    has_condition = is_patient or any(name in value for name in _THRESHOLDS)
    return has_condition and all(is_kept(_RULES[name], value[name]) for name in value)


StopConditions = Annotated[
    Mapping[str, float],
    mapping_such_as(
        '{"eval_success": 0.95, "evaluations": 3}, {"eval_return": -200} or {"no_improvement_env_steps": 200000}',
        _are_conditions,
    ),
]
