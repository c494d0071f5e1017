"""The pages of docs/ that are made from the code.

python -m docs.site.generated          # writes them all
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from unittest import mock

from docs.site import pictures
from tfagents_system import command
from tfagents_system.errors import NAME_VARIABLE
from tfagents_system.hyperparameters import Hyperparameters, described_by
from tfagents_system.run_files import metrics
from tfagents_system.run_files.run_paths import Below, RunPaths
from tfagents_system.settings import other_libraries
from tfagents_system.settings.parameters_page import conditions_of, default_of, keys_of
from tfagents_system.settings.variables import VARIABLES, attribute_docs
from tfagents_system.tmrl import keys as tmrl_keys

DOCS = Path(__file__).resolve().parents[1]
_WIDTH = "88"  # Of help texts, in characters.


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    columns = head.count("|") + 1
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {head} |", f"|{' --- |' * columns}", *lines]) + "\n"


def linked(text: str, here: str = "reference") -> str:
    """The text for a page in a folder of docs/: `docs/how_to/watch.md` becomes a link to that page."""

    def link(found: re.Match[str]) -> str:
        folder, name = found.groups()
        return f"[{name.replace('_', ' ')}]({f'../{folder}/' if folder != here else ''}{name}.md)"

    return re.sub(r"\bdocs/(\w+)/(\w+)\.md", link, text)


# A rule's words, and what the page's narrow column has.
_NOTATION = {
    r"\b(an? )?(integer|number) of at least (\S+) and below (\S+)\b": r"\2 in [\3, \4)",
    r"\b(an? )?(integer|number) above (\S+) and at most (\S+)\b": r"\2 in (\3, \4]",
    r"\b(an? )?(integer|number) above (\S+) and below (\S+)\b": r"\2 in (\3, \4)",
    r"\b(an? )?((?:even )?(?:integer|number)) of at least (-?[\d.]+)\b": r"\2 ≥ \3",
    r"\b(an? )?(integer|number) of at most (-?[\d.]+)\b": r"\2 ≤ \3",
    r"\b(an? )?(integer|number) above (-?[\d.]+)\b": r"\2 > \3",
    r"\ban? (integer|number) (in|from)\b": r"\1 \2",
    r"\bTrue or False\b": "bool",
}


def _notation(text: str) -> str:
    for words, sign in _NOTATION.items():
        text = re.sub(words, sign, text)
    return text


_PARAMETERS = """# Parameters

