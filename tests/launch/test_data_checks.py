"""Experts and evaluators, prior data, and experience that a run has: what does not fit is told at a start."""

from __future__ import annotations

import dataclasses
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import array_spec
from tf_agents.specs.tensor_spec import BoundedTensorSpec

from tests.support.fakes import FakeParams
from tests.support.prepared_runs import PARAMS, prepare_run
from tfagents_system.checks.findings import Findings
from tfagents_system.errors import UserError
from tfagents_system.experience import data_sets
from tfagents_system.experience.data_sets import NamedEpisode
from tfagents_system.launch import machine_checks
from tfagents_system.launch.trial import check_kinds_of_workers, check_saved_expert, prior_sources, ring_findings
from tfagents_system.policies import files
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.segments import OPTIONAL_COLUMNS, Layout


def returns(policy: Any) -> dict[str, Any]:
    return {"expert_policy_ctor": lambda self: policy}


@pytest.mark.parametrize(
    ("hooks", "values", "told"),
    [
        (
            {},
            {"expert_workers": 2},
            "SAC_EXPERT_WORKERS=2 needs a policy, and TrainParams.expert_policy_ctor returned N",
        ),
        (
            returns(7),
            {"expert_workers": 2},
            "TrainParams.expert_policy_ctor returned 7: set SAC_EXPERT_POLICY to a S",
        ),
        (
            {"expert_policy_ctor": lambda self: 1 / 0},
            {"expert_workers": 2},
            "expert_policy_ctor raised ZeroDivisionError",
        ),
        (returns(print), {"expert_workers": 2}, ""),
        (
            {"num_eval_episodes": 0},
            {"eval_workers": 1},
            "SAC_EVAL_WORKERS=1 does not work with num_eval_episodes=0, n",
        ),
        ({"num_eval_episodes": 0}, {"worker_role": "eval"}, "SAC_WORKER_ROLE=eval does not work with num_eval_episode"),
        ({"num_eval_episodes": 1}, {"eval_workers": 1}, ""),
    ],
)
def test_experts_need_a_policy_and_evaluators_evaluations(hooks: dict[str, Any], values: Any, told: str) -> None:
    findings = Findings()
    params = type("TrainParams", (FakeParams,), hooks)({"horizon": 20})
    check_kinds_of_workers(params, values, findings, lambda doing: None)
    assert len(findings.errors) == bool(told) and told in "".join(findings.errors)


def test_a_saved_expert_must_observe_what_the_environment_gives_and_act_as_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of its workers fails at its first step, and the run continues without any of them."""

    def errors(size: int) -> list[str]:
        """Of an environment with so many numbers to observe, and one to act with."""
        findings, values = Findings(), {"expert_policy": tmp_path, "expert_workers": 1}
        observation, action = array_spec.ArraySpec((size,), "float32"), BoundedTensorSpec((1,), tf.float32, -2.0, 2.0)
        check_saved_expert(values, observation, action, findings, lambda doing: None)
        return findings.errors

    (unknown,) = errors(size=3)
    assert "is neither a SavedModel, nor a policy checkpoint of a run" in unknown
    step = types.SimpleNamespace(observation=tf.TensorSpec((3,), tf.float32))
    spec = BoundedTensorSpec((1,), tf.float32, -2.0, 2.0)
    policy = types.SimpleNamespace(time_step_spec=step, action_spec=spec)
    monkeypatch.setattr(files, "load_policy", lambda *_: policy)
    assert errors(size=3) == []
    (misfit,) = errors(size=4)
    assert misfit == (
        f"SAC_EXPERT_POLICY={tmp_path}: the policy was trained on observations (3,) float32, but this environment has "
        "(4,) float32. Name a policy that was trained in this environment"
    )


# Prior data.

PRIOR_PARAMS = f"""{PARAMS}
    actor_fc_layer_params = (4,)
    critic_joint_fc_layer_params = (4,)
    prior_data = "data/demos.npz"
    offline_updates = 5
