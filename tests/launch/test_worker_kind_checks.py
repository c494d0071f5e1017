"""Experts and evaluators of a start: what they need, and that they count among its workers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tensorflow as tf
from tf_agents.specs.tensor_spec import BoundedTensorSpec

from tests.support.numpy_actors import VECTOR, build
from tests.support.prepared_runs import PARAMS
from tfagents_system.agents.agent import make_agent
from tfagents_system.checks.checklist import Checklist
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.specs import load_actions, load_specs
from tfagents_system.errors import UserError
from tfagents_system.launch import prepare
from tfagents_system.launch.run_settings import EDITS, FRESH
from tfagents_system.launch.worker_kind_checks import EXPERTS, check_saved_expert
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.load_params import load_params
from tfagents_system.trainer.policy_export import PolicyExport

EXPERT = """
    def expert_policy_ctor(self):
        return {}
"""


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        ("", "SAC_EXPERT_WORKERS=2 needs a policy, and TrainParams.expert_policy_ctor returned None: set SAC_EXPERT_P"),
        (EXPERT.format("7"), "TrainParams.expert_policy_ctor returned 7: set SAC_EXPERT_POLICY to a SavedModel"),
        (EXPERT.format("1 / 0"), "expert_policy_ctor raised ZeroDivisionError: division by zero"),
    ],
)
def test_experts_need_a_policy(environ: dict[str, str], tmp_path: Path, hook: str, told: str) -> None:
    (tmp_path / "params.py").write_text(PARAMS + hook)
    with pytest.raises(UserError) as raised:
        prepare.prepare(environ | {"SAC_EXPERT_WORKERS": "2"}, None)
    assert len(raised.value.findings) == 1 and told in raised.value.findings[0]
    assert not (tmp_path / "run").exists()


def test_a_saved_expert_must_observe_what_the_environment_gives_and_act_as_it_takes(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """Else each of its workers fails at its first step, and the run goes on without any of them."""
    assert prepare.prepare(environ, None)
    run = RunPaths(tmp_path / "run")
    params = load_params(run.params, {"horizon": 20})
    agent = make_agent(params, *load_specs(run.specs), tf.Variable(0, dtype=tf.int64))
    own, other = RunPaths(tmp_path / "own"), RunPaths(tmp_path / "other")
    for each in (own, other):
        each.exp_dir.mkdir()
    PolicyExport(own, agent, load_actions(run.specs), tf.Variable(7, dtype=tf.int64)).save_models()
    two = BoundedTensorSpec((2,), tf.float32, -3.0, 3.0, "action")
    PolicyExport(other, build({"lidar": VECTOR}), actions_of(two), tf.Variable(7, dtype=tf.int64)).save_models()
    environ |= {"SAC_EXPERT_WORKERS": "1", "SAC_EXPERT_POLICY": str(own.policies / "greedy_policy"), EDITS: FRESH}
    assert prepare.prepare(environ, None)
    path = other.policies / "greedy_policy"
    with pytest.raises(UserError) as raised:
        prepare.prepare({**environ, "SAC_EXPERT_POLICY": str(path)}, None)
    start, end = f"SAC_EXPERT_POLICY={path}: the policy ", ". Name a policy that was trained in this environment"
    assert list(raised.value.findings) == [
        f"{start}was trained on observations lidar (3,) float32, but this environment has (3,) float32{end}",
        f"{start}gives actions of shapes [(2,)], but this environment takes [(1,)]{end}",
    ]
    with pytest.raises(UserError, match="is neither a SavedModel, nor a policy checkpoint of a run") as raised:
        prepare.prepare({**environ, "SAC_EXPERT_POLICY": str(tmp_path)}, None)
    assert len(raised.value.findings) == 1

    checks, wider = Checklist(), BoundedTensorSpec((2,), tf.float32, -4.0, 4.0, "action")
    check_saved_expert(
        {"expert_policy": path, "expert_workers": 1}, {"lidar": VECTOR}, wider, checks, lambda doing: None
    )
    assert checks[EXPERTS].errors == []
    (note,) = checks[EXPERTS].notes
    assert re.search(r"takes them from .*-4.* to .*4.*: they are clipped$", note), note


def test_experts_count_among_the_workers_of_a_start(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "params.py").write_text(PARAMS + EXPERT.format("lambda observation: observation[:1]"))
    environ |= {"SAC_EXPERT_WORKERS": "2"}
    assert prepare.check(environ, None) == 0
    report = capsys.readouterr().out
    assert "ok    experts         2 with TrainParams.expert_policy_ctor" in report
    assert re.search(r"ok    memory          about .* for 3 workers of", report)
    assert re.search(r"ok    CPUs            .*worker_0 .*worker_1 .*worker_2 ", report)
    assert prepare.prepare(environ, None)
    settings = run_directory.read_run_json(RunPaths(tmp_path / "run"))["start"]["variables"]
    assert (settings["expert_workers"], settings["max_workers"]) == (2, 3)


NO_EVALUATIONS = "    num_eval_episodes = 0\n"


@pytest.mark.parametrize(
    ("attributes", "variables", "told"),
    [
        (
            NO_EVALUATIONS,
            {"SAC_EVAL_WORKERS": "1"},
            "SAC_EVAL_WORKERS=1 does not work with num_eval_episodes=0, nothing",
        ),
        (
            NO_EVALUATIONS + '    stop_when = {"eval_return": 1.0}\n',
            {},
            "TrainParams.stop_when={'eval_return': 1.0} needs evaluations, and num_eval_episodes is 0:",
        ),
    ],
)
def test_what_needs_evaluations_is_refused_without_any(
    environ: dict[str, str], tmp_path: Path, attributes: str, variables: dict[str, str], told: str
) -> None:
    (tmp_path / "params.py").write_text(PARAMS + attributes)
    with pytest.raises(UserError) as raised:
        prepare.prepare(environ | variables, None)
    assert len(raised.value.findings) == 1 and told in raised.value.findings[0]


def test_without_evaluations_their_environment_is_not_tried(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = "    def eval_env_args_kwargs(self, id=0, collect_env=None):\n        raise ValueError('no licence')\n"
    (tmp_path / "params.py").write_text(PARAMS + NO_EVALUATIONS + hook)
    assert prepare.prepare(environ, None)
    assert "evaluation " not in capsys.readouterr().out


def test_evaluators_count_among_the_workers_of_a_start_but_not_among_those_that_collect(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "params.py").write_text(PARAMS + "    num_eval_episodes = 1\n")
    environ |= {"SAC_EVAL_WORKERS": "2"}
    assert prepare.check(environ, None) == 0
    report = capsys.readouterr().out
    assert re.search(r"ok    memory          about .* for 3 workers of", report)
    assert re.search(r"ok    CPUs            .*worker_0 .*worker_1 .*worker_2 ", report)
    assert prepare.prepare(environ, None)
    settings = run_directory.read_run_json(RunPaths(tmp_path / "run"))["start"]["variables"]
    assert (settings["eval_workers"], settings["max_workers"]) == (2, 3)


PORTS = """
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase

class Robot(gymnasium.Wrapper):
    real_time = True

class TrainParams(TrainParamsBase):
    updates_per_iter = 5

    def collect_env_args_kwargs(self, id=0):
        return (f"/dev/ttyUSB{id}",), {}

    def env_ctor(self, port, seed=None):
        return Robot(gymnasium.make("Pendulum-v1"))
"""


def test_evaluators_are_not_given_a_device_that_is_built_without_its_arguments(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """The start checks build a worker's that collects: these would fail in their first second."""
    (tmp_path / "params.py").write_text(PORTS)
    with pytest.raises(UserError) as raised:
        prepare.prepare(environ | {"SAC_EVAL_WORKERS": "1"}, None)
    (finding,) = raised.value.findings
    assert "add eval_env_args_kwargs(self, id=0, collect_env=None), or set SAC_EVAL_WORKERS=0" in finding
    assert prepare.prepare(environ, None)