The attributes of `TrainParams`, from [hyperparameters.py](../../tfagents_system/hyperparameters.py). Set them in a
params file or with `--set`. Those with \\* can change in a run that has begun. A
[schedule](../how_to/iterations.md#schedules) changes a number during the run. A start reports attributes that have no
effect.
"""


def _parameters() -> str:
    docs = attribute_docs(Hyperparameters)
    # A comment below an empty line heads a group; here by the name of the group's first attribute.
    groups = re.findall(r"\n\n    # (.+?)\.?\n    (\w+):", inspect.getsource(Hyperparameters))
    headings = {name: f"\n## {text}\n" for text, name in groups}
    text, rows, listed = _PARAMETERS, list[tuple[str, ...]](), set[int]()

    def table() -> str:
        return "\n" * (text == _PARAMETERS) + _table("attribute | default | must be | meaning", rows)

    for name, attribute in described_by(Hyperparameters).items():
        if name in headings:
            text, rows = f"{text}{table()}{headings[name]}\n", []
        meaning = f"{linked(docs[name])}{conditions_of(attribute)}"
        must_be = _notation(attribute.rule.words)
        if (keys := attribute.rule.keys) is not None:
            must_be = must_be.replace(f" with any of {', '.join(keys)}", "")
            meaning += "" if id(keys) in listed else f" Keys: {_notation(keys_of(keys))}"
            listed.add(id(keys))
        star = " \\*" if attribute.may_change else ""
        must_be += f" ({attribute.unit})" if attribute.unit else ""
        rows.append((f"`{name}`{star}", default_of(attribute), must_be, meaning))
    return text + table()


_VARIABLES = """# Variables of a run

Set them in the vars file or in the environment. Relative paths of SAC_PARAMS, SAC_CONFIG, SAC_GRID, SAC_EXPERT_POLICY,
SAC_FROM and SAC_ENV_PYTHON are looked up beside the vars file, then in the current folder, then in the repository.
SAC_LOGS_DIR, SAC_REPLAY_DIR, SAC_CREDENTIALS_DIR and SAC_PASSWORD_FILE are relative to the current folder. Each run has
its own folder below SAC_REPLAY_DIR.

`--set` and grids cannot change {}.

"""


_SHELL_VARIABLES = """
## Your shell's variables

A run's programs inherit your environment. A start removes the variables below, which break Python or TensorFlow, and
notes it. It adds 127.0.0.1 to `no_grpc_proxy`, and sets TF_ENABLE_ONEDNN_OPTS=1 unless you set it.

{}
PYTHONPATH folders of another Python (`pythonX.Y`, as ROS and `module load` set them) reach only the interpreter of
SAC_ENV_PYTHON. Other folders of PYTHONPATH and the current folder come after the toolkit's own packages. A file beside
your params that has the name of a module that the toolkit imports, such as `queue.py`, is refused: rename it.
"""


def _shell_variables() -> str:
    text = (Path(command.__file__).with_name("launch") / "shell_variables.sh").read_text()
    rows = re.findall(r"^(\w\S+) +(.+)$", text.partition("='")[2].partition("\n'\n")[0], re.MULTILINE)
    return _SHELL_VARIABLES.format(_table("variable | why it is removed", ((f"`{name}`", why) for name, why in rows)))


def _variables() -> str:
    rows = (
        (f"`{variable.name}`", linked(variable.meaning), linked(variable.default or "must be given"))
        for variable in VARIABLES
        if not variable.is_internal
    )
    early = ", ".join(variable.name for variable in VARIABLES if variable.is_early)
    return _VARIABLES.format(early) + _table("variable | meaning | default", rows) + _shell_variables()


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
        options = text.replace(f"sac {name}", "sac")
        same = shown.setdefault(options, name)
        body = f"```text\n{text}\n```" if same == name else f"Its options are those of [sac {same}](#sac-{same})."
        examples = "\n".join(map(str.rstrip, one.examples))
        sentence = f"{one.summary[0].upper()}{one.summary[1:]}."
        texts.append(f"## sac {name}\n\n{sentence}\n\n```bash\n{examples}\n```\n\n{body}\n")
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
    text = re.sub(r"^(arguments|options):\n(?=\n|\Z)", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


def help_of(name: str) -> str:
    """What `sac NAME --help` prints between sentence and examples, and the help of each of its subcommands."""
    told = _help_of(name)
    if "\n  COMMAND\n" in told:
        words = re.findall(r"^    ([a-z-]+)(?=\s)", told, re.MULTILINE)
        told += "".join(f"\n{word}:\n{_help_of(name, word)}" for word in words)
    return told


def _help_of(name: str, *words: str) -> str:
    one = command.COMMANDS[name]
    with mock.patch.dict(os.environ, {"COLUMNS": _WIDTH, NAME_VARIABLE: f"sac {name}"}):
        if one.target.endswith(".sh"):
            script = ["bash", str(Path(command.__file__).with_name("launch") / one.target), "--help"]
            return subprocess.run(script, capture_output=True, text=True, check=True, timeout=60).stdout
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            command.main([name, *words, "--help"])
    return printed.getvalue().partition("\n\n")[2].partition("\nexamples:\n")[0]


def _settings() -> str:
    """Names of other libraries by what they are here; how_to/tmrl.md has those of TMRL."""
    theirs: dict[str, list[str]] = {}
    for setting in other_libraries.SETTINGS:
        names = ", ".join(f"`{name}`" for name in setting.names)
        theirs.setdefault(setting.ours, []).append(f"{names} ({setting.libraries})")
    rows = ((", ".join(names), linked(ours.removeprefix("set "), "")) for ours, names in theirs.items())
    return _table("there | here", rows)


def _tmrl_keys() -> str:
    """The keys of TMRL's config.json; what all machines of a run must share has a star."""
    rows, unused = [], []
    for path, default, _, target in tmrl_keys.KEYS.values():  # A wrong value's error says the rule.
        kind, _, words = target.partition(": ")
        name, comma, condition = target.replace("*", path.rpartition(".")[2].lower()).partition(", ")
        if kind == "nothing":
            unused.append(f"`{path}`")
            continue
        here = target if kind == "game" else words or f"`{name}`{comma}{condition}"
        star = "" if kind == "here" or name.startswith(("SAC_", "WANDB_")) else " \\*"
        rows.append((f"`{path}`{star}", f"`{json.dumps(default)}`", here))
    return f"{_table('key | default | here', rows)}\nWithout effect here: {', '.join(unused)}.\n"


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
    "reference/parameters.md": _parameters,
    "reference/variables.md": _variables,
    "images/speed.svg": pictures.speed,
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
