"""What each key of TMRL's config.json becomes here: attributes of TrainParams, keys of the JSON, SAC_ variables."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tfagents_system.checks.spelling import near_misses
from tfagents_system.envs.racing.settings import CAMERA, LIDAR, MOTION, PROGRESS, RacingSettings
from tfagents_system.errors import UserError
from tfagents_system.settings.tmrl_keys import KEYS

Given = Mapping[str, Any]  # The values of config.json by path.
REWARD_FILE = "~/TmrlData/reward/reward.npz"
TRACK = "closed/train/3"
IN_REAL_TIME = "real_time"  # In interface_kwargs: false steps the simulated car as fast as it goes.
_OBSERVATIONS = {
    "TM20FULL": (CAMERA, MOTION),
    "TM20LIDAR": (LIDAR, MOTION),
    "TM20LIDARPROGRESS": (LIDAR, MOTION, PROGRESS),
}
# Both ways together less than a time step: an act_buf_len of 2, the guide's, tells what is still to act.
_DELAYS = {"command_delay": [0.0, 0.02], "observation_delay": [0.0, 0.01]}
_OPEN_SLOTS = 256  # NB_WORKERS of -1.
_GUIDES_PASSWORD = "YourRandomPasswordHere"
_KWARGS = "ENV.RTGYM_CONFIG.interface_kwargs"
_OF_DEVICE = ("command_delay", "observation_delay")
_SIMULATED = 'interface_kwargs has "real_time": false, and the car does not drive in wall time'
_BYTES_OF_LIDAR = 4 * 30  # A step: rays, motion, action, reward, discount; float32.


@dataclasses.dataclass
class Translation:
    """What a config.json says, in the toolkit's own words.

    Attributes:
      attributes: Of TrainParams, as of `--set`.
      env_config: The JSON of SAC_CONFIG.
      variables: SAC_ variables.
      lines: What the user should know: keys that have no effect here, or another one.
    """

    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    env_config: dict[str, Any] = dataclasses.field(default_factory=dict)
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    lines: list[str] = dataclasses.field(default_factory=list)

    def put_json(self, path: str, value: Any) -> None:
        """Sets a key of the JSON, `racing.track`."""
        *sections, name = path.split(".")
        place = self.env_config
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value

    def assignments(self) -> list[str]:
        """The attributes as arguments of `--set`."""
        return [f"{name}={json.dumps(value)}" for name, value in self.attributes.items()]


class Row(NamedTuple):
    """One key of config.json.

    Attributes:
      path: The key.
      here: What it becomes, for docs/how_to/tmrl.md.
      put: Writes it.
      of_machine: Each machine may have its own value; all others must be the same on all machines of a run.
      with_game: It matters, too, where TMRL's own interface of the game is used.
    """

    path: str
    here: str
    put: Callable[[Given, Translation], None]
    of_machine: bool = False
    with_game: bool = True


# The kinds of rows.


def _attribute(path: str, name: str, value: Callable[[Any], Any] = lambda value: value, words: str = "") -> Row:
    here = f"`{name}`" + (f" = {words}" if words else "")
    return Row(path, here, lambda given, to: to.attributes.update({name: value(given[path])}))


def _of_redq(path: str, name: str) -> Row:
    return _attribute_if("ALG.ALGORITHM", "REDQSAC", path, name, "with REDQSAC")


def _of_learned_entropy(path: str, name: str) -> Row:
    return _attribute_if("ALG.LEARN_ENTROPY_COEF", True, path, name, "with LEARN_ENTROPY_COEF")


def _attribute_if(other: str, value: Any, path: str, name: str, words: str) -> Row:
    """An attribute that acts only where another key has a value."""

    def put(given: Given, to: Translation) -> None:
        if given[other] == value:
            to.attributes[name] = given[path]

    return Row(path, f"`{name}`, {words}", put)


def _part_of_optimizer(path: str) -> Row:
    part, key = path.rpartition("_")[2].lower(), {"O": "name", "B": "beta_1` and `beta_2", "L": "weight_decay"}[path[4]]

    def put(given: Given, to: Translation) -> None:
        to.attributes[f"{part}_optimizer"] = _optimizer(given, part.upper())

    return Row(path, f"`{key}` of `{part}_optimizer`", put)


def _optimizer(given: Given, part: str) -> dict[str, Any]:
    name = given[f"ALG.OPTIMIZER_{part}"]
    betas = dict(zip(("beta_1", "beta_2"), given[f"ALG.BETAS_{part}"], strict=True)) if name != "sgd" else {}
    return {"name": name, **betas, "weight_decay": given[f"ALG.L2_{part}"]}


def _json(path: str, name: str) -> Row:
    return Row(path, f"`{name}` in the JSON", lambda given, to: to.put_json(name, given[path]), with_game=False)


def _reward(name: str) -> Row:
    return _json(f"ENV.REWARD_CONFIG.{name}", f"trajectory_reward.{name.lower()}")


def _clock(name: str) -> Row:
    def put(given: Given, to: Translation) -> None:
        if is_in_real_time(given):
            to.put_json(f"real_time.{name}", given[path])
        elif given[path] != KEYS[path].default:
            to.lines.append(f"{path} has no effect: {_SIMULATED}")

    path = f"ENV.RTGYM_CONFIG.{name}"
    return Row(path, f"`real_time.{name}` in the JSON", put, with_game=False)


def _variable(path: str, name: str, of_machine: bool = True) -> Row:
    return Row(path, name, lambda given, to: to.variables.update({name: str(given[path])}), of_machine)


def _of_game(path: str, here: str) -> Row:
    """A key that only the game knows: told where it was changed, and passed on where the game is."""

    def put(given: Given, to: Translation) -> None:
        if given[path] != KEYS[path].default and not to.env_config["tmrl"]["game"]:
            to.lines.append(f"{path} is for the game, which is not here: it has no effect")

    return Row(path, here, put)


def _needless(path: str, why: str) -> Row:
    """A key without a counterpart: told where it was changed."""

    def put(given: Given, to: Translation) -> None:
        if given[path] != KEYS[path].default:
            to.lines.append(f"{path} has no effect: {why}")

    return Row(path, f"nothing: {why}", put, of_machine=True)


def _nothing(given: Given, to: Translation) -> None:
    """Read elsewhere."""


# What takes more than one key, or a calculation.


def _put_unsent(given: Given, to: Translation) -> None:
    step_bytes = _BYTES_OF_LIDAR
    if given["ENV.RTGYM_INTERFACE"] == "TM20FULL":
        step_bytes += given["ENV.IMG_WIDTH"] * given["ENV.IMG_HEIGHT"] * _channels(given)
    to.attributes["max_unsent_mb"] = math.ceil(given["BUFFERS_MAXLEN"] * step_bytes / 2**20)


def _channels(given: Given) -> int:
    return 1 if given["ENV.IMG_GRAYSCALE"] else 3


def _put_iterations(given: Given, to: Translation) -> None:
    to.attributes["num_iter"] = given["MAX_EPOCHS"] * given["ROUNDS_PER_EPOCH"]


def _put_checkpoints(given: Given, to: Translation) -> None:
    """A policy is kept with each checkpoint: SAVE_MODEL_EVERY may ask for more of them than ROUNDS_PER_EPOCH."""
    period, every = given["ROUNDS_PER_EPOCH"], given["SAVE_MODEL_EVERY"]
    if every:
        updates = every * given["UPDATE_MODEL_INTERVAL"]
        period = min(period, max(1, round(updates / given["TRAINING_STEPS_PER_ROUND"])))
    to.attributes["checkpoint_period_iters"] = period


def _put_workers(given: Given, to: Translation) -> None:
    count = given["NB_WORKERS"]
    to.variables["SAC_MAX_WORKERS"] = str(_OPEN_SLOTS if count < 0 else count)


def _put_tls(given: Given, to: Translation) -> None:
    if not given["TLS"]:
        to.lines.append("TLS is false: between machines it is on nevertheless, there is nothing without it")


def _put_tls_hostname(given: Given, to: Translation) -> None:
    if given["TLS_HOSTNAME"] not in ("default", "", given["PUBLIC_IP_SERVER"]):
        to.lines.append(
            f"TLS_HOSTNAME={given['TLS_HOSTNAME']!r} has no effect: certificates of your own must bear the name in "
            "PUBLIC_IP_SERVER"
        )


def _put_credentials(given: Given, to: Translation) -> None:
    to.variables["SAC_CREDENTIALS_DIR"] = given["TLS_CREDENTIALS_DIRECTORY"] or "~/TmrlData/credentials"


def _put_password(given: Given, to: Translation) -> None:
    to.variables["SAC_PASSWORD_FILE"] = "~/TmrlData/config/password"
    if given["PASSWORD"] == _GUIDES_PASSWORD:
        to.lines.append("PASSWORD is the guide's example, which everybody knows: certificates alone protect the run")


def _put_entity(given: Given, to: Translation) -> None:
    if given["WANDB_ENTITY"] != KEYS["WANDB_ENTITY"].default:
        to.variables["WANDB_ENTITY"] = given["WANDB_ENTITY"]


def _put_inference(given: Given, to: Translation) -> None:
    if given["CUDA_INFERENCE"]:
        to.lines.append("CUDA_INFERENCE is true: workers compute actions on a CPU nevertheless, in NumPy")


def _put_ratio(given: Given, to: Translation) -> None:
    to.attributes["asynchronous"] = True
    to.attributes["updates_per_env_step"] = given["MAX_TRAINING_STEPS_PER_ENVIRONMENT_STEP"]


def _put_algorithm(given: Given, to: Translation) -> None:
    to.attributes["algorithm"] = {"SAC": "sac", "REDQSAC": "redq"}[given["ALG.ALGORITHM"]]


def _put_interface(given: Given, to: Translation) -> None:
    observations = _OBSERVATIONS[given["ENV.RTGYM_INTERFACE"]]
    to.put_json("racing", {"observations": list(observations), "track": TRACK})
    to.put_json("racing.off_track_metres", None)  # The reward's rules end episodes.
    to.put_json("racing.stuck_secs", None)
    if is_in_real_time(given):
        to.put_json("real_time", dict(_DELAYS))
    if CAMERA in observations:
        to.put_json("racing.camera_channels", _channels(given))
        to.put_json("tmrl.picture", [given["ENV.IMG_HEIGHT"], given["ENV.IMG_WIDTH"]])
    to.put_json("trajectory_reward.file", REWARD_FILE)
    to.put_json("trajectory_reward.regain", True)  # TMRL's rule.


def _put_history(given: Given, to: Translation) -> None:
    part = CAMERA if given["ENV.RTGYM_INTERFACE"] == "TM20FULL" else LIDAR
    to.attributes["frame_stack"] = {part: given["ENV.IMG_HIST_LEN"]}


def _put_kwargs(given: Given, to: Translation) -> None:
    """Those that the car has; the game's are told.

    Raises:
      UserError: Some are near misses of the car's own.
    """
    of_race = [field.name for field in dataclasses.fields(RacingSettings)]
    own, known = given[_KWARGS], [*of_race, *_OF_DEVICE, IN_REAL_TIME]
    if meant := near_misses(own, known):
        raise UserError(
            *(f"{_KWARGS}[{name!r}] is no key of the car's: {right!r} is meant: correct it" for name, right in meant)
        )
    for name, value in own.items():
        if name in of_race:
            to.put_json(f"racing.{name}", value)
        elif name in _OF_DEVICE and is_in_real_time(given):
            to.put_json(f"real_time.{name}", value)
        elif name in _OF_DEVICE:
            to.lines.append(f"{_KWARGS}[{name!r}] has no effect: {_SIMULATED}")
        elif name != IN_REAL_TIME and value is not False and value is not None:
            to.lines.append(f"{_KWARGS}[{name!r}] is for the game, which is not here")


def is_in_real_time(given: Given) -> bool:
    """Whether the car drives in wall time: unless `interface_kwargs` has `"real_time": false`."""
    return given[_KWARGS].get(IN_REAL_TIME, True) is not False


_NO_LOCAL_PORT = "trainer and workers need no port of their own"
_SERVER = "where `--trainer` and `--worker` look for the server: this machine, or PUBLIC_IP_SERVER"
_TRUNCATION = "`horizon` in the JSON, the smaller of RW_MAX_SAMPLES_PER_EPISODE and ep_max_length"
_SIZE = "size of the camera's picture"

ROWS: tuple[Row, ...] = (
    _variable("RUN_NAME", "SAC_EXP_NAME", of_machine=False),
    Row("RESET_TRAINING", "`--fresh --from` the run before `--take replay`, once a command", _nothing, of_machine=True),
    Row("BUFFERS_MAXLEN", "`max_unsent_mb`, at the size of a step", _put_unsent),
    Row("RW_MAX_SAMPLES_PER_EPISODE", _TRUNCATION, _nothing),
    Row("CUDA_TRAINING", "SAC_TRAIN_GPUS=1, where there is a GPU", _nothing, of_machine=True),
    Row("CUDA_INFERENCE", "nothing: workers compute actions on a CPU", _put_inference, of_machine=True),
    _of_game("VIRTUAL_GAMEPAD", "`gamepad` of the game's interface"),
    Row("LOCALHOST_WORKER", _SERVER, _nothing, of_machine=True),
    Row("LOCALHOST_TRAINER", _SERVER, _nothing, of_machine=True),
    Row("PUBLIC_IP_SERVER", "host of SAC_SERVER", _nothing, of_machine=True),
    Row("PASSWORD", "SAC_PASSWORD_FILE: moved into a file that only you can read", _put_password, of_machine=True),
    Row("TLS", "nothing: it is always on", _put_tls, of_machine=True),
    Row("TLS_HOSTNAME", "nothing: the name in your own certificates is PUBLIC_IP_SERVER", _put_tls_hostname, True),
    Row("TLS_CREDENTIALS_DIRECTORY", "SAC_CREDENTIALS_DIR; empty: `~/TmrlData/credentials`", _put_credentials, True),
    Row("NB_WORKERS", f"SAC_MAX_WORKERS; -1 is {_OPEN_SLOTS}", _put_workers, of_machine=True),
    _variable("WANDB_PROJECT", "WANDB_PROJECT"),
    Row("WANDB_ENTITY", "WANDB_ENTITY; TMRL's own is the one of your key", _put_entity, of_machine=True),
    Row("WANDB_KEY", "WANDB_API_KEY: moved into a file that only you can read", _nothing, of_machine=True),
    _variable("PORT", "SAC_GATEWAY_PORT"),
    _variable("LOCAL_PORT_SERVER", "SAC_REVERB_PORT"),
    _needless("LOCAL_PORT_TRAINER", _NO_LOCAL_PORT),
    _needless("LOCAL_PORT_WORKER", _NO_LOCAL_PORT),
    _needless("BUFFER_SIZE", "the largest message follows from the observations"),
    _needless("HEADER_SIZE", "messages have headers of their own"),
    Row("MAX_EPOCHS", "`num_iter` = MAX_EPOCHS * ROUNDS_PER_EPOCH", _put_iterations),
    Row("ROUNDS_PER_EPOCH", "`checkpoint_period_iters`", _put_checkpoints),
    _attribute("TRAINING_STEPS_PER_ROUND", "updates_per_iter"),
    Row("MAX_TRAINING_STEPS_PER_ENVIRONMENT_STEP", "`updates_per_env_step`, with `asynchronous`", _put_ratio),
    _attribute("ENVIRONMENT_STEPS_BEFORE_TRAINING", "initial_collect_steps"),
    _attribute("UPDATE_MODEL_INTERVAL", "publish_period_updates"),
    _needless("UPDATE_BUFFER_INTERVAL", "experience is stored as it comes"),
    Row("SAVE_MODEL_EVERY", "`checkpoint_period_iters`, where it makes that shorter", _nothing),
    _attribute("MEMORY_SIZE", "buffer_size"),
    _attribute("BATCH_SIZE", "batch_size"),
    _needless("DEBUG_MODE", "it is not in the guide; logs and metrics.csv have what a run measures"),
    Row("ALG.ALGORITHM", "`algorithm`, `sac` or `redq`", _put_algorithm),
    _attribute("ALG.LEARN_ENTROPY_COEF", "learn_entropy_coef"),
    _attribute("ALG.LR_ACTOR", "actor_learning_rate"),
    _attribute("ALG.LR_CRITIC", "critic_learning_rate"),
    _of_learned_entropy("ALG.LR_ENTROPY", "alpha_learning_rate"),
    _attribute("ALG.GAMMA", "discount"),
    _attribute("ALG.POLYAK", "target_update_tau", lambda polyak: round(1.0 - polyak, 12), "1 - POLYAK"),
    _of_learned_entropy("ALG.TARGET_ENTROPY", "target_entropy"),
    _attribute("ALG.ALPHA", "sac_log_alpha", math.log, "log(ALPHA)"),
    _of_redq("ALG.REDQ_N", "num_critics"),
    _of_redq("ALG.REDQ_M", "num_target_critics"),
    _of_redq("ALG.REDQ_Q_UPDATES_PER_POLICY_UPDATE", "actor_update_period"),
    _part_of_optimizer("ALG.OPTIMIZER_ACTOR"),
    _part_of_optimizer("ALG.OPTIMIZER_CRITIC"),
    _part_of_optimizer("ALG.BETAS_ACTOR"),
    _part_of_optimizer("ALG.BETAS_CRITIC"),
    _part_of_optimizer("ALG.L2_ACTOR"),
    _part_of_optimizer("ALG.L2_CRITIC"),
    Row(
        "ENV.RTGYM_INTERFACE",
        "`racing.observations` in the JSON; the game's interface is that of config.json itself",
        _put_interface,
        with_game=False,
    ),
    _of_game("ENV.WINDOW_WIDTH", "the game's window; its interface reads it from config.json itself"),
    _of_game("ENV.WINDOW_HEIGHT", "the game's window; its interface reads it from config.json itself"),
    Row("ENV.IMG_WIDTH", _SIZE, _nothing),
    Row("ENV.IMG_HEIGHT", _SIZE, _nothing),
    Row("ENV.IMG_GRAYSCALE", "`racing.camera_channels` in the JSON, 1 or 3", _nothing),
    _of_game(
        "ENV.SLEEP_TIME_AT_RESET",
        "the game's, whose interface reads it from config.json itself; the car waits for the first command",
    ),
    Row("ENV.IMG_HIST_LEN", "`frame_stack` of `camera` or `lidar`", _put_history, with_game=False),
    _clock("time_step_duration"),
    _clock("start_obs_capture"),
    _clock("time_step_timeout_factor"),
    _attribute("ENV.RTGYM_CONFIG.act_buf_len", "action_history")._replace(with_game=False),
    Row("ENV.RTGYM_CONFIG.benchmark", "nothing: `--benchmark` measures without it", _nothing, of_machine=True),
    _clock("wait_on_done"),
    Row("ENV.RTGYM_CONFIG.ep_max_length", _TRUNCATION, _nothing),
    Row(
        "ENV.RTGYM_CONFIG.interface_kwargs",
        "arguments of the game's interface; of the car keys of `racing` in the JSON, its delays, and `real_time`",
        _put_kwargs,
        with_game=False,
    ),
    *map(_reward, (path.rpartition(".")[2] for path in KEYS if path.startswith("ENV.REWARD_CONFIG."))),
)
# What the game's interface takes from config.json and has no argument for: it does not hear of `--config`.
READ_BY_THE_GAME = (
    "ENV.WINDOW_WIDTH",
    "ENV.WINDOW_HEIGHT",
    "ENV.SLEEP_TIME_AT_RESET",
    *(path for path in KEYS if path.startswith("ENV.REWARD_CONFIG.")),
)
