"""tests/abilities.md: each line names one test that exists; the tests start few runs and know nothing from inside."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ABILITIES = 81
MOST_STARTS = 24
# Calls that start runs, and how many runs each of them is.
STARTS = {"start": 1, "train": 1, "train_shipped": 1, "Trained": 1, "start_programs": 1, "sweep": 2, "tune": 1}
PUBLIC = {"tfagents_system", "tfagents_system.testing"}


def lines() -> list[tuple[str, str]]:
    """What a user types or writes, and where it is shown."""
    rows = re.findall(r"(?m)^\| (.+) \| (.+) \|$", (ROOT / "tests" / "abilities.md").read_text())
    return [row for row in rows if row[0] != "a user types or writes"]


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]


def test_each_ability_has_a_test_that_exists() -> None:
    assert len(lines()) == ABILITIES
    for ability, shown in lines():
        assert (place := re.fullmatch(r"`(tests/\S+\.py)::(test_\w+)`", shown)), (ability, shown)
        assert place[2] in {function.name for function in functions(ROOT / place[1])}, shown


class Starts(ast.NodeVisitor):
    """Counts them, without those in the definitions of what is counted itself."""

    count = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name not in STARTS:
            self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if node.name not in STARTS:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        self.count += STARTS.get(name, 0)
        self.generic_visit(node)


def test_all_of_it_starts_few_runs() -> None:
    starts = Starts()
    for path in (ROOT / "tests" / "abilities").glob("test_*.py"):
        starts.visit(ast.parse(path.read_text()))
    assert 0 < starts.count <= MOST_STARTS, starts.count


def test_they_know_nothing_from_inside() -> None:
    for path in (ROOT / "tests" / "abilities").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            inside = {name for name in names if name.startswith("tfagents_system")} - PUBLIC
            assert not inside, (path.name, inside)
