"""TMRL's config.json: its keys (reference guide of 0.6 and 0.7), and what each becomes in the toolkit."""

from __future__ import annotations

import ast
import dataclasses
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tfagents_system.checks import rules
from tfagents_system.checks.rules import Rule
from tfagents_system.errors import UserError, shown
from tfagents_system.examples.racing.environment import CAMERA, LIDAR, MOTION, PROGRESS, RacingSettings

_INTERFACES = ("TM20FULL", "TM20LIDAR", "TM20LIDARPROGRESS")
# Both ways together less than a time step: an act_buf_len of 2, the guide's, tells what is still to act.
_DELAYS = {"command_delay": [0.0, 0.02], "observation_delay": [0.0, 0.01]}
_LIDAR_STEP_BYTES = 4 * 30  # Rays, motion, action, reward, discount; float32.
_OPEN_SLOTS = 256  # NB_WORKERS of -1.
_OBJECTS = ("ALG", "ENV", "ENV.RTGYM_CONFIG", "ENV.REWARD_CONFIG")
_KWARGS = "ENV.RTGYM_CONFIG.interface_kwargs"


class Key(NamedTuple):
    """A key of config.json, what its value must be, and what it becomes: its target.

    `NAME`                an attribute, a key of the JSON (`config.KEY`, * is the key's own name) or a variable
    `NAME, with OTHER`    the same where OTHER acts
    `run: WORDS`          `translate` computes it; all machines of a run must have the same value
    `here: WORDS`         one machine's, or one command's
    `game: WORDS`         it is for the game's interface
    `nothing: WHY`        it has no effect
    """

    path: str
    default: Any
    rule: Rule
    target: str