"""


def write_demos(path: Path, steps: int, size: int = 3) -> None:
    path.parent.mkdir(exist_ok=True)
    episode = NamedEpisode({"": np.ones((steps + 1, size))}, {"": np.ones((steps, 1))}, np.ones(steps), False)
    data_sets.write_npz(path, [episode])


@pytest.fixture
def prior_environ(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "params.py").write_text(PRIOR_PARAMS)
    (folder / "config.json").write_text('{"horizon": 20}')
    write_demos(folder / "data" / "demos.npz", 12)
    return {**environ, "SAC_PARAMS": str(folder / "params.py"), "SAC_CONFIG": str(folder / "config.json")}


def rows(paths: RunPaths) -> int:
    return StoredRing(paths.prior_data).rows


@pytest.mark.usefixtures("without_agent")
def test_the_run_has_a_copy_that_stays(
    prior_environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths, demos = RunPaths(tmp_path / "run"), tmp_path / "mine" / "data" / "demos.npz"
    assert prepare_run(prior_environ) and rows(paths) == 13
    assert "set initial_collect_steps=0" in capsys.readouterr().out
    write_demos(demos, 6)
    assert prepare_run(prior_environ) and rows(paths) == 7, "before the first update what is there now"
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    demos.unlink()
    keeping = {**prior_environ, "TFAGENTS_EDITS": "keep"}
    assert prepare_run(keeping) and rows(paths) == 7
    write_demos(demos, 9)
    again = {**prior_environ, "TFAGENTS_EDITS": "fresh"}
    assert prepare_run(again) and rows(paths) == 10
    (tmp_path / "mine" / "params.py").write_text(PRIOR_PARAMS.replace('"data/demos.npz"', "None"))
    assert prepare_run(again) and not paths.prior_data.exists()


@pytest.mark.usefixtures("without_agent")
def test_it_counts_in_the_checks_of_disk_and_memory(
    prior_environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it is not there, of the disk; always of the memory that rings should fit into."""
    paths, disk, memory = RunPaths(tmp_path / "run"), list[Any](), list[int]()
    monkeypatch.setattr(machine_checks, "check_disk", lambda findings, needed: disk.append(needed))
    monkeypatch.setattr(machine_checks, "check_memory", lambda findings, workers, own, ring, *_: memory.append(ring))
    write_demos(tmp_path / "mine" / "data" / "demos.npz", 4000)
    assert prepare_run(prior_environ)
    step = 4 * (3 + 1) + 4 * 3 + 1 + 4  # Observation and action, reward, discount, steps_left, step_type, crc.
    words, prior_bytes = disk[0][paths.prior_data]
    assert words == "prior data" and 4000 * step <= prior_bytes <= 4000 * step + 500_000
    assert memory == [disk[0][paths.replay][1] + prior_bytes]
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    assert prepare_run(prior_environ)
    assert paths.prior_data not in disk[1] and memory[1] >= 4000 * step, "it is there"


