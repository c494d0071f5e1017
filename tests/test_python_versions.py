"""Files that say which older Python they run in use nothing that is newer."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_PROMISE = re.compile(r"(?:only|needed|needs nothing but)\b[^.]*\bPython 3\.(\d+)")


def promises():
    """File and minor version of Python 3, of each file whose docstring says one."""
    for path in sorted((ROOT / "tfagents_system").rglob("*.py")):
        said = _PROMISE.search(" ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split()))
        if said:
            yield path, int(said[1])


PROMISES = dict(promises())


def found(path, minor):
    """What `vermin` has against the file in that version of Python; empty if nothing."""
    command = [
        sys.executable,
        "-c",
        "from vermin import main; main()",
        "--quiet",
        "--no-tips",
        "--violations",
        f"--target=3.{minor}-",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr if done.returncode else ""


def test_files_of_every_kind_are_among_them():
    names = {path.name: minor for path, minor in PROMISES.items()}
    assert names["requeue.py"] == 9, "compute nodes"
    assert names["env_server.py"] == 9, "SAC_ENV_PYTHON"
    assert names["trajectory_reward.py"] == 9, "a reward there"
    assert 8 in names.values(), "the exported policy"


@pytest.mark.parametrize("path", PROMISES, ids=lambda path: path.stem)
def test_a_file_runs_in_the_python_that_it_says(path):
    assert found(path, PROMISES[path]) == ""


def test_train_params_load_in_the_python_of_a_users_simulator():
    """SAC_ENV_PYTHON loads TrainParams without any package of ours."""
    code = "import sys, tfagents_system.train_params_base; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    names = set(done.stdout.split())
    assert not names & {"numpy", "tensorflow", "reverb", "msgspec"}
    files = [ROOT / f"{name.replace('.', '/')}.py" for name in names if name.startswith("tfagents_system.")]
    assert ROOT / "tfagents_system/hyperparameters.py" in files, done.stderr
    assert {file.name: found(file, 9) for file in files if file.exists()} == {f.name: "" for f in files if f.exists()}


def imported_by(module):
    """Our own files that a module brings."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    names = [name.replace(".", "/") for name in done.stdout.split() if name.startswith("tfagents_system")]
    paths = [path for name in names for path in (ROOT / f"{name}.py", ROOT / name / "__init__.py") if path.exists()]
    return {path: path.relative_to(ROOT).as_posix() for path in paths}


def unions_at_run_time(path):
    """Lines with `X | None` that Python evaluates, which 3.9 can't: outside of annotations, or of a read section."""
    text = path.read_text()
    tree, reads = ast.parse(text), "read_section" in text and "def read_section" not in text
    annotations = {
        each
        for node in ast.walk(tree)
        for field in ("annotation", "returns")
        if (found := getattr(node, field, None)) is not None and not (reads and isinstance(node, ast.AnnAssign))
        for each in ast.walk(found)
    }
    unions = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    return [
        node.lineno
        for node in unions
        if node not in annotations and isinstance(node.right, ast.Constant) and node.right.value is None
    ]


def test_the_reward_of_a_trajectory_runs_in_the_python_of_a_users_simulator():
    """It reads the JSON there, with the types of its settings."""
    files = imported_by("tfagents_system.examples.racing.trajectory_reward")
    assert "tfagents_system/examples/racing/trajectory_reward.py" in files.values()
    assert {name: found(path, 9) for path, name in files.items()} == dict.fromkeys(files.values(), "")
    assert {name: unions_at_run_time(path) for path, name in files.items()} == {name: [] for name in files.values()}


def test_what_is_newer_would_be_found(tmp_path):
    newer = tmp_path / "newer.py"
    newer.write_text("if (count := 3) > 2:\n    print(f'{count=}')\n")
    assert "3.8" in found(newer, 7)
    assert found(newer, 8) == ""
