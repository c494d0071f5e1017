"""The experience of a run that goes on is compared with what observations and actions are now."""

from __future__ import annotations

import dataclasses
import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_agents.specs import array_spec

from tests.support.channel_for_tests import running_gateway
from tests.support.fakes import FakeParams
from tests.support.prepared_runs import train as trained
from tests.support.prepared_runs import variables_of_run
from tests.support.segments_for_tests import filled_ring, numbered_segment
from tfagents_system.checks.checklist import Check
from tfagents_system.launch import reset_checks
from tfagents_system.launch.preparation import Preparation
from tfagents_system.launch.reset_checks import layout_findings, server_findings, size_changes
from tfagents_system.launch.run_settings import RESET
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.ring_sizes import ring_bytes
from tfagents_system.run_files.resets import AGENT
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import read_variables
from tfagents_system.transport.layout import OPTIONAL_COLUMNS, Column
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
    assert layout_findings(layout(count), tmp_path, 1) == []
    assert layout_findings(layout(count), tmp_path / "of a new run", 1) == []


def test_what_differs_is_told(tmp_path: Path) -> None:
    Ring.open(tmp_path / "box", layout(), 60, 24)
    Ring.open(tmp_path / "choices", layout(4), 60, 24)
    (told,) = layout_findings(layout(size=2), tmp_path / "box", 1)
    assert "does not fit: action: now float32 [2], before float32 [1]. " in told and "(SAC_EXP_NAME)" in told
    (told,) = layout_findings(layout(5), tmp_path / "choices", 1)
    assert "action: now int32 [], one of 5, before int32 [], one of 4" in told


def test_columns_of_samples_come_and_go_with_another_agent(tmp_path: Path) -> None:
    """Such as sac_discrete -> dqn with n_step = 3, and with or without hindsight, returns and potentials."""

    def with_(*names: str) -> Layout:
        optional: dict[str, Any] = {name: OPTIONAL_COLUMNS[name] for name in names}
        return dataclasses.replace(layout(), **optional)

    params = type("TrainParams", (FakeParams,), {"buffer_size": 60})({"horizon": 20})
    for name, own in (("plain", with_()), ("full", with_("returns", "explored", "potential", "episode"))):
        Ring.open(tmp_path / name, own, 63)
    for name, now, notes in (
        ("plain", with_("explored"), ["the ring gets a column explored: as if none of the kept actions had explored"]),
        (
            "plain",
            with_("episode"),
            ["the ring gets a column episode: each kept segment counts as an episode of its own"],
        ),
        ("full", with_("explored"), ["the ring loses what samples do not need any more: return, potential, episode"]),
        ("full", with_("returns", "explored", "potential", "episode"), []),
    ):
        check = Check("experience")
        size_changes(params, now, [tmp_path / name], check)
        assert layout_findings(now, tmp_path / name, 2) == [] and (check.notes, check.errors) == (notes, [])
        # Prior data and checkpoints of the same agent have its columns.
        refused = layout_findings(now, tmp_path / name, 1)
        assert bool(refused) == bool(notes) and all("let another agent begin with this" in text for text in refused)
    assert "; episode: now none, before int64 [2]. Restore" in layout_findings(with_(), tmp_path / "full", 1)[0]
    for name in ("returns", "potential"):
        (told,) = layout_findings(with_(name, "explored"), tmp_path / "plain", 2)
        column = OPTIONAL_COLUMNS[name].name
        assert f"does not fit: {column}: now float32 [], before none. These are computed" in told
        assert "experience import` this run's directory with the new params" in told and "SAC_REPLAY_FROM" in told
    (told,) = layout_findings(
        dataclasses.replace(layout(size=2), potential=OPTIONAL_COLUMNS["potential"]), tmp_path / "plain", 2
    )
    assert "SAC_REPLAY_FROM" not in told and "action: " in told and "potential: " in told


def test_only_the_columns_that_change_need_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = type("TrainParams", (FakeParams,), {"buffer_size": 60})({"horizon": 20})
    ring = Ring.open(tmp_path, layout(), 63, 20)
    now = dataclasses.replace(layout(), explored=OPTIONAL_COLUMNS["explored"])
    needed = (63 + 20) * (1 + 1 + 4)  # explored, step_type, crc.
    for free, is_enough in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(reset_checks.shutil, "disk_usage", lambda _, free=free: types.SimpleNamespace(free=free))
        check = Check("experience")
        size_changes(params, now, [ring.folder], check)
        assert bool(check.notes) == is_enough and bool(check.errors) != is_enough


