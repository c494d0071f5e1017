"""The pages of docs/ that are made from the code.

python -m docs.site.generated          # writes them all
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from unittest import mock

from tfagents_system import command
from tfagents_system.checks.called_as import NAME_VARIABLE
from tfagents_system.run_files import metrics
from tfagents_system.run_files.run_paths import Below, RunPaths
from tfagents_system.settings import other_libraries, parameters_page, variables
from tfagents_system.settings.variables import linked
from tfagents_system.tmrl import keys as tmrl_keys

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
    texts: list[str] = []
    shown: dict[str, str] = {}
    for name, one in command.COMMANDS.items():
        text = _without_repetitions(help_of(name))
        options = text.replace(f"sac {name}", "sac").partition("\n\n")[2]
        same = shown.setdefault(options, name)
        body = f"```text\n{text}\n```" if same == name else f"Its options are those of [sac {same}](#sac-{same})."
        texts.append(f"## sac {name}\n\n{one.summary[0].upper()}{one.summary[1:]}. `{one.example}`\n\n{body}\n")
    return "\n".join(texts)


def _without_repetitions(text: str) -> str:
    """A help text without argparse's usage, `--help`, and options that another subcommand has had."""
    text = re.sub(r"^usage: .*\n(?:[ ]+.*\n)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"^  -h, --help +show this help message and exit\n?", "", text, flags=re.MULTILINE)
    seen: set[str] = set()
    lines: list[str] = []
    for entry in re.findall(r"^  -.*\n?(?:^      .*\n?)*|^.*\n?", text, flags=re.MULTILINE):
        words = " ".join(entry.split())
        if not (entry.startswith("  -") and words in seen):
            lines.append(entry)
        seen.add(words)
    text = "".join(lines)
    text = re.sub(r"^(positional arguments|options):\n(?=\n|\Z)", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


def help_of(name: str) -> str:
    """What `sac NAME --help` prints after the summary, and then what the help of each of its subcommands does."""
    told = _help_of(name)
    if found := re.search(r"^usage: sac \S+ \[-h\] (\w+ )?\{([\w,]+)\} \.\.\.$", told, re.MULTILINE):
        parts = ((word, _help_of(name, *(found[1] or "").split(), word)) for word in found[2].split(","))
        told += "".join(f"\n{word}:\n{part[part.index('usage: ') :]}" for word, part in parts)
    return told


def _help_of(name: str, *words: str) -> str:
    one = command.COMMANDS[name]
    with mock.patch.dict(os.environ, {"COLUMNS": _WIDTH, NAME_VARIABLE: f"sac {name}"}):
        if one.target.endswith(".sh"):
            script = ["bash", str(Path(command.__file__).with_name("launch") / one.target), "--help"]
            told = subprocess.run(script, capture_output=True, text=True, check=True, timeout=60).stdout
            return told
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            command.main([name, *words, "--help"])
    return printed.getvalue().removeprefix(one.summary).replace(f"  {one.example}\n", "", 1)


def _settings() -> str:
    """Names of other libraries by what they are here; how_to/tmrl.md has those of TMRL."""
    theirs: dict[str, list[str]] = {}
    for setting in other_libraries.SETTINGS:
        libraries = [name for name in setting.libraries if name != "TMRL"]
        if libraries:
            names = ", ".join(f"`{name}`" for name in setting.names)
            theirs.setdefault(setting.ours, []).append(f"{names} ({', '.join(libraries)})")
    rows = ((", ".join(names), linked(ours.removeprefix("set "), "")) for ours, names in theirs.items())
    return _table("there | here", rows)


def _tmrl_keys() -> str:
    """The keys of TMRL's config.json; what all machines of a run must share has a star."""
    rows = []
    for path, default, rule, target in tmrl_keys.KEYS.values():
        kind, _, words = target.partition(": ")
        name, comma, condition = target.replace("*", path.rpartition(".")[2].lower()).partition(", ")
        here = target if kind in ("nothing", "game") else words or f"`{name}`{comma}{condition}"
        star = "" if kind in ("nothing", "here") or name.startswith(("SAC_", "WANDB_")) else " \\*"
        rows.append((f"`{path}`{star}", rule.words, f"`{json.dumps(default)}`", here))
    return _table("key | must be | default | here", rows)


# Between the lines `<!-- made from the code: NAME -->` and `<!-- end -->` of a page.
PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "reference/commands.md": {"commands": _commands},
    "coming_from.md": {"settings": _settings},
    "reference/metrics.md": {
        "always": lambda: _columns(metrics.METRIC_COLUMNS),
        "further": lambda: _columns(metrics.FURTHER_COLUMNS),
    },
    "reference/run_directory.md": {"files": _files},
    "how_to/tmrl.md": {"keys": _tmrl_keys},
}
PAGES: Mapping[str, Callable[[], str]] = {
    "reference/parameters.md": parameters_page.documentation,
    "reference/variables.md": variables.documentation,
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
