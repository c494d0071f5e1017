"""~/TmrlData, and what each command of TMRL's starts there."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.ports import free_port
from tfagents_system import run
from tfagents_system.errors import EXIT_DONE, TERMS, UserError, in_callers_terms
from tfagents_system.examples.racing.environment import RacingEnvironment
from tfagents_system.examples.racing.trajectory_reward import read_points
from tfagents_system.machine.claims import COLLECT, EXPERT, TEST
from tfagents_system.settings.load_params import load_params
from tfagents_system.settings.params_check import check_params
from tfagents_system.settings.variables import RunVariables, read_variables
from tfagents_system.tmrl import __main__ as tmrl
from tfagents_system.tmrl.keys import DEFAULT_CONFIG, Config, read_keys
from tfagents_system.transport import credentials

PASSWORD = "a password of mine"
SIMULATED = {"ENV": {"RTGYM_INTERFACE": "TM20LIDAR", "RTGYM_CONFIG": {"interface_kwargs": {"real_time": False}}}}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one; returns its TmrlData."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tmrl, "DATA", tmp_path / "TmrlData")
    return tmp_path / "TmrlData"


@pytest.fixture
def data(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed one, with a reward that nobody reads, and a server that answers at once."""
    (home / "reward").mkdir(parents=True)
    (home / "reward" / "reward.npz").write_bytes(b"recorded")
    assert tmrl.install() == EXIT_DONE
    monkeypatch.setattr(tmrl.socket, "create_connection", lambda *_, **options: socket.socket())
    return home


def load(**changes: Any) -> Config:
    return tmrl.load(repr({"RUN_NAME": "car", **changes}))


def params_of(config: Config) -> Any:
    return load_params(tmrl.PARAMS, config.env_config, attributes=config.attributes)


def variables_of(command: list[str], **given: str) -> dict[str, str]:
    """What a shell takes from the vars file."""
    done = subprocess.run(
        ["bash", "-euc", f"set -a; source {command[2]}; env"],
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if line.startswith(("SAC_", "WANDB_")))


def read(command: list[str]) -> RunVariables:
    return RunVariables(**read_variables(variables_of(command), vars_file=Path(command[2]), root=tmrl.ROOT.parent)[0])


def settings_of(command: list[str]) -> dict[str, Any]:
    given = [word.removeprefix("--set=").partition("=") for word in command if word.startswith("--set=")]
    return {name: json.loads(text) for name, _, text in given}


