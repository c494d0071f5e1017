"""What a search may try: spaces of settings, shipped ones and written ones; and what is refused before it begins."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState, create_trial

from tests.support.login_node import be_on_login_node
from tfagents_system.errors import EXIT_DONE, UserError
from tfagents_system.launch import study as studies
from tfagents_system.launch.study import _keep_space, _space, open_study
from tfagents_system.settings.params_check import check_params
from tfagents_system.settings.search_spaces import SPACES, Range, Space, as_json, corners, read_space
from tfagents_system.train_params_base import TrainParamsBase

SPACE: Space = {"n_step": Range(1, 5), "discount": [0.9, 0.99]}


class Params(TrainParamsBase):
    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        raise AssertionError("not built here")


@pytest.mark.parametrize("algorithm", SPACES)
def test_settings_at_the_ends_of_shipped_spaces_are_right(algorithm: str) -> None:
    for settings in corners(SPACES[algorithm]):
        params = Params({"horizon": 100})
        params.algorithm = algorithm  # type: ignore[assignment]
        for name, value in settings.items():
            attribute, _, key = name.partition(".")
            assert hasattr(TrainParamsBase, attribute), name
            setattr(params, attribute, {**getattr(params, attribute), key: value} if key else value)
        assert check_params(params) == []


def test_a_space_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "space.json"
    path.write_text(as_json(SPACE))
    assert read_space(path) == SPACE
    assert _space("sac") is SPACES["sac"] and _space(str(path)) == SPACE


def test_all_that_is_wrong_with_a_space_is_told(tmp_path: Path) -> None:
    path = tmp_path / "space.json"
    wrong = {"a": [1], "b": {"low": 2, "high": 1}, "c": {"low": 0, "high": 1, "log": True}, "d": {"hi": 1}, "e": 3}
    path.write_text(json.dumps(wrong))
    with pytest.raises(UserError) as caught:
        read_space(path)
    assert [finding.split(": ")[1].split()[0] for finding in caught.value.findings] == list("abcde")
    with pytest.raises(UserError, match="JSON file, or one of sac"):
        _space("ppo")


def test_a_study_keeps_its_space(tmp_path: Path) -> None:
    _keep_space(tmp_path, SPACE)
    _keep_space(tmp_path, SPACE)
    with pytest.raises(UserError, match="has begun with another space"):
        _keep_space(tmp_path, {"n_step": Range(1, 6)})


@pytest.fixture
def user_folder(tmp_path: Path) -> Path:
    """With params, JSON and vars file of the run `a`."""
    (tmp_path / "p.py").write_text(
        "from tfagents_system.train_params_base import TrainParamsBase\n\n"
        "class TrainParams(TrainParamsBase):\n    def env_ctor(self, *args, **kwargs):\n        raise ValueError\n"
    )
    (tmp_path / "c.json").write_text('{"horizon": 50}')
    variables = "SAC_EXP_NAME=a SAC_PARAMS=p.py SAC_CONFIG=c.json SAC_REVERB_CPUS=1 SAC_TRAIN_CPUS=1 SAC_SHARE_CPUS=1"
    more = f" SAC_NUM_COLLECT_WORKERS=1 SAC_COLLECT_WORKER_CPUS=1 SAC_LOGS_DIR={tmp_path} SAC_ALLOW_LOGIN=1"
    (tmp_path / "vars.sh").write_text("\n".join((variables + more).split()) + "\n")
    return tmp_path


def test_a_shipped_space_is_printed_as_json_to_edit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """For `--set learn_entropy_coef=false`: the space has an attribute without effect then."""
    with pytest.raises(SystemExit) as ended:
        studies.main(["--show_space", "sac"])
    assert ended.value.code == 0
    space = json.loads(capsys.readouterr().out)
    for name in (None, "alpha_learning_rate"):
        space.pop(name, None)
        (tmp_path / "space.json").write_text(json.dumps(space))
        assert read_space(tmp_path / "space.json") == {k: v for k, v in SPACES["sac"].items() if k != name}


@pytest.fixture
def study(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Starts a study of two values of `discount` without running its trials."""
    monkeypatch.setattr(studies, "_search", lambda *_: EXIT_DONE)
    (user_folder / "space.json").write_text('{"discount": [0.9, 0.99]}')
    command = [str(user_folder / "vars.sh"), "--space", str(user_folder / "space.json")]
    return lambda *words: studies.main([*command, *words])


def test_on_a_login_node_a_study_is_to_be_submitted(
    user_folder: Path, study: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    vars_file = user_folder / "vars.sh"
    vars_file.write_text(vars_file.read_text().replace("SAC_ALLOW_LOGIN=1", ""))
    be_on_login_node(user_folder / "tools", monkeypatch)
    with pytest.raises(UserError, match="submits to a SLURM cluster, and this is no job: add --slurm"):
        study()
    assert not (user_folder / "a_study").exists()
    monkeypatch.setattr(studies, "_submit", lambda *_: 3)
    assert study("--slurm") == 3


def test_trials_of_a_job_array_ask_for_the_same_and_have_the_same_files(
    user_folder: Path, study: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    space = user_folder / "space.json"
    workers = {"low": 1, "high": 2}
    (user_folder / "b.json").write_text('{"horizon": 50}')
    space.write_text(json.dumps({"SAC_NUM_COLLECT_WORKERS": workers, "SAC_CONFIG": ["c.json", "b.json"]}))
    monkeypatch.setattr(studies, "queued_trials", lambda _: set())

    def is_refused(*words: str) -> None:
        with pytest.raises(UserError) as raised:
            study("--slurm", *words)
        assert [finding.partition(" in a job array")[0] for finding in raised.value.findings] == [
            f"--space {space}: SAC_NUM_COLLECT_WORKERS can't be", f"--space {space}: SAC_CONFIG can't be",
        ]  # fmt: skip

    for words in ((), ("--dry_run",)):
        is_refused(*words)
        assert not (user_folder / "a_study").exists(), "it has not begun with such a space"
    assert study("--trials", "1") == EXIT_DONE, "on one machine each trial has its own"
    is_refused("--trials", "1")
    done = create_trial(state=TrialState.COMPLETE, value=5.0)
    open_study(user_folder / "a_study", "none", 1).add_trial(done)
    capsys.readouterr()
    assert study("--trials", "1", "--slurm") == EXIT_DONE, "nothing is left to submit"
    assert "1 trials have a value" in capsys.readouterr().out
    is_refused("--trials", "2", "--dry_run")
    monkeypatch.setattr(studies, "queued_trials", lambda _: {1})
    assert study("--trials", "2", "--slurm") == EXIT_DONE
    assert "1 trials wait in the queue, none is left to submit" in capsys.readouterr().out


def test_settings_that_no_run_can_have_are_refused_before_anything_starts(user_folder: Path) -> None:
    tmp_path = user_folder
    (tmp_path / "space.json").write_text('{"discount": {"low": 0.5, "high": 2.0}, "n_steps": [1, 2]}')
    with pytest.raises(UserError) as caught:
        studies.main([str(tmp_path / "vars.sh"), "--space", str(tmp_path / "space.json")])
    text = "\n".join(caught.value.findings)
    assert "n_steps" in text and "n_step" in text
    assert not list(tmp_path.glob("a_*"))
