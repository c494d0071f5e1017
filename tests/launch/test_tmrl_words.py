"""What launchers say of a run of TMRL's front, in the words of config.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.tmrl_folders import installed_in
from tfagents_system import tmrl
from tfagents_system.errors import TERMS, in_callers_terms, print_findings
from tfagents_system.launch import tmrl_roles
from tfagents_system.launch.prepare import tell_finished
from tfagents_system.launch.tmrl_data import TmrlData
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.remote import credentials
from tfagents_system.transport.remote.admission import Admission, RefusedClientError
from tfagents_system.transport.remote.messages import PROTOCOL, Hello


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TmrlData:
    return installed_in(tmp_path, monkeypatch)


def test_the_launchers_messages_have_the_words_of_config_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TERMS, json.dumps(tmrl_roles.TERMS))
    paths = RunPaths(tmp_path / "car")
    paths.exp_dir.mkdir()
    paths.run_json.write_text(json.dumps({"num_iter": 25}))
    tell_finished("car", paths)
    said = capsys.readouterr().out
    assert "choose another RUN_NAME for a new run, or go on with this one with a larger MAX_EPOCHS or ROUNDS" in said
    assert "SAC_" not in said and "--set" not in said

    admission = Admission({}, "a password of mine")
    with pytest.raises(RefusedClientError) as raised:
        admission.check(Hello("collect", {}, protocol=PROTOCOL))
    print_findings([str(raised.value), "SAC_EXP_NAME=x, MY_SAC_EXP_NAME and SAC_EXP_NAMES"])
    password, names = capsys.readouterr().err.splitlines()
    assert password.endswith(
        "none was given: copy config/password of the server's TmrlData to config/password of this one"
    )
    assert names == "error: RUN_NAME=x, MY_SAC_EXP_NAME and SAC_EXP_NAMES"
    folder = tmp_path / "credentials"
    folder.mkdir()
    (lacks,) = credentials.check_credentials(folder, credentials.CLIENT)
    assert in_callers_terms(lacks).endswith("copy the files in credentials/client of the server's TmrlData")
    monkeypatch.delenv(TERMS)
    assert in_callers_terms(lacks) == lacks


def test_a_launcher_is_told_these_words(data: TmrlData, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[dict[str, str]] = []

    def become(*command: Any) -> None:
        became.append(dict(os.environ))
        raise SystemExit(0)

    monkeypatch.setenv(TERMS, "")
    monkeypatch.setenv("SAC_PYTHON", "python")
    monkeypatch.setattr(os, "execvp", become)
    with pytest.raises(SystemExit):
        tmrl.main(["--server", "--config={'RUN_NAME': 'car'}"])
    assert json.loads(became[0][TERMS]) == tmrl_roles.TERMS
