"""What a supervisor writes into a run's history: states, what happens to roles, where their time goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tfagents_system.checks.checklist import counted
from tfagents_system.machine.worker_slots import EVAL
from tfagents_system.run_files import history
from tfagents_system.run_files.run_paths import TRAINER, RunPaths, is_worker

_LEAST_SECS, _SHARE_OF_START = 10.0, 0.01  # Between two lines on time: the longer a start has run, the longer.
_WHERE = ("env_steps", "train_step")


class RunHistory:
    """Appends to history.jsonl; `look` is cheap enough for once a second."""

    def __init__(self, paths: RunPaths) -> None:
        self._path = paths.history
        self._began = time.monotonic()
        self._time_due = self._began + _LEAST_SECS
        self._where: dict[str, Any] = {}
        self._roles: Mapping[str, Mapping[str, Any]] = {}
        self._spent: dict[str, tuple[Any, dict[str, float]]] = {}  # By role: its process, seconds by activity.
        self._faults: dict[str, int] = {}  # By role, since they were written.
        self._resumed: Any = None  # The process of the trainer whose resume is written.
        self._state: tuple[str, str] | None = None

    def state(self, state: str, text: str) -> None:
        """A new state of the run."""
        if (state, text) != self._state:
            self._write_time()
            self._append("state", state=state, text=text)
        self._state = (state, text)

    def say(self, text: str) -> None:
        """What the user is told, which names its role first if it is about one."""
        role = next((name for name in self._roles if text.startswith(f"{name} ")), "")
        self._append("event", role=role, text=text.partition("\n")[0])

    def look(self, roles: Mapping[str, Mapping[str, Any]]) -> None:
        """Notes what has changed in the last beats of all roles since the call before."""
        trainer = roles.get(TRAINER, {})
        self._where |= {name: trainer[name] for name in _WHERE if trainer.get(name) is not None}
        self._look_at_trainer(trainer, self._roles.get(TRAINER, {}))
        for name, beat in roles.items():
            self._count_faults(name, beat, self._roles.get(name, {}))
        self._roles = roles
        if time.monotonic() >= self._time_due:
            self._write_time()

    def _look_at_trainer(self, beat: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        step = beat.get("resumed_at_step")
        if step is not None and _process(beat) != self._resumed:
            self._resumed = _process(beat)
            self._append("resume", role=TRAINER, text=f"goes on from update {step:,}")
        if _process(beat) == _process(before) and (beat.get("recoveries") or 0) > (before.get("recoveries") or 0):
            text = "went back to its newest checkpoint: a loss or a weight was not finite"
            self._append("recovery", role=TRAINER, text=text)

    def _count_faults(self, role: str, beat: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        known = before.get("env_faults") or 0 if _process(beat) == _process(before) else 0
        new = (beat.get("env_faults") or 0) - known
        if is_worker(role) and new > 0:
            self._faults[role] = self._faults.get(role, 0) + new

    def _write_time(self) -> None:
        now = time.monotonic()
        self._time_due = now + max(_LEAST_SECS, _SHARE_OF_START * (now - self._began))
        for role, count in self._faults.items():
            last = self._roles.get(role, {}).get("last_env_fault") or ""
            self._append("fault", role=role, count=count, text=f"{counted(count, 'environment fault')}, last: {last}")
        self._faults.clear()
        spent: dict[str, dict[str, float]] = {}
        for role, beat in self._roles.items():
            of_kind = spent.setdefault(_kind(role, beat), {})
            for activity, secs in self._since_last_time(role, beat).items():
                of_kind[activity] = round(of_kind.get(activity, 0.0) + secs, 3)
        if told := {kind: each for kind, each in spent.items() if any(each.values())}:
            self._append("time", spent=told)

    def _since_last_time(self, role: str, beat: Mapping[str, Any]) -> dict[str, float]:
        """Seconds by activity that a role has spent since this was called for it before."""
        total, shares = beat.get("counted_secs") or 0.0, beat.get("time_shares") or {}
        now = {activity: (share or 0.0) * total for activity, share in shares.items()}
        now["other"] = max(0.0, total - sum(secs for activity, secs in now.items() if activity != "other"))
        process, before = self._spent.get(role, (None, {}))
        self._spent[role] = _process(beat), now
        if process != _process(beat):
            before = {}
        return {activity: max(0.0, secs - before.get(activity, 0.0)) for activity, secs in now.items()}

    def _append(self, kind: str, **fields: Any) -> None:
        history.append(self._path, {"time": round(time.time(), 1), "kind": kind, **self._where, **fields})


def _process(beat: Mapping[str, Any]) -> tuple[Any, Any]:
    return beat.get("host"), beat.get("pid")


def _kind(role: str, beat: Mapping[str, Any]) -> str:
    """`trainer`, `replay`, `workers` or `evaluators`."""
    if not is_worker(role):
        return role
    return "evaluators" if beat.get("kind") == EVAL else "workers"
