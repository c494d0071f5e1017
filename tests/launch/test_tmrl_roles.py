"""--server, --trainer, --worker and --expert: what each start is made of, and what a lap of config.json trains."""

from __future__ import annotations

import functools
import json
import shutil
import socket
import stat
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_agents.trajectories import time_step as ts

from tests.support.learner import Learner
from tests.support.ports import free_port
from tests.support.tmrl_folders import installed_in
from tfagents_system import tmrl
from tfagents_system.errors import UserError
from tfagents_system.launch import tmrl_roles
from tfagents_system.launch.tmrl_data import PARAMS, Loaded, TmrlData
from tfagents_system.launch.tmrl_roles import server_start, trained_here, trainer_start, wait_for, worker_start
from tfagents_system.machine.worker_slots import COLLECT, EXPERT, TEST
from tfagents_system.policies.fixed_policy import FixedPolicy
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.load_params import load_params
from tfagents_system.settings.variables import RunVariables
from tfagents_system.transport.remote import credentials
from tfagents_system.worker.actors import RandomActor

ROOT = Path(__file__).resolve().parents[2]
SIMULATED = {"ENV": {"RTGYM_INTERFACE": "TM20LIDAR", "RTGYM_CONFIG": {"interface_kwargs": {"real_time": False}}}}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TmrlData:
    return installed_in(tmp_path, monkeypatch)


def loaded(data: TmrlData, **changes: Any) -> Loaded:
    return data.load(repr({"RUN_NAME": "car", **changes}))


def variables_of(start: tmrl_roles.Start) -> dict[str, str]:
    """What a shell takes from the vars file."""
    script = f"set -a; source {start.arguments[0]}; env"
    done = subprocess.run(["env", "-i", "bash", "-euc", script], capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if line.startswith(("SAC_", "WANDB_")))


def settings_of(start: tmrl_roles.Start) -> dict[str, Any]:
    words = list(start.arguments)
    given = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    return {text.split("=", 1)[0]: json.loads(text.split("=", 1)[1]) for text in given}


def test_kinds_of_workers_that_wait_for_the_server_together_have_files_of_their_own(data: TmrlData) -> None:
    config = loaded(data, **SIMULATED)
    server_start(data, config)
    policy = data.root / "weights" / "car"
    policy.mkdir(parents=True)
    starts = [worker_start(data, config, kind) for kind in (COLLECT, EXPERT, TEST)]
    assert [Path(start.arguments[0]).name for start in starts] == ["car.sh", "car+expert.sh", "car+test.sh"]
    experts = [variables_of(start).get("SAC_EXPERT_POLICY") for start in starts]
    assert experts == [None, str(policy), None]
    assert len({variables_of(start)["SAC_CONFIG"] for start in starts}) == 3


def test_the_server_has_neither_trainer_nor_workers(data: TmrlData) -> None:
    config = loaded(data, PORT=7001, LOCAL_PORT_SERVER=7002, NB_WORKERS=3)
    start = server_start(data, config)
    variables = variables_of(start)
    read = RunVariables.from_environ(variables, vars_file=Path(start.arguments[0]), root=ROOT)
    assert (read.gateway_port, read.reverb_port, read.max_workers) == (7001, 7002, 3)
    assert (read.local_trainer, read.local_workers, read.num_collect_workers) == (False, 0, 1)
    assert read.exp_dir == data.root / "server" / "car" and read.params == PARAMS
    assert read.password_file == data.password_file
    assert json.loads(read.config.read_text()) == config.translation.env_config
    assert start.script == "run_script.sh" and settings_of(start) == config.translation.attributes
    assert not {"--fresh", "--from"} & set(start.arguments)

    folder = data.root / "credentials"
    assert credentials.check_credentials(folder, credentials.SERVER) == []
    others = folder / "client"
    assert credentials.check_credentials(others, credentials.CLIENT) == []
    assert {stat.S_IMODE(key.stat().st_mode) for key in folder.rglob("*.key")} == {0o600}
    assert f"scp {others}/* HOST:TmrlData/credentials/" in start.lines[0]
    key = (others / "client.key").read_bytes()
    server_start(data, config)
    assert (others / "client.key").read_bytes() == key, "good ones stay"


