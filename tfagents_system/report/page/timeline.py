"""A run's history over the hours that it has been running: who was up, what happened, where time went."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.report.status import time_shares
from tfagents_system.run_files.beats import LIVE_STATES
from tfagents_system.run_files.history import read_history

_MOST_EVENTS, _MOST_TIMES = 2000, 1500
_ENDS = ("done", "stopped", "failed")
_KINDS = ("trainer", "workers", "evaluators", "replay")
_SECS_PER_HOUR = 3600.0


def timeline_of(path: Path, status: Mapping[str, Any] | None) -> dict[str, Any]:
    """For the page.

    Returns:
      `starts`: [[begin, end]] in hours of running, `events`: what happened, `times`: by kind of role the shares of
      each activity ({"hours": [n], "env_steps": [n], "shares": {activity: [n]}}), `whole`: those of the whole last
      start, for runs without a history.
    """
    clock = _Clock()
    events: list[dict[str, Any]] = []
    times: list[tuple[float, Mapping[str, Any]]] = []
    for entry in read_history(path):
        hours = clock.hours(entry)
        if entry["kind"] == "time":
            times.append((hours, entry))
        else:
            events.append(_event(hours, entry))
    return {
        "starts": clock.starts,
        "events": events[-_MOST_EVENTS:],
        "times": _shares_over_time(times),
        "whole": time_shares(dict(status)) if status else {},
    }


class _Clock:
    """Counts the hours that a run was running: those between two starts are left out."""

    def __init__(self) -> None:
        self.starts: list[list[float]] = []
        self._began = self._last = 0.0
        self._is_up = False

    def hours(self, entry: Mapping[str, Any]) -> float:
        """When an entry was, which is not before those before it."""
        state = entry.get("state") if entry["kind"] == "state" else None
        if not self._is_up or state in LIVE_STATES[:1] or (state == LIVE_STATES[1] and not self.starts):
            self._is_up = True
            self._began = entry["time"] - self._last * _SECS_PER_HOUR
            self.starts.append([self._last, self._last])
        self._last = max(self._last, (entry["time"] - self._began) / _SECS_PER_HOUR)
        self.starts[-1][1] = self._last
        self._is_up = self._is_up and state not in _ENDS
        return self._last


def _event(hours: float, entry: Mapping[str, Any]) -> dict[str, Any]:
    kind, state, text = entry["kind"], str(entry.get("state")), str(entry.get("text") or "")
    if kind == "state":
        # One that is stopping runs still, and says why.
        kind = "said" if state == "running" and text else {"failed": "failure", "running": "start"}.get(state, state)
        text = f"{state}: {text}" if text else kind
    elif kind == "event":
        kind = "restart" if "restart" in text else "failure" if text.startswith("error") else "said"
    when = datetime.datetime.fromtimestamp(entry["time"]).astimezone().isoformat(sep=" ", timespec="seconds")
    return {
        "hours": round(hours, 5),
        "kind": kind,
        "role": str(entry.get("role") or "run"),
        "text": text,
        "when": when,
        **{name: entry[name] for name in ("env_steps", "train_step") if isinstance(entry.get(name), int | float)},
    }


def _shares_over_time(times: Sequence[tuple[float, Mapping[str, Any]]]) -> dict[str, Any]:
    """Lines of a history as shares, several of them together where there are many."""
    every = -(-len(times) // _MOST_TIMES) or 1
    found: dict[str, Any] = {}
    for k in range(0, len(times), every):
        part = times[k : k + every]
        summed: dict[str, dict[str, float]] = {}
        for _, entry in part:
            for kind, spent in (entry.get("spent") or {}).items():
                of_kind = summed.setdefault(kind, {})
                for activity, secs in spent.items():
                    of_kind[activity] = of_kind.get(activity, 0.0) + float(secs)
        hours, entry = part[-1]
        for kind, spent in summed.items():
            if (total := sum(spent.values())) > 0:
                _add(found.setdefault(kind, {"hours": [], "env_steps": [], "shares": {}}), hours, entry, spent, total)
    order = [*(kind for kind in _KINDS if kind in found), *(kind for kind in found if kind not in _KINDS)]
    return {kind: _largest_first(found[kind]) for kind in order}


def _add(
    found: dict[str, Any], hours: float, entry: Mapping[str, Any], spent: Mapping[str, float], total: float
) -> None:
    before = len(found["hours"])
    found["hours"].append(round(hours, 5))
    found["env_steps"].append(entry.get("env_steps") or 0)
    for activity in {**found["shares"], **spent}:
        values = found["shares"].setdefault(activity, [0.0] * before)
        values.append(round(spent.get(activity, 0.0) / total, 4))


def _largest_first(found: dict[str, Any]) -> dict[str, Any]:
    ordered = sorted(found["shares"].items(), key=lambda item: -sum(item[1]))
    return found | {"shares": {name: values for name, values in ordered if max(values) >= 0.002}}
