"""A user's folder with params, and starts of a run with it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

import pytest

from tests.support.prepared_runs import try_in_this_process
from tests.support.starts_of_a_project import PARAMS, ROOT, Start, Starter, load_only
from tfagents_system.errors import exit_with
from tfagents_system.launch import prepare


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "models").mkdir(parents=True)
    (folder / "params.py").write_text(PARAMS)
    (folder / "mass_of_robot.py").write_text("MASS = 1\n")
    (folder / "models/robot.xml").write_text("<robot/>")
    (folder / "config.json").write_text('{"horizon": 20}')
    return folder


@pytest.fixture
def environ(project: Path, tmp_path: Path) -> dict[str, str]:
    counts = ("SAC_REVERB_CPUS", "SAC_TRAIN_CPUS", "SAC_NUM_COLLECT_WORKERS", "SAC_COLLECT_WORKER_CPUS")
    files = {"SAC_PARAMS": str(project / "params.py"), "SAC_CONFIG": str(project / "config.json")}
    run = {"SAC_EXP_NAME": "try", "SAC_EXP_DIR": str(tmp_path / "run"), "SAC_SHARE_CPUS": "1"}
    return {**os.environ, **dict.fromkeys(counts, "1"), **files, **run, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def start(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Starter:
    """A start up to where the supervisor would begin, as run_script.sh makes it; tries the environment if asked to."""

    def run(*options: str, tries: bool = False, **variables: str) -> Start:
        monkeypatch.setattr("sys.argv", ["prepare", *options])
        monkeypatch.delitem(sys.modules, "mass_of_robot", raising=False)
        monkeypatch.setattr("sys.path", list(sys.path))
        capsys.readouterr()
        given = {**environ, **variables}
        with mock.patch.dict(os.environ, given, clear=True), monkeypatch.context() as patch:
            try_in_this_process(patch)
            if not tries:
                patch.setattr(prepare, "run_trial", load_only)
            with pytest.raises(SystemExit) as ended:
                exit_with(lambda: prepare.main())
        told = capsys.readouterr()
        return Start(int(ended.value.code or 0), told.out + told.err)

    return run
