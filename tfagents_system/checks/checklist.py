"""What the checks before a start looked at, and what they found."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from tfagents_system.errors import UserError

_NAME_WIDTH = 16


@dataclasses.dataclass
class Check:
    """One thing that was looked at.

    Attributes:
      name: What was looked at.
      facts: What was found.
      notes: What the user should know.
      errors: What the user must change, with the remedy: nothing starts before.
    """

    name: str
    facts: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def catching(self) -> Iterator[None]:
        """Turns a UserError into errors of this check."""
        try:
            yield
        except UserError as error:
            self.errors += error.findings


class Checklist:
    """All checks of a start, in the order in which they were begun."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def __getitem__(self, name: str) -> Check:
        """The check of that name, begun now if it is new."""
        return self._checks.setdefault(name, Check(name))

    def __contains__(self, name: str) -> bool:
        return name in self._checks

    def extend(self, other: Checklist) -> None:
        """Adds the checks of another list."""
        for name, check in other._checks.items():
            mine = self[name]
            mine.facts += check.facts
            mine.notes += check.notes
            mine.errors += check.errors

    def replace(self, text: str, by: str) -> None:
        """Replaces a text in everything reported, such as the path of a copy by that of the original."""
        for check in self._checks.values():
            for told in (check.facts, check.notes, check.errors):
                told[:] = [line.replace(text, by) for line in told]

    @property
    def errors(self) -> list[str]:
        """What the user must change, each once."""
        return list(dict.fromkeys(error for check in self._checks.values() for error in check.errors))

    @property
    def notes(self) -> list[str]:
        """What the user should know, each once."""
        return list(dict.fromkeys(note for check in self._checks.values() for note in check.notes))

    def report(self) -> str:
        """One line for each check, and one for each of its notes and errors."""
        lines = [line for check in self._checks.values() for line in _lines(check)]
        return "\n".join([*lines, self._summary()])

    def _summary(self) -> str:
        counts = f"{counted(len(self.errors), 'error')}, {counted(len(self.notes), 'note')}"
        return f"{counts}: {'correct the errors before a start' if self.errors else 'ready to start'}"


def _lines(check: Check) -> list[str]:
    if not (check.facts or check.notes or check.errors):
        return []
    facts = [("ok", "; ".join(check.facts))] if check.facts else []
    told = [*facts, *(("note", note) for note in check.notes), *(("ERROR", error) for error in check.errors)]
    return [f"{state:<6}{check.name:<{_NAME_WIDTH}}{text}" for state, text in told]


def have(number: int) -> str:
    """`has` of one, `have` of others."""
    return "has" if number == 1 else "have"


def counted(number: int, what: str) -> str:
    """`1 error`, `2,000 errors`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
