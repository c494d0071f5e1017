"""A user's params file, anywhere on disk, and what is said when it is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tfagents_system.errors import UserError
from tfagents_system.load_params import load_env_config, load_params

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
        ("x = 1\ny = 1 / 0", r"ZeroDivisionError: division by zero \(line 2\)"),
        ("x = 1", "has no `class TrainParams"),
        ("class TrainParams: pass", "must define `class TrainParams"),
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


def test_missing_params_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_params(tmp_path / "none.py", {"horizon": 7})


@pytest.mark.parametrize(("text", "finding"), [("{", "not valid JSON"), ("[1]", "must hold a JSON object")])
def test_wrong_json(tmp_path: Path, text: str, finding: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UserError, match=finding):
        load_env_config(path)


def test_json_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"horizon": 3, "name": "walker"}))
    assert load_env_config(path) == {"horizon": 3, "name": "walker"}
    with pytest.raises(UserError, match="cannot be read"):
        load_env_config(tmp_path / "none.json")
