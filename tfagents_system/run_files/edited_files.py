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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from tfagents_system.run_files import params_folder, run_inputs
from tfagents_system.run_files.run_paths import RunPaths

_MOST_BYTES = 1 << 20  # Of a data file that is searched for names of others.
_MOST_LINES = 24  # Of all differences together.
_MOST_RANGES = 6


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
        matcher = difflib.SequenceMatcher(None, self.before, self.now, autojunk=False)
        changes = [opcode for opcode in matcher.get_opcodes() if opcode[0] != "equal"]
        ranges = [_range(first, end) for _, _, _, first, end in changes]
        if not ranges:
            return self.name
        more = f" and {len(ranges) - _MOST_RANGES} places more" if len(ranges) > _MOST_RANGES else ""
        word = "line" if ranges[0].rpartition(" ")[2].isdecimal() and len(ranges) == 1 else "lines"
        return f"{self.name} ({word} {', '.join(ranges[:_MOST_RANGES])}{more})".replace("line after", "after line")

    def diff(self) -> Iterator[str]:
        """Lines of a unified diff, from what the run has to what the file is now."""
        named = f"{self.name} of the run", self.name if self.now is not None else "gone"
        yield from difflib.unified_diff(self.before, self.now or (), *named, n=1, lineterm="")


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
        lines = [line for edit in self.used for line in edit.diff()]
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
    uses = used_files(paths.params_folder, name_then, kept)
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


def used_files(folder: Path, params: str, names: Iterable[str]) -> set[str]:
    """Those of a folder's files that the params file imports, or names in a text, itself or by way of another one.

    Args:
      folder: Of the params file.
      params: Its name.
      names: Relative paths of the folder's files.
    """
    known = set(names)
    found, left = set[str](), [params] if params in known else []
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += _used_by(folder / name, name, known)
    return found


def _used_by(path: Path, name: str, known: set[str]) -> set[str]:
    try:
        content = path.read_bytes()[:_MOST_BYTES].decode(errors="replace")
        if path.suffix != ".py":
            return {each for each in known if PurePosixPath(each).name in content}
        tree = ast.parse(content)
    except (OSError, SyntaxError, ValueError):
        return set()
    package = PurePosixPath(name).parent.parts
    used = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            last = node.value.rpartition("/")[2]
            used |= {each for each in known if "." in last and PurePosixPath(each).name == last}
        else:
            for module in _modules(node, package):
                used |= _files_of_module(module) & known
    return used


def _modules(node: ast.AST, package: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Modules that a statement may import, each by its parts from the folder."""
    if isinstance(node, ast.Import):
        return [tuple(alias.name.split(".")) for alias in node.names]
    if not isinstance(node, ast.ImportFrom) or node.level > len(package):
        return []
    above = package[: len(package) - node.level + 1] if node.level else ()
    base = (*above, *(node.module.split(".") if node.module else ()))
    return [base, *((*base, alias.name) for alias in node.names)]


def _files_of_module(module: tuple[str, ...]) -> set[str]:
    """Where it may be, with the packages that are imported before it."""
    starts = ["/".join(module[:count]) for count in range(1, len(module) + 1)]
    return {f"{start}{end}" for start in starts for end in (".py", "/__init__.py")}


def _edit(copy: Path, source: Path, name: str) -> Edit | None:
    """None where both mean the same, or the copy is missing."""
    if not copy.exists():
        return None
    before, now = copy.read_bytes(), source.read_bytes() if source.exists() else None
    if before == now or (now is not None and _are_same(before, now, copy.suffix)):
        return None
    return Edit(name, _lines(before), None if now is None else _lines(now))


def _lines(content: bytes) -> list[str]:
    return content.decode(errors="replace").splitlines()


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
