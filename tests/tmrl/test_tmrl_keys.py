"""TMRL's config.json: every key of its guide is read, checked and translated."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tfagents_system.errors import UserError
from tfagents_system.hyperparameters import Hyperparameters, described_by
from tfagents_system.settings.variables import VARIABLES
from tfagents_system.tmrl.keys import DEFAULT_CONFIG, KEYS, Config, merged, nested, parse_override, read_keys, translate

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
REDQ = {"ALG": {"ALGORITHM": "REDQSAC"}}
LEARNED = {"ALG": {"LEARN_ENTROPY_COEF": True}}
SGD = {"ALG": {"OPTIMIZER_ACTOR": "sgd"}}
LIDAR = {"ENV": {"RTGYM_INTERFACE": "TM20LIDAR"}}
ADAM = {"name": "adam", "beta_1": 0.997, "beta_2": 0.997, "weight_decay": 0.0}
# What the guide's file becomes.
ATTRIBUTES = {
    "max_unsent_mb": math.ceil(500_000 * (120 + 64 * 64) / 2**20),
    "num_iter": 1_000_000,
    "checkpoint_period_iters": 100,
    "keep_policies": False,
    "updates_per_iter": 200,
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
    "actor_optimizer": ADAM,
    "critic_optimizer": ADAM,
}
JSON = {
    "horizon": 1000,
    "tmrl": {"game": False, "picture": [64, 64], "frame_stack": {"camera": 4}, "action_history": 2},
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
    "input_files": {"trajectory_reward": "~/TmrlData/reward/reward.npz"},
    "trajectory_reward": {
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
OF_MACHINE = {"SAC_MAX_WORKERS": "256", "SAC_GATEWAY_PORT": "55555", "SAC_REVERB_PORT": "55556"}
# Another value of each key, what is beside it, and the setting that it changes; None: nothing but a note.
CHANGES: list[tuple[str, Any, dict[str, Any], str | None, Any]] = [
    ("RUN_NAME", "other", {}, "SAC_EXP_NAME", "other"),
    ("BUFFERS_MAXLEN", 1000, LIDAR, "max_unsent_mb", 1),
    ("BUFFERS_MAXLEN", 1000, {}, "max_unsent_mb", 5),
    ("RW_MAX_SAMPLES_PER_EPISODE", 300, {}, "config.horizon", 300),
    ("CUDA_INFERENCE", True, {}, None, None),
    ("VIRTUAL_GAMEPAD", False, {}, None, None),
    ("TLS", True, {}, None, None),
    ("TLS_HOSTNAME", "node7", {}, None, None),
    ("TLS_CREDENTIALS_DIRECTORY", "/keys", {}, "SAC_CREDENTIALS_DIR", "/keys"),
    ("NB_WORKERS", 3, {}, "SAC_MAX_WORKERS", "3"),
    ("WANDB_PROJECT", "mine", {}, "WANDB_PROJECT", "mine"),
    ("WANDB_ENTITY", "me", {}, "WANDB_ENTITY", "me"),
    ("PORT", 7001, {}, "SAC_GATEWAY_PORT", "7001"),
    ("LOCAL_PORT_SERVER", 7002, {}, "SAC_REVERB_PORT", "7002"),
    ("LOCAL_PORT_TRAINER", 7003, {}, None, None),
    ("LOCAL_PORT_WORKER", 7004, {}, None, None),
    ("BUFFER_SIZE", 1000, {}, None, None),
    ("HEADER_SIZE", 16, {}, None, None),
    ("MAX_EPOCHS", 3, {}, "num_iter", 300),
    ("ROUNDS_PER_EPOCH", 7, {}, "checkpoint_period_iters", 7),
    ("TRAINING_STEPS_PER_ROUND", 50, {}, "updates_per_iter", 50),
    ("MAX_TRAINING_STEPS_PER_ENVIRONMENT_STEP", 0.5, {}, "updates_per_env_step", 0.5),
    ("ENVIRONMENT_STEPS_BEFORE_TRAINING", 10, {}, "initial_collect_steps", 10),
    ("UPDATE_MODEL_INTERVAL", 20, {}, "publish_period_updates", 20),
    ("UPDATE_BUFFER_INTERVAL", 20, {}, None, None),
    ("SAVE_MODEL_EVERY", 30, {}, "checkpoint_period_iters", 30),
    ("SAVE_MODEL_EVERY", 1000, {}, "keep_policies", True),
    ("MEMORY_SIZE", 2500, {}, "buffer_size", 2500),
    ("BATCH_SIZE", 64, {}, "batch_size", 64),
    ("DEBUG_MODE", True, {}, None, None),
    ("ALG.ALGORITHM", "REDQSAC", {}, "algorithm", "redq"),
    ("ALG.LEARN_ENTROPY_COEF", True, {}, "learn_entropy_coef", True),
    ("ALG.LR_ACTOR", 1e-3, {}, "actor_learning_rate", 1e-3),
    ("ALG.LR_CRITIC", 1e-3, {}, "critic_learning_rate", 1e-3),
    ("ALG.LR_ENTROPY", 1e-3, LEARNED, "alpha_learning_rate", 1e-3),
    ("ALG.LR_ENTROPY", 1e-3, {}, None, None),
    ("ALG.GAMMA", 0.9, {}, "discount", 0.9),
    ("ALG.POLYAK", 0.98, {}, "target_update_tau", 0.02),
    ("ALG.TARGET_ENTROPY", None, LEARNED, "target_entropy", None),
    ("ALG.ALPHA", 1.0, {}, "sac_log_alpha", 0.0),
    ("ALG.REDQ_N", 5, REDQ, "num_critics", 5),
    ("ALG.REDQ_N", 5, {}, None, None),
    ("ALG.REDQ_M", 3, REDQ, "num_target_critics", 3),
    ("ALG.REDQ_Q_UPDATES_PER_POLICY_UPDATE", 4, REDQ, "actor_update_period", 4),
    ("ALG.OPTIMIZER_ACTOR", "sgd", {}, "actor_optimizer", {"name": "sgd", "weight_decay": 0.0}),
    ("ALG.OPTIMIZER_CRITIC", "adamw", {}, "critic_optimizer", {**ADAM, "name": "adamw"}),
    ("ALG.BETAS_ACTOR", [0.5, 0.9], {}, "actor_optimizer", {**ADAM, "beta_1": 0.5, "beta_2": 0.9}),
    ("ALG.BETAS_CRITIC", [0.5, 0.9], {}, "critic_optimizer", {**ADAM, "beta_1": 0.5, "beta_2": 0.9}),
    ("ALG.L2_ACTOR", 0.1, SGD, "actor_optimizer", {"name": "sgd", "weight_decay": 0.1}),
    ("ALG.L2_CRITIC", 0.1, {}, "critic_optimizer", {**ADAM, "weight_decay": 0.1}),
    ("ENV.RTGYM_INTERFACE", "TM20LIDAR", {}, "config.racing.observations", ["lidar", "motion"]),
    ("ENV.RTGYM_INTERFACE", "TM20LIDARPROGRESS", {}, "config.racing.observations", ["lidar", "motion", "progress"]),
    ("ENV.WINDOW_WIDTH", 100, {}, None, None),
    ("ENV.WINDOW_HEIGHT", 100, {}, None, None),
    ("ENV.IMG_WIDTH", 32, {}, "config.tmrl.picture", [64, 32]),
    ("ENV.IMG_HEIGHT", 32, {}, "config.tmrl.picture", [32, 64]),
    ("ENV.IMG_GRAYSCALE", False, {}, "config.racing.camera_channels", 3),
    ("ENV.SLEEP_TIME_AT_RESET", 1.0, {}, None, None),
    ("ENV.IMG_HIST_LEN", 2, LIDAR, "config.tmrl.frame_stack", {"lidar": 2}),
    ("ENV.RTGYM_CONFIG.time_step_duration", 0.1, {}, "config.real_time.time_step_duration", 0.1),
    ("ENV.RTGYM_CONFIG.start_obs_capture", 0.03, {}, "config.real_time.start_obs_capture", 0.03),
    ("ENV.RTGYM_CONFIG.time_step_timeout_factor", 0.5, {}, "config.real_time.time_step_timeout_factor", 0.5),
    ("ENV.RTGYM_CONFIG.act_buf_len", 3, {}, "config.tmrl.action_history", 3),
    ("ENV.RTGYM_CONFIG.wait_on_done", False, {}, "config.real_time.wait_on_done", False),
    ("ENV.RTGYM_CONFIG.ep_max_length", 500, {}, "config.horizon", 500),
    ("ENV.RTGYM_CONFIG.interface_kwargs", {"track": "closed/train/1"}, {}, "config.racing.track", "closed/train/1"),
    ("ENV.RTGYM_CONFIG.interface_kwargs", {"command_delay": [0, 0]}, {}, "config.real_time.command_delay", [0, 0]),
    ("ENV.REWARD_CONFIG.END_OF_TRACK", 1.0, {}, "config.trajectory_reward.end_of_track", 1.0),
    ("ENV.REWARD_CONFIG.CONSTANT_PENALTY", -1.0, {}, "config.trajectory_reward.constant_penalty", -1.0),
    ("ENV.REWARD_CONFIG.CHECK_FORWARD", 5, {}, "config.trajectory_reward.check_forward", 5),
    ("ENV.REWARD_CONFIG.CHECK_BACKWARD", 5, {}, "config.trajectory_reward.check_backward", 5),
    ("ENV.REWARD_CONFIG.FAILURE_COUNTDOWN", 5, {}, "config.trajectory_reward.failure_countdown", 5),
    ("ENV.REWARD_CONFIG.MIN_STEPS", 5, {}, "config.trajectory_reward.min_steps", 5),
    ("ENV.REWARD_CONFIG.MAX_STRAY", 5.0, {}, "config.trajectory_reward.max_stray", 5.0),
]
CHANGE_MORE = (
    "ENV.RTGYM_INTERFACE",
    "ALG.ALGORITHM",
    "ALG.LEARN_ENTROPY_COEF",
    "SAVE_MODEL_EVERY",
)  # Than one setting.
# They say where, whether and how a command runs, not what is trained: see test_tmrl_starts.py.
OF_COMMANDS = {
    "RESET_TRAINING",
    "CUDA_TRAINING",
    "LOCALHOST_WORKER",
    "LOCALHOST_TRAINER",
    "PUBLIC_IP_SERVER",
    "PASSWORD",
    "WANDB_KEY",
    "ENV.RTGYM_CONFIG.benchmark",
    "__VERSION__",
}


def of_guide(changes: dict[str, Any] | None = None, **options: Any) -> Config:
    return translate(read_keys(merged(json.loads(GUIDE), changes or {}), "config.json"), **options)


def settings_of(config: Config) -> dict[str, Any]:
    """By the names of `--set`, keys of the JSON to the second level."""
    leaves = {f"config.{name}": value for name, value in config.env_config.items() if not isinstance(value, dict)}
    for section, values in config.env_config.items():
        leaves |= {f"config.{section}.{name}": v for name, v in values.items()} if isinstance(values, dict) else {}
    return {**config.attributes, **config.variables, **leaves}


def test_the_guides_file_is_translated() -> None:
    config = of_guide()
    assert config.attributes == ATTRIBUTES and config.env_config == JSON
    assert config.variables.items() >= OF_MACHINE.items() and config.variables["WANDB_PROJECT"] == "tmrl"
    assert config.notes == []


def test_an_installed_file_is_the_guides_without_its_password() -> None:
    assert {**json.loads(GUIDE), "PASSWORD": "", "DEBUG_MODE": False} == DEFAULT_CONFIG


def test_every_key_is_tested_and_becomes_what_exists() -> None:
    assert len(KEYS) == 77 and len({path.rpartition(".")[2] for path in KEYS}) == 77
    assert {path for path, *_ in CHANGES} | OF_COMMANDS == set(KEYS)
    config = of_guide(REDQ)
    assert set(config.attributes) <= set(described_by(Hyperparameters))
    assert set(config.variables) - {"WANDB_PROJECT"} <= {variable.name for variable in VARIABLES}


@pytest.mark.parametrize(("path", "value", "beside", "name", "expected"), CHANGES, ids=lambda value: str(value)[:40])
def test_each_key_is_translated(path: str, value: Any, beside: Any, name: str | None, expected: Any) -> None:
    before, after = of_guide(beside), of_guide(merged(beside, nested({path: value})))
    old, new = settings_of(before), settings_of(after)
    changed = {key for key in old | new if old.get(key) != new.get(key)}
    if name is None:
        (note,) = set(after.notes) - set(before.notes)
        assert not changed and note.startswith(f"{path} has no effect")
    else:
        assert name in changed and new[name] == pytest.approx(expected) and after.notes == before.notes
        assert path in CHANGE_MORE or changed - {name} <= {"max_unsent_mb", "num_iter"}


def test_simulated_time_has_no_clock_and_tells_what_it_has_no_use_for() -> None:
    clock = {"time_step_duration": 0.1, "start_obs_capture": 0.09, "time_step_timeout_factor": 0.5}
    kwargs = {"real_time": False, "command_delay": [0, 0]}
    config = of_guide({"ENV": {"RTGYM_CONFIG": {**clock, "wait_on_done": False, "interface_kwargs": kwargs}}})
    assert "real_time" not in config.env_config and config.env_config["tmrl"]["action_history"] == 2
    names = [*clock, "wait_on_done", "interface_kwargs['command_delay']"]
    assert config.notes == [f"ENV.RTGYM_CONFIG.{name} has no effect without real time" for name in names]


def test_arguments_of_the_game_are_told_where_the_car_drives() -> None:
    config = of_guide({"ENV": {"RTGYM_CONFIG": {"interface_kwargs": {"x": 1, "gamepad": True, "y": False, "z": None}}}})
    names = ("x", "gamepad")
    assert config.notes == [
        f"ENV.RTGYM_CONFIG.interface_kwargs['{name}'] has no effect without the game" for name in names
    ]
    for value in ("false", None, 3):
        with pytest.raises(UserError, match="interface_kwargs must be an object, its `real_time` true or false"):
            of_guide({"ENV": {"RTGYM_CONFIG": {"interface_kwargs": {"real_time": value}}}})


def test_the_games_own_interface_gets_what_it_knows() -> None:
    config = of_guide({"VIRTUAL_GAMEPAD": False, "ENV": {"WINDOW_WIDTH": 100}}, has_game=True)
    rtgym = json.loads(GUIDE)["ENV"]["RTGYM_CONFIG"]
    rtgym["interface_kwargs"] = {
        "gamepad": False,
        "img_hist_len": 4,
        "grayscale": True,
        "resize_to": [64, 64],
        "save_replays": False,
    }
    assert config.env_config == {"horizon": 1000, "tmrl": {"interface": "TM20FULL", "game": True, "rtgym": rtgym}}
    assert config.attributes == ATTRIBUTES and config.notes == []


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
        "PASSWORD must be empty, or 12 to 1000 characters",
        "ALG.ALGORITHM must be 'SAC' or 'REDQSAC', found 'PPO'",
        "ALG.BETAS_ACTOR must be two numbers in [0, 1)",
        "ENV.IMG_WIDHT is no key of TMRL's guide: ENV.IMG_WIDTH is meant",
        "ENV.RTGYM_CONFIG must be an object, found 3",
    ]
    assert len(raised.value.findings) == len(expected)
    for words in expected:
        assert any(words in finding for finding in raised.value.findings), words


@pytest.mark.parametrize(("version", "is_fine"), [("0.6.0", True), ("0.7.1", True), ("0.5.9", False), (6, False)])
def test_versions(version: Any, is_fine: bool) -> None:
    config = {**DEFAULT_CONFIG, "__VERSION__": version}
    if is_fine:
        read_keys(config, "config.json")
        return
    with pytest.raises(UserError, match="__VERSION__ must be"):
        read_keys(config, "config.json")


def test_config_is_merged_at_any_depth() -> None:
    override = parse_override(' {"CUDA_TRAINING": False, "ENV": {"RTGYM_CONFIG": {"act_buf_len": 3}}} ')
    config = merged(DEFAULT_CONFIG, override)
    assert config["CUDA_TRAINING"] is False
    assert config["ENV"]["RTGYM_CONFIG"]["act_buf_len"] == 3
    assert config["ENV"]["RTGYM_CONFIG"]["ep_max_length"] == 1000
    assert DEFAULT_CONFIG["ENV"]["RTGYM_CONFIG"]["act_buf_len"] == 2, "the defaults are not touched"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"CUDA_TRAINING": true}', "with True, False and None"),
        ("{'A': __import__('os').system('true')}", "must be a Python dictionary"),
        ("config.json", "config.json' must be a Python dictionary"),
        ("[1, 2]", "must be a Python dictionary"),
        ("{", "must be a Python dictionary"),
        ("", "must be a Python dictionary"),
    ],
)
def test_config_is_a_literal_and_nothing_else(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_override(text)
