"""A user's params file, anywhere on disk, and what is said when it is wrong."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tfagents_system.errors import UserError
from tfagents_system.settings.load_params import load_params

PARAMS = """
import pathlib
from tfagents_system.train_params_base import TrainParamsBase
import my_robot_for_tests

class TrainParams(TrainParamsBase):
    discount = my_robot_for_tests.DISCOUNT
    folder = pathlib.Path(__file__).parent
    def env_ctor(self, *args, seed=None, **kwargs):
        return None
"""


@pytest.fixture
def user_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "my_params.py").write_text(PARAMS)
    (folder / "my_robot_for_tests.py").write_text("DISCOUNT = 0.5\n")
    return folder


def test_modules_beside_the_file_are_found(user_dir: Path) -> None:
    params = load_params(user_dir / "my_params.py", {"horizon": 7, "mass": 2}, compute_config={"seed": 3})
    assert (params.discount, params.horizon, params.env_config["mass"]) == (0.5, 7, 2)
    assert params.compute_config == {"seed": 3}


def test_a_constructor_that_takes_the_size_of_the_run_can_compute_from_it(user_dir: Path) -> None:
    file = user_dir / "my_params.py"
    constructor = """
    def __init__(self, config, compute_config):
        super().__init__(config)
        self.updates_per_iter = 50 * compute_config.get("num_collect_workers", 1)
"""
    file.write_text(PARAMS + constructor)
    found = [
        load_params(file, {"horizon": 7}, compute_config=size, attributes=attributes)
        for size in ({"num_collect_workers": 4}, None)
        for attributes in ({}, {"discount": 0.3})
    ]
    assert [params.updates_per_iter for params in found] == [200, 200, 50, 50]
    assert found[1].compute_config == {"num_collect_workers": 4}


def test_a_copy_finds_what_lies_beside_its_origin(user_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "params.py"
    copy.write_text(PARAMS)
    params = load_params(copy, {"horizon": 7}, origin=user_dir / "my_params.py")
    assert params.discount == 0.5
    assert params.folder == user_dir  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("x = 1 +", r"SyntaxError.*line 1"),
        ("import a_module_that_is_not_there", "ModuleNotFoundError"),
        ("x = 1\ny = 1 / 0", r"ZeroDivisionError: division by zero \(params.py, line 2\)"),
        ("x = 1", "has no `class TrainParams"),
        ("class TrainParams: pass", "has no `class TrainParams"),
        (
            "from tfagents_system.train_params_base import TrainParamsBase\nclass TrainParams(TrainParamsBase): pass",
            "env_ctor",
        ),
        (
            "from tfagents_system.train_params_base import TrainParamsBase\n"
            "class TrainParams(TrainParamsBase):\n"
            "    def __init__(self, env_config): pass\n"
            "    def env_ctor(self, seed=None): pass\n",
            "super",
        ),
    ],
)
def test_what_is_wrong_with_a_params_file(tmp_path: Path, source: str, text: str) -> None:
    path = tmp_path / "params.py"
    path.write_text(source)
    with pytest.raises(UserError, match=text):
        load_params(path, {"horizon": 7})


DERIVED = """
from tfagents_system.train_params_base import TrainParamsBase

class TrainParams(TrainParamsBase):
    width = 64
    body = 2 * width

    def __init__(self, env_config):
        super().__init__(env_config)
        self.depth = 2
        self.__dict__.update(height=3)
        self.layers = (self.width,) * self.depth
        self.by_class = 2 * TrainParams.width

    @property
    def area(self):
        return self.width**2

    def env_ctor(self, *args, seed=None, **kwargs):
        pass
"""


def test_what_the_constructor_computes_follows_an_override(tmp_path: Path) -> None:
    path = tmp_path / "my_params.py"
    path.write_text(DERIVED)
    params = load_params(path, {"horizon": 7}, attributes={"width": 8, "depth": 3, "height": 4, "batch_size": 5})
    assert (params.width, params.depth, params.height, params.batch_size) == (8, 3, 4, 5)  # type: ignore[attr-defined]
    assert params.layers == (8, 8, 8) and params.by_class == 16 and params.area == 64  # type: ignore[attr-defined]
    assert params.body == 128  # type: ignore[attr-defined]  # Of the class's body: computed before.
    params.width = 9  # type: ignore[attr-defined]  # Afterwards it is an attribute like any other.
    assert params.width == 9  # type: ignore[attr-defined]
    assert load_params(path, {"horizon": 7}).layers == (64, 64)  # type: ignore[attr-defined]
    assert params._source is not None and params._source.attributes["depth"] == 3


KINDS = """
import pathlib
from tfagents_system.train_params_base import TrainParamsBase

class TrainParams(TrainParamsBase):
    critic_optimizer = {"name": "adamw", "epsilon": 1e-5}
    gamma = discount = {"points": [[0, 0.9], [9, 1.0]], "interpolation": "step", "by": "iterations"}
    flag, number, nothing, mode = True, 0.5, None, 0.0
    joints, folder = {"hip", "knee"}, pathlib.Path("/a")

    def __init__(self, env_config):
        super().__init__(env_config)
        self.mode = "mean"
        self.limits = {"hip": {"low": -1, "high": 1}, "steps": (1, 2)}
        self.actor_optimizer = {**self.actor_optimizer, "name": "sgd"}

    def env_ctor(self, *args, seed=None, **kwargs):
        pass
