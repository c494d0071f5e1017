"""What a heartbeat may hold, and the one way to read one: readers get what they expect, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import msgspec

LIVE_STATES = ("starting", "running")  # Of a run.
MOST_BYTES = 256 * 1024  # Of a heartbeat; a gateway takes no longer messages either.
_MOST_CHARS = 500


class Beat(TypedDict, total=False):
    """The fields that something relies on; each may be missing. Others are numbers, flags or texts."""

    role: str
    host: str
    pid: int
    state: str
    since: float
    time: float
    remote: bool
    waiting_for: str | None
    doing: str | None
    error: str | None
    save_error: str | None
    iteration: int
    num_iter: int
    num_env_steps: int | None
    train_step: int
    env_steps: int | None
    episodes: int
    steps: int
    steps_per_s: float | None
    env_faults: int
    eval_env_faults: int
    last_env_fault: str
    run_is: str | None
    updates_per_s: float | None
    env_steps_per_s: float | None
    train_return: float | None
    eval_return: float | None
    eval_return_std: float | None
    best_eval_return: float | None
    eval_success: float | None
    critic_loss: float | None
    actor_loss: float | None
    alpha: float | None
    time_left_s: float | None
    prior_steps: int | None
    waiting: int | None
    curriculum: dict[str, float | None] | None
    time_shares: dict[str, float | None] | None
    counted_secs: float | None
    refused: dict[str, int] | None
    # What a supervisor adds in status.json.
    alive: bool
    restarts: int
    given_up: bool
    given_up_because: str | None
    failed_with: str | None
    has_worked: bool


class RunStatus(TypedDict, total=False):
    """`run` of status.json."""

    name: str
    exp_dir: str
    state: str
    started_at: float
    updated_at: float
    pid: int
    host: str
    port: int
    exit_code: int | None
    message: str | None
    # Of all workers, since the run began: see env_faults.py.
    env_faults: int
    eval_env_faults: int
    episodes: int
    last_env_fault: str
    before: dict[str, Any]  # How far an earlier start has come: fields of the trainer's beat.


class _Status(TypedDict, total=False):
    run: RunStatus
    roles: dict[str, Beat]
    plan: dict[str, list[int]]


def parse_beat(content: bytes) -> Beat | None:
    """Reads a heartbeat from JSON; None if it is not one. Texts are cut, and hold no control characters."""
    beat: Beat | None = _read_as(Beat, content) if len(content) <= MOST_BYTES else None
    return beat if beat and beat.get("state") is not None else None


def read_heartbeat(path: Path) -> Beat | None:
    """The last beat in a file, None if there is none."""
    try:
        return parse_beat(path.read_bytes())
    except OSError:
        return None


def is_offline(trainer: Mapping[str, Any]) -> bool:
    """Whether the trainer does its offline updates: they are iteration -1."""
    return (trainer.get("iteration") or 0) < 0


def is_live(run: Mapping[str, Any]) -> bool:
    """Whether a run has not ended, according to its part of status.json."""
    return run.get("state") in LIVE_STATES


def read_status(path: Path) -> dict[str, Any] | None:
    """status.json as a supervisor writes it, each role like a heartbeat; None if there is none."""
    try:
        status = _read_as(_Status, path.read_bytes())
    except OSError:
        return None
    return {"plan": {}, **status} if status and status.get("run") and "roles" in status else None


def clean_text(text: str, most_chars: int = _MOST_CHARS) -> str:
    """The text in one line, cut, without control characters."""
    cut = text if len(text) <= most_chars else text[: most_chars - 3] + "..."
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in cut)


def _read_as(kind: Any, content: bytes) -> Any:
    """A JSON object whose fields have the types that a TypedDict says, with any others; None if it is not one."""
    try:
        fields = msgspec.json.decode(content)
        msgspec.convert(fields, kind)
        return _clean(fields)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(name): _clean(item) for name, item in value.items()}
    return value
