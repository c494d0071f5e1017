"""A user's code runs in a fork: what hangs or crashes is one finding beside the others."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from tests.support.prepared_runs import PARAMS, prepare_run, train
from tests.support.start_in_fork import start_in_fork
from tfagents_system.checks.findings import Findings
from tfagents_system.launch import prepare, trial
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import Settings
from tfagents_system.settings.variables import read_variables


def test_inputs_that_cannot_be_read_are_told_without_tensorflow(environ: dict[str, str], tmp_path: Path) -> None:
    def can_be_read(environ: dict[str, str]) -> bool:
        return trial._can_be_read(read_variables(environ, vars_file=None, root=tmp_path)[0])

    assert can_be_read(environ)
    (tmp_path / "config.json").write_text("{")
    assert not can_be_read(environ)
    (tmp_path / "config.json").write_text('{"horizon": 20}')
    (tmp_path / "params.py").write_text("def broken(:\n")
    assert not can_be_read(environ)
    (tmp_path / "params.py").write_text(PARAMS)
    assert not can_be_read({k: v for k, v in environ.items() if k != "SAC_PARAMS"})


def test_modules_of_which_the_run_has_no_copy_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / name for name in ("arm/params.py", "arm/beside.py", "mine/crane_env.py", "mine/crane_rope.py")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
    inspector = trial.Inspector(Mock(values={"params": files[0]}, copy=None, run_before=None))
    for name, file in {"beside": files[1], "minari_of_a_package": tmp_path / "site-packages/minari.py"}.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
        monkeypatch.setitem(sys.modules, name, Mock(__file__=str(file)))
    assert [*inspector._imported_outside()] == []
    for file in files[2:]:
        monkeypatch.setitem(sys.modules, file.stem, Mock(__file__=str(file)))
    (told,) = inspector._imported_outside()
    assert told.startswith(f"the run has no copy of {files[2]} and 1 more, imported from outside the folder of params")
    assert told.endswith(f"Move what you edit into {tmp_path}/arm")
    assert [*trial.Inspector(inspector._start)._imported_outside()] == [], "what was imported before is not the user's"


def error_of(call: Callable[[], object]) -> str:
    findings = Findings()
    with trial.told(findings, "environment", "the collect environment"):
        call()
    return findings.errors[0]


def test_the_remedy_names_whose_code_is_to_be_corrected() -> None:
    assert error_of(lambda: 1 / 0).endswith("): correct it")
    assert error_of(lambda: __import__("crane_env")).endswith(": correct it")
    missing = Mock(side_effect=ModuleNotFoundError("No module named 'ale_py'", name="ale_py"))
    assert error_of(missing).endswith(" ale_py` installs it")
    with patch.object(trial, "is_users", return_value=False):
        assert error_of(lambda: 1 / 0).endswith(": correct the hook of TrainParams")


HANG_IN_IMPORT = "import time; mark(); time.sleep(1000)"
HANG_IN_RESET = """
class Hanging(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,))
    def reset(self, seed=None, options=None):
        import time
        mark()
        time.sleep(1000)
