"""What can't be used in an environment's process, told at the start."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import second_python
from tests.support.user_environments import MY_ENVS, PARAMS, Folder
from tfagents_system.envs import env_process, loading
from tfagents_system.envs.env_process import ProcessSettings
from tfagents_system.envs.faults import EnvironmentProcessError
from tfagents_system.errors import UserError
from tfagents_system.settings.load_params import load_params


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
