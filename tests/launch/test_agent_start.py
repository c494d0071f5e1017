"""A start with SAC_AGENT_FROM: what is checked, kept in the run directory, and begun with."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.support import prepared_runs
from tests.support.checkpoints_for_tests import checkpoints_of
from tests.support.prepared_runs import variables_of_run
from tfagents_system.agents.agent import make_agent
from tfagents_system.errors import UserError
from tfagents_system.launch import prepare
from tfagents_system.run_files.agent_start import start_of_run
from tfagents_system.run_files.run_directory import read_run_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.load_params import load_params
from tfagents_system.settings.variables import BEGINNINGS, RunVariables, missing_beginnings, read_variables
from tfagents_system.trainer.learner import Learner

_SMALL = "    actor_fc_layer_params = (4,)\n    critic_joint_fc_layer_params = (4,)\n"
PARAMS = prepared_runs.PARAMS.replace("    num_iter = 3\n", f"    num_iter = 3\n{_SMALL}")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    variables = variables_of_run(tmp_path)
    (tmp_path / "params.py").write_text(PARAMS)
    return {**variables, "SAC_AGENT_FROM": str(tmp_path / "other")}


@pytest.fixture
def other(tmp_path: Path) -> Any:
    """The agent of another run, which has a checkpoint."""
    (tmp_path / "its_params.py").write_text(PARAMS)
    params = load_params(tmp_path / "its_params.py", {"horizon": 20})
    action = tensor_spec.BoundedTensorSpec((1,), tf.float32, -1, 1, "action")
    agent = make_agent(params, tf.TensorSpec((3,), tf.float32, "observation"), action, tf.Variable(9, dtype=tf.int64))
    folder = RunPaths(tmp_path / "other").trainer_checkpoints
    folder.mkdir(parents=True)
    checkpoints_of(folder, agent)[0].save(5.0, {}, wait=True)
    return agent


def learner_of(paths: RunPaths) -> Learner:
    role = types.SimpleNamespace(
        paths=paths,
        params=load_params(paths.params, {"horizon": 20}),
        deterministic=False,
        derived_seed=lambda *numbers: 5 + sum(numbers),
    )

    def answer(name: str) -> None:
        (paths.trainer_checkpoints / f"{name}.partial" / "replay.bin").write_bytes(b"rows")

    return Learner(role, answer)  # type: ignore[arg-type]


def actor(agent: Any) -> list[np.ndarray]:
    return [variable.numpy() for variable in agent.actor.variables]


def test_a_run_begins_with_its_copy_once(environ: dict[str, str], tmp_path: Path, other: Any) -> None:
    assert prepare.prepare(environ, None)
    paths = RunPaths(tmp_path / "run")
    os.rename(tmp_path / "other", tmp_path / "elsewhere")
    for start in range(2):  # Until there is a checkpoint, each start begins.
        learner = learner_of(paths)
        np.testing.assert_equal(actor(learner.agent), actor(other), f"start {start}")
        assert learner.train_step == 0 and learner.resumed_at is None
    learner.agent.actor.variables[0].assign_add(tf.ones_like(learner.agent.actor.variables[0]))
    learner.step_variable.assign(3)
    learner.checkpoints.save(5.0, {}, wait=True)
    again = learner_of(paths)
    np.testing.assert_equal(actor(again.agent), actor(learner.agent), "never at a restart")
    assert again.resumed_at == 3


def test_until_its_first_update_a_run_takes_what_is_said_now_and_then_it_keeps_it(
    environ: dict[str, str], tmp_path: Path, other: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(tmp_path / "run")
    assert prepare.prepare(environ, None)
    assert f"agent's start: {tmp_path / 'other'}" in capsys.readouterr().out
    kept = read_run_json(paths)["agent_from"]
    assert (kept["source"], kept["parts"]) == (environ["SAC_AGENT_FROM"], [])
    other.train_step_counter.assign(0)
    checkpoints_of(paths.trainer_checkpoints, other)[0].save(5.0, {}, wait=True)  # Before the first update.
    assert prepare.prepare(environ, None) and paths.trainer_checkpoints.exists()
    assert prepare.prepare({**environ, "SAC_AGENT_PARTS": "actor"}, None)
    assert "it starts over" in capsys.readouterr().out and not paths.trainer_checkpoints.exists()
    start = start_of_run(paths)
    assert start is not None and start.parts == ("actor",)
    without = {name: value for name, value in environ.items() if name != "SAC_AGENT_FROM"}
    assert prepare.prepare(without, None) and start_of_run(paths) is None and not paths.agent_from.exists()
    assert prepare.prepare(environ, None)
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    capsys.readouterr()
    assert prepare.prepare({**environ, "SAC_AGENT_PARTS": "actor"}, None)
    assert "SAC_AGENT_FROM is for a new run" in capsys.readouterr().out
    (tmp_path / "params.py").write_text(PARAMS + "\n# Edited.\n")
    assert prepare.prepare({**without, "TFAGENTS_EDITS": "take"}, None)
    assert start_of_run(paths) is not None and read_run_json(paths)["agent_from"] == kept
    assert prepare.prepare({**without, "TFAGENTS_RESET": "agent"}, None)
    assert start_of_run(paths) is None and (paths.exp_dir / "before_reset_1" / "agent_from").is_dir()
    assert prepare.prepare({**environ, "TFAGENTS_RESET": "agent"}, None) and start_of_run(paths) is not None


def test_what_does_not_fit_ends_the_start_with_each_layer(environ: dict[str, str], tmp_path: Path, other: Any) -> None:
    (tmp_path / "params.py").write_text(PARAMS.replace("actor_fc_layer_params = (4,)", "actor_fc_layer_params = (6,)"))
    with pytest.raises(UserError) as raised:
        prepare.prepare(environ, None)
    (finding,) = raised.value.findings
    assert "dense/kernel is 3x4 there, 3x6 here\n" in finding and "projection_layer/kernel is 4x2 there" in finding
    assert not (tmp_path / "run").exists() or not RunPaths(tmp_path / "run").run_json.exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SAC_AGENT_FROM", "other@bset", "has no checkpoint bset: "),
        ("SAC_REPLAY_FROM", "other", "SAC_REPLAY_FROM: .* has no replay ring"),
        ("SAC_AGENT_FROM", "nosuch", "SAC_AGENT_FROM=.*nosuch must be an existing file or folder"),
        ("SAC_REPLAY_FROM", "nosuch", "SAC_REPLAY_FROM=.*nosuch"),
    ],
)
def test_what_is_not_there_is_told_before_a_user_s_code_runs(
    environ: dict[str, str], tmp_path: Path, other: Any, name: str, value: str, message: str
) -> None:
    """TensorFlow, environment and agent take many seconds."""
    (tmp_path / "params.py").write_text(f"raise AssertionError('imported')\n{PARAMS}")
    with pytest.raises(UserError, match=message) as raised:
        prepare.prepare({**environ, name: str(tmp_path / value)}, None)
    assert len(raised.value.findings) == 1
    (tmp_path / "params.py").write_text(PARAMS)
    assert prepare.prepare(environ, None)
    RunPaths(tmp_path / "run").status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    given = {**environ, name: str(tmp_path / value)}
    assert prepare.prepare(given, None), "a run that has begun needs it no more"
    assert RunVariables.from_environ(given, vars_file=None, root=tmp_path), "nor does its supervisor"
    if name == "SAC_AGENT_FROM":
        with pytest.raises(UserError, match=message):
            prepare.prepare({**given, "TFAGENTS_RESET": "agent"}, None)


def test_the_variables_are_read(environ: dict[str, str], tmp_path: Path, other: Any) -> None:
    def read(**variables: str) -> tuple[dict[str, Any], list[str]]:
        given, where = {**environ, **variables}, {"vars_file": tmp_path / "vars.sh", "root": tmp_path}
        values, findings = read_variables(given, **where)
        return values, findings + missing_beginnings(given, BEGINNINGS, **where)

    values, findings = read(SAC_AGENT_FROM="other@best", SAC_AGENT_PARTS="critics, actor")
    assert findings == [] and values["agent_from"] == tmp_path / "other@best"
    assert values["agent_parts"] == ("actor", "critics")
    values, findings = read(SAC_AGENT_FROM="another", SAC_AGENT_PARTS="actors")
    assert values["agent_from"] == tmp_path / "another", "the place in which it was"
    assert any("SAC_AGENT_FROM=another must be an existing file or folder" in finding for finding in findings)
    assert any("found actors, actor is meant" in finding for finding in findings) and len(findings) == 2