TrainParams.env_ctor = lambda self, **kwargs: Hanging()
"""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            HANG_IN_RESET,
            "reset() of the collect environment has not returned for {secs} s: correct it, or raise SAC_STEP_TIM",
        ),
        (HANG_IN_IMPORT, "params.py has not returned for {secs} s"),
    ],
    ids=["reset", "import"],
)
def test_code_that_hangs_ends_as_a_finding_beside_the_others(
    environ: dict[str, str], tmp_path: Path, code: str, told: str
) -> None:
    hangs = tmp_path / "hangs"
    mark = f"TrainParams.discount = 2\ndef mark():\n    open({str(hangs)!r}, 'w').close()\n"
    (tmp_path / "params.py").write_text(PARAMS + mark + code)
    (tmp_path / "config.json").write_text('{"horizon": 20, "curriculum": 3}')
    for secs in (1, 4, 16):  # On a busy machine what does not hang may take so long as well.
        began = time.monotonic()
        done = start_in_fork(environ | {"SAC_STEP_TIMEOUT_SECS": str(secs)}, build_secs=float(secs))
        if hangs.exists():
            break
    assert time.monotonic() - began < 30.0 * secs
    text = "\n".join(done.findings)
    assert told.format(secs=secs) in text and '"curriculum" must be an object' in text
    assert ("discount" in text) == (code != HANG_IN_IMPORT)
    assert not (tmp_path / "run").exists() and done.left == 0


def test_a_crash_is_told_with_the_place_and_all_that_was_found_before(environ: dict[str, str], tmp_path: Path) -> None:
    crash = "import os\nTrainParams.discount = 2\nTrainParams.env_ctor = lambda self, **k: os.kill(os.getpid(), 11)"
    (tmp_path / "params.py").write_text(PARAMS + crash)
    findings = start_in_fork(environ).findings
    assert [finding[:24] for finding in findings] == ["TrainParams.discount mus", "the process died with SI"]
    assert "SIGSEGV in building the collect environment" in findings[1]
    (tmp_path / "params.py").write_text(PARAMS + "import os\nos._exit(0)")
    (finding,) = start_in_fork(environ).findings
    assert re.search(r"died with exit code 0 in importing .*params\.py", finding)


def test_a_check_tells_all_that_it_looked_at_and_writes_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    """A user's code runs in a fork: the process that forks it keeps one thread, and runs no TensorFlow operation."""
    (tmp_path / "params/params.py").parent.mkdir()
    tells = f"\nimport os\nwith open({str(tmp_path / 'pid')!r}, 'w') as file:\n    file.write(str(os.getpid()))\n"
    (tmp_path / "params/params.py").write_text(PARAMS + tells)
    own = {"SAC_PARAMS": str(tmp_path / "params/params.py")}
    done = start_in_fork(environ | own, check=True, tell_secs=0.1)
    assert (done.code, done.left, done.threads, done.is_untouched) == (0, 0, 1, True), done.err
    assert int((tmp_path / "pid").read_text()) not in (os.getpid(), done.pid)
    assert "checks: measuring updates of the agent, " in done.err, "as it takes more than two seconds"
    lines = done.out.splitlines()
    looked_at = ["variables", "run directory", "CPUs", "packages", "params folder"]
    looked_at += ["config", "params", "environment", "episode", "reset and step", "evaluation", "agent"]
    looked_at += ["duration", "seeding", "rendering", "disk", "memory"]
    assert list(dict.fromkeys(line[6:22].strip() for line in lines[:-1])) == looked_at
    (duration,) = [line for line in lines if line.startswith("ok    duration")]
    assert "about " in duration and " updates/s; " in duration and "the time" in duration
    assert lines[-1].startswith("0 errors, ") and lines[-1].endswith("ready to start")
    assert not (tmp_path / "run").exists()


def test_without_a_horizon_a_run_has_the_environments_time_limit(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    limited = "TrainParams.env_ctor = lambda self, **kwargs: gymnasium.make('Pendulum-v1', max_episode_steps=12)\n"
    (tmp_path / "params.py").write_text(PARAMS + limited)
    assert prepare_run(environ)
    paths = RunPaths(tmp_path / "run")
    settings = Settings.read(paths.run_json)
    assert settings.config == {"horizon": 12} and settings.overrides.merged({}) == {"horizon": 12}
    assert settings.overrides.attributes.keys().isdisjoint({"horizon"}) and settings.overrides.settings() == {}
    train(paths)
    assert prepare_run(environ)
    assert Settings.read(paths.run_json).config == {"horizon": 12}, "it continues with it"


def test_a_job_that_is_submitted_is_checked_but_for_its_machine(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = environ | {"SAC_TRAIN_CPUS": "500", "SAC_SHARE_CPUS": "0", "SAC_TRAIN_GPUS": "1"}
    elsewhere["SAC_REPLAY_DIR"] = "/proc/1/scratch of the node"
    (tmp_path / "run").mkdir()
    with RunLock(RunPaths(tmp_path / "run")):  # Such as a run that the job will continue with.
        assert prepare.check(elsewhere | {"TFAGENTS_JOB_MB": "4096"}, None) == 0
        report = capsys.readouterr().out
        assert "4.0 GiB of the job's memory are available" in report and "Pendulum-v1" in report
        assert prepare.check(elsewhere | {"TFAGENTS_JOB_MB": ""}, None) == 0
        assert "ok    memory" not in capsys.readouterr().out, "it is as the cluster has it"
        assert prepare.check(elsewhere | {"TFAGENTS_JOB_MB": "100"}, None) == 2
        assert "100 MiB of the job's memory are available" in capsys.readouterr().out
        assert prepare.check(elsewhere, None) == 2
        assert "SAC_REPLAY_DIR" in capsys.readouterr().out
        del elsewhere["SAC_REPLAY_DIR"]
        assert prepare.check(elsewhere, None) == 2
        report = capsys.readouterr().out
        assert "SAC_TRAIN_CPUS=500" in report and "there is no GPU" in report
        assert f"is in use by the run with pid {os.getpid()}" in report
