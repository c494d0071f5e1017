"""What a run has stored is compared with what it means now: actions, potentials, and where schedules are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_agents.specs import array_spec

from tests.support.fakes import FakeParams
from tests.support.segments_for_tests import numbered_segment
from tfagents_system.envs.specs import save_specs
from tfagents_system.launch.stored_meaning import (
    action_findings,
    potential_notes,
    schedule_notes,
)
from tfagents_system.replay.ring import Ring
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.layout import Layout

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


def params_with(potential: Callable[[Any], float] | None = None, **attributes: Any) -> FakeParams:
    hooks = {} if potential is None else {"potential": lambda self, observation: potential(observation)}
    return type("TrainParams", (FakeParams,), {**hooks, **attributes})({"horizon": 20})


def test_another_potential_than_that_of_the_stored_steps_is_told(tmp_path: Path) -> None:
    def before(observation: Any) -> float:
        return 0.5 * float(observation["id"][2])

    layout = Layout.from_specs(OBSERVATION, box_of_agents(), has_potential=True)
    ring, now = Ring.open(tmp_path / "replay", layout, 400), specs(tmp_path, box())
    for number in range(40):  # 240 observations: the oldest are not looked at.
        segment = numbered_segment(0, number)
        (ids, *_), oldest = segment.observation, number < 4
        potential = np.where(oldest, 7.0, 0.5 * ids[:, 2]).astype(np.float32)
        assert ring.append(dataclasses.replace(segment, observation=[ids], potential=potential))
    folders = [tmp_path / "no ring", tmp_path / "replay"]
    assert potential_notes(params_with(before), now, folders) == []
    assert potential_notes(params_with(), now, folders) == []
    assert potential_notes(params_with(lambda observation: 1 / 0), now, folders) == [], "the check of the environment"
    edited = params_with(lambda observation: before(observation) + (observation["id"][2] == 0))
    (told,) = potential_notes(edited, now, folders)
    assert "gives other numbers than those that are stored, with 34 of 204 observations: " in told


def box_of_agents() -> Any:
    return array_spec.BoundedArraySpec((2,), "float32", -1.0, 1.0, "action")


def test_schedules_that_are_over_for_a_new_agent_are_told(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    epsilon = {"points": [[0, 1.0], [50_000, 0.1]]}
    params = params_with(
        exploration_epsilon=epsilon,
        boltzmann_epsilon=epsilon | {"by": "iterations"},
        critic_learning_rate={"points": [[0, 1e-3], [90_000, 1e-4]]},
        discount={"points": [[0, 0.9]]},
    )
    assert schedule_notes(params, paths) == [], "no metrics yet"
    paths.metrics_csv.write_text("iteration,train_step,env_steps\n1,10,40000\n2,20,60000\n")
    (told,) = schedule_notes(params, paths)
    assert (
        "count the steps of the whole run, 60,000, and are over for the new agent: exploration_epsilon is 0.1 from "
        in told
    )
    assert "boltzmann" not in told and "learning_rate" not in told and "discount" not in told