def test_the_trainer_and_workers_join_it(data: TmrlData) -> None:
    config = loaded(data, PORT=7001)
    server_start(data, config)
    start = trainer_start(data, config)
    read = RunVariables.from_environ(variables_of(start), vars_file=Path(start.arguments[0]), root=ROOT)
    assert read.trainer_server == "127.0.0.1:7001" and read.exp_dir == data.root / "trainer" / "car"
    assert read.gateway_port is None and settings_of(start) == config.translation.attributes

    assert read.wandb is None
    for given, file in (
        ({"WANDB_KEY": "0123abcd"}, data.root / "trainer" / "car+wandb_key"),
        ({}, data.wandb_key_file),
    ):
        data.wandb_key_file.write_text("of this machine")
        start = trainer_start(data, loaded(data, PORT=7001, WANDB_ENTITY="me", **given), with_wandb=True)
        read = RunVariables.from_environ(variables_of(start), vars_file=Path(start.arguments[0]), root=ROOT)
        told = variables_of(start)
        assert (read.wandb, told["WANDB_PROJECT"], told["WANDB_ENTITY"]) == ("online", "tmrl", "me")
        assert told["WANDB_API_KEY"] == given.get("WANDB_KEY", "of this machine") == file.read_text().strip()
        assert told["WANDB_API_KEY"] not in Path(start.arguments[0]).read_text(), "others may read that"

    away = loaded(data, PORT=7001, LOCALHOST_WORKER=False, PUBLIC_IP_SERVER="node7")
    worker = worker_start(data, away, COLLECT)
    assert worker.script == "join_script.sh" and worker.server == "node7:7001"
    words = list(worker.arguments)
    for option, value in {
        "--server": "node7:7001",
        "--credentials": str(data.root / "credentials"),
        "--password_file": str(data.password_file),
        "--workers": "1",
        "--role": "collect",
    }.items():
        assert words[words.index(option) + 1] == value
    assert settings_of(worker) == settings_of(start), "what is compared when it joins"
    configs = [Path(variables_of(each)["SAC_CONFIG"]).read_bytes() for each in (start, worker)]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("start", [trainer_start, functools.partial(worker_start, kind=COLLECT)])
