"""How an exception of a user's environment is told: its text, the user's line, and the line that raised it."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from pathlib import Path

import pytest

from tfagents_system.envs import faults
from tfagents_system.envs.faults import SHOW_TRACES, describe_error
from tfagents_system.machine.processes import wait_until

CORE = """
class State:
    def step(self, force):
        assert force < 10
        raise ValueError("too late")
"""
PARAMS = """
from simulator.core import State

def env_ctor():
    State().step({force})
"""


def raised(folder: Path, force: int, monkeypatch: pytest.MonkeyPatch) -> BaseException:
    package = folder / "site-packages/simulator"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "core.py").write_text(CORE)
    (folder / "p.py").write_text(PARAMS.format(force=force))
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(__import__("sys").modules, "simulator.core", raising=False)
    with pytest.raises((AssertionError, ValueError)) as error:
        runpy.run_path(str(folder / "p.py"))["env_ctor"]()
    return error.value


def test_the_users_line_and_the_innermost_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = describe_error(raised(tmp_path, 3, monkeypatch))
    assert told == "ValueError: too late (p.py, line 5; raised in simulator/core.py, line 5)"


def test_an_error_without_a_text_is_told_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = describe_error(raised(tmp_path, 30, monkeypatch))
    assert told == "AssertionError: assert force < 10 (p.py, line 5; raised in simulator/core.py, line 4)"


def test_an_error_of_the_users_own_line_has_one_place() -> None:
    with pytest.raises(ZeroDivisionError) as error:
        1 / 0  # noqa: B018
    assert describe_error(error.value).startswith("ZeroDivisionError: division by zero (test_faults.py, line ")
    assert ";" not in describe_error(error.value)


def test_check_prints_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def divide() -> float:
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as error:
        divide()
    describe_error(error.value)
    assert capsys.readouterr().err == ""
    folder = Path(__file__).parent
    monkeypatch.setenv(SHOW_TRACES, f"{folder}{os.pathsep}/home/me")
    described = describe_error(error.value)
    told = capsys.readouterr().err
    assert told.startswith("Traceback (most recent call last):") and "1 / 0" in told
    assert f'File "/home/me/{Path(__file__).name}", line' in told and str(folder) not in told
    assert describe_error(error.value) == described and capsys.readouterr().err == ""  # Once.


def test_its_traceback_has_the_users_lines_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def step() -> bool:
        return bool(1 / 0)

    monkeypatch.setenv(SHOW_TRACES, "1")
    with pytest.raises(ZeroDivisionError) as error:
        wait_until(step, 1.0)
    describe_error(error.value)
    told = capsys.readouterr().err
    assert "processes.py" not in told and told.count("  File ") == 2 and "in step" in told and "1 / 0" in told
    through = error.value.__traceback__
    assert through is not None and through.tb_next is not None
    delattr(error.value, faults._IS_SHOWN)
    describe_error(error.value.with_traceback(through.tb_next.tb_next))
    assert capsys.readouterr().err == "", "one line is in the sentence"


def test_a_missing_module_is_told_with_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError) as error:
        importlib.import_module("crane_env.part")
    told = describe_error(error.value)
    assert f", which is neither installed nor in {tmp_path} or " in told and "pip" not in told, "a stranger's package"
    with pytest.raises(ModuleNotFoundError) as error:
        importlib.import_module("json.no_such_part")
    assert "installed" not in describe_error(error.value)


def test_a_missing_package_that_we_name_is_told_with_how_this_python_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ModuleNotFoundError("No module named 'minari'", name="minari")
    monkeypatch.delitem(sys.modules, "minari", raising=False)
    lock = Path(faults.__file__).parents[2] / "requirements.lock"  # Without it envpool raises typing-extensions.
    assert describe_error(error).endswith(f"; `{sys.executable} -m pip install -c {lock} minari` installs it")
    monkeypatch.setattr(faults.PathFinder, "find_spec", lambda *_: None)  # As in an environment that uv has made.
    assert describe_error(error).endswith(f"; `uv pip install --python {sys.executable} minari` installs it")
