"""The folders of the package are layers: [tool.importlinter] in pyproject.toml has their order."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tfagents_system"


def test_no_room_imports_from_above() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run([*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kept, 0 broken" in done.stdout


def test_no_test_imports_another_test() -> None:
    """What tests share lies in tests/support/, under one name."""
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.match(rf"\s*(from|import) (tests\.(\w+\.)*)?(?!{path.stem}\b)test_\w+", line)
        or re.match(r"\s*from tests(\.\w+)* import (.*, )?test_\w+", line)
    ]
    assert not found


# Its class is the list of all hyperparameters, with their docstrings.
_DECLARATIONS = "Hyperparameters"
_LIMITS = {ast.ClassDef: 250, ast.FunctionDef: 50, ast.AsyncFunctionDef: 50}
# To be cut when they change next.
_KNOWN: dict[str, int] = {}


def test_no_file_class_or_function_is_long() -> None:
    """Files of at most 400 lines, classes of 250, functions of 50."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if (lines := len(text.splitlines())) > 400:
            found.append(f"{path.relative_to(ROOT)} has {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != _DECLARATIONS:
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > _KNOWN.get(node.name, _LIMITS[type(node)]):
                    found.append(f"{path.relative_to(ROOT)}: {node.name} has {lines} lines")
    assert not found, "cut by subject: " + "; ".join(found)
