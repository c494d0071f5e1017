"""Data sets become experience that runs begin with, and back, with nothing changed on the way."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_agents.specs import array_spec

from tests.support.data_sets import EPISODES, columns, episode, imported
from tests.support.killed_starts import killed_at
from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.envs.specs import save_specs
from tfagents_system.errors import UserError
from tfagents_system.experience import data_sets, transfer
from tfagents_system.experience.data_sets import NamedEpisode
from tfagents_system.experience.transfer import episodes_of, is_terminated
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.run_files.run_paths import RunPaths


def assert_are_the_episodes(stored: StoredRing) -> None:
    found = list(episodes_of(stored))
    assert len(found) == len(EPISODES)
    for ours, theirs in zip(EPISODES, found, strict=True):
        np.testing.assert_array_equal(theirs.observation[0], ours.observations[""])
        np.testing.assert_allclose(theirs.action[0], ours.actions[""] / 2)
        np.testing.assert_array_equal(theirs.reward, ours.rewards)
        np.testing.assert_array_equal(theirs.discount, [1] * (len(ours.rewards) - 1) + [not ours.is_terminated])
    assert found[0].returns is not None
    np.testing.assert_allclose(found[0].returns, [0, 1, 2.5, 4.25, 6.125])  # R_t = R_(t-1) / 2 + t.


def test_a_file_comes_in_and_goes_out_as_it_was(tmp_path: Path, files: dict[str, str]) -> None:
    data_sets.write_npz(tmp_path / "data.npz", EPISODES)
    stored, lines, notes = imported(str(tmp_path / "data.npz"), tmp_path / "imported", files)
    assert_are_the_episodes(stored)
    assert "13 steps, 3 episodes (3 whole, 2 terminated), mean return of the whole ones 10.3" in lines[0]
    assert notes == [] and f"--from {tmp_path}/imported --take replay" in lines[1]
    transfer.export(str(tmp_path / "imported"), str(tmp_path / "again.npz"), notes.append)
    again = list(data_sets.read_npz(tmp_path / "again.npz", notes.append))
    for ours, theirs in zip(EPISODES, again, strict=True):
        np.testing.assert_equal(vars(theirs), vars(ours))
    with pytest.raises(UserError, match="exists: give another name"):
        transfer.export(str(tmp_path / "imported"), str(tmp_path / "again.npz"), notes.append)


def test_minari_reads_what_was_exported_and_back(
    tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    data_sets.write_npz(tmp_path / "data.npz", EPISODES)
    imported(str(tmp_path / "data.npz"), tmp_path / "imported", files)
    transfer.export(str(tmp_path / "imported"), "minari:us/pendulum-v0", lambda text: None)
    data_set = minari.load_dataset("us/pendulum-v0")
    assert (data_set.total_episodes, data_set.total_steps) == (3, 13)
    for ours, theirs in zip(EPISODES, data_set.iterate_episodes(), strict=True):
        np.testing.assert_array_equal(theirs.observations, ours.observations[""])
        np.testing.assert_allclose(theirs.actions, ours.actions[""])
        assert (theirs.terminations[-1], theirs.truncations[-1]) == (ours.is_terminated, not ours.is_terminated)
    assert data_set.action_space.low.tolist() == [-2] and data_set.observation_space.shape == (3,)
    for number, source in enumerate(("minari:us/pendulum-v0", str(tmp_path / "sets/us/pendulum-v0"))):
        assert_are_the_episodes(imported(source, tmp_path / f"again_{number}", files)[0])


def test_a_kill_at_any_moment_of_an_import_leaves_nothing_or_all(
    tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data_sets.write_npz(tmp_path / "data.npz", EPISODES)
    source, out = str(tmp_path / "data.npz"), tmp_path / "imported"
    run = RunPaths(tmp_path / "run")  # It has the specs: no environment is built.
    run.exp_dir.mkdir()
    shutil.copy(imported(source, tmp_path / "first", files)[0].folder / "specs.pbtxt", run.specs)
    shutil.copy(files["params"], run.params)
    shutil.copy(files["config"], run.config)
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)
    place = kills = 0
    while True:
        place += 1
        start = functools.partial(transfer.import_into, source, out, str(run.exp_dir), None, None, lambda text: None)
        was_killed = killed_at(place, start)
        if not was_killed:
            break
        kills += 1
        if out.exists():
            assert_are_the_episodes(StoredRing(out))
            shutil.rmtree(out)
        partial = tmp_path / ".imported.partial"
        if partial.exists():
            with pytest.raises(UserError, match="is of an import under way, or that was killed: wait for it, or rem"):
                start()
            shutil.rmtree(partial)
        start()
        assert_are_the_episodes(StoredRing(out))
        assert not partial.exists()
        shutil.rmtree(out)
    assert kills > 10
    assert_are_the_episodes(StoredRing(out))


def test_numbers_keep_their_types_in_files(tmp_path: Path) -> None:
    """Pixels of an image above all: as other numbers they are refused."""
    rows = np.arange(6)[:, None]
    given: dict[str, np.ndarray] = {
        "camera": np.broadcast_to(rows[..., None, None], (6, 4, 5, 3)).astype(np.uint8),
        "place": (rows / 3 * [1.0, -1.0]).astype(np.float64),
        "speed": (rows / 3).astype(np.float16),
        "touch": (rows % 2).astype(bool),
        "lap": rows.astype(np.int32),
    }
    wheel = {"": np.arange(5, dtype=np.float32)}
    data_sets.write_npz(tmp_path / "data.npz", [NamedEpisode(given, wheel, np.zeros(5, np.float32), True)])
    (read,) = data_sets.read_npz(tmp_path / "data.npz", lambda text: None)
    for name, leaf in given.items():
        assert read.observations[name].dtype == leaf.dtype, name
        np.testing.assert_array_equal(read.observations[name], leaf)
    assert read.rewards.dtype == read.actions[""].dtype == np.float32


def test_without_next_observations_truncated_episodes_lose_a_step_and_it_is_told(
    tmp_path: Path, files: dict[str, str]
) -> None:
    data = columns(tmp_path)
    del data["next_observations"]
    data["terminals"], data["timeouts"] = data.pop("terminations"), data.pop("truncations")  # D4RL's names.
    np.savez(tmp_path / "d4rl.npz", **data)
    stored, _, notes = imported(str(tmp_path / "d4rl.npz"), tmp_path / "imported", files)
    found = list(episodes_of(stored))
    assert [len(each.reward) for each in found] == [5, 6, 1]
    assert found[0].observation[0][-1].tolist() == found[0].observation[0][-2].tolist() and is_terminated(found[0])
    assert found[1].observation[0][-1, 1] == 6 and not is_terminated(found[1])
    assert "the last step of 1 truncated episodes is left out" in notes[1] and "2 terminated" in notes[0]


@pytest.mark.parametrize(
    ("names", "are_cut"),
    [(("dones", "timeouts"), True), (("dones", "truncations"), True), (("terminals", "timeouts"), False)],
)
def test_dones_that_are_truncations_as_well_terminate_nothing(
    tmp_path: Path, files: dict[str, str], names: tuple[str, str], are_cut: bool
) -> None:
    """As in Stable-Baselines3, whose targets have (1 - dones (1 - timeouts))."""
    data = columns(tmp_path)
    ended, cut = data.pop("terminations"), data.pop("truncations")
    data[names[0]], data[names[1]] = (ended | cut)[:, None].astype(np.float32), cut[:, None]
    np.savez(tmp_path / "theirs.npz", **data)
    stored, _, notes = imported(str(tmp_path / "theirs.npz"), tmp_path / "imported", files)
    if are_cut:
        assert_are_the_episodes(stored)
        assert len(notes) == 1 and "theirs.npz: 1 rows of dones are truncations as well" in notes[0]
        read = data_sets.read_npz(tmp_path / "theirs.npz", notes.append)
        np.testing.assert_equal([vars(each) for each in read], [vars(each) for each in EPISODES])
    else:
        assert [each.discount[-1] for each in episodes_of(stored)] == [0, 0, 0] and notes == []


def test_where_an_export_can_not_go_is_told_first_and_no_half_of_it_stays(
    tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data_sets.write_npz(tmp_path / "data.npz", EPISODES)
    for out, told in (
        ("data.npz", "exists: give another name"),
        ("out.csv", "must end with .npz, or be minari"),
        ("no/out.npz", "no is no folder: make it"),
    ):
        with pytest.raises(UserError, match=f"--out={tmp_path}/{out}.*{told}"):
            transfer.export(str(tmp_path / "nowhere"), str(tmp_path / out), lambda text: None)
    imported(str(tmp_path / "data.npz"), tmp_path / "imported", files)
    before = sorted(tmp_path.iterdir())

    def fill(file: Any, **_: Any) -> None:
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", fill)
    with pytest.raises(UserError, match=r"out.npz can't be written \(No space left on device\)"):
        transfer.export(str(tmp_path / "imported"), str(tmp_path / "out.npz"), lambda text: None)
    assert sorted(tmp_path.iterdir()) == before


def test_actions_outside_of_the_action_space_are_told(tmp_path: Path, files: dict[str, str]) -> None:
    """Actions out of bounds, which become the nearest ones inside."""
    long = episode(30, 1, False)
    long.actions[""][3] = -100.0
    long.actions[""][5] = 60.0
    long.actions[""][6] = 2.0001
    data_sets.write_npz(tmp_path / "data.npz", [long, episode(5, 1, True)])
    stored, _, notes = imported(str(tmp_path / "data.npz"), tmp_path / "imported", files)
    (note,) = notes
    assert note.startswith(
        f"{tmp_path}/data.npz: 2 of 35 actions (5.71%) are outside of the bounds of actions and count as"
    )
    assert next(episodes_of(stored)).action[0][[3, 5], 0].tolist() == [-1.0, 1.0]


def test_a_last_episode_without_an_end_is_a_whole_one_that_is_truncated(tmp_path: Path, files: dict[str, str]) -> None:
    np.savez(tmp_path / "open.npz", **(columns(tmp_path, episode(5, 1, False)) | {"truncations": np.zeros(5, bool)}))
    _, lines, notes = imported(str(tmp_path / "open.npz"), tmp_path / "imported", files)
    assert "1 whole, 0 terminated" in lines[0] and "counts as truncated at its last step" in notes[0]


def test_an_export_says_why_parts_of_episodes_are_left_out(tmp_path: Path, files: dict[str, str]) -> None:
    ring = Ring.open(tmp_path / "run" / "replay", LAYOUT, 200, 60)
    lost = dataclasses.replace(numbered_segment(0, 0, first_step=4, episode=9), starts_episode=False)
    whole = numbered_segment(0, 1, episode=1)
    cut = [numbered_segment(0, 2 + number, episode=2 + number, ends_episode=False) for number in range(2)]
    for segment in (lost, whole, *cut):
        assert ring.append(segment)
    observation = {"id": array_spec.ArraySpec((3,), "float32"), "image": array_spec.ArraySpec((2, 2), "uint8")}
    action = array_spec.BoundedArraySpec((2,), "float32", [-2.0, 0.0], [2.0, 1.0], "action")
    save_specs(RunPaths(tmp_path / "run").specs, observation, action, None)
    notes: list[str] = []
    assert "1 episodes" in transfer.export(str(tmp_path / "run"), str(tmp_path / "out.npz"), notes.append)[0]
    beginning, end = notes
    assert beginning.startswith("1 episodes without their beginning") and "newer experience" in beginning
    assert end.startswith("2 episodes without their end") and "faults" in end


MINI_RACES = """
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    algorithm = "dqn"
    n_step = 3
    action_table = [[-2.0], [-1.0], [0.0], [1.0], [2.0]]

    def potential(self, observation):
        return 10.0 * float(observation[1])

    def env_ctor(self, *args, seed=None, **kwargs):
        return gymnasium.make("Pendulum-v1")
