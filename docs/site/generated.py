"""The pages of docs/ that are made from the code.

python -m docs.site.generated          # writes them all
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from unittest import mock

from tfagents_system import command
from tfagents_system.checks.called_as import NAME_VARIABLE
from tfagents_system.run_files import metric_columns
from tfagents_system.run_files.run_paths import Below, RunPaths
from tfagents_system.settings import other_libraries, parameters_page, tmrl_translation, variables
from tfagents_system.settings.attribute_docs import linked

DOCS = Path(__file__).resolve().parents[1]
_WIDTH = "88"  # Of help texts, in characters.


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    columns = head.count("|") + 1
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {head} |", f"|{' --- |' * columns}", *lines]) + "\n"


def _columns(described: Mapping[str, str]) -> str:
    return _table("column | meaning", ((f"`{name}`", linked(text)) for name, text in described.items()))


def _files() -> str:
    files = [each for each in vars(RunPaths).values() if isinstance(each, Below)]
    folders = {each.name for each in files if "." not in each.name.rpartition("/")[2]}
    return _table(
        "path | content", ((f"`{each.name}{'/' * (each.name in folders)}`", linked(each.meaning)) for each in files)
    )


def _commands() -> str:
    texts = []
    for name, one in command.COMMANDS.items():
        text = help_of(name).strip("\n")
        texts.append(f"## sac {name}\n\n{one.summary[0].upper()}{one.summary[1:]}.\n\n```text\n{text}\n```\n")
    return "\n".join(texts)


def help_of(name: str) -> str:
    """What `sac NAME --help` prints after the summary, and then what the help of each of its subcommands does."""
    told = _help_of(name)
    if found := re.search(r"^usage: sac \S+ \[-h\] (\w+ )?\{([\w,]+)\} \.\.\.$", told, re.MULTILINE):
        parts = (_help_of(name, *(found[1] or "").split(), word) for word in found[2].split(","))
        told += "".join(f"\n{part[part.index('usage: ') :]}" for part in parts)
    return told


def _help_of(name: str, *words: str) -> str:
    one = command.COMMANDS[name]
    with mock.patch.dict(os.environ, {"COLUMNS": _WIDTH, NAME_VARIABLE: f"sac {name}"}):
        if one.script:
            script = ["bash", str(Path(command.__file__).with_name("launch") / one.script), "--help"]
            told = subprocess.run(script, capture_output=True, text=True, check=True, timeout=60).stdout
            return f"  {one.example}\n\n{told}"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            command.main([name, *words, "--help"])
    return printed.getvalue().removeprefix(one.summary)


# Between the lines `<!-- made from the code: NAME -->` and `<!-- end -->` of a page.
PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "reference/commands.md": {"overview": lambda: f"```text\n{command.help_text()}\n```\n", "commands": _commands},
    "reference/metrics.md": {
        "always": lambda: _columns(metric_columns.ALWAYS),
        "further": lambda: _columns(metric_columns.FURTHER),
    },
    "reference/run_directory.md": {"files": _files},
    "how_to/tmrl.md": {"keys": lambda: "\n".join(tmrl_translation.table()) + "\n"},
}
PAGES: Mapping[str, Callable[[], str]] = {
    "reference/parameters.md": parameters_page.documentation,
    "reference/variables.md": variables.documentation,
    "reference/other_libraries.md": other_libraries.documentation,
}


def made(page: str) -> str:
    """What a page of PAGES or PARTS should be now.

    Raises:
      ValueError: It lacks the two lines of a part.
    """
    if page in PAGES:
        return PAGES[page]()
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, make in PARTS[page].items():
        first, last = f"<!-- made from the code: {name} -->", "<!-- end -->"
        before, found, rest = text.partition(first)
        _, end, after = rest.partition(last)
        if not (found and end):
            raise ValueError(f"docs/{page} must have the lines {first} and {last}: write them where its {name} go")
        text = f"{before}{first}\n\n{make()}\n{last}{after}"
    return text


def main() -> None:
    """Writes all of them."""
    for page in (*PAGES, *PARTS):
        (DOCS / page).write_text(made(page), encoding="utf-8")


if __name__ == "__main__":
    main()
