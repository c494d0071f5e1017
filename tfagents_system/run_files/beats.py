"""What a heartbeat may hold, and the one way to read one: readers get what they expect, whoever wrote it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar, get_type_hints

import msgspec
from msgspec import Meta

LIVE_STATES = ("starting", "running")  # Of a run.
MOST_BYTES = 256 * 1024  # Of a heartbeat; a gateway takes no longer messages either.
_MOST_STATUS_BYTES = 64 * 1024 * 1024
_MOST_FIELDS, _MOST_ENTRIES = 200, 500
_MOST_CHARS, _MOST_NAME_CHARS = 500, 100

_Int = Annotated[int, Meta(ge=-(2**53), le=2**53)]  # Larger ones may not fit a float: formatting them would fail.
_Time = Annotated[float, Meta(ge=0, le=1e11)]  # Unix seconds.
_Secs = Annotated[float, Meta(ge=0, le=1e9)]
_Share = Annotated[float, Meta(ge=0, le=2)]  # Sums of rounded seconds may exceed 1.
_Scalar = bool | _Int | float | str | None

_Content = TypeVar("_Content")


class Beat(TypedDict, total=False):
    """The fields that something relies on; each may be missing. Others are numbers, flags or texts."""

    role: str
    host: str
    pid: _Int
    state: str
    since: _Time
    time: _Time
    remote: bool
    waiting_for: str | None
    doing: str | None
    error: str | None
    save_error: str | None
    iteration: _Int
    num_iter: _Int
    num_env_steps: _Int | None
    train_step: _Int
    env_steps: _Int | None
    episodes: _Int
    steps: _Int
    steps_per_s: float | None
    env_faults: _Int
    eval_env_faults: _Int
    last_env_fault: str
    run_is: str | None
    updates_per_s: float | None
    env_steps_per_s: float | None
    train_return: float | None
    eval_return: float | None
    eval_return_std: float | None
    best_eval_return: float | None
    eval_success: _Share | None
    critic_loss: float | None
    actor_loss: float | None
    alpha: float | None
    time_left_s: _Secs | None
    prior_steps: _Int | None
    waiting: _Int | None
    curriculum: dict[str, float | None] | None
    time_shares: dict[str, _Share | None] | None
    counted_secs: _Secs | None
    refused: dict[str, _Int] | None
    # What a supervisor adds in status.json.
    alive: bool
    restarts: _Int
    given_up: bool
    given_up_because: str | None
    failed_with: str | None
    has_worked: bool


class RunStatus(TypedDict, total=False):
    """`run` of status.json."""

    name: str
    exp_dir: str
    state: str
    started_at: _Time
    updated_at: _Time
    stale_secs: _Secs
    pid: _Int
    host: str
    port: _Int
    exit_code: _Int | None
    message: str | None
    # Of all workers, since the run began: see env_faults.py.
    env_faults: _Int
    eval_env_faults: _Int
    episodes: _Int
    last_env_fault: str
    before: dict[str, _Scalar]  # How far an earlier start has come: fields of the trainer's beat.


def _decoders(kind: Any) -> dict[str, msgspec.json.Decoder[Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: msgspec.json.Decoder(hint) for name, hint in hints.items()}


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BEAT, _RUN = _decoders(Beat), _decoders(RunStatus)
_OTHER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Scalar)
_PLAN = msgspec.json.Decoder(dict[str, list[Annotated[int, Meta(ge=0, le=2**20)]]])
_FAULTS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def parse_beat(content: bytes) -> Beat | None:
    """Reads a heartbeat from JSON; None if it is not one.

    Fields of a wrong type are left out, as are lists and objects that nothing relies on. Texts are cut, and hold no
    control characters for a terminal.
    """
    beat: Beat | None = _fields(content, _BEAT) if len(content) <= MOST_BYTES else None
    return beat if beat and beat.get("state") is not None else None


def read_heartbeat(path: Path) -> Beat | None:
    """The last beat in a file, None if there is none."""
    content = _read(path, MOST_BYTES)
    return None if content is None else parse_beat(content)


def is_offline(trainer: Mapping[str, Any]) -> bool:
    """Whether the trainer does its offline updates: they are iteration -1."""
    return (trainer.get("iteration") or 0) < 0


def is_live(run: Mapping[str, Any]) -> bool:
    """Whether a run has not ended, according to its part of status.json."""
    return run.get("state") in LIVE_STATES


def read_status(path: Path) -> dict[str, Any] | None:
    """status.json as a supervisor writes it, each role like a heartbeat; None if there is none."""
    content = _read(path, _MOST_STATUS_BYTES)
    parts = None if content is None else _decoded(_OBJECT, content)
    if parts is None or not {"run", "roles"} <= parts.keys():
        return None
    run, roles = _fields(parts["run"], _RUN), _decoded(_OBJECT, parts["roles"])
    if not run or roles is None:
        return None
    others = {name: value for name, value in parts.items() if name not in ("run", "roles", "plan")}
    return {
        **{name: _clean(value) for name, raw in others.items() if (value := _decoded(_OTHER, raw)) is not None},
        "run": run,
        "plan": _decoded(_PLAN, parts.get("plan", msgspec.Raw(b"{}"))) or {},
        "roles": {clean_text(name, _MOST_NAME_CHARS): _fields(raw, _BEAT) or {} for name, raw in roles.items()},
    }


def clean_text(text: str, most_chars: int = _MOST_CHARS) -> str:
    """The text in one line, cut, without control characters."""
    cut = text if len(text) <= most_chars else text[: most_chars - 3] + "..."
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in cut)


def _fields(content: bytes | msgspec.Raw, decoders: dict[str, msgspec.json.Decoder[Any]]) -> Any:
    """The valid fields of a JSON object; None if it is not an object."""
    parts = _decoded(_OBJECT, content)
    if parts is None:
        return None
    found = {}
    for name, raw in itertools.islice(parts.items(), _MOST_FIELDS):
        value = _decoded(decoders.get(name, _OTHER), raw, default=_MISSING)
        if value is not _MISSING:
            found[clean_text(name, _MOST_NAME_CHARS)] = _clean(value)
    return found


_MISSING: Any = object()


def _decoded(
    decoder: msgspec.json.Decoder[_Content], content: bytes | msgspec.Raw, default: Any = None
) -> _Content | Any:
    try:
        return decoder.decode(content)
    except _FAULTS:
        return default


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        entries = itertools.islice(value.items(), _MOST_ENTRIES)
        return {clean_text(name, _MOST_NAME_CHARS): item for name, item in entries}
    return value


def _read(path: Path, most_bytes: int) -> bytes | None:
    try:
        with open(path, "rb") as file:
            content = file.read(most_bytes + 1)
    except OSError:
        return None
    return content if len(content) <= most_bytes else None
