"""What a run of TMRL's front is refused for, in the words of config.json."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tmrl_folders import installed_in
from tfagents_system import tmrl
from tfagents_system.errors import TERMS, UserError, in_callers_terms, print_findings
from tfagents_system.launch import tmrl_edits, tmrl_roles
from tfagents_system.launch.early_answers import tell_finished
from tfagents_system.launch.tmrl_data import TmrlData
from tfagents_system.launch.tmrl_roles import server_start
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.overrides import Overrides
from tfagents_system.transport.remote import credentials
from tfagents_system.transport.remote.admission import Admission, RefusedClientError
from tfagents_system.transport.remote.messages import PROTOCOL, Hello

Begin = Callable[..., RunPaths]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TmrlData:
    return installed_in(tmp_path, monkeypatch)


def start(data: TmrlData, edits: str | None = None, **changes: Any) -> tuple[str, ...]:
    loaded = data.load(repr({"RUN_NAME": "car", **changes}))
    return server_start(data, loaded, edits).arguments


@pytest.fixture
def begin(data: TmrlData) -> Begin:
    """Starts a run, and lets it begin with what its launcher was given."""

    def make(**changes: Any) -> RunPaths:
        start(data, **changes)
        paths = RunPaths(data.root / "server" / "car")
        (paths.trainer_checkpoints / "checkpoint_0000000020").mkdir(parents=True, exist_ok=True)
        paths.run_json.write_text("{}")
        paths.overrides.write_text(
            Overrides(params=data.load(repr({"RUN_NAME": "car", **changes})).translation.attributes).to_json()
        )
        shutil.copy(paths.exp_dir.with_name("car.json"), paths.config)
        return paths

    return make


def findings(data: TmrlData, edits: str | None = None, **changes: Any) -> list[str]:
    try:
        start(data, edits, **changes)
    except UserError as error:
        return list(error.findings)
    return []


def test_a_change_that_a_run_does_not_take_is_told_by_its_key(data: TmrlData, begin: Begin) -> None:
    begin()
    assert findings(data) == []
    longer = {"IMG_HIST_LEN": 8, "RTGYM_CONFIG": {"ep_max_length": 500}}
    assert findings(data, ENV=longer) == [
        "ENV.IMG_HIST_LEN is 8, and car began with 4: set it back, choose another RUN_NAME, set RESET_TRAINING to true "
        "for a new agent, or give --fresh to start over",
        "ENV.RTGYM_CONFIG.ep_max_length is 500, and car began with 1000: set it back, choose another RUN_NAME, set "
        "RESET_TRAINING to true for a new agent, give --keep to go on with 1000, --take_edits with 500, or --fresh to "
        "start over",
    ]
    (agent,) = findings(data, "keep", ENV=longer)
    assert agent.startswith("ENV.IMG_HIST_LEN is 8"), "an option is about the environment alone"
    assert findings(data, "fresh", ENV={"IMG_HIST_LEN": 8}) == []


def test_two_keys_that_mean_something_together_are_told(data: TmrlData, begin: Begin) -> None:
    """The longest episode is the smaller of two: either one alone changes nothing."""
    begin()
    shorter: Any = {"RW_MAX_SAMPLES_PER_EPISODE": 400, "ENV": {"RTGYM_CONFIG": {"ep_max_length": 400}}}
    one, other = findings(data, **shorter)
    assert one.startswith("RW_MAX_SAMPLES_PER_EPISODE is 400, and car began with 1000: set it back")
    assert other.startswith("ENV.RTGYM_CONFIG.ep_max_length is 400, and car began with 1000: set it back")
    more = {"MAX_EPOCHS": 20_000, "ENV": {"RTGYM_CONFIG": {"ep_max_length": 400}, "SLEEP_TIME_AT_RESET": 9.0}}
    assert [each.split()[0] for each in findings(data, **shorter | more)] == [
        "RW_MAX_SAMPLES_PER_EPISODE",
        "ENV.RTGYM_CONFIG.ep_max_length",
    ], "the others have nothing to do with it"
    assert findings(data, "take", **shorter) == []
    assert findings(data, RW_MAX_SAMPLES_PER_EPISODE=2000) == []


def test_what_may_change_or_is_of_a_machine_is_no_finding(data: TmrlData, begin: Begin) -> None:
    begin()
    assert findings(data, MAX_EPOCHS=20_000, PORT=7001, NB_WORKERS=3, MAX_TRAINING_STEPS_PER_ENVIRONMENT_STEP=2.0) == []


def test_a_start_that_was_refused_later_does_not_change_what_a_run_began_with(data: TmrlData, begin: Begin) -> None:
    begin()
    start(data, RESET_TRAINING=True, ENV={"IMG_HIST_LEN": 8})  # Its launcher refuses something else.
    assert findings(data) == []
    paths = begin(RESET_TRAINING=True, ENV={"IMG_HIST_LEN": 8})
    assert findings(data, ENV={"IMG_HIST_LEN": 8}) == []
    (finding,) = findings(data)
    assert finding.startswith("ENV.IMG_HIST_LEN is 4, and car began with 8")
    tmrl_edits._file(paths).unlink()
    assert findings(data) == [], "of a run from before there was the file, the launcher refuses it"


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
