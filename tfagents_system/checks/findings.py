"""What the checks of a start looked at, and what they found."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import NamedTuple

from tfagents_system.errors import UserError

FACT, NOTE, ERROR = "ok", "note", "ERROR"
_WHERE_WIDTH = 16


class Finding(NamedTuple):
    """One sentence of a check.

    Attributes:
      level: FACT: what was found; NOTE: what the user should know; ERROR: what the user must change before a start.
      where: What was looked at, such as `memory`.
      text: Of an error: rule, value and remedy.
    """

    level: str
    where: str
    text: str


class Findings(list[Finding]):
    """All findings of a start, in the order in which they were made."""

    def fact(self, where: str, *texts: str) -> None:
        self += [Finding(FACT, where, text) for text in texts]

    def note(self, where: str, *texts: str) -> None:
        self += [Finding(NOTE, where, text) for text in texts]

    def error(self, where: str, *texts: str) -> None:
        self += [Finding(ERROR, where, text) for text in texts]

    @contextlib.contextmanager
    def catching(self, where: str) -> Iterator[None]:
        """Turns a UserError into errors."""
        try:
            yield
        except UserError as error:
            self.error(where, *error.findings)

    def replace(self, text: str, by: str) -> None:
        """Replaces a text in all findings, such as the path of a copy by that of the original."""
        self[:] = [finding._replace(text=finding.text.replace(text, by)) for finding in self]

    def texts(self, level: str, where: str | None = None) -> list[str]:
        """Texts of a level, each once; `where`: of one check alone."""
        chosen = (finding for finding in self if finding.level == level and where in (None, finding.where))
        return list(dict.fromkeys(finding.text for finding in chosen))

    @property
    def errors(self) -> list[str]:
        return self.texts(ERROR)

    @property
    def notes(self) -> list[str]:
        return self.texts(NOTE)

    def report(self) -> str:
        """For each check a line with its facts, and one for each note and error."""
        lines = []
        for where in dict.fromkeys(finding.where for finding in self):
            facts = "; ".join(self.texts(FACT, where))
            told = [(FACT, facts)] if facts else []
            told += [(level, text) for level in (NOTE, ERROR) for text in self.texts(level, where)]
            lines += [f"{level:<6}{where:<{_WHERE_WIDTH}}{text}" for level, text in told]
        counts = f"{counted(len(self.errors), 'error')}, {counted(len(self.notes), 'note')}"
        return "\n".join(
            [*lines, f"{counts}: {'correct the errors before a start' if self.errors else 'ready to start'}"]
        )


def counted(number: int, what: str) -> str:
    """`1 error`, `2,000 errors`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def is_installed(package: str) -> bool:
    """Whether a package or module of this name can be imported.

    A mere folder is none, though Python imports it as a namespace package: W&B makes a `wandb/` where it runs.
    """
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None
