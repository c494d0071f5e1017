"""Which files of its folder a params file uses: as far as its texts say so, and without running it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

_MOST_BYTES = 1 << 20  # Of a data file that is searched for names of others.
# In a text: `robots.arm`, `arm:Arm` of an entry point, `arm:robots/Reach-v0` of Gymnasium.
_MODULE = re.compile(r"[A-Za-z_][\w.]*(?:\.[\w.]*|:[\w.:/-]*)\w")
_PATTERN = re.compile(r"[\w./*?\[\]!-]*[*?\[][\w./*?\[\]!-]*")  # Of file names: `models/*.xml`.
_RANGE = re.compile(r"\[[^]]*\]?")
_TEXT_OF_JSON = re.compile(r'"([^"\\]*)"')
_IMPORTERS = ("import_module", "__import__")

Module = tuple[str, ...]  # Its parts, from a folder in which modules are looked for.


def used_files(
    folder: Path, params: str, names: Iterable[str], config: Path | None = None, source: Path | None = None
) -> set[str]:
    """Those of a folder's files that the params file imports, or names in a text, itself or by way of another one.

    Args:
      folder: Of the params file.
      params: Its name.
      names: Relative paths of the folder's files.
      config: A JSON that may name further ones.
      source: What is read as the params file; None: that of its name in the folder.
    """
    known = _Known(names)
    found, left = set[str](), [params] if source is not None or params in known.paths else []
    if config is not None:
        left += _named_in(config, config.name, known)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += _named_in(source if source is not None and name == params else folder / name, name, known)
        if not left:  # A folder may be added to sys.path behind an import of one of its modules.
            left += known.imported() - found
    return found


class _Known:
    """The files of a folder, and what is known of imports of some of them.

    Attributes:
      paths: Relative ones.
      named: The paths of files of a name.
      modules: That are imported.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = set(paths)
        self.named = defaultdict[str, set[str]](set)
        for path in self.paths:
            self.named[PurePosixPath(path).name].add(path)
        self.modules = set[Module]()
        self._folders = {str(above) for path in self.paths for above in PurePosixPath(path).parents}
        self._roots = {"."}

    def add_root(self, text: str) -> None:
        """Modules are looked for in a folder that ends as `text` does, too: what is before it, no text may say."""
        name = PurePosixPath(text).name
        self._roots |= {folder for folder in self._folders if name and PurePosixPath(folder).name == name}

    def imported(self) -> set[str]:
        """Files of the modules, with the packages that are imported before them."""
        starts = {"/".join(module[:count]) for module in self.modules for count in range(1, len(module) + 1)}
        files = {f"{start}{end}" for start in starts for end in (".py", "/__init__.py")}
        return {str(PurePosixPath(root, file)) for root in self._roots for file in files} & self.paths

    def matching(self, text: str) -> set[str]:
        """Files that a pattern such as `*.xml` finds, in whichever folder; none where it finds all."""
        pattern = text.rpartition("**/")[2].lstrip("./")
        if not _PATTERN.fullmatch(pattern) or not re.search(r"\w", _RANGE.sub("", PurePosixPath(pattern).name)):
            return set()
        return {path for path in self.paths if PurePosixPath(path).match(pattern)}


def _named_in(path: Path, name: str, known: _Known) -> set[str]:
    """Files that another one names; modules that it imports are added to those that are known."""
    try:
        content = path.read_bytes()[:_MOST_BYTES].decode(errors="replace")
        if path.suffix != ".py":
            named = {each for base, paths in known.named.items() if base in content for each in paths}
            texts = _TEXT_OF_JSON.findall(content) if path.suffix == ".json" else []
            return named.union(*map(known.matching, texts))
        nodes = list(ast.walk(ast.parse(content)))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()
    package = PurePosixPath(name).parent.parts
    known.modules.update(module for node in nodes for module in _modules(node, package))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    if any(isinstance(node, ast.Attribute) and _is_sys_path(node) for node in nodes):
        for text in texts:
            known.add_root(text)
    used = set[str]()
    for text in texts:
        last = text.rpartition("/")[2]
        used |= known.named.get(last, set()) if "." in last else set()
        used |= known.matching(text)
        if _MODULE.fullmatch(text):
            known.modules.add(tuple(text.partition(":")[0].split(".")))
    return used


def _is_sys_path(node: ast.Attribute) -> bool:
    return node.attr == "path" and isinstance(node.value, ast.Name) and node.value.id == "sys"


def _modules(node: ast.AST, package: Module) -> Iterator[Module]:
    """Modules that a statement may import."""
    if isinstance(node, ast.Import):
        yield from (tuple(alias.name.split(".")) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = _from_folder(node.level, node.module or "", package)
        if base is not None:
            yield base
            yield from ((*base, alias.name) for alias in node.names)
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _IMPORTERS:
        for text in node.args[:1]:
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                module = text.value.lstrip(".")
                base = _from_folder(len(text.value) - len(module), module, package)
                yield from () if base is None else (base,)


def _from_folder(level: int, module: str, package: Module) -> Module | None:
    """`..arm.wheel` within a package, from the folder; None where it is outside of that.

    Args:
      level: Number of leading dots.
    """
    if level > len(package):
        return None
    above = package[: len(package) - level + 1] if level else ()
    return (*above, *(module.split(".") if module else ()))
