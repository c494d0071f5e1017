"""`sac`: its words, what they become, and a project that it begins."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tfagents_system
from tests.support.launching import ROOT
from tfagents_system import command
from tfagents_system.errors import NAME_VARIABLE, UserError
from tfagents_system.launch import machine_checks, new_project
from tfagents_system.settings.load_params import load_params_class


def sac(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SAC_", "SLURM_", "TFAGENTS_"))}
    return subprocess.run(
        [sys.executable, "-P", "-m", "tfagents_system", *arguments],
        cwd=cwd, env={**own, "PYTHONPATH": str(ROOT), "VIRTUAL_ENV": sys.prefix, **environ},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The scripts that the command has become, with their arguments."""
    became: list[list[str]] = []

    def become_script(_: str, words: list[str]) -> None:
        became.append([Path(words[1]).name, *words[2:]])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvp", become_script)
    for name in ("SAC_PARAMS", "SAC_CONFIG", "SAC_EXP_NAME", NAME_VARIABLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return became


def run(*words: str) -> None:
    with pytest.raises(SystemExit):
        command.main(words)


# Words.


def test_every_command_leads_somewhere_and_has_its_name_in_its_example() -> None:
    for name, one in command.COMMANDS.items():
        assert one.examples and one.summary[0].islower() and not one.summary.endswith("."), name
        is_script = one.target.endswith(".sh")
        path = f"launch/{one.target}" if is_script else f"{one.target.replace('.', '/')}.py"
        assert (ROOT / "tfagents_system" / path).is_file(), one.target
        assert f"  {name} " in command.help_text()


def test_help_needs_no_tensorflow(tmp_path: Path) -> None:
    code = "import sys; sys.argv = ['sac', '--help']; from tfagents_system.command import main; main(); "
    code += "assert not {'tensorflow', 'numpy', 'matplotlib'} & set(sys.modules), 'slow'"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=60)