@pytest.mark.usefixtures("without_agent")
def test_what_does_not_fit_is_refused_with_the_rest(prior_environ: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    write_demos(folder / "data" / "demos.npz", 12, size=5)
    with pytest.raises(UserError, match=r"observation has the shape \[13, 5\], this needs \[13, 3\]"):
        prepare_run(prior_environ)
    assert not RunPaths(tmp_path / "run").run_json.exists()


def test_missing_files_are_told_before_the_environment_is_built(
    prior_environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow, environment and agent take many seconds."""
    folder, built = tmp_path / "mine", tmp_path / "built"
    building = PRIOR_PARAMS.replace("        return", f"        open({str(built)!r}, 'w').close()\n        return")
    assert building != PRIOR_PARAMS
    missing = '["nowhere.npz", "minary:mujoco/hopper/expert-v0", "minari:mujoco/hopper/expert-v0"]'
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    (folder / "params.py").write_text(building.replace('"data/demos.npz"', missing))
    with pytest.raises(UserError) as raised:
        prepare_run(prior_environ)
    file, minari, absent = raised.value.findings
    assert "minari:mujoco/hopper/expert-v0 is not on this machine: get it with `minari download mujoco" in absent
    assert re.search("nowhere.npz does not exist .*relative to the folder of SAC_PARAMS", file)
    assert "minary:mujoco/hopper/expert-v0 does not exist (looked for " in minari
    assert not built.exists() and not RunPaths(tmp_path / "run").run_json.exists()
    with pytest.raises(UserError) as raised:
        prior_sources("nowhere.npz", (folder, folder))
    assert str(raised.value).count(f"{folder}/nowhere.npz") == 1, "the same folder is named once"


@pytest.mark.usefixtures("without_agent")
def test_potentials_of_files_are_computed(prior_environ: dict[str, str], tmp_path: Path) -> None:
    params = PRIOR_PARAMS + "\n    n_step = 3\n    mini_race = {'steps': 8, 'oversampling': (4, 1)}\n"
    shaped = params + "\n    def potential(self, observation):\n        return 2.0 * observation[1]\n"
    (tmp_path / "mine" / "params.py").write_text(shaped)
    assert prepare_run(prior_environ)
    (segment,) = StoredRing(RunPaths(tmp_path / "run").prior_data).segments()
    assert segment.potential is not None and segment.potential.tolist() == [2.0] * 13
    (tmp_path / "mine" / "params.py").write_text(shaped.replace("observation[1]", "observation['speed']"))
    with pytest.raises(UserError, match=r"TrainParams.potential raises IndexError.*correct it"):
        prepare_run(prior_environ)


# The run's own experience.

OBSERVATION = array_spec.ArraySpec((3,), "float32", "observation")


def layout(count: int | None = None, size: int = 1) -> Layout:
    action = array_spec.BoundedArraySpec((size,), "float32", -1, 1, "action")
    if count:
        action = array_spec.BoundedArraySpec((), "int32", 0, count - 1, "action")
    return Layout.from_specs(OBSERVATION, action)


def of_ring(now: Layout, folder: Path, **attributes: Any) -> list[str]:
    params = type("TrainParams", (FakeParams,), {"buffer_size": 60, **attributes})({"horizon": 20})
    return ring_findings(params, now, folder, RunPaths(folder))


def with_(*names: str, **of_layout: Any) -> Layout:
    optional: dict[str, Any] = {name: OPTIONAL_COLUMNS[name] for name in names}
    return dataclasses.replace(layout(**of_layout), **optional)


@pytest.mark.parametrize("count", [None, 4])
def test_what_is_the_same_passes(count: int | None, tmp_path: Path) -> None:
    Ring.open(tmp_path, layout(count), 84)
    assert of_ring(layout(count), tmp_path) == of_ring(layout(count), tmp_path / "of a new run") == []


@pytest.mark.parametrize(
    ("before", "now", "attributes", "told"),
    [
        (layout(), layout(size=2), {}, "action: now float32 [2], before float32 [1]"),
        (layout(4), layout(5), {}, "action: now int32 [], one of 5, before int32 [], one of 4"),
        (layout(), with_("explored"), {}, "explored: now uint8 [], one of 2, before none"),
        (with_("episode"), layout(), {}, "episode: now none, before int64 [2]"),
        (layout(), with_("potential"), {}, "potential: now float32 [], before none"),
        (layout(), layout(), {"buffer_size": 80}, "rows: now 105 (buffer_size=80"),
    ],
)
def test_a_ring_has_one_layout_and_size_for_life(
    before: Layout, now: Layout, attributes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    Ring.open(tmp_path, before, 84)
    (finding,) = of_ring(now, tmp_path, **attributes)
    assert f"does not fit: {told}" in finding
    assert f"begin another run with --from {tmp_path} --name " in finding
