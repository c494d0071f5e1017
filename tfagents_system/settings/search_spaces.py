"""What a search over settings may try: read from JSON, or one of those that come with the toolkit.

    {"critic_learning_rate": {"low": 1e-4, "high": 3e-3, "log": true}, "batch_size": [128, 256],
     "n_step": {"low": 1, "high": 5}}

Names are those of --set. A list has the values themselves; `low` and `high` are numbers, both whole for a whole number.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError, shown

_KEYS = {"low", "high", "log"}


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; with `log`, each factor of ten is as likely."""

    low: float
    high: float
    log: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)


Space = Mapping[str, Range | list[Any]]

_RATES: dict[str, Range | list[Any]] = {
    "critic_learning_rate": Range(1e-4, 3e-3, log=True),
    "batch_size": [128, 256, 512],
    "discount": [0.98, 0.99, 0.995],
}
_ACTOR: dict[str, Range | list[Any]] = {
    **_RATES,
    "actor_learning_rate": Range(1e-4, 3e-3, log=True),
    "alpha_learning_rate": Range(1e-4, 3e-3, log=True),
    "target_update_tau": Range(2e-3, 2e-2, log=True),
}
_VALUES: dict[str, Range | list[Any]] = {
    **_RATES,
    "n_step": Range(1, 5),
    "target_update_period": [100, 500, 2000],
    "exploration_epsilon": Range(0.01, 0.2, log=True),
}
# What the papers vary, around their own values.
SPACES: dict[str, Space] = {
    "sac": {**_ACTOR, "n_step": Range(1, 5), "updates_per_env_step": [0.5, 1.0, 2.0]},
    "redq": {**_ACTOR, "num_critics": [5, 10], "updates_per_env_step": [1.0, 5.0]},
    "droq": {**_ACTOR, "critic_dropout": Range(0.001, 0.1, log=True), "updates_per_env_step": [1.0, 5.0]},
    "tqc": {**_ACTOR, "tqc.num_dropped_quantiles": Range(0, 5)},
    "crossq": {name: values for name, values in _ACTOR.items() if name != "target_update_tau"},
    "dqn": _VALUES,
    "iqn": {**_VALUES, "iqn.huber_kappa": Range(0.005, 1.0, log=True)},
    "sac_discrete": {**_ACTOR, "n_step": Range(1, 5)},
}


def read_space(path: Path) -> Space:
    """Reads a space.

    Raises:
      UserError: With all findings.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--space {path} cannot be read ({error}): give the path of a JSON file") from None
    if not isinstance(content, dict) or not content:
        raise UserError(f'--space {path} must be an object such as {{"n_step": [1, 3]}}, found {shown(content)}')
    findings: list[str] = []
    space = {name: _read(name, value, findings) for name, value in content.items()}
    if findings:
        raise UserError(*(f"--space {path}: {finding}" for finding in findings))
    return space


def _read(name: str, value: Any, findings: list[str]) -> Range | list[Any]:
    if isinstance(value, list):
        if len(value) < 2:
            findings.append(f"{name} must have two values at least, found {shown(value)}: give them, or use --set")
        return value
    known = isinstance(value, dict) and {"low", "high"} <= value.keys() <= _KEYS
    if (
        not known
        or not all(_is_number(value[key]) for key in ("low", "high"))
        or value.get("log") not in (None, True, False)
    ):
        findings.append(
            f'{name} must be a list, or such as {{"low": 0.001, "high": 0.01, "log": true}}, found {shown(value)}'
        )
        return []
    found = Range(value["low"], value["high"], bool(value.get("log", False)))
    if found.low >= found.high:
        findings.append(f"{name} must have a `low` below its `high`, found {found.low} and {found.high}")
    if found.log and found.low <= 0:
        findings.append(f"{name} must be above 0 with `log`, found {found.low}: raise it, or leave `log` out")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def corners(space: Space) -> Iterator[dict[str, Any]]:
    """The settings with every lowest or first, and with every highest or last value."""
    yield {name: values.low if isinstance(values, Range) else values[0] for name, values in space.items()}
    yield {name: values.high if isinstance(values, Range) else values[-1] for name, values in space.items()}


def as_json(space: Space) -> str:
    """As `read_space` reads it."""
    plain = {name: dataclasses.asdict(v) if isinstance(v, Range) else v for name, v in space.items()}
    return json.dumps(plain, indent=1)
