"""The experience of a run that goes on is compared with what observations and actions are now."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tf_agents.specs import array_spec

from tests.support.channel_for_tests import running_gateway
from tests.support.fakes import FakeParams
from tests.support.prepared_runs import train as trained
from tests.support.prepared_runs import variables_of_run
from tests.support.segments_for_tests import filled_ring
from tfagents_system.launch.preparation import Preparation
from tfagents_system.launch.reset_checks import ring_findings, server_findings
from tfagents_system.launch.run_settings import RESET
from tfagents_system.replay.ring import Ring
from tfagents_system.run_files.resets import AGENT
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import read_variables
from tfagents_system.transport.layout import OPTIONAL_COLUMNS
from tfagents_system.transport.segments import Layout

OBSERVATION = array_spec.ArraySpec((3,), "float32", "observation")


def layout(count: int | None = None, size: int = 1) -> Layout:
    action = array_spec.BoundedArraySpec((size,), "float32", -1, 1, "action")
    if count:
        action = array_spec.BoundedArraySpec((), "int32", 0, count - 1, "action")
    return Layout.from_specs(OBSERVATION, action)


def findings(now: Layout, folder: Path, **attributes: Any) -> list[str]:
    params = type("TrainParams", (FakeParams,), {"buffer_size": 60, **attributes})({"horizon": 20})
    return ring_findings(params, now, folder, RunPaths(folder))


def with_(*names: str, **of_layout: Any) -> Layout:
    optional: dict[str, Any] = {name: OPTIONAL_COLUMNS[name] for name in names}
    return dataclasses.replace(layout(**of_layout), **optional)


@pytest.mark.parametrize("count", [None, 4])
def test_what_is_the_same_passes(count: int | None, tmp_path: Path) -> None:
    Ring.open(tmp_path, layout(count), 63)
    assert findings(layout(count), tmp_path) == findings(layout(count), tmp_path / "of a new run") == []


@pytest.mark.parametrize(
    ("before", "now", "attributes", "told", "takes"),
    [
        (layout(), layout(size=2), {}, "action: now float32 [2], before float32 [1]", False),
        (layout(4), layout(5), {}, "action: now int32 [], one of 5, before int32 [], one of 4", False),
        (layout(), with_("explored"), {}, "explored: now uint8 [], one of 2, before none", True),
        (with_("episode"), layout(), {}, "episode: now none, before int64 [2]", True),
        (layout(), with_("potential"), {}, "potential: now float32 [], before none", False),
        (layout(), layout(), {"buffer_size": 80}, "rows: now 84 (buffer_size=80", True),
        (
            layout(),
            layout(),
            {"frame_stack": {"observation": 3}},
            "frame_stack: now {'observation': 3}, before 1",
            True,
        ),
    ],
)
def test_a_ring_has_one_layout_and_size_for_life(
    before: Layout, now: Layout, attributes: dict[str, Any], told: str, takes: bool, tmp_path: Path
) -> None:
    Ring.open(tmp_path, before, 63)
    (finding,) = findings(now, tmp_path, **attributes)
    assert f"does not fit: {told}" in finding and "begin another run (SAC_EXP_NAME)" in finding
    assert (f"SAC_REPLAY_FROM={tmp_path}" in finding) == takes and "--fresh" in finding


def reset_entry(number: int) -> dict[str, Any]:
    return {
        "kind": AGENT,
        "before": f"before_reset_{number}",
        "train_step": 5,
        "env_steps": 5,
        "catch_up": False,
        "time": "",
    }


@pytest.mark.parametrize(("there", "here", "is_refused"), [(0, 0, True), (1, 1, True), (1, 0, False), (3, 1, False)])
def test_a_trainer_elsewhere_gets_no_agent_that_its_server_does_not_know(
    tmp_path: Path, there: int, here: int, is_refused: bool
) -> None:
    own, environ = RunPaths(tmp_path / "trainer"), {"TFAGENTS_RESET": AGENT}
    own.exp_dir.mkdir()
    own.run_json.write_text(json.dumps({"resets": [reset_entry(number) for number in range(here)]}))
    run = json.dumps({"seed": 7, "resets": [reset_entry(number) for number in range(there)]})
    with running_gateway(tmp_path, run=run) as running:
        values = {"trainer_server": running.address, "credentials_dir": running.paths.credentials}
        told = server_findings(environ, values, own)
        assert not is_refused or f"replaced {there} times, and would be {here + 1} times here: start the" in told[0]
        assert len(told) == is_refused
        assert server_findings(environ, {}, own) == [], "its server is its own"
    assert server_findings(environ, values, own) == [], "a server that is down may have been told, too"


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_reset_counts_the_steps_that_the_ring_tells_where_metrics_are_with_the_trainer(
    is_elsewhere: bool, tmp_path: Path
) -> None:
    """The draws of its prior data begin with the discount of that step."""
    paths = RunPaths(tmp_path / "run")
    paths.exp_dir.mkdir()
    environ = {**variables_of_run(tmp_path), RESET: AGENT}
    if is_elsewhere:
        environ["SAC_REPLAY_DIR"] = str(tmp_path / "scratch")
    folder = read_variables(environ, vars_file=None, root=tmp_path)[0].get("replay_dir", paths.replay)
    paths.run_json.write_text("{}")
    trained(paths)
    found = []
    for make in (lambda: None, lambda: filled_ring(folder, 4), lambda: paths.metrics_csv.write_text("env_steps\n60\n")):
        make()
        reset = Preparation(environ, None).reset
        assert reset is not None
        found.append(reset.env_steps)
    assert found == [0, 20, 60]
