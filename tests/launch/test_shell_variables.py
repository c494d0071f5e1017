"""What the user's shell carries: what arrives at the first Python, from where modules come, files of Windows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.shell import ROOT
from tfagents_system.checks.findings import Findings
from tfagents_system.envs.env_process import _environ_of_another_python
from tfagents_system.errors import UserError
from tfagents_system.launch import machine_checks
from tfagents_system.launch.vars_file import LAUNCHERS, read_vars_file

SCRIPT = LAUNCHERS / "shell_variables.sh"
TABLE = re.findall(r"^([A-Z_0-9]+)(?:=(\S+))? {2,}", SCRIPT.read_text(), re.MULTILINE)
FIRST = "import json, os, sys; print(json.dumps([dict(os.environ), sys.path, sys.flags.optimize]))"


def first_python(*steps: str, environ: Mapping[str, str], cwd: Path = ROOT) -> tuple[dict[str, str], list[str], str]:
    """The environment and path of the first Python after these steps of a launcher, and what they say."""
    given = {"PATH": os.environ["PATH"], "HOME": "/", **environ}
    script = "; ".join(["set -euo pipefail", f"source {SCRIPT}", *steps, f'exec {sys.executable} -P -c "$0"'])
    imports = "import tfagents_system; " if "lead_python_path" in script else ""
    command = ["bash", "-c", script, imports + FIRST]
    done = subprocess.run(command, env=given, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    arrived, path, optimize = json.loads(done.stdout)
    assert optimize == 0
    return arrived, path, done.stderr


@pytest.mark.parametrize(("name", "pattern"), TABLE)
def test_a_variable_of_the_table_does_not_arrive_and_is_told(name: str, pattern: str) -> None:
    value = pattern.replace("*error*", "once,error::DeprecationWarning") or "2"
    assert bool(pattern) == (name in ("PYTHONWARNINGS", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"))
    arrived, _, told = first_python("clean_shell", environ={name: value})
    assert name not in arrived
    assert told.startswith(f"note: the run does without {name}={value}: ") and told.count("\n") == 1


def test_all_others_arrive_without_a_word() -> None:
    others = {"PYTHONWARNINGS": "ignore", "PYTHONHASHSEED": "3", "PYTHONNOUSERSITE": "1", "PYTHONHOME": ""}
    arrived, _, told = first_python("clean_shell", environ={"http_proxy": "http://10.255.255.1:3128", **others})
    assert told == "" and "PYTHONHOME" not in arrived
    assert {**others, "PYTHONHOME": arrived.get("PYTHONHOME", "")}.items() <= {**arrived, "PYTHONHOME": ""}.items()
    assert len(TABLE) >= 6 and arrived["http_proxy"].endswith(":3128")


def test_folders_of_another_python_are_left_to_the_one_of_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    ros, same = "/opt/ros/humble/lib/python3.10/site-packages", "/opt/x/lib/python3.11/site-packages"
    path = f"/my/python_code:{ros}:{same}::/opt/ros/local/lib/python3.8/dist-packages/"
    arrived, _, told = first_python("clean_shell", environ={"PYTHONPATH": path})
    assert arrived["PYTHONPATH"] == f"/my/python_code:{same}"
    assert f"{ros}:/opt/ros/local/lib/python3.8/dist-packages/\n" in told and told.count("\n") == 1
    there = _environ_of_another_python(arrived)["PYTHONPATH"].split(":")
    assert there[-2:] == [ros, "/opt/ros/local/lib/python3.8/dist-packages/"] and "/my/python_code" in there


def test_no_file_of_the_user_comes_before_what_a_launchers_python_imports(tmp_path: Path) -> None:
    for name in ("typing", "platform", "contextlib", "json"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('a file of the user')\n")
    arrived, path, told = first_python(f"lead_python_path {ROOT}", cwd=tmp_path, environ={"PYTHONPATH": str(tmp_path)})
    assert told == "" and path[0] == str(ROOT) and path[-1] == str(tmp_path)
    assert arrived["PYTHONPATH"] == f"{ROOT}:{tmp_path}:{tmp_path}" and "TFAGENTS_OWN_PYTHONPATH" not in arrived


def test_files_beside_the_params_with_names_of_modules_are_refused(tmp_path: Path) -> None:
    for name in ("queue", "html", "plotly", "utils", "test", "setup", "params"):  # `plotly` is imported later.
        (tmp_path / f"{name}.py").touch()
    for name in ("logging", "gym", "wandb"):  # Without __init__.py: folders of logs, of a clone, of files.
        (tmp_path / name).mkdir()
    findings, library = Findings(), Path(json.__file__).parents[1]
    machine_checks.check_names(findings, tmp_path)
    html, plotly, queue = findings.errors
    assert html == f"{tmp_path}/html.py hides {library}/html/__init__.py, which the toolkit imports: rename it"
    assert plotly.startswith(f"{tmp_path}/plotly.py hides ") and queue.startswith(f"{tmp_path}/queue.py hides ")


@pytest.mark.parametrize("text", ["\ufeff: ${SAC_SEED:=7}\nSAC_EXP_NAME=a\n", "SAC_SEED=7\r\n\r\nSAC_EXP_NAME=a\r\n"])
def test_vars_files_of_windows_are_refused_with_what_cleans_them(tmp_path: Path, text: str) -> None:
    vars_file = tmp_path / "vars.sh"
    vars_file.write_bytes(text.encode())
    with pytest.raises(UserError, match="an editor of Windows") as raised:
        read_vars_file(vars_file, {"PATH": os.environ["PATH"]})
    launcher = f"source {LAUNCHERS}/launcher.sh; tfagents_vars={vars_file}; source {LAUNCHERS}/vars_file.sh; "
    command = ["bash", "-euo", "pipefail", "-c", launcher]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PATH": os.environ["PATH"]})
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {raised.value}\n")
    remedy = str(raised.value).partition(": ")[2].removesuffix(" removes them")
    subprocess.run(["bash", "-c", remedy], check=True, timeout=60)
    environ = read_vars_file(vars_file, {"PATH": os.environ["PATH"]})
    assert (environ["SAC_SEED"], environ["SAC_EXP_NAME"]) == ("7", "a")


def test_the_command_of_an_environment_starts_with_another_pythons_home(tmp_path: Path) -> None:
    launch, python = tmp_path / "tfagents_system/launch", tmp_path / ".venv/bin/python"
    launch.mkdir(parents=True)
    python.parent.mkdir(parents=True)
    for name in ("sac.sh", "shell_variables.sh"):
        shutil.copy2(LAUNCHERS / name, launch / name)
    python.write_text('#!/usr/bin/env bash\necho "${PYTHONHOME-none} $PYTHONPATH $*"\n')
    python.chmod(0o755)
    (tmp_path / "sac").symlink_to(launch / "sac.sh")
    environ = {"PATH": os.environ["PATH"], "PYTHONHOME": "/apps/python/3.9", "PYTHONPATH": "/mine"}
    done = subprocess.run(
        [tmp_path / "sac", "status", "a b"], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"none {tmp_path} -P -m tfagents_system status a b\n"
    assert done.stderr.startswith("note: the run does without PYTHONHOME=/apps/python/3.9: ")
