"""Prior data of any kind become one ring, and what does not fit is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tf_agents.specs import array_spec

from tests.support.draws import draw_transitions
from tests.support.segments_for_tests import LAYOUT, filled_ring, numbered_segment
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.specs import save_specs
from tfagents_system.errors import UserError
from tfagents_system.experience import data_sets
from tfagents_system.experience.data_sets import Conversion, NamedEpisode
from tfagents_system.experience.transfer import make_prior_ring
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing, differences
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.segments import Column, Layout

ACTION = array_spec.BoundedArraySpec((2,), "float32", [-2.0, 0.0], [2.0, 1.0], "action")
CONVERSION = Conversion(LAYOUT, [actions_of(ACTION)], 0.9)


def episode(number: int, steps: int) -> NamedEpisode:
    ids = np.stack([np.full(steps + 1, 9), np.full(steps + 1, number), np.arange(steps + 1)], axis=1)
    return NamedEpisode(
        {"id": ids.astype(np.float32), "image": np.zeros((steps + 1, 2, 2), np.uint8)},
        {"": np.full((steps, 2), [2.0, 0.5])},
        np.arange(steps, dtype=np.float64),
        is_terminated=True,
    )


def test_files_and_runs_become_one_ring(tmp_path: Path) -> None:
    data_sets.write_npz(tmp_path / "demos.npz", [episode(0, 4), episode(1, 3)])
    filled_ring(tmp_path / "run" / "replay", 2)
    notes: list[str] = []
    told = make_prior_ring([tmp_path / "demos.npz", str(tmp_path / "run")], tmp_path / "made", CONVERSION, notes.append)
    assert "demos.npz, " in told and ": 17 steps" in told and notes == []
    stored = StoredRing(tmp_path / "made")
    ring = Ring.open(tmp_path / "made", stored.layout, stored.capacity_rows)
    assert (ring.training_steps, ring.env_steps, ring.verify()) == (17, 0, 0)
    drawn = draw_transitions(ring, np.random.default_rng(0), 50, 20)
    ids = drawn.observation[0].reshape(-1, 3)
    assert {(a, b) for a, b, _ in ids.tolist()} == {(9, 0), (9, 1), (0, 0), (0, 1)}
    of_file = ids[:, 0] == 9
    np.testing.assert_allclose(drawn.action[0].reshape(-1, 2)[of_file], [[1.0, 0.0]] * of_file.sum())
    last = of_file & (ids[:, 2] == np.where(ids[:, 1] == 0, 3, 2))
    np.testing.assert_array_equal(drawn.discount.reshape(-1)[of_file] == 0, last[of_file])


def test_all_that_does_not_fit_is_told_together(tmp_path: Path) -> None:
    run = tmp_path / "run" / "replay"
    Ring.open(run, LAYOUT.__class__(LAYOUT.observation[:1], LAYOUT.action), 60, 24)
    broken = episode(0, 4)
    broken.observations["id"][:] = np.nan
    data_sets.write_npz(tmp_path / "nan.npz", [broken])
    sources = [str(tmp_path / name) for name in ("run", "nan.npz", "demos.csv")]
    with pytest.raises(UserError) as raised:
        make_prior_ring(sources, tmp_path / "made", CONVERSION, print)
    layout, numbers, missing = raised.value.findings
    assert "\n  observation/image: here uint8 [2, 2], there none\n" in layout
    assert "not finite" in numbers and "demos.csv" in missing
    assert not (tmp_path / "made").exists()
    segment = numbered_segment()
    segment.reward[2] = np.inf
    Ring.open(tmp_path / "infinite", LAYOUT, 60, 24).take_over([segment])
    with pytest.raises(UserError, match="not finite"):
        make_prior_ring([str(tmp_path / "infinite")], tmp_path / "made", CONVERSION, print)
    few, many = (Layout(LAYOUT.observation, (Column("action", (), "int32", count),)) for count in (3, 9))
    assert differences(few, many) == ["action: here int32 [], one of 3, there int32 [], one of 9"]


@pytest.mark.parametrize("other", ["bounds", "rows"])
def test_the_same_numbers_for_other_actions_are_refused(tmp_path: Path, other: str) -> None:
    """A ring has shares of bounds, or numbers of rows: with other bounds or another table they are other actions."""
    rows = [[0.0, 0.5], [1.0, 0.5]] if other == "rows" else None
    spec = array_spec.BoundedArraySpec((2,), "float32", [-2.0, 0.0], [2.0, 3.0 if other == "bounds" else 1.0], "action")
    seen = LAYOUT.observation
    layout = Layout(seen, (Column("action", (), "int32", 2),)) if rows else LAYOUT
    run = tmp_path / "run"
    ring = Ring.open(run / "replay", layout, 60, 24)
    step = numbered_segment()
    ring.take_over([dataclasses.replace(step, action=[np.ones(step.num_steps, np.int32)]) if rows else step])
    observation = {"id": array_spec.ArraySpec((3,), "float32"), "image": array_spec.ArraySpec((2, 2), "uint8")}
    save_specs(RunPaths(run).specs, observation, spec, rows)
    ours = actions_of(ACTION, [[0.0, 0.5], [2.0, 0.5]] if rows else None)
    conversion = Conversion(layout, [ours], 0.9)
    with pytest.raises(UserError, match=r"action: here .*, there .*, and not the same ones"):
        make_prior_ring([str(run)], tmp_path / "made", conversion, print)
    save_specs(RunPaths(run).specs, observation, ACTION, rows)
    conversion = Conversion(layout, [actions_of(ACTION, rows)], 0.9)
    assert "steps" in make_prior_ring([str(run)], tmp_path / "made_2", conversion, print)