def test_the_server_of_this_machine_is_waited_for_and_makes_the_credentials(
    data: TmrlData, start: Callable[[TmrlData, Loaded], tmrl_roles.Start], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[str] = []

    def wait(server: str) -> None:
        waited.append(server)
        server_start(data, loaded(data, PORT=7001))

    monkeypatch.setattr(tmrl_roles, "wait_for", wait)
    begun = start(data, loaded(data, PORT=7001))
    assert waited == ["127.0.0.1:7001"] and variables_of(begun)["SAC_EXP_NAME"] == "car"
    start(data, loaded(data, PORT=7001))
    assert len(waited) == 1, "with credentials here nobody waits before the launcher"


def test_credentials_of_another_machine_are_copied_as_files(
    data: TmrlData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tmrl_roles, "wait_for", lambda server: pytest.fail("no server of this machine is waited for"))
    away = loaded(data, LOCALHOST_TRAINER=False, LOCALHOST_WORKER=False, PUBLIC_IP_SERVER="node7")
    with pytest.raises(UserError, match="no credentials for the server at node7:55555: start --server once, and copy"):
        trainer_start(data, away)
    elsewhere = tmp_path / "elsewhere"
    credentials.make_credentials(elsewhere, "car")
    nested = data.credentials_folder / "client"
    shutil.copytree(elsewhere / "client", nested)  # By `cp -r .../client ~/TmrlData/credentials`,
    assert worker_start(data, away, COLLECT).server == "node7:55555"
    for file in nested.iterdir():  # or its files, as TMRL has them.
        file.rename(data.credentials_folder / file.name)
    nested.rmdir()
    assert worker_start(data, away, COLLECT).server == "node7:55555"
    assert credentials.check_credentials(data.credentials_folder, credentials.CLIENT) == []


def test_a_password_of_config_reaches_its_command_alone(data: TmrlData) -> None:
    before = data.password_file.read_text()
    server_start(data, loaded(data))
    given = loaded(data, PASSWORD="a password of mine")
    for start, part in ((server_start(data, given), "server"), (worker_start(data, given, COLLECT), "worker")):
        own = data.root / part / "car+password"
        assert variables_of(start)["SAC_PASSWORD_FILE"] == str(own) and own.read_text() == "a password of mine\n"
    assert start.arguments[start.arguments.index("--password_file") + 1] == str(own)
    assert data.password_file.read_text() == before
    assert variables_of(server_start(data, loaded(data)))["SAC_PASSWORD_FILE"] == str(data.password_file)


def test_what_the_environment_says_of_this_machine_wins(data: TmrlData, monkeypatch: pytest.MonkeyPatch) -> None:
    start = server_start(data, loaded(data))
    script = (
        f"export SAC_REVERB_CPUS=3 SAC_EXP_NAME=x; source {start.arguments[0]}; echo $SAC_REVERB_CPUS $SAC_EXP_NAME"
    )
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stdout == "3 car\n"


def test_an_expert_needs_a_policy_unless_the_driver_drives(data: TmrlData) -> None:
    config = loaded(data)
    server_start(data, config)
    driver = r'let the car\'s driver drive, with "interface_kwargs": \{"real_time": false\} on all machines of the run'
    with pytest.raises(UserError, match=f"--expert needs a policy: copy policies/collect_policy.*; or {driver}"):
        worker_start(data, config, EXPERT)
    assert "SAC_EXPERT_POLICY" not in variables_of(worker_start(data, loaded(data, **SIMULATED), EXPERT))
    trained = data.root / "trainer" / "car" / "policies" / "collect_policy"
    trained.mkdir(parents=True)
    assert variables_of(worker_start(data, config, EXPERT))["SAC_EXPERT_POLICY"] == str(trained)
    weights = data.root / "weights" / "car"
    weights.mkdir(parents=True)
    assert variables_of(worker_start(data, config, EXPERT))["SAC_EXPERT_POLICY"] == str(weights)


def test_a_missing_reward_is_told_before_anything_is_made(data: TmrlData) -> None:
    data.reward_file.unlink()
    worker = functools.partial(worker_start, kind=COLLECT)
    starts: tuple[Callable[[TmrlData, Loaded], tmrl_roles.Start], ...] = (server_start, trainer_start, worker)
    for start in starts:
        with pytest.raises(UserError, match="reward.npz is missing: record the track's reward with --record-reward"):
            start(data, loaded(data))
    assert not (data.root / "server").exists() and not list(data.credentials_folder.iterdir())


def test_training_is_reset_where_there_is_something_to_reset(data: TmrlData) -> None:
    """The run before is moved aside; the server's new one takes its experience."""
    config = loaded(data, RESET_TRAINING=True)
    assert "--fresh" not in server_start(data, config).arguments
    for part in ("server", "trainer"):
        paths = RunPaths(data.root / part / "car")
        (paths.trainer_checkpoints / "checkpoint_0000000020").mkdir(parents=True)
        paths.run_json.write_text("{}")
    server = str(data.root / "server" / "car")
    assert server_start(data, config).arguments[-5:] == ("--fresh", "--from", server, "--take", "replay")
    assert trainer_start(data, config).arguments[-1] == "--fresh"
    assert server_start(data, config, "keep").arguments[-1] == "--keep"
    assert server_start(data, config, "fresh").arguments[-1] == "--fresh"
    assert "--fresh" not in server_start(data, loaded(data)).arguments


def test_what_was_trained_here_is_played_here(data: TmrlData, monkeypatch: pytest.MonkeyPatch) -> None:
    from tfagents_system import run

    config = loaded(data)
    assert trained_here(data, config) is None
    exp_dir = data.root / "trainer" / "car"
    (RunPaths(exp_dir).policy_checkpoints / "policy_checkpoint_0000000020").mkdir(parents=True)
    played: list[list[str]] = []

    def play(arguments: list[str]) -> int:
        played.append(arguments)
        return 0

    monkeypatch.setattr(run, "main", play)
    assert tmrl.main(["--test", "--config={'RUN_NAME': 'car'}"]) == 0
    assert played == [["--exp_dir", str(exp_dir), "--num_episodes", "10", "--no_video"]]


def test_a_worker_waits_for_its_server(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tmrl_roles, "_LOOK_SECS", 0.02)
    port = free_port()
    listening = threading.Timer(0.2, lambda: servers.append(socket.create_server(("127.0.0.1", port))))
    servers: list[socket.socket] = []
    listening.start()
    wait_for(f"127.0.0.1:{port}")
    listening.join()
    servers[0].close()
    assert f"waiting 0 s for the server at 127.0.0.1:{port}" in capsys.readouterr().out
    monkeypatch.setattr(tmrl_roles, "_WAIT_SECS", 0.1)
    with pytest.raises(UserError, match=f"no server has answered at 127.0.0.1:{port} for 0 s"):
        wait_for(f"127.0.0.1:{port}")


class Driver(RandomActor):
    """The built-in driver as an actor."""

    def __init__(self, env: Any, drive: Any) -> None:
        super().__init__(env.action_spec(), np.random.default_rng(0))
        self._policy = FixedPolicy(drive, env.actions)

    def action(self, time_step: ts.TimeStep) -> Any:
        return self._policy.actions({0: time_step}, greedy=True)[0]

    def actions(self, time_steps: Mapping[int, ts.TimeStep]) -> dict[int, Any]:
        return {env: self.action(time_step) for env, time_step in time_steps.items()}


def test_a_lap_of_the_file_is_trained_on(data: TmrlData, tmp_path: Path) -> None:
    """In one process: the driver's lap through segments, ring and draws into updates, as config.json says."""
    tmrl.main(["--record-reward"])
    changes = {**SIMULATED, "MEMORY_SIZE": 3000, "BATCH_SIZE": 32}
    translation = loaded(data, **changes).translation
    params = load_params(PARAMS, translation.env_config, attributes=translation.attributes)
    learner = Learner(tmp_path / "ring", params.env_ctor, params.horizon, **translation.attributes)
    (lap,) = learner.collect(1, Driver(learner.env, params.expert_policy_ctor()))
    assert lap.length == 613, "the lap of the recorded trajectory"
    assert lap.episode_return == pytest.approx(100.0 + 41.8, abs=0.5), "END_OF_TRACK, and 0.01 for each of its points"
    kernel = max(learner.critics[0].trainable_variables, key=lambda variable: variable.shape.num_elements())
    before = kernel.numpy()
    losses = learner.train(20)
    assert all(np.isfinite(value) for value in losses.values())
    assert np.abs(kernel.numpy() - before).max() == pytest.approx(20 * 0.00005, rel=0.5), (
        "20 steps of Adam at LR_CRITIC"
    )
