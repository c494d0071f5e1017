"""`sac parameters`: attributes of TrainParams with their defaults, on a terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tfagents_system.checks.rules import REQUIRED, Option
from tfagents_system.errors import EXIT_DONE, OptionParser, UserError
from tfagents_system.hyperparameters import Hyperparameter, Hyperparameters, When, described_by
from tfagents_system.settings.variables import attribute_docs


def default_of(each: Hyperparameter) -> str:
    """`` `None`; redq: `10`; others: `2` ``."""
    names: dict[str, list[str]] = {}
    for name, value in each.by_algorithm.named.items():
        names.setdefault(_value(value), []).append(name)
    named = [f"{', '.join(algorithms)}: {value}" for value, algorithms in names.items()]
    if each.by_algorithm.others is not None:
        named.append(f"{'others: ' * bool(named)}{_value(each.by_algorithm.others)}")
    return "; ".join([f"`{each.default!r}`", *named])


def keys_of(keys: Mapping[str, Option]) -> str:
    """`` `num_quantiles` = 25 (an integer of at least 2): Quantiles of each critic. ``, of each key."""
    return " ".join(
        f"`{key}`{'' if option.default is REQUIRED else f' = {option.default!r}'} "
        f"({option.rule.words}{f', {option.unit}' if option.unit else ''}): {option.meaning}"
        for key, option in keys.items()
    )


def _value(value: Any) -> str:
    return f"{value.__doc__[0].lower()}{value.__doc__[1:].rstrip('.')}" if callable(value) else f"`{value!r}`"


def conditions_of(each: Hyperparameter) -> str:
    """Where it has an effect, as further sentences."""
    deterministic = " SAC_DETERMINISTIC=1 needs the default." if each.not_deterministic else ""
    return "".join(map(_condition, each.acts)) + deterministic


def _condition(when: When) -> str:
    if when.attribute == "algorithm":
        values = when.value if isinstance(when.value, tuple) else (when.value,)
        words = f"for {', '.join(f'`{value}`' for value in values)}"
    else:
        words = f"with `{when.attribute}`" if when.value is True else f"with `{when.attribute} = {when.value!r}`"
    return f" {'Only' if when.is_equal else 'Not'} {words}."


def in_lines(words: Sequence[str], width: int) -> list[str]:
    """What is known of the attributes that have one of these words in their names, of all without any.

    Raises:
      UserError: A word is in no name.
    """
    docs: Mapping[str, str] = attribute_docs(Hyperparameters)
    described = described_by(Hyperparameters)
    if unknown := [word for word in words if not any(word in name for name in described)]:
        raise UserError(
            f"no attribute has {' or '.join(unknown)} in its name: sac parameters without a word lists them all"
        )
    lines = ["*: --set may change it in a run that has begun"]
    for name, each in described.items():
        if not words or any(word in name for word in words):
            head = f"{name}{'*' * each.may_change} = {default_of(each)}"
            told = f"{each.rule.words}{f' ({each.unit})' if each.unit else ''}. {docs[name]}{conditions_of(each)}"
            told += f" Keys: {keys_of(each.rule.keys)}" if each.rule.keys is not None else ""
            for text, indent in ((head, ""), (told, "    ")):
                lines += textwrap.wrap(text.replace("`", ""), width, initial_indent=indent, subsequent_indent="    ")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = OptionParser()
    words = "words of their names, such as learning_rate (default: all attributes)"
    parser.add_argument("word", nargs="*", metavar="WORD", help=words)
    words = parser.parse_args(arguments).word
    print("\n".join(in_lines(words, min(120, shutil.get_terminal_size().columns))))
    return EXIT_DONE
