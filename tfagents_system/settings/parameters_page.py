"""`python -m tfagents_system.settings.parameters_page` prints docs/parameters.md, from train_params_base.py."""

from __future__ import annotations

import inspect
import re
from typing import Any

from tfagents_system.checks.hyperparameters import IMAGES, Hyperparameter, When, described_by
from tfagents_system.settings.attribute_docs import attribute_docs
from tfagents_system.train_params_base import TrainParamsBase

_HEAD = """# Parameters

The attributes of `TrainParams`, from [train_params_base.py](../tfagents_system/train_params_base.py). A params file or
`--set` gives them other values, those with \\* also in a run that has begun. A start reports those that are set
but have no effect beside the others.
"""
_TABLE = "| attribute | default | must be | unit | meaning |\n| --- | --- | --- | --- | --- |"


def documentation() -> str:
    """docs/parameters.md."""
    docs = attribute_docs(TrainParamsBase)
    # A comment below an empty line heads a group; here by the name of the group's first attribute.
    groups = re.findall(r"\n\n    # (.+?)\.?\n    (\w+):", inspect.getsource(TrainParamsBase))
    headings = {name: f"\n## {text}\n\n{_TABLE}" for text, name in groups}
    lines = [_HEAD, _TABLE]
    for name, each in described_by(TrainParamsBase).items():
        lines += [headings[name]] if name in headings else []
        star, meaning = " \\*" if each.may_change else "", f"{docs[name]}{_conditions(each)}"
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
    more = f" or `{when.or_with}`" if when.or_with else ""
    return f"{'with' if when.is_equal else 'unless'} `{when.attribute}{value}`{more}"


if __name__ == "__main__":
    print(documentation(), end="")
