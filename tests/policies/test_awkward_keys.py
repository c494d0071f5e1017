"""Keys of observations may hold spaces, slashes and letters beyond ASCII: from the check to every file of a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.support.fakes import FakeParams
from tfagents_system.checks.findings import Findings
from tfagents_system.envs import specs
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.history import policy_time_step_spec
from tfagents_system.launch.environment_checks import EnvironmentTrial, Outcome
from tfagents_system.playing import export_files
from tfagents_system.policies.description import describe
from tfagents_system.policies.files import load_policy
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.transport.segments import Layout

BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
GOALS: dict[str, gymnasium.Space] = {"bottom burner": BOX, "hinge cabinet": BOX}
KEYS = ("a b", "a_b", "a/b", "a.b", "A_b", "größe", "", "%", "/", "1", "observation_1", "state_0", "action")


class KitchenEnv(gymnasium.Env):
    """With keys as FrankaKitchen-v1 has them, and worse ones."""

    observation_space = gymnasium.spaces.Dict(
        {"goal": gymnasium.spaces.Dict(GOALS), "a": gymnasium.spaces.Dict({"b": BOX}), **dict.fromkeys(KEYS, BOX)}
    )
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


class KitchenParams(FakeParams):
    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        return KitchenEnv()


@pytest.fixture(scope="module")
def params() -> KitchenParams:
    return KitchenParams({"horizon": 10})


@pytest.fixture(scope="module")
def trial(params: KitchenParams) -> Outcome:
    checks = Findings()
    trial = EnvironmentTrial(params, 0, checks, render=True).run()
    assert checks.errors == [] and trial is not None
    return trial


@pytest.fixture(scope="module")
def run(params: KitchenParams, trial: Outcome, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunPaths, Path]:
    """A run directory with the policies of a start, and the checkpoint in it."""
    files = {column.name.replace("/", ".").lower() for column in trial.layout.observation}
    assert len(files) == len(KEYS) + 3, "each leaf has a file of its own in the ring"
    paths, train_step = RunPaths(tmp_path_factory.mktemp("run")), tf.Variable(7, dtype=tf.int64)
    specs.save_specs(paths.specs, *trial.specs)
    observation_spec, action_spec = specs.load_specs(paths.specs)
    assert sorted(observation_spec) == sorted([*KEYS, "a", "goal"])
    agent = params.agent_ctor(policy_time_step_spec(params, observation_spec), action_spec, train_step)
    export = PolicyExport(paths, agent, specs.load_actions(paths.specs), train_step)
    export.save_model()
    return paths, paths.policy_checkpoints / export.save_checkpoint(3)


def test_signatures_of_saved_models_have_a_name_for_each_leaf(run: tuple[RunPaths, Path]) -> None:
    signature = tf.saved_model.load(str(run[0].policies / "greedy_policy")).signatures["action"]
    names = [name for name in signature.structured_input_signature[1] if "observation" in name]
    assert len(names) == len(KEYS) + 3
    assert {"arg_0_observation_goal_bottom_burner", "arg_0_observation_A_b", "arg_0_observation_1"} <= set(names)


@pytest.mark.parametrize("format_name", ["tflite", "onnx"])
def test_exported_files_act_as_the_saved_model(
    format_name: str, params: KitchenParams, run: tuple[RunPaths, Path], tmp_path: Path
) -> None:
    if format_name == "onnx":
        pytest.importorskip("tf2onnx")
    source = export_files.read_source(params, *run)
    path, difference = export_files.write(source, format_name, tmp_path)
    assert difference < 1e-5
    policy = load_policy(path, "--policy")
    names = {tuple(leaf["path"]): leaf["name"] for leaf in policy.description["observation"]}
    assert names[("goal", "bottom burner")] == "goal_bottom_burner"
    assert names[("A_b",)] == "A_b" and names[("state_0",)] == "state_0_"
    assert len({name.lower() for name in names.values()}) == len(KEYS) + 3
    assert all(name.isascii() and name.isidentifier() for name in names.values())


def test_plain_keys_keep_their_names() -> None:
    leaf = tf.TensorSpec((2,), tf.float32)
    nest = {"joints": leaf, "x.y": leaf, "Camera-1": leaf, "parts": (leaf, leaf), "0": leaf}
    layout = Layout.from_specs(nest, leaf)
    assert [column.name for column in layout.observation] == [
        "observation/0",
        "observation/Camera-1",
        "observation/joints",
        "observation/parts/0",
        "observation/parts/1",
        "observation/x.y",
    ]
    action = tensor_spec.from_spec(specs.action_spec_of(BOX))
    names = [each["name"] for each in describe(nest, actions_of(action), (), "c", 1, None)["observation"]]
    assert names == ["observation_0", "Camera_1", "joints", "parts_0", "parts_1", "x_y"]
