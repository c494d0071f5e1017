"""`sac parameters`: attributes of TrainParams with their defaults, on a terminal; and docs/reference/parameters.md."""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tfagents_system.checks.called_as import called_as
from tfagents_system.checks.hyperparameters import REQUIRED, Hyperparameter, Options, When, described_by
from tfagents_system.errors import EXIT_DONE, UserError, exit_with
from tfagents_system.hyperparameters import Hyperparameters
from tfagents_system.settings.variables import attribute_docs, linked

_HEAD = """# Parameters

The attributes of `TrainParams`, from [hyperparameters.py](../../tfagents_system/hyperparameters.py). A params file or
`--set` gives them other values, those with \\* also in a run that has begun. A start reports those that are set
but have no effect beside the others. A [schedule](../how_to/iterations.md#schedules) changes a number during the run.
"""
_TABLE = "| attribute | default | must be | unit | meaning |\n| --- | --- | --- | --- | --- |"


def documentation() -> str:
    """docs/reference/parameters.md."""
    docs = attribute_docs(Hyperparameters)
    # A comment below an empty line heads a group; here by the name of the group's first attribute.
    groups = re.findall(r"\n\n    # (.+?)\.?\n    (\w+):", inspect.getsource(Hyperparameters))
    headings = {name: f"\n## {text}\n\n{_TABLE}" for text, name in groups}
    lines, listed = [_HEAD, _TABLE], set[int]()
    for name, each in described_by(Hyperparameters).items():
        lines += [headings[name]] if name in headings else []
        star, meaning = " \\*" if each.may_change else "", f"{linked(docs[name])}{_conditions(each)}"
        if each.options is not None and id(each.options) not in listed:
            listed.add(id(each.options))
            meaning += f" Keys: {_keys(each.options)}"
        lines.append(f"| `{name}`{star} | {_default(each)} | {each.rule.words} | {each.unit} | {meaning} |")
    return "\n".join(lines) + "\n"


def _default(each: Hyperparameter) -> str:
    names: dict[str, list[str]] = {}
    for name, value in each.by_algorithm.named.items():
        names.setdefault(_value(value), []).append(name)
    named = [f"{value} with {' and '.join(algorithms)}" for value, algorithms in names.items()]
    if each.by_algorithm.others is not None:
        named.append(f"{'else ' * bool(named)}{_value(each.by_algorithm.others)}")
    return f"`{each.default!r}`{': ' * bool(named)}{', '.join(named)}"


def _keys(options: Options) -> str:
    """`` `num_quantiles` = 25 (an integer of at least 2): Quantiles of each critic. ``, of each key."""
    return " ".join(
        f"`{key}`{'' if option.default is REQUIRED else f' = {option.default!r}'} "
        f"({option.rule.words}{f', {option.unit}' if option.unit else ''}): {option.meaning}"
        for key, option in options.keys.items()
    )


def _value(value: Any) -> str:
    return f"{value.__doc__[0].lower()}{value.__doc__[1:].rstrip('.')}" if callable(value) else f"`{value!r}`"


def _conditions(each: Hyperparameter) -> str:
    acts = f" Acts {' and '.join(map(_condition, each.acts))}." if each.acts else ""
    return acts + (" SAC_DETERMINISTIC=1 needs the default." if each.not_deterministic else "")


def _condition(when: When) -> str:
    value = "" if when.value is True else f" = {when.value!r}"
    return f"{'with' if when.is_equal else 'unless'} `{when.attribute}{value}`"


def in_lines(words: Sequence[str], width: int) -> list[str]:
    """The same for a terminal: of the attributes that have one of these words in their names, of all without any.

    Raises:
      UserError: A word is in no name.
    """
    docs: Mapping[str, str] = attribute_docs(Hyperparameters)
    described = described_by(Hyperparameters)
    if unknown := [word for word in words if not any(word in name for name in described)]:
        raise UserError(
            f"no attribute has {' or '.join(unknown)} in its name: {called_as('it')} without a word lists them all"
        )
    lines = ["*: --set may change it in a run that has begun"]
    for name, each in described.items():
        if not words or any(word in name for word in words):
            head = f"{name}{'*' * each.may_change} = {_default(each)}"
            told = f"{each.rule.words}{f' ({each.unit})' if each.unit else ''}. {docs[name]}{_conditions(each)}"
            told += f" Keys: {_keys(each.options)}" if each.options is not None else ""
            for text, indent in ((head, ""), (told, "    ")):
                lines += textwrap.wrap(text.replace("`", ""), width, initial_indent=indent, subsequent_indent="    ")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog=called_as("python -m tfagents_system.settings.parameters_page"),
        description="Shows the attributes of TrainParams: default, what a value must be, and what it does.",
    )
    parser.add_argument("word", nargs="*", help="of their names, such as learning_rate; all attributes without one")
    words = parser.parse_args(arguments).word
    print("\n".join(in_lines(words, min(120, shutil.get_terminal_size().columns))))
    return EXIT_DONE


if __name__ == "__main__":
    exit_with(main)