def test_install_makes_what_is_missing_and_keeps_the_rest(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tmrl.main(["--install"]) == EXIT_DONE
    out = capsys.readouterr().out
    assert str(home) in out and re.search(r", track closed/train/3, lap time \d+\.\d{3} s$", out, re.M)
    assert json.loads((home / "config" / "config.json").read_text()) == DEFAULT_CONFIG
    for name in ("config.json", "password"):  # Both have secrets.
        assert stat.S_IMODE((home / "config" / name).stat().st_mode) == 0o600
    for example in ("config_full.json", "config_lidar.json"):
        read_keys(json.loads((home / "resources" / example).read_text()), example)
    points = read_points(str(home / "reward" / "reward.npz"))
    assert len(points) > 3000 and np.linalg.norm(np.diff(points, axis=0), axis=1).max() < 0.11

    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    (home / "config" / "config.json").unlink()
    assert tmrl.main(["--install"]) == EXIT_DONE
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_a_broken_file_and_a_missing_one_are_told(data: Path) -> None:
    file = data / "config" / "config.json"
    file.write_text('{"RUN_NAME": "x", // the name\n"PORT": 1}')
    with pytest.raises(UserError, match="JSON has .* no comments"):
        tmrl.load()
    file.unlink()
    with pytest.raises(UserError, match="can't be read .*: make it with --install"):
        tmrl.load()


@pytest.mark.parametrize("interface", ["TM20FULL", "TM20LIDAR", "TM20LIDARPROGRESS"])
@pytest.mark.parametrize("algorithm", ["SAC", "REDQSAC"])
def test_what_is_translated_passes_the_checks_of_a_start(data: Path, interface: str, algorithm: str) -> None:
    params = params_of(load(ENV={"RTGYM_INTERFACE": interface}, ALG={"ALGORITHM": algorithm}))
    assert check_params(params) == []
    assert params.asynchronous and params.discount == 0.995 and params.action_history == 2
    assert params.frame_stack == {"camera" if interface == "TM20FULL" else "lidar": 4}


def test_the_server_has_neither_trainer_nor_workers(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load(PORT=7001, LOCAL_PORT_SERVER=7002, NB_WORKERS=3)
    command = tmrl.server_command(config)
    start = read(command)
    assert (start.gateway_port, start.reverb_port, start.max_workers) == (7001, 7002, 3)
    assert (start.local_trainer, start.local_workers, start.num_collect_workers) == (False, 0, 1)
    assert start.exp_dir == data / "server" / "car" and start.params == tmrl.PARAMS
    assert start.password_file == data / "config" / "password"
    assert json.loads(start.config.read_text()) == config.env_config
    assert Path(command[1]).name == "run_script.sh" and settings_of(command) == config.attributes
    folder = data / "credentials"
    assert credentials.check_credentials(folder) == []
    assert f"scp {folder}/* HOST:TmrlData/credentials/" in capsys.readouterr().out
    key = (folder / credentials.KEY).read_bytes()
    tmrl.server_command(config)
    assert (folder / credentials.KEY).read_bytes() == key, "good ones stay"
    assert variables_of(command, SAC_REVERB_CPUS="3", SAC_EXP_NAME="x")["SAC_REVERB_CPUS"] == "3", "of this machine"


def test_the_trainer_and_workers_join_it(data: Path) -> None:
    tmrl.server_command(load(PORT=7001))
    trainer = tmrl.trainer_command(load(PORT=7001))
    start = read(trainer)
    assert start.trainer_server == "127.0.0.1:7001" and start.exp_dir == data / "trainer" / "car"
    assert start.gateway_port is None and start.wandb is None
    away = load(PORT=7001, LOCALHOST_WORKER=False, PUBLIC_IP_SERVER="node7")
    worker = tmrl.worker_command(away, COLLECT)
    assert Path(worker[1]).name == "join_script.sh"
    assert worker[-6:] == ["--server", "node7:7001", "--workers", "1", "--role", "collect"]
    joined = variables_of(worker)
    assert joined["SAC_CREDENTIALS_DIR"] == str(data / "credentials")
    assert joined["SAC_PASSWORD_FILE"] == str(data / "config" / "password")
    assert settings_of(worker) == settings_of(trainer), "what is compared when it joins"
    assert Path(joined["SAC_CONFIG"]).read_bytes() == start.config.read_bytes()
    with pytest.raises(UserError, match="LOCALHOST_WORKER is false, so PUBLIC_IP_SERVER must be the server's address"):
        tmrl.worker_command(load(LOCALHOST_WORKER=False), COLLECT)


def test_wandb_gets_the_key_in_a_file_of_its_own_and_may_be_offline(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmrl.server_command(load())
    command = tmrl.trainer_command(load(WANDB_ENTITY="me", WANDB_KEY="0123abcd"), has_wandb=True)
    told = variables_of(command)
    assert [told[f"WANDB_{name}"] for name in ("PROJECT", "ENTITY", "API_KEY")] == ["tmrl", "me", "0123abcd"]
    assert read(command).wandb == "online" and "0123abcd" not in Path(command[2]).read_text(), "others may read that"
    assert stat.S_IMODE((data / "trainer" / "car+wandb_key").stat().st_mode) == 0o600
    monkeypatch.setenv("SAC_WANDB", "offline")
    command = tmrl.trainer_command(load(), has_wandb=True)
    assert read(command).wandb == "offline" and "WANDB_API_KEY" not in variables_of(command)


def test_a_gpu_is_used_where_there_is_one(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tmrl.server_command(load())
    for gpus, wanted, told in ([["0"], True, False], [[], True, True], [["0"], False, False]):
        monkeypatch.setattr(tmrl.cpus, "usable_gpus", lambda environ, gpus=gpus: gpus)
        capsys.readouterr()
        variables = variables_of(tmrl.trainer_command(load(CUDA_TRAINING=wanted)))
        assert ("SAC_TRAIN_GPUS" in variables) == (bool(gpus) and wanted)
        assert ("CUDA_TRAINING" in capsys.readouterr().out) == told


def test_kinds_of_workers_have_files_of_their_own(data: Path) -> None:
    tmrl.server_command(load(**SIMULATED))
    policy = data / "weights" / "car"
    policy.mkdir(parents=True)
    commands = [tmrl.worker_command(load(**SIMULATED), kind) for kind in (COLLECT, EXPERT, TEST)]
    assert [Path(command[2]).name for command in commands] == ["car.sh", "car+expert.sh", "car+test.sh"]
    experts = [variables_of(command).get("SAC_EXPERT_POLICY") for command in commands]
    assert experts == [None, str(policy), None]
    assert len({variables_of(command)["SAC_CONFIG"] for command in commands}) == 3


def test_an_expert_needs_a_policy_unless_the_driver_drives(data: Path) -> None:
    tmrl.server_command(load())
    with pytest.raises(UserError, match='--expert needs a policy: copy .* with "interface_kwargs": {"real_time": fal'):
        tmrl.worker_command(load(), EXPERT)
    assert "SAC_EXPERT_POLICY" not in variables_of(tmrl.worker_command(load(**SIMULATED), EXPERT))
    trained = data / "trainer" / "car" / "policies" / "greedy_policy"
    trained.mkdir(parents=True)
    assert variables_of(tmrl.worker_command(load(), EXPERT))["SAC_EXPERT_POLICY"] == str(trained)


def test_a_password_of_config_reaches_its_command_alone(data: Path) -> None:
    before = (data / "config" / "password").read_text()
    tmrl.server_command(load())
    given = load(PASSWORD=f" {PASSWORD} ")
    for part, command in (("server", tmrl.server_command(given)), ("worker", tmrl.worker_command(given, COLLECT))):
        own = data / part / "car+password"
        assert variables_of(command)["SAC_PASSWORD_FILE"] == str(own) and own.read_text() == f"{PASSWORD}\n"
        assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert (data / "config" / "password").read_text() == before
    command = tmrl.server_command(load())
    assert variables_of(command)["SAC_PASSWORD_FILE"] == str(data / "config" / "password")


@pytest.mark.parametrize("start", [tmrl.trainer_command, functools.partial(tmrl.worker_command, kind=COLLECT)])
def test_the_server_of_this_machine_makes_the_credentials_while_it_is_waited_for(
    home: Path, start: Callable[[Config], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "reward").mkdir(parents=True)
    (home / "reward" / "reward.npz").write_bytes(b"recorded")
    tmrl.install()
    config, waits = load(PORT=free_port()), list[float]()

    def sleep(secs: float) -> None:
        waits.append(secs)
        if len(waits) == 2:
            tmrl.server_command(config)
            listening.append(socket.create_server(("127.0.0.1", config.values["PORT"])))

    listening: list[socket.socket] = []
    monkeypatch.setattr(tmrl.time, "sleep", sleep)
    assert variables_of(start(config))["SAC_EXP_NAME"] == "car" and len(waits) == 2
    listening[0].close()
    monkeypatch.setattr(tmrl, "WAIT_SECS", 5)
    with pytest.raises(UserError, match="has not answered: start --server, or correct its address"):
        start(config)


def test_credentials_of_another_machine_are_copied_as_files(data: Path, tmp_path: Path) -> None:
    away = load(LOCALHOST_TRAINER=False, LOCALHOST_WORKER=False, PUBLIC_IP_SERVER="node7")
    with pytest.raises(UserError, match="no credentials for the server at node7: start --server once, and copy"):
        tmrl.trainer_command(away)
    credentials.make_credentials(tmp_path / "elsewhere", "car")
    shutil.copytree(tmp_path / "elsewhere", data / "credentials", dirs_exist_ok=True)
    assert "node7:55555" in tmrl.worker_command(away, COLLECT)


def test_training_is_reset_where_there_is_something_to_reset(data: Path) -> None:
    reset = load(RESET_TRAINING=True)
    assert "--fresh" not in tmrl.server_command(reset)
    paths = tmrl.paths_of(reset, tmrl.SERVER)
    (paths.trainer_checkpoints / "checkpoint_0000000020").mkdir(parents=True)
    paths.run_json.write_text("{}")
    command = tmrl.server_command(reset)
    assert {"--fresh", "--from", str(paths.exp_dir), "--take", "replay"} <= set(command), (
        "its new run has this one's ring"
    )
    assert "--fresh" not in tmrl.trainer_command(reset)
    assert "--fresh" not in tmrl.server_command(load())


def test_what_was_trained_here_is_played_here(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[list[str]] = []

    def play(arguments: list[str]) -> int:
        played.append(arguments)
        return EXIT_DONE

    monkeypatch.setattr(run, "main", play)
    exp_dir = data / "trainer" / "car"
    (exp_dir / "policies" / "checkpoints" / "policy_checkpoint_0000000020").mkdir(parents=True)
    assert tmrl.main(["--test", "--config={'RUN_NAME': 'car'}"]) == EXIT_DONE
    assert played == [[f"--exp-dir={exp_dir}", "--checkpoint=latest", "--num-episodes=10", "--no-video"]]


def test_a_launcher_gets_further_options_and_speaks_in_the_words_of_config_json(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    became: list[tuple[list[str], dict[str, str]]] = []

    def become(_: str, command: list[str]) -> None:
        became.append((command, dict(os.environ)))
        raise SystemExit(0)

    monkeypatch.setenv(TERMS, "")
    monkeypatch.setenv("SAC_PYTHON", "python")
    monkeypatch.setattr(os, "execvp", become)
    with pytest.raises(SystemExit):
        tmrl.main(["--server", "--config={'RUN_NAME': 'car'}", "--fresh"])
    command, environ = became[0]
    assert command[-1] == "--fresh"
    monkeypatch.setenv(TERMS, environ[TERMS])
    assert in_callers_terms("SAC_EXP_NAME=x, MY_SAC_EXP_NAME and SAC_EXP_NAMES") == (
        "RUN_NAME=x, MY_SAC_EXP_NAME and SAC_EXP_NAMES"
    )
    assert in_callers_terms("SAC_GATEWAY_PORT, SAC_MAX_WORKERS") == "PORT, NB_WORKERS"
    (lacks,) = credentials.check_credentials(tmp_path)
    assert in_callers_terms(lacks).endswith("copy the files in credentials of the server's TmrlData")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--instal"], "one of the arguments --install --server"),
        (["--check-environment", "--fresh"], "--fresh is no option of --check-environment: leave it out"),
        (["--server", "fresh"], "fresh is no option of --server: leave it out"),
        (["--worker", "--wandb"], "--wandb is no option of --worker: leave it out"),
    ],
)
def test_options_are_refused_where_they_are_none(arguments: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        tmrl.main(arguments)


def test_a_missing_reward_is_told_before_anything_is_made(data: Path) -> None:
    (data / "reward" / "reward.npz").unlink()
    for command in ("--server", "--trainer", "--worker"):
        with pytest.raises(UserError, match="reward.npz is missing: record the track's reward with --record-reward"):
            tmrl.main([command])
    assert not (data / "server").exists() and not list((data / "credentials").iterdir())


def test_the_car_sees_and_gets_what_the_file_says(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And its driver, of simulated time, knows an observation whose picture was made smaller."""
    tmrl.main(["--install"])
    small = {"IMG_WIDTH": 32, "IMG_HEIGHT": 16, "IMG_GRAYSCALE": False}
    kwargs = {"RTGYM_CONFIG": {"interface_kwargs": {"real_time": False}, "ep_max_length": 25}}
    changes = {"ENV": {**small, **kwargs, "REWARD_CONFIG": {"CONSTANT_PENALTY": -1.0}}}
    params = params_of(load(**changes))
    env, drive = params.env_ctor(seed=0), params.expert_policy_ctor()
    observation, _ = env.reset(seed=0)
    assert {name: part.shape for name, part in observation.items()} == {"camera": (16, 32, 3), "motion": (4,)}
    assert isinstance(env.unwrapped, RacingEnvironment)
    gas, brake, _ = drive(observation)
    assert gas > 0.0 >= brake, "it starts"
    assert env.step(np.array([-1.0, 1.0, 0.0], np.float32))[1] == -1.0, "it stands: no progress, only the penalty"
    env.close()
    assert tmrl.main(["--check-environment", f"--config={changes}"]) == EXIT_DONE
    out = capsys.readouterr().out
    assert "step    25  reward" in out and "end: horizon after 25 steps" in out
    assert (home / "check_environment" / "step_0021_camera.png").exists()