"""


def test_explored_goes_through_files_and_potentials_are_those_of_the_params(tmp_path: Path) -> None:
    (tmp_path / "my_params.py").write_text(MINI_RACES)
    (tmp_path / "my.json").write_text('{"horizon": 20}')
    files = {"params": str(tmp_path / "my_params.py"), "config": str(tmp_path / "my.json")}
    explored = np.array([False, True, True, False, True])
    given = [dataclasses.replace(episode(5, 1, True), explored=explored), episode(7, 2, False)]
    given[1].explored = np.zeros(7, bool)
    data_sets.write_npz(tmp_path / "data.npz", given)
    stored, _, _ = imported(str(tmp_path / "data.npz"), tmp_path / "imported", files)
    assert stored.layout.optional == ("explored", "potential")
    found = list(episodes_of(stored))
    for ours, theirs in zip(given, found, strict=True):
        assert theirs.explored is not None and theirs.potential is not None and ours.explored is not None
        np.testing.assert_array_equal(theirs.explored, ours.explored)
        np.testing.assert_array_equal(theirs.potential, 10.0 * ours.observations[""][:, 1])
    transfer.export(str(tmp_path / "imported"), str(tmp_path / "again.npz"), lambda text: None)
    again = list(data_sets.read_npz(tmp_path / "again.npz", lambda text: None))
    assert [np.array(each.explored).tolist() for each in again] == [np.array(each.explored).tolist() for each in given]
    for each in given:
        each.explored = None
    data_sets.write_npz(tmp_path / "unsaid.npz", given)
    unsaid, _, _ = imported(str(tmp_path / "unsaid.npz"), tmp_path / "nothing explored", files)
    assert not any(np.any(np.array(each.explored)) for each in episodes_of(unsaid))
