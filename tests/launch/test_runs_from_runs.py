"""A start with SAC_FROM: what is checked, kept in the run directory, and begun with."""

from __future__ import annotations

import json
import os
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import array_spec, tensor_spec

from tests.support import prepared_runs
from tests.support.checkpoints_for_tests import checkpoints_of
from tests.support.prepared_runs import prepare_run, train, variables_of_run
from tests.support.settings_for_tests import variables_with
from tfagents_system.agents.agent import make_agent
from tfagents_system.envs.specs import save_specs
from tfagents_system.errors import UserError
from tfagents_system.experience import data_sets
from tfagents_system.experience.data_sets import NamedEpisode
from tfagents_system.experience.transfer import import_into
from tfagents_system.launch import prepare
from tfagents_system.run_files.run_directory import read_run_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.taken import taken_by
from tfagents_system.settings.load_params import load_params
from tfagents_system.settings.resolved import Overrides
from tfagents_system.settings.variables import read_variables
from tfagents_system.trainer.iteration_plan import TrainerState
from tfagents_system.trainer.learner import Learner
from tfagents_system.transport.tables import Snapshot

_SMALL = "    actor_fc_layer_params = (4,)\n    critic_joint_fc_layer_params = (4,)\n    num_initial_episodes = 3\n"
PARAMS = prepared_runs.PARAMS.replace("    num_iter = 3\n", f"    num_iter = 3\n{_SMALL}")
OBSERVATION = array_spec.ArraySpec((3,), "float32", "observation")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    variables = variables_of_run(tmp_path)
    (tmp_path / "params.py").write_text(PARAMS)
    return {**variables, "SAC_FROM": str(tmp_path / "other")}


@pytest.fixture
def other(tmp_path: Path) -> Any:
    """The agent of another run, which has a checkpoint."""
    return run_with_agent(tmp_path, "other")


def run_with_agent(tmp_path: Path, name: str) -> Any:
    (tmp_path / "its_params.py").write_text(PARAMS)
    params = load_params(tmp_path / "its_params.py", {"horizon": 20})
    action = tensor_spec.BoundedTensorSpec((1,), tf.float32, -1, 1, "action")
    agent = make_agent(params, tf.TensorSpec((3,), tf.float32, "observation"), action, tf.Variable(9, dtype=tf.int64))
    folder = RunPaths(tmp_path / name).trainer_checkpoints
    folder.mkdir(parents=True)
    checkpoints_of(folder, agent, TrainerState(env_steps=180))[0].save(5.0, wait=True)
    return agent


def imported(folder: Path, name: str, steps: int) -> Path:
    """An episode of so many steps, as one segment."""
    seen = np.random.default_rng(0).normal(size=(steps + 1, 3)).astype(np.float32)
    episode = NamedEpisode({"": seen}, {"": np.zeros((steps, 1))}, np.ones(steps), False)
    data_sets.write_npz(folder / f"{name}.npz", [episode])
    (folder / "of_import.json").write_text(json.dumps({"horizon": steps}))
    files = str(folder / "params.py"), str(folder / "of_import.json")
    import_into(str(folder / f"{name}.npz"), folder / name, None, *files, lambda line: None)
    return folder / name


def learner_of(paths: RunPaths) -> Learner:
    role = types.SimpleNamespace(
        paths=paths,
        variables=variables_with(),
        params=load_params(paths.params, {"horizon": 20}),
        deterministic=False,
        is_far=False,
        is_server_gone=lambda: False,
        derived_seed=lambda *numbers: 5 + sum(numbers),
    )

    def answer(table: str, arrays: Any, timeout_secs: float) -> None:
        name = Snapshot.from_wire(arrays).checkpoint
        (paths.trainer_checkpoints / f"{name}.partial" / "replay.bin").write_bytes(b"rows")

    connection: Any = types.SimpleNamespace(newest=lambda table: None, try_put=answer)
    return Learner(role, connection)  # type: ignore[arg-type]


def actor(agent: Any) -> list[np.ndarray]:
    return [variable.numpy() for variable in agent.actor.variables]


