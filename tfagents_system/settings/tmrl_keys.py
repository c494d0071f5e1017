"""The keys of TMRL's config.json (its reference guide, 0.6 and 0.7), each with its default and what it must be.

Keys are named by their path: `ALG.GAMMA`, `ENV.RTGYM_CONFIG.act_buf_len`. What each becomes here is in
tmrl_rows.py.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from tfagents_system.checks.hyperparameters import (
    Count,
    CountOrZero,
    Hyperparameter,
    Number,
    Positive,
    described_by,
)
from tfagents_system.checks.rules import Rule, is_integer, is_kept, is_number, number_above, number_in, number_where
from tfagents_system.checks.spelling import near_misses
from tfagents_system.errors import UserError, shown

VERSION_KEY = "__VERSION__"
_SIMILARITY = 0.6  # An unknown key is refused anyway, so the nearest one is worth naming.
_MAJOR, _OLDEST_MINOR = 0, 6
_VERSION = re.compile(r"(\d+)\.(\d+)\.\d+")

Text = Annotated[str, Rule("a text", lambda value: isinstance(value, str))]
_NotEmpty = Annotated[str, Rule("a text that is not empty", lambda value: isinstance(value, str) and value != "")]
_Port = Annotated[int, Rule("a port from 1 to 65535", lambda value: is_integer(value) and 1 <= value <= 65535)]
_AtLeast0 = Annotated[float, number_where("a number of at least 0", lambda value: value >= 0)]
_Fraction = Annotated[float, number_in(0.0, 1.0)]
_Optimizer = Literal["adam", "adamw", "sgd"]
_Betas = Annotated[
    list[float],
    Rule(
        "two numbers of at least 0 and below 1, such as [0.9, 0.999]",
        lambda value: (
            isinstance(value, list) and len(value) == 2 and all(is_number(beta) and 0 <= beta < 1 for beta in value)
        ),
    ),
]
_RUN_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_Name = Annotated[
    str,
    Rule(
        "a name of letters, digits, '.', '-' and '_'",
        lambda value: isinstance(value, str) and _RUN_NAME.fullmatch(value) is not None,
    ),
]
_Workers = Annotated[
    int, Rule("-1 or an integer from 1 to 4096", lambda n: is_integer(n) and n != 0 and -1 <= n <= 4096)
]
_Password = Annotated[
    str,
    Rule(
        "a text of 12 to 1000 characters, or empty",
        lambda value: isinstance(value, str) and (value == "" or 12 <= len(value.strip()) <= 1000),
    ),
]
_Arguments = Annotated[
    Mapping[str, Any],
    Rule(
        'an object such as {"save_replays": false}, whose `real_time` is True or False',
        lambda value: (
            isinstance(value, Mapping)
            and all(isinstance(key, str) for key in value)
            and isinstance(value.get("real_time", True), bool)
        ),
    ),
]
_Below1 = Annotated[float, number_where("a number of at least 0 and below 1", lambda value: 0 <= value < 1)]


class _General:
    # The order is the guide's; DEBUG_MODE is not in it, TMRL reads it nevertheless.
    RUN_NAME: _Name = "SAC_4_imgs_pretrained"
    RESET_TRAINING: bool = False
    BUFFERS_MAXLEN: Count = 500000
    RW_MAX_SAMPLES_PER_EPISODE: Count = 1000
    CUDA_TRAINING: bool = True
    CUDA_INFERENCE: bool = False
    VIRTUAL_GAMEPAD: bool = True
    LOCALHOST_WORKER: bool = True
    LOCALHOST_TRAINER: bool = True
    PUBLIC_IP_SERVER: _NotEmpty = "0.0.0.0"
    PASSWORD: _Password = ""
    TLS: bool = False
    TLS_HOSTNAME: Text = "default"
    TLS_CREDENTIALS_DIRECTORY: Text = ""
    NB_WORKERS: _Workers = -1
    WANDB_PROJECT: Text = "tmrl"
    WANDB_ENTITY: Text = "tmrl"
    WANDB_KEY: Text = "YourWandbApiKey"
    PORT: _Port = 55555
    LOCAL_PORT_SERVER: _Port = 55556
    LOCAL_PORT_TRAINER: _Port = 55557
    LOCAL_PORT_WORKER: _Port = 55558
    BUFFER_SIZE: Count = 536870912
    HEADER_SIZE: Count = 12
    MAX_EPOCHS: Count = 10000
    ROUNDS_PER_EPOCH: Count = 100
    TRAINING_STEPS_PER_ROUND: Count = 200
    MAX_TRAINING_STEPS_PER_ENVIRONMENT_STEP: Positive = 4.0
    ENVIRONMENT_STEPS_BEFORE_TRAINING: CountOrZero = 1000
    UPDATE_MODEL_INTERVAL: Count = 200
    UPDATE_BUFFER_INTERVAL: Count = 200
    SAVE_MODEL_EVERY: CountOrZero = 0
    MEMORY_SIZE: Count = 1000000
    BATCH_SIZE: Count = 256
    DEBUG_MODE: bool = False


class _Algorithm:
    ALGORITHM: Literal["SAC", "REDQSAC"] = "SAC"
    LEARN_ENTROPY_COEF: bool = False
    LR_ACTOR: Positive = 0.00001
    LR_CRITIC: Positive = 0.00005
    LR_ENTROPY: Positive = 0.0003
    GAMMA: _Fraction = 0.995
    POLYAK: _Below1 = 0.995
    TARGET_ENTROPY: Number | None = -0.5
    ALPHA: Annotated[float, number_above(0.0, at_most=1e20)] = 0.01
    REDQ_N: Count = 10
    REDQ_M: Count = 2
    REDQ_Q_UPDATES_PER_POLICY_UPDATE: Count = 20
    OPTIMIZER_ACTOR: _Optimizer = "adam"
    OPTIMIZER_CRITIC: _Optimizer = "adam"
    BETAS_ACTOR: _Betas = [0.997, 0.997]
    BETAS_CRITIC: _Betas = [0.997, 0.997]
    L2_ACTOR: _AtLeast0 = 0.0
    L2_CRITIC: _AtLeast0 = 0.0


class _Environment:
    RTGYM_INTERFACE: Literal["TM20FULL", "TM20LIDAR", "TM20LIDARPROGRESS"] = "TM20FULL"
    WINDOW_WIDTH: Count = 256
    WINDOW_HEIGHT: Count = 128
    IMG_WIDTH: Count = 64
    IMG_HEIGHT: Count = 64
    IMG_GRAYSCALE: bool = True
    SLEEP_TIME_AT_RESET: _AtLeast0 = 1.5
    IMG_HIST_LEN: Count = 4


class _RealTime:
    time_step_duration: Positive = 0.05
    start_obs_capture: _AtLeast0 = 0.04
    time_step_timeout_factor: _AtLeast0 = 1.0
    act_buf_len: CountOrZero = 2
    benchmark: bool = False
    wait_on_done: bool = True
    ep_max_length: Count = 1000
    interface_kwargs: _Arguments = {"save_replays": False}


class _Reward:
    END_OF_TRACK: Number = 100.0
    CONSTANT_PENALTY: Number = 0.0
    CHECK_FORWARD: Count = 500
    CHECK_BACKWARD: Count = 10
    FAILURE_COUNTDOWN: CountOrZero = 10
    MIN_STEPS: CountOrZero = 70
    MAX_STRAY: Positive = 100.0


# By the path of the object that has them.
_SECTIONS: Mapping[str, type] = {
    "": _General,
    "ALG": _Algorithm,
    "ENV": _Environment,
    "ENV.RTGYM_CONFIG": _RealTime,
    "ENV.REWARD_CONFIG": _Reward,
}


def _keys() -> Iterator[tuple[str, Hyperparameter]]:
    for section, described in _SECTIONS.items():
        for name, key in described_by(described).items():
            yield _joined(section, name), key


def _joined(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


KEYS: Mapping[str, Hyperparameter] = dict(_keys())
"""What each key must be, and its default, by path."""


def default_config() -> dict[str, Any]:
    """A config.json with the guide's values; PASSWORD is empty, which is the user's own."""
    config: dict[str, Any] = {}
    for path, key in KEYS.items():
        *sections, name = path.split(".")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = key.default
    del config["DEBUG_MODE"]
    return {**config, VERSION_KEY: f"{_MAJOR}.{_OLDEST_MINOR}.0"}


def parse_override(text: str) -> dict[str, Any]:
    """What `--config=` gives: a Python literal of a dictionary, of which nothing is run.

    Raises:
      UserError: It is no such literal.
    """
    example = '--config=\'{"CUDA_TRAINING": True, "ALG": {"ALGORITHM": "REDQSAC"}}\''
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        if text.strip().endswith(".json"):
            raise UserError(
                f"--config={shown(text)} must be a dictionary, not a file: give one such as {example}"
            ) from None
        words = " ".join(str(getattr(error, "msg", error)).split())[:80]
        if isinstance(error, ValueError):
            words = "it has more than texts, numbers, lists and dictionaries"
        hint = ", Python writes True, False and None" if re.search(r"\b(true|false|null)\b", text) else ""
        raise UserError(
            f"--config={shown(text)} must be a Python literal ({words}{hint}): give one such as {example}"
        ) from None
    if not isinstance(value, dict):
        raise UserError(f"--config={shown(text)} must be a dictionary: give one such as {example}")
    return value


def merged(config: Mapping[str, Any], over: Mapping[Any, Any]) -> dict[str, Any]:
    """A configuration with other values in it, at any depth; `interface_kwargs` are merged, too."""
    result = dict(config)
    for key, value in over.items():
        before = result.get(key)
        both_are_objects = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[key] = merged(before, value) if both_are_objects else value  # type: ignore[arg-type]
    return result


def read_keys(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values of all keys by path; those that are not given have their defaults.

    Args:
      config: What config.json holds, `--config` included.
      where: Names it in messages.

    Raises:
      UserError: It has keys that are unknown, values that are impossible, or another major version; all of them.
    """
    findings = list(_version_findings(config, where))
    values = {path: key.default for path, key in KEYS.items()}
    for section in _SECTIONS:
        found: Any = config
        for name in section.split(".") if section else ():
            found = found.get(name, {}) if isinstance(found, Mapping) else {}
        if not isinstance(found, Mapping):
            findings.append(f"{where}: {section} must be an object, found {shown(found)}: correct it")
            continue
        findings += _unknown(found, section, where)
        for name in described_by(_SECTIONS[section]):
            if name in found:
                path = _joined(section, name)
                values[path] = found[name]
                findings += _impossible(path, found[name], where)
    if findings:
        raise UserError(*findings)
    return values