def test_help_of_each_command_has_one_form(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence, usage, arguments, options with hyphens, examples whose options are among them."""
    monkeypatch.setenv("COLUMNS", "300")
    for name in command.COMMANDS:
        monkeypatch.setattr(sys, "argv", ["sac"])
        monkeypatch.setenv(NAME_VARIABLE, "")
        with contextlib.suppress(SystemExit):
            assert command.main([name, "--help"]) == 0
        text = capfd.readouterr().out
        sentence, usage, *_, options, examples = text.split("\n\n")
        assert re.fullmatch("[A-Z][^\n]+[.]", sentence) and usage.startswith(f"usage: sac {name} "), text
        assert options.startswith("options:\n  -h, --help ") and examples.startswith(f"examples:\n  sac {name}"), text
        assert not re.search(r"--\w+_|positional|EXP_DIR", text)
        if "COMMAND" not in usage:
            given = set(re.findall(r" (--[a-z-]+)", examples)) - {"--time"}
            assert given <= set(re.findall(r"--[a-z-]+", options)), name


def test_help_of_a_subcommand_has_its_own_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        command.main(["experience", "import", "--help"])
    examples = capsys.readouterr().out.partition("examples:\n")[2].splitlines()
    assert examples and all(line.startswith("  sac experience import ") for line in examples)


def test_wrong_words_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for word, told in (
        ("stats", "sac stats is no command: use sac status, or see"),
        ("fly", "sac fly is no command: see"),
        ("tune", "sac tune is no command: use sac tune-params, or see"),
        ("export-policy", "use sac export, or"),
        ("enjoy", "use sac play RUN, or"),
        ("resume", "use sac train VARS.sh, or"),
        ("tensorboard", "tensorboard --logdir logs, or"),
    ):
        with pytest.raises(UserError, match=told):
            command.main([word])
    assert command.main([]) == 2 and "usage: sac COMMAND" in capsys.readouterr().err
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tfagents_system {tfagents_system.__version__}\n"


# What they become.


def test_commands_become_their_scripts(
    become: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TFAGENTS_CALL", raising=False)
    run("train", "vars.sh", "--set", "seed=1")
    run("check", "vars.sh")
    run("submit", "vars.sh", "--array", "0-3")
    assert become == [
        ["run_script.sh", "vars.sh", "--set", "seed=1"],
        ["run_script.sh", "--check", "vars.sh"],
        ["submit.sh", "vars.sh", "--array", "0-3"],
    ]
    assert os.environ["TFAGENTS_COMMAND"] == "sac submit"
    assert os.environ["TFAGENTS_CALL"] == "sac train vars.sh --set seed=1", "what calls another one is told"
    del os.environ["TFAGENTS_CALL"]
    monkeypatch.setenv("SAC_EXP_NAME", "elsewhere")
    run("train", "vars.sh")
    assert "TFAGENTS_CALL" not in os.environ, "without this variable the words train another run"


def test_a_params_file_stands_for_a_vars_file(
    become: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_params.py").touch()
    (tmp_path / "a.json").touch()
    monkeypatch.chdir(tmp_path)
    run("train", "--set", "file=other.py", "my_params.py", "--config", "a.json", "--fresh")
    defaults = str(ROOT / "tfagents_system/launch/default_variables.sh")
    assert become == [["run_script.sh", "--set", "file=other.py", defaults, "--fresh"]]
    told = [os.environ[name] for name in ("SAC_PARAMS", "SAC_CONFIG", "SAC_EXP_NAME")]
    assert told == [str(tmp_path / "my_params.py"), str(tmp_path / "a.json"), "my"]
    (tmp_path / "my.json").touch()
    run("train", "my_params.py")
    assert os.environ["SAC_CONFIG"] == str(tmp_path / "my.json"), "beside it"


def test_what_is_missing_of_them_is_told_at_once(
    become: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=r"params.py has no JSON beside it \(params.json, config.json\): give it as --con"
    ):
        command.main(["train", "params.py"])
    (tmp_path / "crane_env.py").write_text("class Crane: ...\n")
    with pytest.raises(UserError, match="crane_env.py has no class TrainParams: sac new NAME --env crane_env:CLASS"):
        command.main(["train", "crane_env.py"])
    with pytest.raises(UserError, match="--config=b.json goes with a params file: sac train PARAMS.py --config b.json"):
        command.main(["train", "vars.sh", "--config=b.json"])
    assert become == []


# A project to begin with.


def test_a_new_project_trains_what_gymnasium_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert new_project.main(["robots/cart", "--env", "CartPole-v1"]) == 0
    folder = tmp_path / "robots/cart"
    assert json.loads((folder / "config.json").read_text()) == {"horizon": 500}
    params = (folder / "params.py").read_text()
    assert 'algorithm = "dqn"' in params and "docs/" not in params, "which an installed package lacks"
    assert ":=cart}" in (folder / "vars.sh").read_text()
    with pytest.raises(UserError) as error:
        new_project.main(["robots/cart", "--env", "Kart-v1"])
    assert [finding.split(":")[0] for finding in error.value.findings] == [
        "--env='Kart-v1' must be Gymnasium's name of an environment, or MODULE",
        *(f"robots/cart/{name} exists already" for name in ("params.py", "config.json", "vars.sh")),
    ]
    for name in ("..", 'a"b', "$x"):
        with pytest.raises(UserError, match="must end in a name of letters, digits"):
            new_project.main([name])


def test_a_new_project_copies_an_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert new_project.main(["point", "--example", "reach"]) == 0
    assert sorted(os.listdir("point")) == ["config.json", "environment.py", "params.py", "vars.sh"]
    assert "\nfrom environment import Reach\n" in Path("point/params.py").read_text()
    lines = Path("point/vars.sh").read_text().splitlines()
    assert "SAC_EXP_NAME:=point}" in lines[3] and {line.index(" # ") for line in lines[3:]} == {44}, "aligned"
    assert load_params_class(Path("point/params.py"), None).__name__ == "TrainParams"
    monkeypatch.delitem(sys.modules, "environment")


OWN = """
import gymnasium, numpy
class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    def __init__(self, ends=9):
        self.ends = ends
    def reset(self, seed=None, options=None):
        self.steps = 0
        return numpy.zeros(2, numpy.float32), {}
    def step(self, action):
        self.steps += 1
        return numpy.zeros(2, numpy.float32), 0.0, False, self.steps == self.ends, {}
class Needy(Mine):
    def __init__(self, length): pass
"""


def test_a_new_project_builds_a_class_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = "own_env"
    (tmp_path / f"{module}.py").write_text(OWN)
    assert new_project.main(["mine", "--env", f"{module}:Mine"]) == 0
    assert json.loads((tmp_path / "mine/config.json").read_text()) == {"horizon": 1000}
    space: dict[str, Any] = {}
    exec((tmp_path / "mine/params.py").read_text(), space)
    assert space["TrainParams"].env_ctor(None, seed=1, ends=3).ends == 3
    told = capsys.readouterr().out
    assert "is a guess" in told and "a guess" in (tmp_path / "mine/vars.sh").read_text()
    assert "note: move own_env.py into mine:" in told
    for wrong, text in {
        f"{module}:Min": f"--env='{module}:Min' must be Gymnasium's name.* Classes in {module}: Mine, Needy$",
        f"{module}:Needy": "defaults for all arguments, .* missing 1 required positional argument: 'length'",
        "no_env:Mine": f"No module named 'no_env', which is neither installed nor in {tmp_path}/mine or {tmp_path} or ",
    }.items():
        with pytest.raises(UserError, match=text):
            new_project.main(["other", "--env", wrong])


def test_a_new_project_fills_the_folder_of_the_users_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "filled").mkdir()
    (tmp_path / "filled/filled_env.py").write_text(OWN)
    assert new_project.main(["filled", "--env", "filled_env:Mine"]) == 0
    assert "note: move" not in capsys.readouterr().out
    assert {"config.json", "filled_env.py", "params.py", "vars.sh"} <= {*os.listdir("filled")}
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="^file exists already: give another name$"):
        new_project.main(["file"])


def test_a_new_project_finds_modules_of_the_current_folder_as_a_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import gymnasium\nfrom gymnasium.envs.classic_control import PendulumEnv\n"
    (tmp_path / "a_swing.py").write_text(f"{text}gymnasium.register('Swing-v0', PendulumEnv, max_episode_steps=70)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(NAME_VARIABLE, "")
    monkeypatch.setattr(sys, "argv", ["sac"])
    assert command.main(["new", "swing", "--env", "a_swing:Swing-v0"]) == 0
    assert json.loads((tmp_path / "swing/config.json").read_text()) == {"horizon": 70}
    assert sys.path[-1] == str(tmp_path)


# What is here.


def test_the_doctor_says_what_is_lacking(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "envpool").mkdir()  # Somebody's data: no package, though Python would import it.
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(machine_checks.shutil, "which", lambda _: None)
    monkeypatch.setattr(machine_checks, "_PICTURES", {"a simulator": ("gymnasium", "Kart-v1")})
    monkeypatch.setattr(machine_checks, "_DRAW", "raise RuntimeError('no screen for {name}')")
    assert machine_checks.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "ERROR a simulator     draws nothing: RuntimeError: no screen for Kart-v1" in lines
    assert any(line.startswith("ok    extras ") and "[envpool] lacks envpool" in line for line in lines)
    assert "ok    SLURM           no sbatch on PATH: runs train on this machine" in lines
    assert any(line.startswith("ok    CPUs ") for line in lines)


def test_the_doctor_fails_where_a_package_is_out_of_its_range(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine_checks, "_PICTURES", {})
    monkeypatch.setattr(machine_checks, "usable_gpus", lambda _: [])
    assert machine_checks.main([]) == 0
    monkeypatch.setattr(machine_checks.required_packages, "missing", lambda dev: [("rich>=99", "15.0")])
    assert machine_checks.main([]) == 1
    assert "rich>=99 is asked for, and 15.0 is installed" in capsys.readouterr().out


def test_the_doctor_draws_wherever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`.venv/bin/sac` knows the package by its own line, which the processes that draw do not have."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert machine_checks._fault_of("import tfagents_system", "-1") == ""


def test_a_working_folder_that_is_gone_is_told(become: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    with pytest.raises(UserError, match="the folder in which sac status was called is gone: cd into one that exists"):
        command.main(["status"])


def test_a_package_in_pythonpath_hides_none_of_the_environments(tmp_path: Path) -> None:
    foreign = tmp_path / "dist-packages"
    for name in ("numpy", "msgspec"):
        (foreign / name).mkdir(parents=True)
        (foreign / name / "__init__.py").write_text("raise ImportError('of another Python')\n")
    done = sac("status", "nowhere", cwd=tmp_path, PYTHONPATH=f"{foreign}:{ROOT}")
    assert "nowhere does not exist: give a run directory" in done.stderr and done.returncode == 2


# Installed.


@pytest.mark.slow
def test_the_installed_package_trains(tmp_path: Path) -> None:
    """A wheel is all that it needs: no script and no file of the repository."""
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    tar = ["tar", "--null", "--ignore-failed-read", "-T", "-", "-cf", str(tmp_path / "source.tar")]
    subprocess.run(tar, cwd=ROOT, input=listed.stdout, check=True, capture_output=True)
    subprocess.run(["tar", "-xf", "source.tar", "-C", "source"], cwd=tmp_path, check=True)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), str(source)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options], check=True, capture_output=True, timeout=200)

    def there(*words: str) -> subprocess.CompletedProcess[str]:
        return sac(*words, cwd=tmp_path, PYTHONPATH=str(site))

    assert there("new", "first").returncode == 0
    params = tmp_path / "first/params.py"
    params.write_text(params.read_text().replace("100_000", "200"))
    done = there("train", "first/params.py", "--set", "SAC_REPORT=0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first is finished: num_env_steps=200 is reached" in done.stdout
    assert "first" in there("status", "logs/first").stdout
