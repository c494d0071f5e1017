"""A CSV file of numbers that grows row by row, and stays whole through crashes and full disks."""

from __future__ import annotations

import csv
import io
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.machine.files import replacing


class RowsFile:
    """Appends rows; columns that appear later widen the header, missing values are empty.

    A full disk ends nothing: it is reported once on standard error, and the rows are written as soon as that is
    possible again.

    Args:
      path: The file; rows that it has stay.
      columns: Those that it has at least, in their order.
      what: Names the rows in a report.
    """

    def __init__(self, path: Path, columns: Sequence[str], what: str) -> None:
        self._path, self._what = path, what
        self._complained = False
        self._columns = list(dict.fromkeys([*columns, *(name for row in read_rows(path) for name in row)]))
        self._unwritten: list[Mapping[str, Any]] = []  # Only these are kept: a long run has many rows.
        # Of all rows in the file, where that could not be written.
        self._replacement: Sequence[Mapping[str, Any]] | None = None
        # Always rewritten: a line that a crash tore must not run into the next one.
        self._must_rewrite = True
        self._write_rows()

    def add(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Adds rows of finite numbers."""
        new = list(dict.fromkeys(name for row in rows for name in row if name not in self._columns))
        self._columns += new
        self._unwritten += rows
        self._must_rewrite |= bool(new)
        self._write_rows()

    def rows(self) -> list[Mapping[str, Any]]:
        """All rows, including those that a full disk has not taken yet."""
        written = read_rows(self._path) if self._replacement is None else self._replacement
        return [*written, *self._unwritten]

    def keep(self, is_kept: Callable[[Mapping[str, Any]], bool]) -> list[Mapping[str, Any]] | None:
        """Drops all other rows. Returns those that stay; None where that are all."""
        rows = self.rows()
        kept = [row for row in rows if is_kept(row)]
        if len(kept) == len(rows):
            return None
        self._replacement, self._unwritten, self._must_rewrite = kept, [], True
        self._write_rows()
        return kept

    def complain(self, error: Exception) -> None:
        """Reports the first error."""
        if not self._complained:
            print(f"{self._what} can't be written: {error}", file=sys.stderr, flush=True)
        self._complained = True

    def _write_rows(self) -> None:
        """Appends what is not written yet in one write, or replaces the whole file where that is not enough."""
        try:
            if self._must_rewrite:
                rows = self._replacement if self._replacement is not None else read_rows(self._path)
                self._rewrite([*rows, *self._unwritten])
            elif self._unwritten:
                self._append("".join(self._line(row) for row in self._unwritten))
            self._replacement, self._unwritten, self._must_rewrite = None, [], False
        except OSError as error:
            self._must_rewrite = True  # The next row comes with this one, and with a whole line before it.
            self.complain(error)

    def _append(self, text: str) -> None:
        """Raises:
        OSError: There is no file, or no room: the file is as it was before.
        """
        size_bytes = self._path.stat().st_size
        try:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                file.write(text)
        except OSError:
            os.truncate(self._path, size_bytes)  # Rows that have come so far will come once more.
            raise

    def _rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        header = dict(zip(self._columns, self._columns, strict=True))
        with replacing(self._path) as file:
            file.write("".join(self._line(row) for row in [header, *rows]).encode())
            file.flush()
            os.fsync(file.fileno())  # It replaces the only copy of the rows.

    def _line(self, row: Mapping[str, Any]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow([cell(row.get(name)) for name in self._columns])
        return text.getvalue()


def read_rows(path: Path) -> list[dict[str, float | None]]:
    """Rows of such a file, also while it is written; empty cells are None.

    A last line that a crash has torn is left out.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    rows = []
    for line in lines[1:]:
        try:
            rows.append({name: float(each) if each else None for name, each in zip(lines[0], line, strict=True)})
        except ValueError:
            continue
    return rows


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The values of a row that can be written: whole numbers stay whole, NumPy's become Python's."""
    whole = {
        name: value if isinstance(value, int) else float(value) for name, value in row.items() if value is not None
    }
    return {name: value for name, value in whole.items() if math.isfinite(value)}


def cell(value: float | str | None) -> str:
    """A value's text in the file."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.8g}"
    return "" if value is None else str(value)