def test_a_run_begins_with_its_copy_once(
    environ: dict[str, str], tmp_path: Path, other: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare_run(environ)
    assert f"another run: {tmp_path / 'other'}: " in capsys.readouterr().out
    paths = RunPaths(tmp_path / "run")
    os.rename(tmp_path / "other", tmp_path / "elsewhere")
    assert not read_variables(environ, vars_file=None, root=tmp_path)[1], "nobody needs the other run any more"
    for start in range(2):  # Until there is a checkpoint, each start begins.
        learner = learner_of(paths)
        np.testing.assert_equal(actor(learner.agent), actor(other), f"start {start}")
        assert learner.train_step == 0 and learner.resumed_at is None
    learner.agent.actor.variables[0].assign_add(tf.ones_like(learner.agent.actor.variables[0]))
    learner.step_variable.assign(3)
    learner.checkpoints.save(5.0, wait=True)
    again = learner_of(paths)
    np.testing.assert_equal(actor(again.agent), actor(learner.agent), "never at a restart")
    assert again.resumed_at == 3


@pytest.mark.usefixtures("untried")
def test_a_run_that_takes_an_agent_has_no_random_steps_unless_they_are_asked_for(
    environ: dict[str, str], tmp_path: Path, other: Any
) -> None:
    paths = RunPaths(tmp_path / "run")
    assert prepare_run(environ)
    for _ in range(2):
        assert Overrides.of_run(read_run_json(paths)).defaults["initial_collect_steps"] == 0
        assert prepare_run(environ), "as long as the run lives"
    asked = {**environ, "SAC_EXP_DIR": str(tmp_path / "asked")}
    settings = prepare.resolve(asked, ["num_initial_episodes=2"], vars_file=None, root=tmp_path)
    assert prepare_run(settings.environ, settings)
    assert "initial_collect_steps" not in Overrides.of_run(read_run_json(RunPaths(tmp_path / "asked"))).defaults


@pytest.mark.usefixtures("untried")
def test_experience_counts_for_the_steps_before_the_first_update(environ: dict[str, str], tmp_path: Path) -> None:
    """Three episodes of at most 20 steps."""
    for steps, is_enough in ((59, False), (60, True)):
        source, run = imported(tmp_path, f"of_{steps}", steps), tmp_path / f"run_{steps}"
        given = {**environ, "SAC_FROM": str(source), "SAC_TAKE": "replay", "SAC_EXP_DIR": str(run)}
        assert prepare_run(given)
        defaults = Overrides.of_run(read_run_json(RunPaths(run))).defaults
        assert (defaults.get("initial_collect_steps") == 0) == is_enough
        taken = taken_by(RunPaths(run))
        assert taken is not None and taken.run == str(source) and taken.has_rows


@pytest.mark.usefixtures("untried")
def test_a_run_that_took_something_has_begun_and_other_options_are_refused(
    environ: dict[str, str], tmp_path: Path, other: Any
) -> None:
    assert prepare_run(environ)
    assert prepare_run(environ), "the same again resumes it"
    with pytest.raises(UserError, match=r"is for a run that begins, and .* began with SAC_FROM=.*other SAC_TAKE=agent"):
        prepare_run({**environ, "SAC_TAKE": "networks"})
    without = {name: value for name, value in environ.items() if name != "SAC_FROM"}
    assert prepare_run(without) and taken_by(RunPaths(tmp_path / "run")) is not None
    with pytest.raises(UserError, match="SAC_TAKE=all says what of another run is taken: set SAC_FROM, or unset it"):
        prepare_run({**without, "SAC_TAKE": "all"})
    plain = {**without, "SAC_EXP_DIR": str(tmp_path / "plain")}
    assert prepare_run(plain)
    train(RunPaths(tmp_path / "plain"))
    with pytest.raises(UserError, match="began with nothing of another one: choose another SAC_EXP_NAME"):
        prepare_run({**plain, "SAC_FROM": environ["SAC_FROM"]})


@pytest.mark.usefixtures("untried")
def test_with_fresh_a_run_may_begin_with_what_it_was_itself(environ: dict[str, str], tmp_path: Path) -> None:
    """As TMRL's RESET_TRAINING does, with `replay`: the name stays, and the ring is moved."""
    run_with_agent(tmp_path, "run")
    paths = RunPaths(tmp_path / "run")
    paths.run_json.write_text('{"seed": 5}')
    own = {**environ, "SAC_FROM": str(paths.exp_dir)}
    with pytest.raises(UserError, match=r"is this run's own directory: choose another SAC_EXP_NAME, or give --fresh"):
        prepare_run(own)
    assert prepare_run({**own, "TFAGENTS_EDITS": "fresh"})
    taken = taken_by(paths)
    assert taken is not None and taken.run == str(tmp_path / "run_before_1")
    assert (paths.taken / "agent.index").exists()


def test_all_counts_on(environ: dict[str, str], tmp_path: Path, other: Any) -> None:
    source = imported(tmp_path, "rows", 20)
    source.rename(tmp_path / "other" / "replay")
    assert prepare_run({**environ, "SAC_TAKE": "all"})
    paths = RunPaths(tmp_path / "run")
    assert (taken_by(paths).train_step, taken_by(paths).env_steps) == (9, 180)  # type: ignore[union-attr]
    run = read_run_json(paths)
    paths.run_json.write_text(json.dumps({**run, "from": {**run["from"], "iteration": 2}}))
    learner = learner_of(paths)
    state = learner.state
    assert (learner.train_step, state.iteration, state.iteration_start, state.env_steps) == (9, 2, 9, 180)
    assert state.uncounted_updates == 9, "updates that were done are none that new steps have promised"


def test_layers_that_do_not_fit_are_named_and_nothing_that_fits_is_an_error(
    environ: dict[str, str], tmp_path: Path, other: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "params.py").write_text(PARAMS.replace("actor_fc_layer_params = (4,)", "actor_fc_layer_params = (6,)"))
    assert prepare_run(environ)
    told = capsys.readouterr().out
    assert "begins anew, since it does not fit: actor: " in told and "3x4 there, 3x6 here" in told
    wider = PARAMS.replace("(4,)", "(6,)")
    (tmp_path / "params.py").write_text(wider)
    with pytest.raises(UserError, match="nothing of that agent fits this run's:\n  ") as raised:
        prepare_run({**environ, "SAC_EXP_DIR": str(tmp_path / "new")})
    assert len(raised.value.findings) == 1 and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("take", "value", "message"),
    [
        ("agent", "other@bset", "has no agent bset"),
        ("replay", "other", "has no replay ring"),
        ("agent", "nosuch", "nosuch is no folder: give the directory of a run"),
        ("some", "other", "SAC_TAKE=some must be one of 'agent', 'networks', 'replay', 'all'"),
    ],
)
def test_what_is_not_there_is_told_before_a_user_s_code_runs(
    environ: dict[str, str], tmp_path: Path, other: Any, take: str, value: str, message: str
) -> None:
    """TensorFlow, environment and agent take many seconds."""
    (tmp_path / "params.py").write_text(f"raise AssertionError('imported')\n{PARAMS}")
    with pytest.raises(UserError, match=message) as raised:
        prepare_run({**environ, "SAC_FROM": str(tmp_path / value), "SAC_TAKE": take})
    assert len(raised.value.findings) <= 2


def test_segments_that_the_buffer_does_not_take_are_refused(environ: dict[str, str], tmp_path: Path) -> None:
    given = {**environ, "SAC_FROM": str(imported(tmp_path, "long", 400)), "SAC_TAKE": "replay"}
    with pytest.raises(UserError, match="raise buffer_size"):
        prepare_run(given)


def test_an_agent_of_other_actions_is_told_and_their_experience_refused(
    environ: dict[str, str], tmp_path: Path, other: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    wider = array_spec.BoundedArraySpec((1,), "float32", -3.0, 3.0, "action")
    save_specs(RunPaths(tmp_path / "other").specs, OBSERVATION, wider)
    assert prepare_run(environ)
    assert "its actions are (1,) in [-3, 3], this run's (1,) in [-2, 2]" in capsys.readouterr().out
    imported(tmp_path, "rows", 20).rename(tmp_path / "other" / "replay")
    for path in (tmp_path / "other/replay/specs.pbtxt",):
        path.unlink(missing_ok=True)
    same = r"give the actions the same bounds \(action_bounds\), or action_table the same rows"
    with pytest.raises(UserError, match=same):
        prepare_run({**environ, "SAC_TAKE": "all", "SAC_EXP_DIR": str(tmp_path / "new")})