"""


@pytest.fixture
def kinds(tmp_path: Path) -> Path:
    path = tmp_path / "my_params.py"
    path.write_text(KINDS)
    return path


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("critic_optimizer", {"weight_decay": 0.1}, {"name": "adamw", "epsilon": 1e-5, "weight_decay": 0.1}),
        ("critic_optimizer", {"name": "sgd", "epsilon": None}, {"name": "sgd"}),
        ("actor_optimizer", {"momentum": 0.9}, {"name": "sgd", "momentum": 0.9}),
        ("critic_optimizer", {}, {}),
        ("limits", {"hip": {"low": -2}}, {"hip": {"low": -2, "high": 1}, "steps": (1, 2)}),
        ("limits", {"hip": None, "knee": {"low": 0}}, {"knee": {"low": 0}, "steps": (1, 2)}),
        ("limits", {"steps": [3]}, {"hip": {"low": -1, "high": 1}, "steps": (3,)}),
        ("nothing", {"a": 1}, {"a": 1}),
        ("discount", {"points": [[0, 1]]}, {"points": [[0, 1]], "interpolation": "step", "by": "iterations"}),
        ("discount", {"by": "env_steps"}, {"points": [[0, 0.9], [9, 1.0]], "interpolation": "step", "by": "env_steps"}),
    ],
)
def test_dictionaries_are_merged(kinds: Path, name: str, given: Any, expected: Any) -> None:
    params = load_params(kinds, {"horizon": 7}, attributes={name: given})
    assert getattr(params, name) == expected
    others = {"critic_optimizer": {"name": "adamw", "epsilon": 1e-5}, "actor_optimizer": {"name": "sgd"}}
    assert all(getattr(params, other) == value for other, value in others.items() if other != name)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("folder", "/b", Path("/b")),
        ("flag", False, False),
        ("flag", None, None),
        ("number", 3, 3),
        ("nothing", "fast", "fast"),
        ("mode", "max", "max"),  # What __init__ assigns says what it is.
    ],
)
def test_a_value_is_of_the_kind_of_what_it_overrides(kinds: Path, name: str, given: Any, expected: Any) -> None:
    found = getattr(load_params(kinds, {"horizon": 7}, attributes={name: given}), name)
    assert found == expected and type(found) is type(expected)


def test_values_that_would_pass_for_something_else_are_refused_together(kinds: Path) -> None:
    given = {
        "flag": "FALSE", "number": "fast", "joints": ["hip"], "folder": {"a": 1},
        "limits": {"hip": {"low": "-1"}}, "numbr": 1,
    }  # fmt: skip
    with pytest.raises(UserError) as raised:
        load_params(kinds, {"horizon": 7}, attributes=given)
    text = "\n".join(raised.value.findings)
    for part in (
        "TrainParams.flag must be true or false, as JSON writes it, found 'FALSE'",
        "TrainParams.number must be a number, as JSON writes it, found 'fast'",
        "can't become a list: change it in the params file",
        "TrainParams.folder is no dictionary but PosixPath('/a')",
        "TrainParams.limits.hip.low must be a number",
        "has no attribute numbr: number is meant",
    ):
        assert part in text
    assert len(raised.value.findings) == len(given)


def test_a_class_from_another_module_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "my_params.py"
    path.write_text("from tfagents_system.examples.pendulum.params import TrainParams\n")
    assert load_params(path, {"horizon": 7}, attributes={"num_iter": 3}).num_iter == 3
    assert load_params(path, {"horizon": 7}).num_iter == 24


def test_names_that_no_override_can_have_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "my_params.py"
    path.write_text(DERIVED)
    with pytest.raises(UserError) as raised:
        load_params(path, {"horizon": 7, "mass": 2}, attributes={"widht": 1, "confg": {"a": 1}, "mass": 3, "xyz": 1})
    assert [finding.partition("has no attribute ")[2] for finding in raised.value.findings] == [
        "widht: width is meant",
        "confg: config is meant",
        "mass: the key of the JSON is config.mass",
        "xyz: correct the name, or add the attribute to the class",
    ]
    with pytest.raises(UserError) as raised:
        load_params(path, {"horizon": 7}, attributes={"horizon": 1, "area": 3, "env_ctor": 1})
    text = "\n".join(raised.value.findings)
    for part in ("override config.horizon", "area is computed", "env_ctor is a method"):
        assert part in text


SPAWNED = """
import sys
from beside import Beside
from tfagents_system.train_params_base import TrainParamsBase

class Env:
    limit = 3

class TrainParams(TrainParamsBase):
    scale = 1
    num_iter = 4
    def env_ctor(self):
        return Env()
    def scaled(self, x):
        return self.scale * x, self.num_iter, Beside.name, __file__
"""


@pytest.mark.parametrize("is_copy", [False, True])
def test_processes_that_users_code_starts_anew_import_its_classes(tmp_path: Path, is_copy: bool) -> None:
    folder = tmp_path / "robot"
    folder.mkdir()
    (folder / "beside.py").write_text("class Beside:\n    name = 'beside'\n")
    origin = folder / "params.py"
    path = tmp_path / "copy.py" if is_copy else origin
    path.write_text(SPAWNED)
    before = sys.path[:]
    try:
        params = load_params(path, {"horizon": 5}, origin=origin, attributes={"scale": 2, "num_iter": 9})
        pickled = pickle.dumps((params.env_ctor(), params.scaled))  # type: ignore[attr-defined]
        folders = sys.path[:]  # These multiprocessing gives to its children.
    finally:
        sys.path[:] = before
    child = "import pickle, sys; env, scaled = pickle.load(sys.stdin.buffer); print(env.limit, scaled(5))"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run([sys.executable, "-c", child], input=pickled, env=environ, capture_output=True, timeout=60)
    assert done.stdout.decode().strip() == f"3 {(10, 9, 'beside', str(origin))}", done.stderr.decode()
