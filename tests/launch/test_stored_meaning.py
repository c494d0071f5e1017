"""What a run has stored is compared with what it means now: actions, potentials, and where schedules are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tf_agents.specs import array_spec

from tfagents_system.envs.specs import save_specs
from tfagents_system.launch.stored_meaning import (
    action_findings,
)
from tfagents_system.run_files.run_paths import RunPaths

OBSERVATION = {"id": array_spec.ArraySpec((3,), "float32", "id")}
TABLE = [[0.0, 0.5], [1.0, 0.5]]


def box(high: float = 1.0, dtype: str = "float32") -> Any:
    return array_spec.BoundedArraySpec((2,), dtype, [-2.0, 0.0], [2.0, high], "action")


def specs(folder: Path, action: Any, table: Any = None) -> bytes:
    save_specs(folder / "now.pbtxt", OBSERVATION, action, table)
    return (folder / "now.pbtxt").read_bytes()


@pytest.mark.parametrize(
    ("action", "table", "is_told"),
    [
        (box(), TABLE, False),
        (box(), TABLE[::-1], True),
        (box(), [[0.0, 0.5], [1.0, 0.25]], True),
        (box(3.0), TABLE, False),
        (box(), [*TABLE, [2.0, 0.5]], False),
        (box(), None, False),
    ],
    ids=["same", "other order", "other row", "bounds around the same rows", "other layout", "no table any more"],
)
def test_rows_of_a_table_must_stay(tmp_path: Path, action: Any, table: Any, is_told: bool) -> None:
    paths = RunPaths(tmp_path)
    assert action_findings(paths, specs(tmp_path, action, table)) == [], "a run without specs"
    save_specs(paths.specs, OBSERVATION, box(), TABLE)
    found = action_findings(paths, specs(tmp_path, action, table))
    if not is_told:
        assert found == []
        return
    (told,) = found
    assert f"in {tmp_path} were made with other actions than there are now: action was 2 actions of (2,) in" in told
    assert "Restore what it was (action_table, or the bounds of the action space), or begin another run" in told


def test_bounds_of_continuous_actions_must_stay(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    save_specs(paths.specs, OBSERVATION, box())
    assert action_findings(paths, specs(tmp_path, box())) == []
    (told,) = action_findings(paths, specs(tmp_path, box(1.5)))
    assert "action was (2,) in [-2, 2], is (2,) in [-2, 2], and not the same ones" in told


def test_bounds_may_be_read_in_another_precision(tmp_path: Path) -> None:
    """As an environment gives them: 0.1 in float32 is itself after it was written and read."""
    paths = RunPaths(tmp_path)
    save_specs(paths.specs, OBSERVATION, box(0.1))
    assert action_findings(paths, specs(tmp_path, box(0.1))) == []
