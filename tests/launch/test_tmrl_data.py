"""~/TmrlData: what --install makes, how config.json is read, where its password goes; the commands for one machine."""

from __future__ import annotations

import json
import re
import stat
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from tfagents_system import tmrl
from tfagents_system.envs.racing.environment import RacingEnvironment
from tfagents_system.envs.reward_files import read_points
from tfagents_system.errors import EXIT_DONE, UserError
from tfagents_system.launch import tmrl_data
from tfagents_system.launch.tmrl_data import PARAMS, TmrlData
from tfagents_system.settings.load_params import load_params
from tfagents_system.settings.params_check import check_params
from tfagents_system.settings.tmrl_keys import default_config, read_keys
from tfagents_system.settings.tmrl_translation import translate

PASSWORD = "a password of mine"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TmrlData:
    monkeypatch.setenv("HOME", str(tmp_path))
    return TmrlData.of_user()


def write(data: TmrlData, config: Any) -> None:
    data.config_file.parent.mkdir(parents=True, exist_ok=True)
    data.config_file.write_text(config if isinstance(config, str) else json.dumps(config))


def test_install_makes_what_is_missing_and_keeps_the_rest(data: TmrlData, capsys: pytest.CaptureFixture[str]) -> None:
    assert tmrl.main(["--install"]) == EXIT_DONE
    out = capsys.readouterr().out
    assert str(data.root) in out and re.search(r", track closed/train/3, lap time \d+\.\d{3} s$", out, re.M)
    assert json.loads(data.config_file.read_text()) == default_config()
    assert len(data.password_file.read_text().strip()) == 32
    assert stat.S_IMODE(data.password_file.stat().st_mode) == 0o600
    for example in ("config_full.json", "config_lidar.json"):
        read_keys(json.loads((data.root / "resources" / example).read_text()), example)
    points = read_points(data.reward_file)
    assert len(points) > 3000 and np.linalg.norm(np.diff(points, axis=0), axis=1).max() < 0.11

    before = {path: path.read_bytes() for path in data.root.rglob("*") if path.is_file()}
    data.config_file.unlink()
    assert tmrl.main(["--install"]) == EXIT_DONE
    assert {path: path.read_bytes() for path in data.root.rglob("*") if path.is_file()} == before


