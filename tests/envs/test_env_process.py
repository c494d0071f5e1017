"""Environments under another Python and another NumPy: the same numbers as in the worker's own process."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import second_python
from tests.support.user_environments import MY_ENVS, PARAMS, Folder, pid_of, steps, zeros
from tfagents_system.envs import env_process, loading
from tfagents_system.envs.env_process import ProcessSettings
from tfagents_system.envs.faults import EnvironmentDiedError, EnvironmentProcessError
from tfagents_system.envs.gym_driver import seed_episode
from tfagents_system.errors import UserError
from tfagents_system.settings.load_params import load_params


def test_observations_rewards_actions_and_ends_pass_unchanged(each_user: Folder) -> None:
    env = each_user.make(terminate_at=4)
    first, *later = steps(env, 4)
    assert [time_step.observation[0] for time_step in (first, *later)] == [0, 1, 2, 3, 4]
    assert first.observation.dtype == np.float32
    assert [float(time_step.reward) for time_step in later] == [0.5, 1.0, 1.5, 2.0]
    assert [float(time_step.discount) for time_step in later] == [1.0, 1.0, 1.0, 0.0]
    assert [int(time_step.step_type) for time_step in later] == [1, 1, 1, 2]
    assert {time_step.observation[2] for time_step in later} == {pid_of(env)}, "another process"
    assert first.observation[3] == 2 and np.__version__.startswith("1."), "another NumPy"
    truncated = each_user.make(truncate_at=2)
    assert [float(time_step.discount) for time_step in steps(truncated, 2)] == [1.0, 1.0, 1.0]
    assert truncated.step(zeros(truncated)).is_first()


def test_actions_arrive_scaled_and_of_the_info_passes_what_training_looks_at(user: Folder) -> None:
    env = user.make()
    env.reset()
    seen = []
    for action in ([-1.0, -1.0], [1.0, 1.0], [0.5, 0.0]):
        env.step(np.array(action, np.float32))
        seen.append(env.info["log/action"])
    assert seen == [-2.0, 2.0, 1.0]
    recorded = {"record/zone", "record/at", "record/track"}
    assert set(env.info) == {"log/first", "log/action", "is_success"} | recorded and env.info["is_success"] == 1.0
    assert env.info["record/zone"] == 3 and env.info["record/track"] == "a"
    np.testing.assert_array_equal(env.info["record/at"], [0.1, np.nan])
    # An episode of an evaluation is told once.
    masses = []
    for number in (None, 0, 3, None):
        env.evaluation_episode = number
        masses.append(float(env.reset().observation[1]))
    assert masses == [1.0, 100.0, 103.0, 103.0]
    env.set_state({"mass": np.float64(2.5)})
    assert env.step(zeros(env)).observation.tolist()[:2] == [0.0, 2.5]
    with pytest.raises(Exception, match=r"KeyError: 'no parameter but mass' \(my_envs.py, line \d+\)"):
        env.set_state({"friction": 1.0})


def test_functions_of_goals_are_called_on_the_other_side(user: Folder) -> None:
    achieved, desired = np.arange(12, dtype=np.float32).reshape(6, 2), np.ones((6, 2), np.float32)
    functions = user.make("Goals").goal_functions
    assert (functions.has_reward, functions.has_terminated) == (True, False)
    found = functions.rewards(achieved, desired)
    assert (found.dtype, found.tolist()) == (np.float32, [-1.0, -3.0, -7.0, -11.0, -15.0, -19.0])
    assert functions.terminated(achieved, desired) is None and not user.make().goal_functions.has_reward
    told = (
        r"compute_reward of the environment failed for 6 goals, info {}: ZeroDivisionError: no goal \(my_envs.py, line"
    )
    with pytest.raises(UserError, match=told):
        user.make("Goals", does="raise in compute_reward").goal_functions.rewards(achieved, desired)
    # Of a process that is gone another start of this one has another.
    with pytest.raises(EnvironmentDiedError, match="exit code 7"):
        user.make("Goals", does="exit in compute_reward").goal_functions.rewards(achieved, desired)


def test_seeds_arrive_once_and_the_generators_of_its_process_are_seeded_as_here(user: Folder) -> None:
    """A user's environment may draw from Python's and NumPy's own, when it is built, too."""
    of_seed = []
    for seed in (5, 5, 6):
        env = loading.make_collect_env(user.params("Drawing"), 3, seed, process=user.settings)
        firsts = [steps(env, 1) and env.info["log/first"] for _ in range(2)]
        assert firsts[0] != firsts[1], "the second episode is another one"
        built = env.info["log/built"]
        seed_episode(env, seed)
        env.reset()
        assert env.step(zeros(env)).reward == np.float32(random.random() + np.random.uniform()), "the same as here"
        of_seed.append((firsts[0], built, float(env.step(zeros(env)).reward)))
        env.close()
    assert of_seed[0] == of_seed[1] and all(a != b for a, b in zip(of_seed[1], of_seed[2], strict=True))


