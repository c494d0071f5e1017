"""TMRL's config.json: every key of its guide is read, checked and translated, and the page has the table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tfagents_system.checks.hyperparameters import described_by
from tfagents_system.errors import UserError
from tfagents_system.hyperparameters import Hyperparameters
from tfagents_system.settings import tmrl_keys
from tfagents_system.settings.tmrl_keys import KEYS, default_config, merged, parse_override, read_keys
from tfagents_system.settings.tmrl_rows import ROWS, Translation
from tfagents_system.settings.tmrl_translation import server_of, translate
from tfagents_system.settings.variable_table import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
# The guide's file, without its comments.
GUIDE = """
{
  "RUN_NAME": "SAC_4_imgs_pretrained", "RESET_TRAINING": false, "BUFFERS_MAXLEN": 500000,
  "RW_MAX_SAMPLES_PER_EPISODE": 1000, "CUDA_TRAINING": true, "CUDA_INFERENCE": false, "VIRTUAL_GAMEPAD": true,
  "LOCALHOST_WORKER": true, "LOCALHOST_TRAINER": true, "PUBLIC_IP_SERVER": "0.0.0.0",
  "PASSWORD": "YourRandomPasswordHere", "TLS": false, "TLS_HOSTNAME": "default", "TLS_CREDENTIALS_DIRECTORY": "",
  "NB_WORKERS": -1, "WANDB_PROJECT": "tmrl", "WANDB_ENTITY": "tmrl", "WANDB_KEY": "YourWandbApiKey", "PORT": 55555,
  "LOCAL_PORT_SERVER": 55556, "LOCAL_PORT_TRAINER": 55557, "LOCAL_PORT_WORKER": 55558, "BUFFER_SIZE": 536870912,
  "HEADER_SIZE": 12, "MAX_EPOCHS": 10000, "ROUNDS_PER_EPOCH": 100, "TRAINING_STEPS_PER_ROUND": 200,
  "MAX_TRAINING_STEPS_PER_ENVIRONMENT_STEP": 4.0, "ENVIRONMENT_STEPS_BEFORE_TRAINING": 1000,
  "UPDATE_MODEL_INTERVAL": 200, "UPDATE_BUFFER_INTERVAL": 200, "SAVE_MODEL_EVERY": 0, "MEMORY_SIZE": 1000000,
  "BATCH_SIZE": 256,
  "ALG": {
    "ALGORITHM": "SAC", "LEARN_ENTROPY_COEF":false, "LR_ACTOR":0.00001, "LR_CRITIC":0.00005, "LR_ENTROPY":0.0003,
    "GAMMA":0.995, "POLYAK":0.995, "TARGET_ENTROPY":-0.5, "ALPHA":0.01, "REDQ_N":10, "REDQ_M":2,
    "REDQ_Q_UPDATES_PER_POLICY_UPDATE":20, "OPTIMIZER_ACTOR": "adam", "OPTIMIZER_CRITIC": "adam",
    "BETAS_ACTOR": [0.997, 0.997], "BETAS_CRITIC": [0.997, 0.997], "L2_ACTOR": 0.0, "L2_CRITIC": 0.0
  },
  "ENV": {
    "RTGYM_INTERFACE": "TM20FULL", "WINDOW_WIDTH": 256, "WINDOW_HEIGHT": 128, "IMG_WIDTH": 64, "IMG_HEIGHT": 64,
    "IMG_GRAYSCALE": true, "SLEEP_TIME_AT_RESET": 1.5, "IMG_HIST_LEN": 4,
    "RTGYM_CONFIG": {
      "time_step_duration": 0.05, "start_obs_capture": 0.04, "time_step_timeout_factor": 1.0, "act_buf_len": 2,
      "benchmark": false, "wait_on_done": true, "ep_max_length": 1000, "interface_kwargs": {"save_replays": false}
    },
    "REWARD_CONFIG": {
      "END_OF_TRACK": 100.0, "CONSTANT_PENALTY": 0.0, "CHECK_FORWARD": 500, "CHECK_BACKWARD": 10,
      "FAILURE_COUNTDOWN": 10, "MIN_STEPS": 70, "MAX_STRAY": 100.0
    }
  },
  "__VERSION__": "0.6.0"
}
"""
LIDAR = {"ENV": {"RTGYM_INTERFACE": "TM20LIDAR"}}
REDQ = {"ALG": {"ALGORITHM": "REDQSAC"}}
LEARNED = {"ALG": {"LEARN_ENTROPY_COEF": True}}
SGD = {"ALG": {"OPTIMIZER_ACTOR": "sgd"}}
# Attributes, keys of the JSON and variables that the guide's file becomes.
GUIDES_ATTRIBUTES = {
    "max_unsent_mb": math.ceil(500_000 * (120 + 64 * 64) / 2**20),
    "num_iter": 1_000_000,
    "checkpoint_period_iters": 100,
    "updates_per_iter": 200,
    "asynchronous": True,
    "updates_per_env_step": 4.0,
    "initial_collect_steps": 1000,
    "publish_period_updates": 200,
    "buffer_size": 1_000_000,
    "batch_size": 256,
    "algorithm": "sac",
    "learn_entropy_coef": False,
    "actor_learning_rate": 0.00001,
    "critic_learning_rate": 0.00005,
    "discount": 0.995,
    "target_update_tau": 0.005,
    "sac_log_alpha": math.log(0.01),
    "actor_optimizer": {"name": "adam", "beta_1": 0.997, "beta_2": 0.997, "weight_decay": 0.0},
    "critic_optimizer": {"name": "adam", "beta_1": 0.997, "beta_2": 0.997, "weight_decay": 0.0},
    "frame_stack": {"camera": 4},
    "action_history": 2,
}
GUIDES_JSON = {
    "horizon": 1000,
    "tmrl": {"interface": "TM20FULL", "game": False, "picture": [64, 64]},
    "racing": {
        "observations": ["camera", "motion"],
        "track": "closed/train/3",
        "camera_channels": 1,
        "off_track_metres": None,
        "stuck_secs": None,
    },
    "real_time": {
        "time_step_duration": 0.05,
        "start_obs_capture": 0.04,
        "time_step_timeout_factor": 1.0,
        "wait_on_done": True,
        "command_delay": [0.0, 0.02],
        "observation_delay": [0.0, 0.01],
    },
    "trajectory_reward": {
        "file": "~/TmrlData/reward/reward.npz",
        "regain": True,
        "end_of_track": 100.0,
        "constant_penalty": 0.0,
        "check_forward": 500,
        "check_backward": 10,
        "failure_countdown": 10,
        "min_steps": 70,
        "max_stray": 100.0,
    },
}
GUIDES_VARIABLES = {
    "SAC_EXP_NAME": "SAC_4_imgs_pretrained",
    "SAC_PASSWORD_FILE": "~/TmrlData/config/password",
    "WANDB_PROJECT": "tmrl",
    "SAC_CREDENTIALS_DIR": "~/TmrlData/credentials",
    "SAC_MAX_WORKERS": "256",
    "SAC_GATEWAY_PORT": "55555",
    "SAC_REVERB_PORT": "55556",
}
A = "attributes"
# Another value of each key, and what it changes in the translation: (kind, name, value); None: nothing but a line.
CHANGES: list[tuple[str, Any, dict[str, Any], tuple[str, str, Any] | None]] = [
    ("RUN_NAME", "other", {}, ("variables", "SAC_EXP_NAME", "other")),
    ("BUFFERS_MAXLEN", 1000, LIDAR, (A, "max_unsent_mb", 1)),
    ("BUFFERS_MAXLEN", 1000, {}, (A, "max_unsent_mb", 5)),
    ("RW_MAX_SAMPLES_PER_EPISODE", 300, {"MEMORY_SIZE": 300_000}, ("env_config", "horizon", 300)),
    ("CUDA_TRAINING", False, {}, ("lines", "CUDA_TRAINING", None)),
    ("CUDA_INFERENCE", True, {}, None),
    ("VIRTUAL_GAMEPAD", False, {}, None),
    ("PASSWORD", "", {}, ("lines", "PASSWORD", None)),
    ("TLS", True, {}, ("lines", "TLS", None)),
    ("TLS_HOSTNAME", "node7", {}, None),
    ("TLS_CREDENTIALS_DIRECTORY", "/keys", {}, ("variables", "SAC_CREDENTIALS_DIR", "/keys")),
    ("NB_WORKERS", 3, {}, ("variables", "SAC_MAX_WORKERS", "3")),
    ("WANDB_PROJECT", "mine", {}, ("variables", "WANDB_PROJECT", "mine")),
    ("WANDB_ENTITY", "me", {}, ("variables", "WANDB_ENTITY", "me")),
    ("PORT", 7001, {}, ("variables", "SAC_GATEWAY_PORT", "7001")),
    ("LOCAL_PORT_SERVER", 7002, {}, ("variables", "SAC_REVERB_PORT", "7002")),
    ("LOCAL_PORT_TRAINER", 7003, {}, None),
    ("LOCAL_PORT_WORKER", 7004, {}, None),
    ("BUFFER_SIZE", 1000, {}, None),
    ("HEADER_SIZE", 16, {}, None),
    ("MAX_EPOCHS", 3, {}, (A, "num_iter", 300)),
    ("ROUNDS_PER_EPOCH", 7, {}, (A, "checkpoint_period_iters", 7)),
    ("TRAINING_STEPS_PER_ROUND", 50, {}, (A, "updates_per_iter", 50)),
    ("MAX_TRAINING_STEPS_PER_ENVIRONMENT_STEP", 0.5, {}, (A, "updates_per_env_step", 0.5)),
    ("ENVIRONMENT_STEPS_BEFORE_TRAINING", 10, {}, (A, "initial_collect_steps", 10)),
    ("UPDATE_MODEL_INTERVAL", 20, {}, (A, "publish_period_updates", 20)),
    ("UPDATE_BUFFER_INTERVAL", 20, {}, None),
    ("SAVE_MODEL_EVERY", 30, {}, (A, "checkpoint_period_iters", 30)),
    ("MEMORY_SIZE", 2500, {}, (A, "buffer_size", 2500)),
    ("BATCH_SIZE", 64, {}, (A, "batch_size", 64)),
    ("DEBUG_MODE", True, {}, None),
    ("ALG.ALGORITHM", "REDQSAC", {}, (A, "algorithm", "redq")),
    ("ALG.LEARN_ENTROPY_COEF", True, {}, (A, "learn_entropy_coef", True)),
    ("ALG.LR_ACTOR", 1e-3, {}, (A, "actor_learning_rate", 1e-3)),
    ("ALG.LR_CRITIC", 1e-3, {}, (A, "critic_learning_rate", 1e-3)),
    ("ALG.LR_ENTROPY", 1e-3, LEARNED, (A, "alpha_learning_rate", 1e-3)),
    ("ALG.GAMMA", 0.9, {}, (A, "discount", 0.9)),
    ("ALG.POLYAK", 0.98, {}, (A, "target_update_tau", 0.02)),
    ("ALG.TARGET_ENTROPY", None, LEARNED, (A, "target_entropy", None)),
    ("ALG.ALPHA", 1.0, {}, (A, "sac_log_alpha", 0.0)),
    ("ALG.REDQ_N", 5, REDQ, (A, "num_critics", 5)),
    ("ALG.REDQ_M", 3, REDQ, (A, "num_target_critics", 3)),
    ("ALG.REDQ_Q_UPDATES_PER_POLICY_UPDATE", 4, REDQ, (A, "actor_update_period", 4)),
    ("ALG.OPTIMIZER_ACTOR", "sgd", {}, (A, "actor_optimizer", {"name": "sgd", "weight_decay": 0.0})),
    ("ALG.OPTIMIZER_CRITIC", "sgd", {}, (A, "critic_optimizer", {"name": "sgd", "weight_decay": 0.0})),
    (
        "ALG.BETAS_ACTOR",
        [0.5, 0.9],
        {},
        (A, "actor_optimizer", {"name": "adam", "beta_1": 0.5, "beta_2": 0.9, "weight_decay": 0.0}),
    ),
    (
        "ALG.BETAS_CRITIC",
        [0.5, 0.9],
        {},
        (A, "critic_optimizer", {"name": "adam", "beta_1": 0.5, "beta_2": 0.9, "weight_decay": 0.0}),
    ),
    ("ALG.L2_ACTOR", 0.1, SGD, (A, "actor_optimizer", {"name": "sgd", "weight_decay": 0.1})),
    (
        "ALG.L2_CRITIC",
        0.1,
        {},
        (A, "critic_optimizer", {"name": "adam", "beta_1": 0.997, "beta_2": 0.997, "weight_decay": 0.1}),
    ),
    ("ENV.WINDOW_WIDTH", 100, {}, None),
    ("ENV.WINDOW_HEIGHT", 100, {}, None),
    ("ENV.SLEEP_TIME_AT_RESET", 1.0, {}, None),
    ("ENV.IMG_HIST_LEN", 2, {}, (A, "frame_stack", {"camera": 2})),
    ("ENV.RTGYM_CONFIG.act_buf_len", 3, {}, (A, "action_history", 3)),
    ("ENV.RTGYM_CONFIG.ep_max_length", 500, {"MEMORY_SIZE": 500_000}, ("env_config", "horizon", 500)),
]
# The same for keys of which a part of the JSON is made.
IN_JSON = [
    ("ENV.RTGYM_INTERFACE", "TM20LIDAR", "racing.observations", ["lidar", "motion"]),
    ("ENV.RTGYM_INTERFACE", "TM20LIDARPROGRESS", "racing.observations", ["lidar", "motion", "progress"]),
    ("ENV.IMG_WIDTH", 32, "tmrl.picture", [64, 32]),
    ("ENV.IMG_HEIGHT", 32, "tmrl.picture", [32, 64]),
    ("ENV.IMG_GRAYSCALE", False, "racing.camera_channels", 3),
    ("ENV.RTGYM_CONFIG.time_step_duration", 0.1, "real_time.time_step_duration", 0.1),
    ("ENV.RTGYM_CONFIG.start_obs_capture", 0.03, "real_time.start_obs_capture", 0.03),
    ("ENV.RTGYM_CONFIG.time_step_timeout_factor", 0.5, "real_time.time_step_timeout_factor", 0.5),
    ("ENV.RTGYM_CONFIG.wait_on_done", False, "real_time.wait_on_done", False),
    ("ENV.RTGYM_CONFIG.interface_kwargs", {"track": "closed/train/1"}, "racing.track", "closed/train/1"),
    ("ENV.RTGYM_CONFIG.interface_kwargs", {"command_delay": [0, 0]}, "real_time.command_delay", [0, 0]),
    ("ENV.REWARD_CONFIG.END_OF_TRACK", 1.0, "trajectory_reward.end_of_track", 1.0),
    ("ENV.REWARD_CONFIG.CONSTANT_PENALTY", -1.0, "trajectory_reward.constant_penalty", -1.0),
    ("ENV.REWARD_CONFIG.CHECK_FORWARD", 5, "trajectory_reward.check_forward", 5),
    ("ENV.REWARD_CONFIG.CHECK_BACKWARD", 5, "trajectory_reward.check_backward", 5),
    ("ENV.REWARD_CONFIG.FAILURE_COUNTDOWN", 5, "trajectory_reward.failure_countdown", 5),
    ("ENV.REWARD_CONFIG.MIN_STEPS", 5, "trajectory_reward.min_steps", 5),
    ("ENV.REWARD_CONFIG.MAX_STRAY", 5.0, "trajectory_reward.max_stray", 5.0),
]
# They say where, whether and how a command runs, not what is trained.
OF_COMMANDS = {
    "RESET_TRAINING",
    "LOCALHOST_WORKER",
    "LOCALHOST_TRAINER",
    "PUBLIC_IP_SERVER",
    "ENV.RTGYM_CONFIG.benchmark",
    "WANDB_KEY",
}


def of_guide(**changes: Any) -> Translation:
    return translate(read_keys(merged(json.loads(GUIDE), changes), "config.json"))


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def leaves(env_config: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{section}.{name}": value
        for section, values in env_config.items()
        if isinstance(values, dict)
        for name, value in values.items()
    }


def test_the_guides_file_is_translated() -> None:
    translation = of_guide()
    assert translation.attributes == GUIDES_ATTRIBUTES
    assert translation.env_config == GUIDES_JSON
    assert translation.variables == GUIDES_VARIABLES
    words = [line.split()[0].rstrip(":") for line in translation.lines]
    assert sorted(words) == ["CUDA_TRAINING", "PASSWORD", "TLS"]


def test_an_installed_file_is_the_guides_without_its_password() -> None:
    guide = {**json.loads(GUIDE), "PASSWORD": ""}
    assert default_config() == guide
    assert list(default_config()) == list(guide)


def test_every_key_is_in_the_table_and_its_change_is_tested() -> None:
    assert [row.path for row in ROWS] == list(KEYS)
    tested = {path for path, *_ in CHANGES} | {path for path, *_ in IN_JSON} | OF_COMMANDS
    assert tested == set(KEYS)


def test_what_keys_become_exists() -> None:
    translation = of_guide(ALG={"ALGORITHM": "REDQSAC"})
    assert set(translation.attributes) <= set(described_by(Hyperparameters))
    assert set(translation.variables) - {"WANDB_PROJECT"} <= {variable.name for variable in VARIABLES}


@pytest.mark.parametrize(("path", "value", "beside", "changed"), CHANGES, ids=lambda value: str(value)[:40])
def test_each_key_is_translated(path: str, value: Any, beside: dict[str, Any], changed: Any) -> None:
    before, after = of_guide(**beside), of_guide(**merged(beside, nested(path, value)))
    if changed is None:
        assert (after.attributes, after.env_config, after.variables) == (
            before.attributes,
            before.env_config,
            before.variables,
        )
        (line,) = set(after.lines) - set(before.lines)
        assert line.startswith(path)
        return
    kind, name, expected = changed
    if kind == "lines":
        (line,) = set(before.lines) - set(after.lines)
        assert line.startswith(name)
        return
    assert getattr(after, kind)[name] == pytest.approx(expected)
    assert getattr(before, kind).get(name, ()) != expected


@pytest.mark.parametrize(("path", "value", "name", "expected"), IN_JSON, ids=lambda value: str(value)[:40])
def test_each_key_of_the_environment_reaches_the_json(path: str, value: Any, name: str, expected: Any) -> None:
    before, after = of_guide(), of_guide(**nested(path, value))
    assert leaves(after.env_config)[name] == expected
    differing = {key for key, each in leaves(after.env_config).items() if leaves(before.env_config).get(key) != each}
    assert differing - {"tmrl.interface"} == {name}


def test_simulated_time_has_no_clock() -> None:
    translation = of_guide(ENV={"RTGYM_CONFIG": {"interface_kwargs": {"real_time": False}}})
    assert "real_time" not in translation.env_config
    assert translation.attributes["action_history"] == 2


def test_what_simulated_time_has_no_use_for_is_told() -> None:
    clock = {"time_step_duration": 0.1, "start_obs_capture": 0.09, "time_step_timeout_factor": 0.5}
    kwargs = {"real_time": False, "command_delay": [0, 0]}
    translation = of_guide(ENV={"RTGYM_CONFIG": {**clock, "wait_on_done": False, "interface_kwargs": kwargs}})
    told = [line.partition(" has no effect: ") for line in translation.lines if "wall time" in line]
    prefix = "ENV.RTGYM_CONFIG."
    names = [*clock, "wait_on_done", "interface_kwargs['command_delay']"]
    assert [name for name, *_ in told] == [prefix + name for name in names]
    assert {why for *_, why in told} == {
        'interface_kwargs has "real_time": false, and the car does not drive in wall time'
    }


def test_arguments_of_the_game_are_told_and_near_misses_of_the_cars_refused() -> None:
    def with_kwargs(**own: Any) -> Translation:
        return of_guide(ENV={"RTGYM_CONFIG": {"interface_kwargs": own}})

    lines = with_kwargs(x=0, gamepad=True, y=False, z=None).lines
    told = [line for line in lines if "interface_kwargs" in line]
    assert told == [
        f"ENV.RTGYM_CONFIG.interface_kwargs['{name}'] is for the game, which is not here" for name in ("x", "gamepad")
    ]
    with pytest.raises(UserError) as error:
        with_kwargs(trak="closed/train/1", comand_delay=[0, 0], realtime=False, gamepad=True)
    meant = [finding.partition("the car's: ")[2] for finding in error.value.findings]
    assert meant == [f"'{name}' is meant: correct it" for name in ("track", "command_delay", "real_time")]
    for value in (0, 1, "false", None):
        with pytest.raises(UserError, match="interface_kwargs must be an object .* whose `real_time` is true or false"):
            with_kwargs(real_time=value)


def test_the_games_own_interface_gets_what_it_knows() -> None:
    config = merged(json.loads(GUIDE), {"VIRTUAL_GAMEPAD": False, "ENV": {"WINDOW_WIDTH": 100}})
    translation = translate(read_keys(config, "config.json"), has_game=True)
    assert translation.env_config == {
        "horizon": 1000,
        "tmrl": {
            "interface": "TM20FULL",
            "game": True,
            "rtgym": {
                "time_step_duration": 0.05,
                "start_obs_capture": 0.04,
                "time_step_timeout_factor": 1.0,
                "act_buf_len": 2,
                "benchmark": False,
                "wait_on_done": True,
                "ep_max_length": 1000,
            },
            "interface_kwargs": {
                "gamepad": False,
                "img_hist_len": 4,
                "grayscale": True,
                "resize_to": [64, 64],
                "save_replays": False,
            },
        },
    }
    assert not {"frame_stack", "action_history"} & set(translation.attributes), "rtgym has them in its observations"
    assert not any(line.startswith(("VIRTUAL", "ENV.WINDOW")) for line in translation.lines)


def test_a_gpu_is_used_where_there_is_one() -> None:
    given = read_keys(json.loads(GUIDE), "config.json")
    assert translate(given, has_gpu=True).variables["SAC_TRAIN_GPUS"] == "1"


@pytest.mark.parametrize(
    ("changes", "role", "server"),
    [
        ({}, "WORKER", "127.0.0.1:55555"),
        ({"LOCALHOST_WORKER": False, "PUBLIC_IP_SERVER": "10.0.0.1", "PORT": 7}, "WORKER", "10.0.0.1:7"),
        ({"LOCALHOST_WORKER": False, "PUBLIC_IP_SERVER": "10.0.0.1"}, "TRAINER", "127.0.0.1:55555"),
        ({"LOCALHOST_TRAINER": False, "PUBLIC_IP_SERVER": "10.0.0.1"}, "TRAINER", "10.0.0.1:55555"),
    ],
)
def test_the_server_is_where_the_file_says(changes: dict[str, Any], role: str, server: str) -> None:
    assert server_of(read_keys({**json.loads(GUIDE), **changes}, "config.json"), role) == server


def test_a_server_elsewhere_needs_an_address() -> None:
    given = read_keys({**json.loads(GUIDE), "LOCALHOST_WORKER": False}, "config.json")
    with pytest.raises(UserError, match="LOCALHOST_WORKER is false, so PUBLIC_IP_SERVER must be the server's address"):
        server_of(given, "WORKER")


def test_all_findings_come_together() -> None:
    config = merged(
        json.loads(GUIDE),
        {
            "BATCHSIZE": 64,
            "GAMMA": 0.9,
            "PORT": "7001",
            "CUDA_TRAINING": 1,
            "PASSWORD": "short",
            "ALG": {"ALGORITHM": "PPO", "BETAS_ACTOR": [0.9]},
            "ENV": {"RTGYM_CONFIG": 3, "IMG_WIDHT": 32},
            "__VERSION__": "1.0.0",
        },
    )
    with pytest.raises(UserError) as raised:
        read_keys(config, "config.json")
    expected = [
        "__VERSION__ must be 0.6.0 or later, and below 1, found '1.0.0'",
        "BATCHSIZE is no key of TMRL's guide: BATCH_SIZE is meant",
        "GAMMA is no key of TMRL's guide: it belongs to ALG: move it there",
        "PORT must be a port from 1 to 65535, found '7001'",
        "CUDA_TRAINING must be true or false, found 1",
        "PASSWORD must be a text of 12 to 1000 characters, or empty",
        "ALG.ALGORITHM must be 'SAC' or 'REDQSAC', found 'PPO'",
        "ALG.BETAS_ACTOR must be two numbers of at least 0 and below 1",
        "ENV.IMG_WIDHT is no key of TMRL's guide: ENV.IMG_WIDTH is meant",
        "ENV.RTGYM_CONFIG must be an object, found 3",
    ]
    assert len(raised.value.findings) == len(expected)
    for words in expected:
        assert any(words in finding for finding in raised.value.findings), words


@pytest.mark.parametrize(("version", "is_fine"), [("0.6.0", True), ("0.7.1", True), ("0.5.9", False), (6, False)])
def test_versions(version: Any, is_fine: bool) -> None:
    config = {**default_config(), "__VERSION__": version}
    if is_fine:
        read_keys(config, "config.json")
        return
    with pytest.raises(UserError, match="__VERSION__ must be"):
        read_keys(config, "config.json")


def test_config_is_merged_at_any_depth() -> None:
    override = parse_override(' {"CUDA_TRAINING": False, "ENV": {"RTGYM_CONFIG": {"act_buf_len": 3}}} ')
    config = merged(default_config(), override)
    assert config["CUDA_TRAINING"] is False
    assert config["ENV"]["RTGYM_CONFIG"]["act_buf_len"] == 3
    assert config["ENV"]["RTGYM_CONFIG"]["ep_max_length"] == 1000
    assert default_config()["ENV"]["RTGYM_CONFIG"]["act_buf_len"] == 2, "the defaults are not touched"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"CUDA_TRAINING": true}', "Python writes True, False and None"),
        (
            "{'A': __import__('os').system('true')}",
            r"must be a Python literal \(it has more than texts, numbers, lists",
        ),
        ("config.json", "config.json' must be a dictionary, not a file"),
        ("[1, 2]", "must be a dictionary"),
        ("{", "must be a Python literal"),
        ("", "must be a Python literal"),
    ],
)
def test_config_is_a_literal_and_nothing_else(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_override(text)


def test_keys_are_named_once() -> None:
    assert len({path.rpartition(".")[2] for path in KEYS}) == len(tmrl_keys.KEYS)