def test_what_the_games_interface_reads_from_the_file_itself_is_told_of_config(
    data: TmrlData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no arguments for these: those of the file act, whatever --config says."""
    in_file = {"WINDOW_WIDTH": 300, "REWARD_CONFIG": {**default_config()["ENV"]["REWARD_CONFIG"], "MIN_STEPS": 5}}
    write(data, {**default_config(), "ENV": {**default_config()["ENV"], **in_file}})
    over = repr({"ENV": {"WINDOW_WIDTH": 300, "SLEEP_TIME_AT_RESET": 0.5, "REWARD_CONFIG": {"MIN_STEPS": 70}}})
    assert not any("reads it from" in line for line in data.load(over).translation.lines), "the car hears of them"
    monkeypatch.setattr(tmrl_data, "is_installed", lambda package: True)
    assert not any("reads it from" in line for line in data.load().translation.lines)
    told = [line for line in data.load(over).translation.lines if "reads it from" in line]
    assert told == [
        f"{path} of --config has no effect: the game's interface reads it from {data.config_file}, set it there"
        for path in ("ENV.SLEEP_TIME_AT_RESET", "ENV.REWARD_CONFIG.MIN_STEPS")
    ]


def test_the_password_moves_into_a_file_of_its_own(data: TmrlData) -> None:
    text = json.dumps(default_config(), indent=3).replace('"PASSWORD": ""', f'"PASSWORD" : "{PASSWORD}"')
    write(data, text)
    loaded = data.load()
    assert data.password_file.read_text() == f"{PASSWORD}\n"
    assert stat.S_IMODE(data.password_file.stat().st_mode) == 0o600
    assert data.config_file.read_text() == text.replace(PASSWORD, ""), "nothing else has changed"
    assert any(line.startswith("PASSWORD was moved") for line in loaded.translation.lines)
    assert not any(line.startswith("PASSWORD") for line in data.load().translation.lines)
    assert data.password_file.read_text() == f"{PASSWORD}\n", "an empty one is no other one"


def test_the_key_of_wandb_moves_into_a_file_of_its_own(data: TmrlData) -> None:
    write(data, {**default_config(), "WANDB_KEY": "0123abcd"})
    lines = data.load().translation.lines
    assert any(line.startswith("WANDB_KEY was moved") for line in lines) and not any("0123" in line for line in lines)
    assert data.wandb_key_file.read_text() == "0123abcd\n"
    assert stat.S_IMODE(data.wandb_key_file.stat().st_mode) == 0o600
    assert json.loads(data.config_file.read_text()) == default_config()
    assert not any(line.startswith("WANDB_KEY") for line in data.load().translation.lines)


def test_a_password_of_config_is_for_its_command_alone(data: TmrlData) -> None:
    data.install()
    before = data.config_file.read_text(), data.password_file.read_text()
    loaded = data.load(repr({"PASSWORD": f" {PASSWORD} "}))
    assert (data.config_file.read_text(), data.password_file.read_text()) == before
    assert loaded.secrets == {"PASSWORD": PASSWORD} and PASSWORD not in repr(loaded.secrets and loaded.translation)
    vars_file = data.root / "worker" / "car.v2.sh"
    own = data.secret_file("PASSWORD", loaded, vars_file)
    assert own == data.root / "worker" / "car.v2+password" and own.read_text() == f"{PASSWORD}\n"
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert data.secret_file("PASSWORD", data.load(), vars_file) == data.password_file, "the next command"
    assert data.secret_file("WANDB_KEY", loaded, vars_file) is None


def test_findings_of_file_and_option_come_together(data: TmrlData) -> None:
    write(data, '{"RUN_NAME": "x", // the name\n"PORT": 1}')
    with pytest.raises(UserError) as raised:
        data.load("{'PORTT': 3")
    comment, literal, *others = raised.value.findings
    assert comment.startswith(str(data.config_file)) and comment.endswith("JSON has no comments, remove it")
    assert "must be a Python literal" in literal
    assert not others

    write(data, {**default_config(), "BATCH_SIZE": 0})
    with pytest.raises(UserError) as raised:
        data.load("{'PORTT': 3}")
    assert [finding.split(": ")[1] for finding in raised.value.findings] == [
        "PORTT is no key of TMRL's guide",
        "BATCH_SIZE must be an integer of at least 1, found 0",
    ]
    assert not data.password_file.exists()


def test_without_a_file_the_remedy_is_told(data: TmrlData) -> None:
    with pytest.raises(UserError, match="can't be read .*: make it with --install"):
        data.load()


@pytest.mark.parametrize("interface", ["TM20FULL", "TM20LIDAR", "TM20LIDARPROGRESS"])
@pytest.mark.parametrize("algorithm", ["SAC", "REDQSAC"])
def test_what_is_translated_passes_the_checks_of_a_start(data: TmrlData, interface: str, algorithm: str) -> None:
    write(data, default_config())
    override = {"ENV": {"RTGYM_INTERFACE": interface}, "ALG": {"ALGORITHM": algorithm}}
    translation = data.load(repr(override)).translation
    params = load_params(PARAMS, translation.env_config, attributes=translation.attributes)
    assert check_params(params) == []
    assert params.asynchronous and params.discount == 0.995 and params.action_history == 2


def make(data: TmrlData, override: dict[str, Any]) -> Any:
    tmrl._recorded(data, translate(read_keys(default_config(), "")).env_config)
    write(data, default_config())
    translation = data.load(repr(override)).translation
    return load_params(PARAMS, translation.env_config, attributes=translation.attributes).env_ctor(seed=0)


def test_the_car_sees_and_gets_what_the_file_says(data: TmrlData) -> None:
    small = {"IMG_WIDTH": 32, "IMG_HEIGHT": 16, "IMG_GRAYSCALE": False}
    kwargs = {"RTGYM_CONFIG": {"interface_kwargs": {"real_time": False}}}
    env = make(data, {"ENV": {**small, **kwargs, "REWARD_CONFIG": {"CONSTANT_PENALTY": -1.0}}})
    try:
        observation, _ = env.reset(seed=0)
        assert {name: part.shape for name, part in observation.items()} == {"camera": (16, 32, 3), "motion": (4,)}
        assert isinstance(env.unwrapped, RacingEnvironment)
        _, reward, *_ = env.step(np.array([-1.0, 1.0, 0.0], np.float32))
        assert reward == -1.0, "it stands: no progress, only the penalty"
    finally:
        env.close()


def test_wall_time_is_what_the_file_says(data: TmrlData) -> None:
    clock = {"RTGYM_INTERFACE": "TM20LIDAR", "RTGYM_CONFIG": {"time_step_duration": 0.02}}
    env = make(data, {"ENV": {**clock, "REWARD_CONFIG": {"CONSTANT_PENALTY": -1.0}}})
    try:
        race = env.unwrapped
        assert race.real_time and race.metadata["render_fps"] == 50
        env.reset(seed=0)
        began = time.monotonic()
        steps = [env.step(np.array([-1.0, 1.0, 0.0], np.float32)) for _ in range(10)]
        assert time.monotonic() - began >= 9 * 0.02
        assert [step[1] for step in steps] == [-1.0] * 10, "the reward of the trajectory, along which it stands"
    finally:
        env.close()


def test_the_driver_knows_an_observation_whose_picture_was_made_smaller(data: TmrlData) -> None:
    kwargs = {"RTGYM_CONFIG": {"interface_kwargs": {"real_time": False}}}
    override = {"ENV": {"IMG_WIDTH": 32, **kwargs}}
    write(data, default_config())
    tmrl._recorded(data, translate(read_keys(default_config(), "")).env_config)
    translation = data.load(repr(override)).translation
    params = load_params(PARAMS, translation.env_config, attributes=translation.attributes)
    env, drive = params.env_ctor(seed=0), params.expert_policy_ctor()
    assert drive is not None
    observation, _ = env.reset(seed=0)
    gas, brake, _ = drive(observation)
    assert gas > 0.0 >= brake, "it starts"
    env.close()


def test_check_environment_prints_rewards_and_writes_pictures(
    data: TmrlData, capsys: pytest.CaptureFixture[str]
) -> None:
    tmrl.main(["--install"])
    override = {"ENV": {"RTGYM_CONFIG": {"ep_max_length": 25}}}
    assert tmrl.main(["--check-environment", f"--config={override}"]) == EXIT_DONE
    out = capsys.readouterr().out
    assert "step    25  reward" in out and "end: horizon after 25 steps" in out
    assert (data.root / "check_environment" / "step_0021_camera.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--instal"], "--instal is no option: --install is meant"),
        (["--check_environment", "--config={}"], "--check_environment is no option: --check-environment is meant"),
        (["--server", "--frsh", "--zzz=3"], "--frsh is no option: --fresh is meant; --zzz is no option: remove it"),
        (
            ["--install", "--config={'PORT': 5}"],
            "--config is no option of --install, which writes no values of yours: leave it out",
        ),
    ],
)
def test_a_misspelt_option_is_named_with_what_is_meant(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        tmrl.main(arguments)
    assert raised.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {words}\n")


@pytest.mark.parametrize(
    ("command", "keys"),
    [("server", ["TLS"]), ("trainer", ["CUDA_TRAINING"]), ("worker", []), ("benchmark", [])],
)
def test_a_line_about_a_key_comes_where_it_matters(
    data: TmrlData, command: str, keys: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> NoReturn:
        raise SystemExit(0)

    data.install()
    monkeypatch.setattr(tmrl_data, "usable_gpus", lambda environ: [])
    for name in ("server_start", "trainer_start"):
        monkeypatch.setattr(tmrl.tmrl_roles, name, end)
    monkeypatch.setitem(tmrl._COMMANDS, command, end)
    with pytest.raises(SystemExit):
        tmrl.main([f"--{command}"])
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == keys


@pytest.mark.parametrize("arguments", [[], ["--install", "--benchmark"], ["--conf={}"]])
def test_exactly_one_command(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        tmrl.main(arguments)
    assert raised.value.code == 2