def _impossible(path: str, value: Any, where: str) -> list[str]:
    rule = KEYS[path].rule
    if is_kept(rule, value):
        return []
    return [f"{where}: {path} must be {in_json_words(rule.words)}, found {as_json(value)}: correct it"]


def in_json_words(words: str) -> str:
    """A rule's words, with JSON's names of true, false and null."""
    for python, json_name in (("True", "true"), ("False", "false"), ("None", "null")):
        words = words.replace(python, json_name)
    return words


def as_json(value: Any) -> str:
    """A value in a message, as in the file."""
    return (
        {True: "true", False: "false"}[value] if isinstance(value, bool) else "null" if value is None else shown(value)
    )


def _unknown(found: Mapping[Any, Any], section: str, where: str) -> list[str]:
    """Findings about keys that do not belong to an object."""
    inner = [path.rpartition(".")[2] for path in _SECTIONS if path and path.rpartition(".")[0] == section]
    known = [*described_by(_SECTIONS[section]), *inner, *([] if section else [VERSION_KEY])]
    meant = dict(near_misses(filter(_is_text, found), known, _SIMILARITY))
    findings = []
    for name in found:
        if name in known:
            continue
        elsewhere = [path for path in (*KEYS, *_SECTIONS) if path.rpartition(".")[2] == name]
        if elsewhere:
            remedy = f"it belongs to {elsewhere[0].rpartition('.')[0] or 'the top'}: move it there"
        elif name in meant:
            remedy = f"{_joined(section, meant[name])} is meant"
        else:
            remedy = "remove it"
        findings.append(f"{where}: {_joined(section, str(name))} is no key of TMRL's guide: {remedy}")
    return findings


def _is_text(name: Any) -> bool:
    return isinstance(name, str)


def _version_findings(config: Mapping[str, Any], where: str) -> Iterator[str]:
    version = config.get(VERSION_KEY)
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    oldest = f"{_MAJOR}.{_OLDEST_MINOR}.0"
    if version is None:
        yield f'{where}: {VERSION_KEY} is missing: add "{VERSION_KEY}": "{oldest}" if it is of that version'
    elif match is None or int(match[1]) != _MAJOR or int(match[2]) < _OLDEST_MINOR:
        yield (
            f"{where}: {VERSION_KEY} must be {oldest} or later, and below {_MAJOR + 1}, found {shown(version)}: have a "
            "new file made (--install where there is none) and carry your values over"
        )


def to_json(config: Mapping[str, Any]) -> str:
    """The text of a config.json."""
    return json.dumps(config, indent=2) + "\n"