def test_nests_of_every_kind_of_space(each_user: Folder) -> None:
    env = each_user.make("Nested")
    env.reset()
    time_step = env.step(np.array([0.0], np.float32))
    observation = time_step.observation
    assert observation["joints"].tolist() == [0.25] * 3 and observation["joints"].dtype == np.float32
    assert observation["camera"].dtype == np.uint8 and (observation["camera"] == 1).all()
    assert observation["parts"][0].tolist() == [0.0, 1.0, 0.0]
    assert observation["parts"][1].tolist() == [0.0, 1.0]
    assert observation["parts"][2].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0]
    assert float(time_step.reward) == -1.0, "the middle of [-3, 1]"


def test_old_gym_environments(user: Folder) -> None:
    env = user.make("Old", truncate_at=2)
    first, *later = steps(env, 2)
    assert first.observation.tolist() == [11 % 5] and [float(s.discount) for s in later] == [1.0, 1.0]
    with pytest.raises(UserError, match="Old has no parameter 'mas' that can be set: it knows .*terminate_at"):
        env.set_state({"mas": 1.0})
    env.evaluation_episode = 4  # It has no such method, and is not told.
    env.set_state({"terminate_at": 1})
    assert [float(time_step.discount) for time_step in steps(env, 1)] == [1.0, 0.0]
    with pytest.raises(UserError, match="Old can't be drawn"):
        env.render_frame()


def test_pictures(user: Folder) -> None:
    params = user.params()
    params._source = dataclasses.replace(params._source, process=user.settings)
    with loading.make_play_env(params, 3, render=True) as env:
        steps(env, 2)
        frame = env.render_frame()
        assert frame.shape == (6, 8, 3) and frame.dtype == np.uint8 and (frame == 2).all()
        assert env.frames_per_second == 17.0


