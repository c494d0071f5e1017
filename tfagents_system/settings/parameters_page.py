"""`python -m tfagents_system.settings.parameters_page` prints docs/reference/parameters.md, from hyperparameters.py."""

from __future__ import annotations

import inspect
import re
from typing import Any

from tfagents_system.checks.hyperparameters import IMAGES, Hyperparameter, When, described_by
from tfagents_system.hyperparameters import Hyperparameters
from tfagents_system.settings.attribute_docs import attribute_docs, linked

_HEAD = """# Parameters

The attributes of `TrainParams`, from [hyperparameters.py](../../tfagents_system/hyperparameters.py). A params file or
`--set` gives them other values, those with \\* also in a run that has begun. A start reports those that are set
but have no effect beside the others. A [schedule](../how_to/schedules.md) changes a number during the run.
"""
_TABLE = "| attribute | default | must be | unit | meaning |\n| --- | --- | --- | --- | --- |"


def documentation() -> str:
    """docs/reference/parameters.md."""
    docs = attribute_docs(Hyperparameters)
    # A comment below an empty line heads a group; here by the name of the group's first attribute.
    groups = re.findall(r"\n\n    # (.+?)\.?\n    (\w+):", inspect.getsource(Hyperparameters))
    headings = {name: f"\n## {text}\n\n{_TABLE}" for text, name in groups}
    lines = [_HEAD, _TABLE]
    for name, each in described_by(Hyperparameters).items():
        lines += [headings[name]] if name in headings else []
        star, meaning = " \\*" if each.may_change else "", f"{linked(docs[name])}{_conditions(each)}"
        lines.append(f"| `{name}`{star} | {_default(each)} | {each.rule.words} | {each.unit} | {meaning} |")
    return "\n".join(lines) + "\n"


def _default(each: Hyperparameter) -> str:
    names: dict[str, list[str]] = {}
    for name, value in each.by_algorithm.named.items():
        names.setdefault(_value(value), []).append(name)
    named = [f"{value} with {' and '.join(algorithms)}" for value, algorithms in names.items()]
    others = [f"else {_value(each.by_algorithm.others)}"] if each.by_algorithm.others is not None else []
    return f"`{each.default!r}`{': ' * bool(named)}{', '.join([*named, *others])}"


def _value(value: Any) -> str:
    return f"{value.__doc__[0].lower()}{value.__doc__[1:].rstrip('.')}" if callable(value) else f"`{value!r}`"


def _conditions(each: Hyperparameter) -> str:
    acts = f" Acts {' and '.join(map(_condition, each.acts))}." if each.acts else ""
    return acts + (" SAC_DETERMINISTIC=1 needs the default." if each.not_deterministic else "")


def _condition(when: When) -> str:
    if when.attribute == IMAGES:
        return "with images in the observations"
    value = "" if when.value is True else f" = {when.value!r}"
    more = f"{' or' if when.is_equal else ', or with'} `{when.or_with}`" if when.or_with else ""
    return f"{'with' if when.is_equal else 'unless'} `{when.attribute}{value}`{more}"


if __name__ == "__main__":
    print(documentation(), end="")
