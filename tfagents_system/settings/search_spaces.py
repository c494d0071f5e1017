"""What a search may try: a JSON object, or one of those that come with the toolkit.

    {"critic_learning_rate": {"low": 1e-4, "high": 3e-3, "log": true}, "batch_size": [128, 256],
     "n_step": {"low": 1, "high": 5}}

Names are those of --set. A list has the values themselves; `low` and `high` are numbers, both whole for a whole number;
with `log`, each factor of ten is as likely.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError, shown
from tfagents_system.settings.grid import check_keys

Space = Mapping[str, Any]  # Lists of values and objects with `low` and `high`, by the names of settings.


def _log(low: float, high: float) -> dict[str, Any]:
    return {"low": low, "high": high, "log": True}


_N_STEP = {"low": 1, "high": 5}
_CRITIC = {
    "critic_learning_rate": _log(1e-4, 3e-3),
    "batch_size": [128, 256, 512],
    "discount": [0.98, 0.99, 0.995],
}
_RATES = {"actor_learning_rate": _log(1e-4, 3e-3), "alpha_learning_rate": _log(1e-4, 3e-3)}
_ACTOR = {**_CRITIC, **_RATES, "target_update_tau": _log(2e-3, 2e-2)}
_VALUES = {
    **_CRITIC,
    "n_step": _N_STEP,
    "target_update_period": [100, 500, 2000],
    "exploration_epsilon": _log(0.01, 0.2),
}
# What the papers vary, around their own values.
SPACES: dict[str, Space] = {
    "sac": {**_ACTOR, "n_step": _N_STEP, "updates_per_env_step": [0.5, 1.0, 2.0]},
    "redq": {**_ACTOR, "num_critics": [5, 10], "updates_per_env_step": [1.0, 5.0]},
    "droq": {**_ACTOR, "critic_dropout": _log(0.001, 0.1), "updates_per_env_step": [1.0, 5.0]},
    "tqc": {**_ACTOR, "tqc.num_dropped_quantiles": {"low": 0, "high": 5}},
    "crossq": {**_CRITIC, **_RATES},
    "dqn": _VALUES,
    "iqn": {**_VALUES, "iqn.huber_kappa": _log(0.005, 1.0)},
    "sac_discrete": {**_ACTOR, "n_step": _N_STEP},
}


def read_space(name: str) -> Space:
    """A shipped space by its algorithm, or that of a file.

    Raises:
      UserError: With all findings.
    """
    if name in SPACES and not Path(name).exists():
        return SPACES[name]
    if not Path(name).exists():
        raise UserError(f"--space {name} must be a JSON file, or one of {', '.join(SPACES)}")
    try:
        content = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--space {name} cannot be read ({error}): give the path of a JSON file") from None
    if not isinstance(content, dict) or not content:
        raise UserError(f'--space {name} must be an object such as {{"n_step": [1, 3]}}, found {shown(content)}')
    findings = check_keys(content) + [fault for key, values in content.items() for fault in _faults(key, values)]
    if findings:
        raise UserError(*(f"--space {name}: {finding}" for finding in findings))
    return content


def corners(space: Space) -> list[dict[str, Any]]:
    """The settings with every lowest or first value, and those with every highest or last one."""
    ends = (("low", 0), ("high", -1))
    return [{name: v[k] if isinstance(v, list) else v[end] for name, v in space.items()} for end, k in ends]


def _faults(name: str, values: Any) -> list[str]:
    if isinstance(values, list):
        if len(values) < 2:
            return [f"{name} must have two values at least, found {shown(values)}: give them, or use --set"]
        return []
    is_range = isinstance(values, dict) and {"low", "high"} <= values.keys() <= {"low", "high", "log"}
    if not is_range or not _is_number(values["low"]) or not _is_number(values["high"]):
        return [f'{name} must be a list, or such as {{"low": 0.001, "high": 0.01, "log": true}}, found {shown(values)}']
    findings = []
    if values["low"] >= values["high"]:
        findings.append(f"{name} must have a `low` below its `high`, found {values['low']} and {values['high']}")
    if values.get("log") and values["low"] <= 0:
        findings.append(f"{name} must be above 0 with `log`, found {values['low']}: raise it, or leave `log` out")
    return findings


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
