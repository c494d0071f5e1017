"""The folders of the package are layers, whose order is in [tool.importlinter] of pyproject.toml, and stay small."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tfagents_system"
# Lines of each room. They are only ever lowered, unless an issue names a new ability for a room.
BUDGETS = {
    "agents": 3_980,
    "benchmarks": 4_140,
    "checks": 520,
    "cluster": 1_820,
    "envs": 4_720,
    "examples": 2_800,
    "experience": 1_030,
    "launch": 5_580,
    "machine": 1_320,
    "playing": 980,
    "policies": 2_070,
    "replay": 3_270,
    "report": 2_490,
    "run_files": 2_130,
    "settings": 2_570,
    "tasks": 890,
    "tests": 48_970,
    "tmrl": 600,
    "top level": 2_590,
    "trainer": 2_180,
    "transport": 2_210,
    "worker": 3_050,
}


def test_no_room_imports_from_above() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run([*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kept, 0 broken" in done.stdout


def lines_by_room() -> Counter[str]:
    """Lines of .py, .sh, .js, .css and .html files that are no links: of each folder of the package, and of others."""
    lines = Counter[str]()
    for top in (PACKAGE, ROOT / "benchmarks", ROOT / "tests"):
        for path in top.rglob("*"):
            if path.suffix in (".py", ".sh", ".js", ".css", ".html") and not path.is_symlink():
                parts = path.relative_to(top).parts
                room = top.name if top != PACKAGE else parts[0] if len(parts) > 1 else "top level"
                lines[room] += len(path.read_text().splitlines())
    return lines


def test_no_room_grows_beyond_its_budget() -> None:
    lines = lines_by_room()
    assert lines.keys() == BUDGETS.keys(), "a new room needs a budget, and one that is gone has none"
    over = [f"{room}: {lines[room]:,} lines, budget {most:,}" for room, most in BUDGETS.items() if lines[room] > most]
    assert not over, "take something else away: " + "; ".join(over)


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