def test_an_installed_package_brings_no_other_packages_along(
    user: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside it are all packages of its own Python: a NumPy that another Python can't import."""
    site = tmp_path / "site-packages"
    shutil.copytree(env_process._ROOT / "tfagents_system", site / "tfagents_system")
    (site / "numpy.py").write_text("raise ImportError('compiled for another Python')")
    monkeypatch.setattr(env_process, "_ROOT", site)
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{tmp_path}")
    assert user.make().reset().observation[0] == 0.0


def test_an_evaluation_environment_gets_a_collect_environment_of_its_own_process(user: Folder) -> None:
    params = user.params(terminate_at=5)
    collect_env = loading.make_collect_env(params, 0, 1, process=user.settings)
    eval_env = loading.make_eval_env(params, 0, collect_env, 2, process=user.settings)
    with collect_env, eval_env:
        eval_env.set_state({"mass": 3.0})
        assert pid_of(eval_env) != pid_of(collect_env)
        assert collect_env.reset().observation[1] == 1.0 and eval_env.reset().observation[1] == 3.0


def test_discrete_actions_arrive_as_the_space_has_them(user: Folder) -> None:
    env = user.make("Discrete")
    env.reset()
    env.step({"gear": np.int32(2), "keys": np.int32(5), "lamps": np.int32(1)})
    assert env.info["log/gear"] == 6 and env.info["log/key"] == 2


# What can't be used, told at the start.


@pytest.mark.parametrize(
    ("file", "text", "finding"),
    [
        ("my_envs.py", MY_ENVS + "\n\nCounter = Text\n", "observation has the space Text.*which has no fixed shape"),
        (
            "my_envs.py",
            MY_ENVS + "\n\nCounter.real_time = True\n",
            "not for environments that act in real time: unset it",
        ),
        (
            "my_envs.py",
            "class Counter:\n    pass\n\n\nCounter.__module__ = 'tf_agents.environments.py_environment'\n",
            "the TF-Agents PyEnvironment .* return the Gymnasium or gym environment itself",
        ),
        (
            "my_params.py",
            "import tensorflow\n" + PARAMS,
            "No module named 'tensorflow'.*inside the hooks.*SAC_ENV_PYTHON=",
        ),
        (
            "my_params.py",
            PARAMS.replace("**kwargs)\n", "colour=3)\n"),
            r"TypeError: .*colour.*\(my_params.py, line 14\)",
        ),
    ],
    ids=["space", "device", "PyEnvironment", "TensorFlow", "constructor"],
)
def test_what_can_not_be_built_is_told_with_the_remedy(user: Folder, file: str, text: str, finding: str) -> None:
    (user.folder / file).write_text(text)
    with pytest.raises((UserError, EnvironmentProcessError), match=finding):
        user.make()


def test_overridden_attributes_are_overridden_there_too(user: Folder) -> None:
    source = PARAMS.replace("num_iter = 2", 'kind = "Nothing"').replace("my_envs, name)", "my_envs, self.kind)")
    (user.folder / "my_params.py").write_text(source)
    config = {"horizon": 10, "name": "Nothing", "kwargs": {}}
    params = load_params(user.folder / "my_params.py", config, attributes={"kind": "Counter"})
    with contextlib.closing(loading.make_collect_env(params, 3, 11, process=user.settings)) as env:
        assert tuple(env.observation_spec().shape) == (4,)


def test_interpreters_that_can_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "my_params.py").write_text(PARAMS)
    params = load_params(tmp_path / "my_params.py", {"horizon": 10, "name": "Counter"})

    def fails(python: Path) -> str:
        with pytest.raises(UserError) as caught:
            loading.make_collect_env(params, 0, 1, process=ProcessSettings(python))
        return str(caught.value)

    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=60)
    assert f"has no NumPy: {bare}/bin/python -m pip install numpy" in fails(bare / "bin" / "python")
    assert "can't be started (No such file or directory): give the path of a Python" in fails(tmp_path / "python")
    old = tmp_path / "old_python"
    old.write_text("#!/bin/sh\nexit 97\n")
    old.chmod(0o755)
    assert "is older than Python 3.9" in fails(old)


def test_without_memfd_as_on_macos_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_params.py").write_text(PARAMS)
    settings = ProcessSettings(Path("/opt/sim/bin/python"))
    params = load_params(tmp_path / "my_params.py", {"horizon": 10, "name": "Counter"}, process=settings)
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(
        UserError, match="SAC_ENV_PYTHON=/opt/sim/bin/python needs Linux: .*`SAC_ENV_PYTHON= python tfa"
    ):
        loading.make_play_env(params, 1, render=False)


def test_environments_are_tried_with_other_versions_of_python() -> None:
    """Which `--require` insists on: without any, the tests with each Python are of this one alone."""
    found = second_python.interpreters()
    if found == [Path(sys.executable)]:
        pytest.skip("no other Python from 3.9 to 3.13 with venv and ensurepip is here")
    versions = [second_python.versions(second_python.make_environment(python))[0] for python in found]
    assert list(sys.version_info[:2]) not in versions and all([3, 9] <= version <= [3, 13] for version in versions)


def test_the_modules_of_the_other_side_are_python_3_9_and_need_numpy_only(each_python: Path) -> None:
    program = (
        "import sys; import tfagents_system.envs.env_server; "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & "
        "{'tensorflow', 'tf_agents', 'absl', 'gym', 'gymnasium', 'tree', 'msgspec', 'psutil'}))"
    )
    root = Path(env_process.__file__).resolve().parents[2]
    done = subprocess.run(
        [str(each_python), "-c", program], env={"PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=60
    )  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr
    python_version, numpy_version, _ = second_python.versions(each_python)
    assert numpy_version.startswith("2.") and python_version >= [3, 9]