_BOOL = Rule("true or false", lambda value: isinstance(value, bool))
_TEXT = Rule("a text", lambda value: isinstance(value, str))
_NAME = Rule(
    "letters, digits, '.', '-' and '_'", lambda text: bool(re.fullmatch(r"[A-Za-z0-9][-\w.]{0,99}", text, re.A))
)
_PASSWORD = Rule("empty, or 12 to 1000 characters", lambda text: text == "" or 12 <= len(text.strip()) <= 1000)
_VERSION = Rule("0.6.0 or later, and below 1", lambda text: re.fullmatch(r"0\.([6-9]|[1-9]\d+)\.\d+", text) is not None)
_PORT = Rule("a port from 1 to 65535", lambda value: rules.is_integer(value) and 1 <= value <= 65535)
_WORKERS = Rule("-1 or an integer from 1 to 4096", lambda n: rules.is_integer(n) and n != 0 and -1 <= n <= 4096)
_COUNT, _COUNT_OR_0 = rules.integer_from(1), rules.integer_from(0)
_NUMBER, _POSITIVE = Rule("a finite number", rules.is_number), rules.number_above(0)
_AT_LEAST_0 = rules.number_where("a number of at least 0", lambda value: value >= 0)
_BELOW_1 = rules.number_where("a number of at least 0 and below 1", lambda value: 0 <= value < 1)
_BETAS = Rule("two numbers in [0, 1)", lambda pair: len(pair) == 2 and all(rules.is_kept(_BELOW_1, n) for n in pair))
_OPTIMIZER = rules.one_of(("adam", "adamw", "sgd"))
_ARGUMENTS = Rule(
    "an object, its `real_time` true or false", lambda value: value.get("real_time", True) in (True, False)
)
_NO_PORT = "nothing: trainer and workers need no port of their own"
_SERVER = "here: where `--trainer` and `--worker` look for the server: this machine, or PUBLIC_IP_SERVER"
_HORIZON = "run: `config.horizon`, the smaller of RW_MAX_SAMPLES_PER_EPISODE and ep_max_length"
_FILE = "game: it reads this from config.json itself"
_PICTURE = "run: size of the camera's picture"
# The order is the guide's; DEBUG_MODE is not in it, TMRL reads it nevertheless.
_TABLE: tuple[tuple[str, Any, Rule, str], ...] = (
    ("RUN_NAME", "SAC_4_imgs_pretrained", _NAME, "run: SAC_EXP_NAME"),
    ("RESET_TRAINING", False, _BOOL, "here: once a command, a new agent learns from the experience that is there"),
    ("BUFFERS_MAXLEN", 500000, _COUNT, "run: `max_unsent_mb`, at the size of a step"),
    ("RW_MAX_SAMPLES_PER_EPISODE", 1000, _COUNT, _HORIZON),
    ("CUDA_TRAINING", True, _BOOL, "here: SAC_TRAIN_GPUS=1, where there is a GPU"),
    ("CUDA_INFERENCE", False, _BOOL, "nothing: workers compute actions on a CPU"),
    ("VIRTUAL_GAMEPAD", True, _BOOL, "game: `gamepad` of its interface"),
    ("LOCALHOST_WORKER", True, _BOOL, _SERVER),
    ("LOCALHOST_TRAINER", True, _BOOL, _SERVER),
    ("PUBLIC_IP_SERVER", "0.0.0.0", _TEXT, "here: host of SAC_SERVER"),
    ("PASSWORD", "", _PASSWORD, "here: SAC_PASSWORD_FILE; empty: `config/password`"),
    ("TLS", False, _BOOL, "nothing: between machines it is always on"),
    ("TLS_HOSTNAME", "default", _TEXT, "nothing: the certificate is valid at any address"),
    ("TLS_CREDENTIALS_DIRECTORY", "", _TEXT, "here: SAC_CREDENTIALS_DIR; empty: `~/TmrlData/credentials`"),
    ("NB_WORKERS", -1, _WORKERS, f"here: SAC_MAX_WORKERS; -1 is {_OPEN_SLOTS}"),
    ("WANDB_PROJECT", "tmrl", _TEXT, "WANDB_PROJECT"),
    ("WANDB_ENTITY", "tmrl", _TEXT, "WANDB_ENTITY, with an entity of your own"),
    ("WANDB_KEY", "YourWandbApiKey", _TEXT, "here: WANDB_API_KEY"),
    ("PORT", 55555, _PORT, "SAC_GATEWAY_PORT"),
    ("LOCAL_PORT_SERVER", 55556, _PORT, "SAC_REVERB_PORT"),
    ("LOCAL_PORT_TRAINER", 55557, _PORT, _NO_PORT),
    ("LOCAL_PORT_WORKER", 55558, _PORT, _NO_PORT),
    ("BUFFER_SIZE", 536870912, _COUNT, "nothing: the largest message follows from the observations"),
    ("HEADER_SIZE", 12, _COUNT, "nothing: messages have headers of their own"),
    ("MAX_EPOCHS", 10000, _COUNT, "run: `num_iter` = MAX_EPOCHS * ROUNDS_PER_EPOCH"),
    ("ROUNDS_PER_EPOCH", 100, _COUNT, "run: `checkpoint_period_iters`"),
    ("TRAINING_STEPS_PER_ROUND", 200, _COUNT, "updates_per_iter"),
    ("MAX_TRAINING_STEPS_PER_ENVIRONMENT_STEP", 4.0, _POSITIVE, "updates_per_env_step"),
    ("ENVIRONMENT_STEPS_BEFORE_TRAINING", 1000, _COUNT_OR_0, "initial_collect_steps"),
    ("UPDATE_MODEL_INTERVAL", 200, _COUNT, "publish_period_updates"),
    ("UPDATE_BUFFER_INTERVAL", 200, _COUNT, "nothing: experience is stored as it comes"),
    ("SAVE_MODEL_EVERY", 0, _COUNT_OR_0, "run: `keep_policies`; it may shorten `checkpoint_period_iters`"),
    ("MEMORY_SIZE", 1000000, _COUNT, "buffer_size"),
    ("BATCH_SIZE", 256, _COUNT, "batch_size"),
    ("DEBUG_MODE", False, _BOOL, "nothing: logs and metrics.csv have what a run measures"),
    ("ALG.ALGORITHM", "SAC", rules.one_of(("SAC", "REDQSAC")), "run: `algorithm`, `sac` or `redq`"),
    ("ALG.LEARN_ENTROPY_COEF", False, _BOOL, "learn_entropy_coef"),
    ("ALG.LR_ACTOR", 0.00001, _POSITIVE, "actor_learning_rate"),
    ("ALG.LR_CRITIC", 0.00005, _POSITIVE, "critic_learning_rate"),
    ("ALG.LR_ENTROPY", 0.0003, _POSITIVE, "alpha_learning_rate, with LEARN_ENTROPY_COEF"),
    ("ALG.GAMMA", 0.995, rules.number_in(0.0, 1.0), "discount"),
    ("ALG.POLYAK", 0.995, _BELOW_1, "run: `target_update_tau` = 1 - POLYAK"),
    ("ALG.TARGET_ENTROPY", -0.5, rules.or_none(_NUMBER, "null"), "target_entropy, with LEARN_ENTROPY_COEF"),
    ("ALG.ALPHA", 0.01, rules.number_above(0.0, at_most=1e20), "run: `sac_log_alpha` = log(ALPHA)"),
    ("ALG.REDQ_N", 10, _COUNT, "num_critics, with REDQSAC"),
    ("ALG.REDQ_M", 2, _COUNT, "num_target_critics, with REDQSAC"),
    ("ALG.REDQ_Q_UPDATES_PER_POLICY_UPDATE", 20, _COUNT, "actor_update_period, with REDQSAC"),
    ("ALG.OPTIMIZER_ACTOR", "adam", _OPTIMIZER, "actor_optimizer.name"),
    ("ALG.OPTIMIZER_CRITIC", "adam", _OPTIMIZER, "critic_optimizer.name"),
    ("ALG.BETAS_ACTOR", [0.997, 0.997], _BETAS, "run: `beta_1` and `beta_2` of `actor_optimizer`"),
    ("ALG.BETAS_CRITIC", [0.997, 0.997], _BETAS, "run: `beta_1` and `beta_2` of `critic_optimizer`"),
    ("ALG.L2_ACTOR", 0.0, _AT_LEAST_0, "actor_optimizer.weight_decay"),
    ("ALG.L2_CRITIC", 0.0, _AT_LEAST_0, "critic_optimizer.weight_decay"),
    ("ENV.RTGYM_INTERFACE", "TM20FULL", rules.one_of(_INTERFACES), "run: `config.racing.observations`"),
    ("ENV.WINDOW_WIDTH", 256, _COUNT, _FILE),
    ("ENV.WINDOW_HEIGHT", 128, _COUNT, _FILE),
    ("ENV.IMG_WIDTH", 64, _COUNT, _PICTURE),
    ("ENV.IMG_HEIGHT", 64, _COUNT, _PICTURE),
    ("ENV.IMG_GRAYSCALE", True, _BOOL, "run: `config.racing.camera_channels`, 1 or 3"),
    ("ENV.SLEEP_TIME_AT_RESET", 1.5, _AT_LEAST_0, _FILE),
    ("ENV.IMG_HIST_LEN", 4, _COUNT, "run: `frame_stack` of `camera` or `lidar`"),
    ("ENV.RTGYM_CONFIG.time_step_duration", 0.05, _POSITIVE, "config.real_time.*, with real time"),
    ("ENV.RTGYM_CONFIG.start_obs_capture", 0.04, _AT_LEAST_0, "config.real_time.*, with real time"),
    ("ENV.RTGYM_CONFIG.time_step_timeout_factor", 1.0, _AT_LEAST_0, "config.real_time.*, with real time"),
    ("ENV.RTGYM_CONFIG.act_buf_len", 2, _COUNT_OR_0, "run: `action_history`"),
    ("ENV.RTGYM_CONFIG.benchmark", False, _BOOL, "here: nothing, `--benchmark` measures without it"),
    ("ENV.RTGYM_CONFIG.wait_on_done", True, _BOOL, "config.real_time.*, with real time"),
    ("ENV.RTGYM_CONFIG.ep_max_length", 1000, _COUNT, _HORIZON),
    (_KWARGS, {"save_replays": False}, _ARGUMENTS, "run: keys of `config.racing`, delays and `real_time`"),
    ("ENV.REWARD_CONFIG.END_OF_TRACK", 100.0, _NUMBER, "config.trajectory_reward.*"),
    ("ENV.REWARD_CONFIG.CONSTANT_PENALTY", 0.0, _NUMBER, "config.trajectory_reward.*"),
    ("ENV.REWARD_CONFIG.CHECK_FORWARD", 500, _COUNT, "config.trajectory_reward.*"),
    ("ENV.REWARD_CONFIG.CHECK_BACKWARD", 10, _COUNT, "config.trajectory_reward.*"),
    ("ENV.REWARD_CONFIG.FAILURE_COUNTDOWN", 10, _COUNT_OR_0, "config.trajectory_reward.*"),
    ("ENV.REWARD_CONFIG.MIN_STEPS", 70, _COUNT_OR_0, "config.trajectory_reward.*"),
    ("ENV.REWARD_CONFIG.MAX_STRAY", 100.0, _POSITIVE, "config.trajectory_reward.*"),
    ("__VERSION__", "0.6.0", _VERSION, "here: which keys there are"),
)
KEYS = {row[0]: Key(*row) for row in _TABLE}


