"""Counts the simulator failures of a run over all workers and all starts, and describes them in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfagents_system.checks.findings import counted
from tfagents_system.run_files.run_paths import is_worker

# In a worker's heartbeat, where they begin at 0 with its process, and in `run` of status.json.
_COUNTS = ("env_faults", "eval_env_faults", "episodes")
_LAST = "last_env_fault"
_CUT_SHARE, _FEW_CUTS = 0.05, 3


class FaultTally:
    """Sums the workers' reports on their simulators; restarts of a worker or of the run do not reset it.

    Args:
      status: The status from an earlier start of the run (see report/status.py); None: there was none.
    """

    def __init__(self, status: Mapping[str, Any] | None = None) -> None:
        run, roles = (status["run"], status["roles"]) if status else ({}, {})
        self._totals = {name: run.get(name) or 0 for name in _COUNTS}
        self._last_fault = run.get(_LAST) or ""
        # Workers that joined may outlive a restart of the run: their earlier reports are in the totals.
        self._seen = {role: (_process(beat), _counts(beat)) for role, beat in roles.items() if is_worker(role)}

    def take(self, role: str, beat: Mapping[str, Any]) -> None:
        """Adds the difference from the previous heartbeat of a worker; ignores other roles."""
        if not is_worker(role) or _COUNTS[0] not in beat:
            return
        process, counts = _process(beat), _counts(beat)
        seen_of, before = self._seen.get(role, (None, counts))
        if process != seen_of or any(counts[name] < before[name] for name in _COUNTS):
            before = dict.fromkeys(_COUNTS, 0)
        if counts["env_faults"] > before["env_faults"]:
            self._last_fault = str(beat.get(_LAST) or "")
        for name in _COUNTS:
            self._totals[name] += counts[name] - before[name]
        self._seen[role] = process, counts

    def to_json(self) -> dict[str, Any]:
        """For `run` of status.json."""
        return {**self._totals, _LAST: self._last_fault}


def _process(beat: Mapping[str, Any]) -> tuple[Any, Any]:
    return beat.get("host"), beat.get("pid")


def _counts(beat: Mapping[str, Any]) -> dict[str, int]:
    return {name: max(0, int(beat.get(name) or 0)) for name in _COUNTS}


def fault_words(run: Mapping[str, Any]) -> str:
    """`8 environment faults`, with the share of cut episodes if that is large; empty if there are none.

    Args:
      run: That of status.json.
    """
    counts = _counts(run)
    faults, cut = counts["env_faults"], counts["env_faults"] - counts["eval_env_faults"]
    if not faults:
        return ""
    words = counted(faults, "environment fault")
    share = cut / max(1, counts["episodes"] + cut)  # An episode that is cut short is begun anew.
    if cut < _FEW_CUTS or share < _CUT_SHARE:
        return words
    return f"{words} (they have cut {share:.0%} of its episodes)"


def fault_lines(run: Mapping[str, Any]) -> list[str]:
    """The same with the last fault's text, as a line; none where there are none."""
    words = fault_words(run)
    return [f"{words}, last: {run[_LAST]}" if run.get(_LAST) else words] if words else []
