"""Every code block of the documents: its language, whether it is read, and whether what it names is there."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tfagents_system
from docs.site import generated
from tests.support.documents import PAGES, ROOT, Block, Line, blocks, command_lines
from tfagents_system import command, python_run
from tfagents_system.checks.rules import is_kept
from tfagents_system.hyperparameters import described_by
from tfagents_system.settings import params_check
from tfagents_system.settings.grid import read_grid, read_space
from tfagents_system.settings.variables import VARIABLES
from tfagents_system.train_params_base import TrainParamsBase

ATTRIBUTES = described_by(TrainParamsBase)
NAMES = {variable.name for variable in VARIABLES}
# Modules of readers, and of packages that readers install.
THEIRS = {"my_robot", "my_cart", "numpy_policy", "gymnasium_robotics", "envpool"}
SBATCH = {"--time", "--partition"}
PROGRAMS = {
    ":", "[", "apptainer", "cd", "conda", "docker", "echo", "fi", "grep", "if", "mkdir", "mktemp", "openssl", "pip",
    "rm", "scp", "sed", "set", "source", "squeue", "srun", "tensorboard", "then", "umask", "uv",
}  # fmt: skip


def test_every_block_says_its_language() -> None:
    found = [
        f"{block}: {block.language}" for block in blocks() if block.language not in ("bash", "json", "python", "text")
    ]
    assert not found and len(blocks()) > 60


# Shell.


def test_shell_blocks_are_shell() -> None:
    wrong = []
    for block in blocks("bash"):
        done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=20)
        wrong += [f"{block}: {done.stderr}"] * bool(done.returncode or done.stderr)
    assert not wrong


def test_commands_are_there_and_take_these_options() -> None:
    wrong = [f"{line}: {fault}" for line in command_lines() for fault in faults_of(line)]
    assert not wrong, "\n".join(wrong)


def test_a_wrong_command_is_found() -> None:
    def faults(text: str) -> list[str]:
        (line,) = (Line(Block(ROOT / "x.md", 1, "bash", ""), {}, text.split()),)
        return list(faults_of(line))

    assert faults("sac trian my_vars.sh") == ["sac trian is no command"]
    assert faults("sac play logs/x --chekpoint best") == ["no option --chekpoint"]
    assert faults("sac sweep v.sh --seed 3") == ["no option --seed"]
    assert faults("./run_script.sh v.sh --set gamma=1") == ["--set gamma=1: no such attribute or variable"]
    assert faults("python -m tfagents_system.plots x") == ["no module tfagents_system.plots"]
    assert faults("./run_script.sh training_variables_x.sh") == ["training_variables_x.sh is not there"]


def faults_of(line: Line) -> Iterator[str]:
    """What is wrong with a command, by what its program says of itself."""
    if not line.words or (len(line.words) == 1 and re.match(r"(?!\./)[\w./~]+[./]\w+$", line.words[0])):
        return  # The target of a redirection.
    for name in line.variables:
        if name.startswith("SAC_") and name not in NAMES:
            yield f"{name} is no variable"
    for word in line.words:
        if (
            re.match(r"(training_variables\w*\.sh|config/|tfagents_system/(?!logs))", word)
            and not (ROOT / word).exists()
        ):
            yield f"{word} is not there"
    for option, value in zip(line.words, line.words[1:], strict=False):
        if option == "--set" and not is_name(value.partition("=")[0]):
            yield f"--set {value}: no such attribute or variable"
    program, *rest = line.words
    told: str | None
    if program == "sac":
        if rest[0] not in command.COMMANDS:
            yield f"sac {rest[0]} is no command"
            return
        told = help_of(rest[0])
    elif program.startswith("./"):
        told = help_of_script(program)
    elif program == "python":
        module = rest[1] if rest[0] == "-m" else rest[0].removesuffix(".py").replace("/", ".")
        told = help_of_module(module)
        if told is None:
            yield f"no module {module}"
            return
    elif program in PROGRAMS:
        return
    else:
        yield f"{program} is not known"
        return
    beside = SBATCH if {"submit", "./submit.sh", "--slurm"} & set(line.words) else set()
    for option in line.options():
        name = option.lstrip("[")
        if name not in beside and not re.search(rf"(?<![\w-]){name}(?![\w-])", told):
            yield f"no option {name}"


def is_name(name: str) -> bool:
    """Whether `--set` takes it."""
    return name in NAMES or name.split(".")[0] in {*ATTRIBUTES, "config"}


@functools.cache
def help_of(name: str) -> str:
    return generated.help_of(name)


@functools.cache
def help_of_script(script: str) -> str:
    return subprocess.run([script, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout


@functools.cache
def help_of_module(module: str) -> str | None:
    """Its command's, if it has one, and its source, which has the options of subcommands; None if it is not there."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    if spec is None or spec.origin is None:
        return None
    source, folder = Path(spec.origin), Path(spec.origin).parent
    files = [source, *(folder.glob("*.py") if source.stem == "__init__" else ())]
    if folder.name == "tfagents_system":  # A program whose options are those of its room.
        files += (folder / "playing").glob("*.py")
    names = {f"tfagents_system.{one.target}".removesuffix(".__main__"): name for name, one in command.COMMANDS.items()}
    told = [help_of(names[module])] if module in names else []
    return "\n".join([*told, *(file.read_text() for file in files)])