@dataclasses.dataclass(frozen=True)
class Config:
    """A config.json: the values of all keys by path, what they become, and notes on those that have no effect."""

    values: Mapping[str, Any]
    has_game: bool  # TMRL's own interface drives the game; else it is the car of examples/racing.
    attributes: dict[str, Any]
    env_config: dict[str, Any]
    variables: dict[str, str]
    notes: list[str]


def merged(config: Mapping[Any, Any], over: Mapping[Any, Any]) -> dict[Any, Any]:
    """A configuration with other values in it, at any depth."""
    objects = {name: value for name, value in over.items() if isinstance(value, Mapping)}
    both = {
        name: merged(config[name], value) for name, value in objects.items() if isinstance(config.get(name), Mapping)
    }
    return {**config, **over, **both}


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`."""
    result: dict[str, Any] = {}
    for path, value in flat.items():
        for name in reversed(path.split(".")):
            value = {name: value}
        result = merged(result, value)
    return result


# config.json with the guide's values; PASSWORD is empty: it is the user's own.
DEFAULT_CONFIG = nested({path: key.default for path, key in KEYS.items()})


def parse_override(text: str) -> dict[Any, Any]:
    """What `--config=` gives: a Python literal of a dictionary, of which nothing is run.

    Raises:
      UserError: It is no such literal.
    """
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UserError(
            f"--config={shown(text)} must be a Python dictionary, with True, False and None: give one such as "
            '--config=\'{"CUDA_TRAINING": True, "ALG": {"ALGORITHM": "REDQSAC"}}\''
        )
    return value


def read_keys(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values of all keys by path; those that are not given have their defaults.

    Args:
      config: What config.json holds, `--config` included.
      where: Names it in messages.

    Raises:
      UserError: It has unknown keys, impossible values, or another major version; all of them.
    """
    values: dict[str, Any] = {path: key.default for path, key in KEYS.items()}
    findings = []
    for path, value in _leaves(config):
        if path in _OBJECTS:
            findings.append(f"{path} must be an object, found {shown(value)}: correct it")
        elif path not in KEYS:
            findings.append(f"{path} is no key of TMRL's guide: {_remedy(path.rpartition('.')[2])}")
        elif not rules.is_kept(KEYS[path].rule, value):
            findings.append(f"{path} must be {KEYS[path].rule.words}, found {shown(value)}: correct it")
        values[path] = value
    if findings:
        raise UserError(*(f"{where}: {finding}" for finding in findings))
    return values


def _leaves(config: Mapping[Any, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        path = f"{inside}{name}"
        is_object = path in _OBJECTS and isinstance(value, Mapping)
        yield from _leaves(value, f"{path}.") if is_object else [(path, value)]


def _remedy(name: str) -> str:
    paths = {path.rpartition(".")[2]: path for path in (*_OBJECTS, *KEYS)}
    if name in paths:
        return f"it belongs to {paths[name].rpartition('.')[0] or 'the top'}: move it there"
    meant = rules.near_misses([name], paths, rules.SIMILARITY_OF_KEYS)
    return f"{paths[meant[0][1]]} is meant" if meant else "remove it"


def translate(values: Mapping[str, Any], *, has_game: bool = False) -> Config:
    """What the values of all keys become."""
    acts = {
        "LEARN_ENTROPY_COEF": values["ALG.LEARN_ENTROPY_COEF"],
        "REDQSAC": values["ALG.ALGORITHM"] == "REDQSAC",
        "an entity of your own": values["WANDB_ENTITY"] != KEYS["WANDB_ENTITY"].default,
        "real time": values[_KWARGS].get("real_time", True),
        "the game": has_game,
    }
    settings, notes = _computed(values), []
    for path, (_, default, _, target) in KEYS.items():
        kind, _, words = target.partition(": ")
        name, _, condition = target.partition(", with ")
        condition = "the game" if kind == "game" else condition
        if not words and acts.get(condition, True) and not (has_game and name.startswith("config.")):
            settings[name.replace("*", path.rpartition(".")[2].lower())] = values[path]
        elif values[path] != default and (kind == "nothing" or not acts.get(condition, True)):
            notes.append(f"{path} has no effect{f' without {condition}' if condition else f': {words}'}")
    settings |= _game(values) if has_game else _car(values, acts["real time"], notes)
    variables = {name: str(value) for name, value in settings.items() if name.isupper()}
    tree = nested({name: value for name, value in settings.items() if not name.isupper()})
    return Config(values, has_game, env_config=tree.pop("config"), attributes=tree, variables=variables, notes=notes)


def _computed(values: Mapping[str, Any]) -> dict[str, Any]:
    """What takes more than one key, or a calculation."""
    period, every = values["ROUNDS_PER_EPOCH"], values["SAVE_MODEL_EVERY"]
    if every:  # A policy is kept with each checkpoint.
        rounds = every * values["UPDATE_MODEL_INTERVAL"] / values["TRAINING_STEPS_PER_ROUND"]
        period = min(period, max(1, round(rounds)))
    pixels = values["ENV.IMG_WIDTH"] * values["ENV.IMG_HEIGHT"] * (1 if values["ENV.IMG_GRAYSCALE"] else 3)
    step_bytes = _LIDAR_STEP_BYTES + pixels * (values["ENV.RTGYM_INTERFACE"] == "TM20FULL")
    credentials = values["TLS_CREDENTIALS_DIRECTORY"] or "~/TmrlData/credentials"
    computed = {
        "SAC_EXP_NAME": values["RUN_NAME"],
        "SAC_MAX_WORKERS": _OPEN_SLOTS if values["NB_WORKERS"] < 0 else values["NB_WORKERS"],
        "SAC_CREDENTIALS_DIR": os.path.abspath(os.path.expanduser(credentials)),
        "algorithm": {"SAC": "sac", "REDQSAC": "redq"}[values["ALG.ALGORITHM"]],
        "num_iter": values["MAX_EPOCHS"] * values["ROUNDS_PER_EPOCH"],
        "checkpoint_period_iters": period,
        "keep_policies": every > 0,
        "max_unsent_mb": math.ceil(values["BUFFERS_MAXLEN"] * step_bytes / 2**20),
        "target_update_tau": round(1.0 - values["ALG.POLYAK"], 12),
        "sac_log_alpha": math.log(values["ALG.ALPHA"]),
        "config.horizon": min(values["RW_MAX_SAMPLES_PER_EPISODE"], values["ENV.RTGYM_CONFIG.ep_max_length"]),
    }
    for part in ("ACTOR", "CRITIC"):
        if values[f"ALG.OPTIMIZER_{part}"] != "sgd":
            beta_1, beta_2 = values[f"ALG.BETAS_{part}"]
            computed |= {f"{part.lower()}_optimizer.beta_1": beta_1, f"{part.lower()}_optimizer.beta_2": beta_2}
    return computed


def _game(values: Mapping[str, Any]) -> dict[str, Any]:
    """Its own interface of rtgym has the histories of observations and actions, and the reward."""
    arguments: dict[str, Any] = {"gamepad": values["VIRTUAL_GAMEPAD"], "img_hist_len": values["ENV.IMG_HIST_LEN"]}
    if values["ENV.RTGYM_INTERFACE"] == "TM20FULL":
        arguments["grayscale"] = values["ENV.IMG_GRAYSCALE"]
        arguments["resize_to"] = [values["ENV.IMG_WIDTH"], values["ENV.IMG_HEIGHT"]]
    rtgym = {path.rpartition(".")[2]: value for path, value in values.items() if path.startswith("ENV.RTGYM_CONFIG.")}
    rtgym["interface_kwargs"] = {**arguments, **values[_KWARGS]}
    return {"config.tmrl": {"game": True, "interface": values["ENV.RTGYM_INTERFACE"], "rtgym": rtgym}}


def _car(values: Mapping[str, Any], is_real_time: bool, notes: list[str]) -> dict[str, Any]:
    """The car of examples/racing, with TMRL's reward; adds a note on each argument that is for the game."""
    part = CAMERA if values["ENV.RTGYM_INTERFACE"] == "TM20FULL" else LIDAR
    observations = [part, MOTION, *([PROGRESS] if values["ENV.RTGYM_INTERFACE"] == "TM20LIDARPROGRESS" else [])]
    history = {"frame_stack": {part: values["ENV.IMG_HIST_LEN"]}}
    settings: dict[str, Any] = {
        "config.tmrl": {"game": False, "action_history": values["ENV.RTGYM_CONFIG.act_buf_len"], **history},
        "config.racing": {"observations": observations, "track": "closed/train/3"},
        "config.racing.off_track_metres": None,  # The reward's rules end episodes.
        "config.racing.stuck_secs": None,
        "config.input_files.trajectory_reward": "~/TmrlData/reward/reward.npz",
        "config.trajectory_reward.regain": True,  # TMRL's rule.
    }
    if part == CAMERA:
        settings["config.racing.camera_channels"] = 1 if values["ENV.IMG_GRAYSCALE"] else 3
        settings["config.tmrl.picture"] = [values["ENV.IMG_HEIGHT"], values["ENV.IMG_WIDTH"]]
    if is_real_time:
        settings["config.real_time"] = _DELAYS
    of_race = [field.name for field in dataclasses.fields(RacingSettings)]
    for name, value in values[_KWARGS].items():
        if name in of_race or (name in _DELAYS and is_real_time):
            settings[f"config.{'racing' if name in of_race else 'real_time'}.{name}"] = value
        elif name != "real_time" and value not in (False, None):
            notes.append(f"{_KWARGS}[{name!r}] has no effect without {'real time' if name in _DELAYS else 'the game'}")
    return settings