def test_flags_for_longer_stacks_need_space_and_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = dataclasses.replace(layout(), observation=(Column("observation", (1, 1, 1), "uint8"),))
    params = type("TrainParams", (FakeParams,), {"buffer_size": 60, "frame_stack": 3})({"horizon": 20})
    ring = Ring.open(tmp_path, images, 63, 20)
    made = {"action": [np.zeros((4, 1), np.float32)], "reward": np.ones(4, np.float32)}
    own: dict[str, Any] = {
        "observation": [np.zeros((5, 1, 1, 1), np.uint8)],
        "discount": np.ones(4, np.float32),
        **made,
    }
    ring.take_over([dataclasses.replace(numbered_segment(steps=4), starts_episode=False, **own)])
    needed = (63 + 20) * (1 + 4)  # step_type, crc.
    for agent, free, notes, errors in ((2, needed, 1, 0), (2, needed - 1, 0, 1), (1, needed - 1, 0, 0)):
        monkeypatch.setattr(reset_checks.shutil, "disk_usage", lambda _, free=free: types.SimpleNamespace(free=free))
        check = Check("experience")
        size_changes(params, images, [ring.folder], check, agent)
        assert (len(check.notes), len(check.errors)) == (notes, errors), (agent, free)


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


def test_that_a_ring_gets_another_size_is_told_and_refused_without_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = type("TrainParams", (FakeParams,), {"buffer_size": 60})({"horizon": 20})
    for name, episodes in (("fits", 3), ("larger", 4), ("smaller", 2)):
        Ring.open(tmp_path / name, layout(), episodes * 21)

    def found(name: str) -> Check:
        check = Check("experience")
        size_changes(params, layout(), [tmp_path / name], check)
        return check

    assert all(found(name) == Check("experience") for name in ("fits", "of a new run"))
    for name, told in (
        ("larger", "room for 63 rows instead of 84: the newest experience that fits stays, the rest is given up"),
        ("smaller", "room for 63 rows instead of 42: all that it holds stays"),
    ):
        assert found(name).errors == [] and found(name).notes == [f"the ring gets {told}"]
    monkeypatch.setattr(reset_checks.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=1000))
    (told,) = found("smaller").errors
    assert "buffer_size=60), for which" in told and "1,000 are: free space, or" in told


@pytest.mark.parametrize("scratch", [True, False])
@pytest.mark.parametrize("is_one_disk", [True, False])
def test_each_disk_has_to_have_space_for_what_is_made_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_one_disk: bool, scratch: bool
) -> None:
    """SAC_REPLAY_DIR: ring and copy get another size, and the new files of both are there together."""
    params = type("TrainParams", (FakeParams,), {"buffer_size": 60})({"horizon": 20})
    home, ring = tmp_path / "home", tmp_path / "ring"
    Ring.open(home, layout(), 84)
    if scratch:
        Ring.open(ring, layout(), 84)
    enough = ring_bytes(params, layout())
    stat, devices = Path.stat, {home: 1, ring: 1 if is_one_disk else 2}
    own = {path: types.SimpleNamespace(st_dev=device) for path, device in devices.items()}
    monkeypatch.setattr(Path, "stat", lambda path, **more: own[path] if path in own else stat(path, **more))

    def needed(**free_bytes: int) -> list[str]:
        free = {path: free_bytes.get(path.name, enough) for path in own}
        monkeypatch.setattr(reset_checks.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=free[path]))
        check = Check("experience")
        size_changes(params, layout(), [home, ring], check)
        assert bool(check.notes) != bool(check.errors)
        return [error.partition(" gets ")[0] for error in check.errors]

    in_home, in_ring = f"the ring in {home}", f"the ring in {ring}"
    if scratch and is_one_disk:
        assert needed() == [f"{in_home} and that in {ring}"] and not needed(home=2 * enough)
    else:
        assert not needed() and needed(home=enough - 1) == [in_home]
        assert needed(ring=enough - 1) == [in_ring] * scratch


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