# JSON.


def test_json_blocks_are_what_the_toolkit_reads(tmp_path: Path) -> None:
    """Grids, configurations and search spaces."""
    for block in blocks("json"):
        found = json.loads(block.text)
        file = tmp_path / "block.json"
        file.write_text(block.text)
        if "horizon" in found:
            assert not params_check.check_env_config(found), block
        elif isinstance(found, list) or all(isinstance(value, list) for value in found.values()):
            assert read_grid(str(file)), block
            names = {name for each in (found if isinstance(found, list) else [found]) for name in each}
            assert all(map(is_name, names)), block
        else:
            assert all(map(is_name, found)) and read_space(str(file)), block


# Python.


def test_python_blocks_name_what_is_there() -> None:
    wrong = [f"{block}: {fault}" for block in blocks("python") for fault in faults_of_python(block.text)]
    assert not wrong, "\n".join(wrong)


def test_wrong_python_is_found() -> None:
    text = "from tfagents_system.train_params_base import TrainParams\nimport mujoko\n"
    text += "class TrainParams(TrainParamsBase):\n    discont = 0.9\n    batch_size = 0.5\n"
    text += "    def env_make(self): pass\n"
    text += "run = tfagents_system.train('p.py')\nrun.metric\ntfagents_system.trian\n"
    assert list(faults_of_python(text)) == [
        "tfagents_system.train_params_base has no TrainParams",
        "no module mujoko",
        "discont is no attribute of TrainParams",
        "batch_size = 0.5 must be an integer of at least 1",
        "env_make is no hook of TrainParams",
        "Run has no metric",
        "tfagents_system has no trian",
    ]


def faults_of_python(text: str) -> Iterator[str]:
    """What is wrong with imports, attributes of TrainParams, hooks, and the module's own functions."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _faults_of_import(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == "TrainParams":
            yield from _faults_of_params(node.body, text)
    yield from _faults_of_params(
        [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ATTRIBUTES],
        text,
    )
    owners = {"tfagents_system": tfagents_system} | ({} if "UserRun" in text else {"run": python_run.Run})
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner: Any = owners.get(node.value.id)
            if owner is not None and not _has(owner, node.attr):
                yield f"{getattr(owner, '__name__', owner)} has no {node.attr}"


def _has(owner: Any, name: str) -> bool:
    is_declared = hasattr(owner, name) or name in getattr(owner, "__annotations__", {})
    return is_declared or re.search(rf"self\.{name}\b", _source(owner)) is not None


@functools.cache
def _source(owner: Any) -> str:
    file = Path(python_run.__file__) if owner is python_run.Run else Path(tfagents_system.__file__)
    return file.read_text()


def _faults_of_import(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    for module in modules:
        if module.split(".")[0] in THEIRS:
            continue
        if importlib.util.find_spec(module.split(".")[0]) is None:
            yield f"no module {module}"
        elif module.startswith("tfagents_system") and isinstance(node, ast.ImportFrom):
            imported = importlib.import_module(module)
            for alias in node.names:
                if not hasattr(imported, alias.name):
                    yield f"{module} has no {alias.name}"


def _faults_of_params(body: list[ast.stmt], text: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Assign):
            name = ast.unparse(node.targets[0])
            if name not in ATTRIBUTES:
                yield f"{name} is no attribute of TrainParams"
                continue
            try:
                value = ast.literal_eval(node.value)
            except ValueError:
                continue
            if not is_kept(ATTRIBUTES[name].rule, value):
                yield f"{name} = {value!r} must be {ATTRIBUTES[name].rule.words}"
        elif isinstance(node, ast.FunctionDef):
            is_used = f"self.{node.name}" in text or node.name.startswith("__")
            if not is_used and not hasattr(TrainParamsBase, node.name):
                yield f"{node.name} is no hook of TrainParams"


# Names in the text.


# The changelog names what there was, too.
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_variables_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text()
    if page.name == "check.md":
        text = text.replace("SAC_SEEDS", "")  # A misspelt one.
    found = set(re.findall(r"\bSAC_[A-Z][A-Z_]+[A-Z]\b", text)) - NAMES
    assert not found
