"""What was edited of the user's files since a run began with its copies of them.

A run directory has copies of the params file, the JSON and, unless that is too large, the folder of the params. Files
of these that the params use were edited on purpose: they are told with their differences. All others of the folder may
be of another run, or written by this one.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tfagents_system.run_files import params_folder, run_inputs
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.used_files import used_files

_MOST_LINES = 24  # Of all differences together.
_MOST_RANGES = 6
_MOST_COMPARED = 2000  # Lines that are not the same at both ends: difflib takes the square of that.
_MOST_WIDE = 160
_CONTROL = re.compile(r"[^\t\x20-\x7e\xa0-\U0010ffff]")


@dataclasses.dataclass(frozen=True)
class Edit:
    """A file that the run uses and that is not what it began with.

    Attributes:
      name: The file, as the user knows it.
      before, now: Its lines; `now` is None if it is gone.
    """

    name: str
    before: Sequence[str]
    now: Sequence[str] | None

    def __str__(self) -> str:
        """`params.py (lines 3, 8-9)`, by the numbers that the lines have now."""
        if self.now is None:
            return f"{self.name} (gone)"
        ranges = [_range(first, end) for first, end in self._changes()]
        if not ranges:  # No text, or other ends of lines.
            return f"{self.name} (changed)"
        more = f" and {len(ranges) - _MOST_RANGES} places more" if len(ranges) > _MOST_RANGES else ""
        word = "line" if ranges[0].rpartition(" ")[2].isdecimal() and len(ranges) == 1 else "lines"
        return f"{self.name} ({word} {', '.join(ranges[:_MOST_RANGES])}{more})".replace("line after", "after line")

    def diff(self) -> Iterator[str]:
        """Lines of a unified diff, from what the run has to what the file is now."""
        named = f"{self.name} of the run", self.name if self.now is not None else "gone"
        first, before, now = self._middle()
        if len(before) + len(now) > _MOST_COMPARED:
            yield from (f"--- {named[0]}", f"+++ {named[1]}")
            yield f"@@ -{first + 1},{len(before)} +{first + 1},{len(now)} @@"
            yield from (*(f"-{line}" for line in before), *(f"+{line}" for line in now))
            return
        skipped = max(0, first - 1)
        around = slice(skipped, first + len(before) + 1), slice(skipped, first + len(now) + 1)
        for line in difflib.unified_diff(self.before[around[0]], (self.now or ())[around[1]], *named, n=1, lineterm=""):
            yield _shifted(line, skipped) if line.startswith("@@") else line

    def _changes(self) -> list[tuple[int, int]]:
        """Ranges of the lines now that are not those before."""
        first, before, now = self._middle()
        if len(before) + len(now) > _MOST_COMPARED:
            return [(first, first + len(now))]
        opcodes = difflib.SequenceMatcher(None, before, now, autojunk=False).get_opcodes()
        return [(first + begin, first + end) for what, _, _, begin, end in opcodes if what != "equal"]

    def _middle(self) -> tuple[int, Sequence[str], Sequence[str]]:
        """How many lines both begin with, and the lines then and now without these and those that both end with."""
        before, now = self.before, self.now or ()
        shorter = min(len(before), len(now))
        first = next((k for k in range(shorter) if before[k] != now[k]), shorter)
        last = next((k for k in range(shorter - first) if before[-1 - k] != now[-1 - k]), shorter - first)
        return first, before[first : len(before) - last], now[first : len(now) - last]


@dataclasses.dataclass(frozen=True)
class Edits:
    """All differences.

    Attributes:
      used: Of the params file, of the JSON, and of files that the params import or name.
      beside: `changed plot.py`, `new arm.xml`: further ones of the folder.
    """

    used: Sequence[Edit] = ()
    beside: Sequence[str] = ()

    def diff(self) -> list[str]:
        """The differences of `used`, cut where they are long."""
        lines = [_readable(line) for edit in self.used for line in edit.diff()]
        left = len(lines) - _MOST_LINES
        return lines if left <= 0 else [*lines[:_MOST_LINES], f"... and {left} lines more"]


def find(paths: RunPaths, params: Path, config: Path, digests: Callable[[], Mapping[str, str]] | None = None) -> Edits:
    """Compares files with the run's copies. Python files of the same code and JSON files of the same values are equal,
    whatever their comments and spaces.

    Args:
      params: SAC_PARAMS.
      config: SAC_CONFIG.
      digests: Those of the folder of `params` now, see `params_folder.digests`; called where the run keeps a folder.
        None: the folder is not compared.

    Raises:
      params_folder.TooLargeError, OSError: Those of `digests`; a file can't be read.
    """
    pairs = [(paths.params, params), (paths.config, config)]
    known = run_inputs.are_what_it_began_with(paths, params, config)
    edits = [_edit(*pair, str(pair[1])) for pair, is_known in zip(pairs, known, strict=True) if not is_known]
    used = [edit for edit in edits if edit is not None]
    kept = run_inputs.kept_digests(paths) if digests is not None else None
    if kept is None or digests is None:
        return Edits(used)
    compared = {source.resolve() for _, source in pairs}
    name_then = run_inputs.name_of_params(paths)
    uses = used_files(paths.params_folder, name_then, kept, paths.config)
    beside = []
    for told in params_folder.differences(kept, digests()):
        what, _, name = told.partition(" ")
        source = params.parent / name
        if source.resolve() in compared or name == name_then:
            continue
        if what == "new" or name not in uses:
            beside.append(told)
        elif edit := _edit(paths.params_folder / name, source, str(source)):
            used.append(edit)
    return Edits(used, beside)


def _edit(copy: Path, source: Path, name: str) -> Edit | None:
    """None where both mean the same, or the copy is missing."""
    if not copy.exists():
        return None
    before, now = copy.read_bytes(), source.read_bytes() if source.exists() else None
    if before == now or (now is not None and _are_same(before, now, copy.suffix)):
        return None
    is_text = b"\0" not in before + (now or b"")
    return Edit(name, _lines(before) if is_text else (), None if now is None else _lines(now) if is_text else ())


def _lines(content: bytes) -> list[str]:
    return content.decode(errors="replace").splitlines()


def _readable(line: str) -> str:
    """Without what would command a terminal, and not wider than one."""
    line = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", line)
    return line if len(line) <= _MOST_WIDE else f"{line[:_MOST_WIDE]}..."


def _shifted(line: str, by: int) -> str:
    """`@@ -3 +3,2 @@` of lines that begin later."""
    return re.sub(r"(?<=[-+])\d+", lambda found: str(int(found[0]) + by), line)


def _are_same(before: bytes, now: bytes, suffix: str) -> bool:
    try:
        if suffix == ".py":
            return ast.dump(ast.parse(before)) == ast.dump(ast.parse(now))
        return suffix == ".json" and _sorted(before) == _sorted(now)
    except (SyntaxError, ValueError, RecursionError):
        return False


def _sorted(content: bytes) -> str:
    return json.dumps(json.loads(content), sort_keys=True)


def _range(first: int, end: int) -> str:
    """Of lines [first, end), from 0, by their numbers; of lines that are gone the number of the one before."""
    if first == end:
        return f"after {first}"
    return str(first + 1) if end == first + 1 else f"{first + 1}-{end}"
