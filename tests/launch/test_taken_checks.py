"""The experience of a run that goes on is compared with what observations and actions are now."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tf_agents.specs import array_spec

from tests.support.fakes import FakeParams
from tfagents_system.launch.taken_checks import ring_findings
from tfagents_system.replay.ring import Ring
from tfagents_system.run_files.run_paths import RunPaths
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
    ("before", "now", "attributes", "told"),
    [
        (layout(), layout(size=2), {}, "action: now float32 [2], before float32 [1]"),
        (layout(4), layout(5), {}, "action: now int32 [], one of 5, before int32 [], one of 4"),
        (layout(), with_("explored"), {}, "explored: now uint8 [], one of 2, before none"),
        (with_("episode"), layout(), {}, "episode: now none, before int64 [2]"),
        (layout(), with_("potential"), {}, "potential: now float32 [], before none"),
        (layout(), layout(), {"buffer_size": 80}, "rows: now 84 (buffer_size=80"),
        (
            layout(),
            layout(),
            {"frame_stack": {"observation": 3}},
            "frame_stack: now {'observation': 3}, before 1",
        ),
    ],
)
def test_a_ring_has_one_layout_and_size_for_life(
    before: Layout, now: Layout, attributes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    Ring.open(tmp_path, before, 63)
    (finding,) = findings(now, tmp_path, **attributes)
    assert f"does not fit: {told}" in finding
    assert f"begin another run with --from {tmp_path} --set SAC_EXP_NAME=" in finding
