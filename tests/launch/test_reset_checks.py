"""The experience of a run that goes on is compared with what observations and actions are now."""

from __future__ import annotations

from pathlib import Path

import pytest
from tf_agents.specs import array_spec

from tests.support.fakes import FakeParams
from tfagents_system.launch.reset_checks import layout_findings, size_findings
from tfagents_system.replay.ring import Ring
from tfagents_system.transport.segments import Layout

OBSERVATION = array_spec.ArraySpec((3,), "float32", "observation")


def layout(count: int | None = None, size: int = 1) -> Layout:
    action = array_spec.BoundedArraySpec((size,), "float32", -1, 1, "action")
    if count:
        action = array_spec.BoundedArraySpec((), "int32", 0, count - 1, "action")
    return Layout.from_specs(OBSERVATION, action)


@pytest.mark.parametrize("count", [None, 4])
def test_what_is_the_same_passes(count: int | None, tmp_path: Path) -> None:
    Ring.open(tmp_path, layout(count), 60, 24)
    assert layout_findings(layout(count), tmp_path) == []
    assert layout_findings(layout(count), tmp_path / "of a new run") == []


def test_what_differs_is_told(tmp_path: Path) -> None:
    Ring.open(tmp_path / "box", layout(), 60, 24)
    Ring.open(tmp_path / "choices", layout(4), 60, 24)
    (told,) = layout_findings(layout(size=2), tmp_path / "box")
    assert "action float32 [1] before, float32 [2] now" in told and "(SAC_EXP_NAME)" in told
    (told,) = layout_findings(layout(5), tmp_path / "choices")
    assert "action one of 4 before, one of 5 now" in told


def test_a_ring_of_another_size_is_refused_with_what_can_be_done(tmp_path: Path) -> None:
    params = type("TrainParams", (FakeParams,), {"n_episodes_in_buffer": 3})({"horizon": 20})
    Ring.open(tmp_path / "fits", layout(), 3 * 21)
    Ring.open(tmp_path / "larger", layout(), 4 * 21)
    for fits in ("fits", "of a new run"):
        assert size_findings(params, layout(), tmp_path / fits, tmp_path) == []
    (told,) = size_findings(params, layout(), tmp_path / "larger", tmp_path / "run")
    assert "has room for 84 rows, and n_episodes_in_buffer=3 of horizon=20 steps needs 63" in told
    assert f"SAC_REPLAY_FROM={tmp_path / 'run'}" in told
