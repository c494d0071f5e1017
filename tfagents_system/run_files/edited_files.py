"""What was edited of the user's files since a run began with its copies of them.

A run directory has copies of the params file, the JSON and, unless that is too large, the folder of the params. Files
of these that the params use were edited on purpose: they are told with their differences. All others of the folder may
be of another run, or written by this one.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tfagents_system.run_files import params_folder, reward_copy, run_inputs
from tfagents_system.run_files.meaning import meaning
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.used_files import used_files

_MOST_LINES = 24  # Of all differences together.
_MOST_COMPARED = 50_000
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
        return self.name if self.now is not None else f"{self.name} (gone)"

    def diff(self) -> Iterator[str]:
        """Lines of a unified diff, from what the run has to what the file is now."""
        now = self.now or ()
        if len(self.before) + len(now) > _MOST_COMPARED:  # difflib would take minutes.
            yield f"{self.name}: {len(self.before)} lines of the run, {len(now)} now"
            return
        names = f"{self.name} of the run", self.name if self.now is not None else "gone"
        yield from difflib.unified_diff(self.before, now, *names, n=1, lineterm="")


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
