"""What was edited of the user's files since a run began with its copies of them.

A run directory has copies of the params file, the JSON and, unless that is too large, the folder of the params. Files
of these that the params use were edited on purpose: they are told with their differences. All others of the folder may
be of another run, or written by this one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tfagents_system.run_files import params_folder, reward_copy, run_inputs
from tfagents_system.run_files.meaning import meaning
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
        """Lines of a unified diff, from what the run has to what the file is now; of Python without comments alone."""
        before, now = self._lines()
        first, own_before, own_now = _middle(before, now)
        yield from (f"--- {self.name} of the run", f"+++ {self.name if self.now is not None else 'gone'}")
        if len(own_before) + len(own_now) > _MOST_COMPARED:
            end_before, end_now = first + len(own_before), first + len(own_now)
            yield f"@@ -{_place(before, first, end_before)} +{_place(now, first, end_now)} @@"
            yield from (*(f"-{line.text}" for line in own_before), *(f"+{line.text}" for line in own_now))
            return
        begin = max(0, first - 1)
        before, now = before[begin : first + len(own_before) + 1], now[begin : first + len(own_now) + 1]
        for group in _matcher(before, now).get_grouped_opcodes(1):
            (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
            yield f"@@ -{_place(before, i1, i2)} +{_place(now, j1, j2)} @@"
            for what, i1, i2, j1, j2 in group:
                if what == "equal":
                    yield from (f" {line.text}" for line in now[j1:j2])
                else:
                    yield from (*(f"-{line.text}" for line in before[i1:i2]), *(f"+{line.text}" for line in now[j1:j2]))

    def _changes(self) -> list[tuple[int, int]]:
        """Ranges of the lines now that are not those before, by their numbers."""
        before, now = self._lines()
        first, own_before, own_now = _middle(before, now)
        if len(own_before) + len(own_now) > _MOST_COMPARED:
            return [_numbers(now, first, first + len(own_now))]
        opcodes = _matcher(own_before, own_now).get_opcodes()
        return [_numbers(now, first + begin, first + end) for what, _, _, begin, end in opcodes if what != "equal"]

    def _lines(self) -> tuple[Sequence[_Line], Sequence[_Line]]:
        """What is compared of both: of Python the lines with code, where these differ."""
        both = self.before, self.now or ()
        if self.name.endswith(".py"):
            before, now = (_with_code(lines) for lines in both)
            if [line.code for line in before] != [line.code for line in now]:
                return before, now
        before, now = ([_Line(number, text, text) for number, text in enumerate(lines)] for lines in both)
        return before, now


class _Line(NamedTuple):
    """A line: its number from 0, its text, and what of that is compared."""

    number: int
    text: str
    code: str


def _with_code(lines: Sequence[str]) -> list[_Line]:
    """Without comments, and without lines that have nothing else; all of what is no Python.

    Lines that end within a text are compared as they are, with spaces at their ends.
    """
    code, within_text = list(lines), set[int]()
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            if token.type == tokenize.COMMENT:
                code[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
            elif token.type == tokenize.STRING:
                within_text.update(range(token.start[0] - 1, token.end[0] - 1))
    compared = [line if k in within_text else line.rstrip() for k, line in enumerate(code)]
    return [_Line(k, lines[k], line) for k, line in enumerate(compared) if line or k in within_text]


def _middle(before: Sequence[_Line], now: Sequence[_Line]) -> tuple[int, Sequence[_Line], Sequence[_Line]]:
    """How many lines both begin with, and the lines then and now without these and those that both end with."""
    shorter = min(len(before), len(now))
    first = next((k for k in range(shorter) if before[k].code != now[k].code), shorter)
    last = next((k for k in range(shorter - first) if before[-1 - k].code != now[-1 - k].code), shorter - first)
    return first, before[first : len(before) - last], now[first : len(now) - last]


def _matcher(before: Sequence[_Line], now: Sequence[_Line]) -> difflib.SequenceMatcher[str]:
    return difflib.SequenceMatcher(None, [line.code for line in before], [line.code for line in now], autojunk=False)


def _numbers(lines: Sequence[_Line], begin: int, end: int) -> tuple[int, int]:
    """Numbers of the lines [begin, end), from 0; of none that of the line behind the one before."""
    if begin < end:
        return lines[begin].number, lines[end - 1].number + 1
    number = lines[begin - 1].number + 1 if begin else 0
    return number, number


def _place(lines: Sequence[_Line], begin: int, end: int) -> str:
    """`3,2`: the first line of [begin, end), from 1, and how many it is to the last; of none the one before."""
    first, last = _numbers(lines, begin, end)
    count = last - first
    return f"{first + (count > 0)}" + ("" if count == 1 else f",{count}")


@dataclasses.dataclass(frozen=True)
class Edits:
    """All differences.

    Attributes:
      used: Of the params file, of the JSON, of the reward file that this names, and of files that the params import or
        name.
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
    reward = reward_copy.edited_reward(paths, params)
    if reward is not None:
        pairs.append((paths.reward, reward))
        edits.append(_edit(*pairs[-1], str(reward)))
    used = [edit for edit in edits if edit is not None]
    kept = run_inputs.kept_digests(paths) if digests is not None else None
    if kept is None or digests is None:
        return Edits(used)
    named = reward_copy.named_reward(paths, params)
    compared = {source.resolve() for _, source in pairs} | ({named.resolve()} if named is not None else set())
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
    if now is not None and meaning(before, copy.suffix) == meaning(now, copy.suffix):
        return None
    is_text = b"\0" not in before + (now or b"")
    return Edit(name, _lines(before) if is_text else (), None if now is None else _lines(now) if is_text else ())


def _lines(content: bytes) -> list[str]:
    return content.decode(errors="replace").splitlines()


def _readable(line: str) -> str:
    """Without what would command a terminal, and not wider than one."""
    line = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", line)
    return line if len(line) <= _MOST_WIDE else f"{line[:_MOST_WIDE]}..."


def _range(first: int, end: int) -> str:
    """Of lines [first, end), from 0, by their numbers; of lines that are gone the number of the one before."""
    if first == end:
        return f"after {first}"
    return str(first + 1) if end == first + 1 else f"{first + 1}-{end}"
