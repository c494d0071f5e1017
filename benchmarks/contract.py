"""What every benchmark module gives: one JSON object on the last line of its standard output.

    {"claim": str, "rows": [{"name", "value", "unit"}], "ratios": [{"name", "value", "target"}], "notes": [str]}

Progress goes to standard error. A module is run as `python -m benchmarks.<name> [--quick]`; the first line of its
docstring is the claim. No benchmark fails because of a time: it reports it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS_VARIABLE = "BENCHMARK_PEERS_PYTHON"

_END_SECS = 20.0  # that a process told to end may take


@dataclasses.dataclass
class Result:
    """The numbers of one benchmark module.

    Attributes:
      claim: The docstring of the module; its first line is kept.
    """

    claim: str
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    ratios: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.claim = self.claim.strip().splitlines()[0]

    def row(self, name: str, value: float, unit: str) -> None:
        self.rows.append({"name": name, "value": float(value), "unit": unit})

    def ratio(self, name: str, value: float, target: float | None = None) -> None:
        """A ratio of two rows, above 1 where ours is better; `target` is what is claimed, None for information."""
        self.ratios.append({"name": name, "value": float(value), "target": target})

    def note(self, text: str) -> None:
        self.notes.append(text)

    def emit(self) -> None:
        print(json.dumps(dataclasses.asdict(self)), flush=True)


def check_result(result: Any) -> list[str]:
    """What is wrong with a result, one sentence each; empty if it keeps to the contract."""
    if not isinstance(result, dict):
        return [f"expected a JSON object, found {result!r}"]
    fields: dict[str, dict[str, tuple[type, ...]]] = {
        "rows": {"name": (str,), "value": (int, float), "unit": (str,)},
        "ratios": {"name": (str,), "value": (int, float), "target": (int, float, type(None))},
    }
    wrong = [f"{key!r} is missing" for key in ("claim", *fields, "notes") if key not in result]
    if not isinstance(result.get("claim", ""), str):
        wrong.append(f"'claim' must be a string, found {result['claim']!r}")
    notes = result.get("notes", [])
    if not (isinstance(notes, list) and all(isinstance(note, str) for note in notes)):
        wrong.append(f"'notes' must be a list of strings, found {notes!r}")
    for key, types in fields.items():
        for entry in result.get(key, []):
            if not isinstance(entry, dict) or set(entry) != set(types):
                wrong.append(f"an entry of {key!r} has the keys {', '.join(types)}, found {entry!r}")
                continue
            wrong += [
                f"{name!r} in {key!r} cannot be {entry[name]!r}"
                for name, allowed in types.items()
                if not isinstance(entry[name], allowed)
            ]
    return wrong


def peers_python() -> Path | None:
    """The Python that has SBX and Stable-Baselines3; None where peers are left out.

    BENCHMARK_PEERS_PYTHON names it, empty leaves the peers out; without it, .venv-peers is taken if it is there.
    """
    named = os.environ.get(PEERS_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    python = ROOT / ".venv-peers" / "bin" / "python"
    return python if python.exists() else None


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def run_json(command: Sequence[str | Path], timeout_secs: float) -> Any:
    """Runs a program in the repository and returns the JSON of its last line on standard output.

    Raises:
      RuntimeError: It failed, said nothing, or was not done in time; with the end of what it wrote.
    """
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    shown = " ".join(str(part) for part in command)
    try:
        output, errors = process.communicate(timeout=timeout_secs)
    except subprocess.TimeoutExpired:
        errors = end_session(process)
        raise RuntimeError(f"{shown} was not done within {timeout_secs:.0f} s:\n{errors[-2000:]}") from None
    except BaseException:
        end_session(process)
        raise
    lines = output.strip().splitlines()
    if process.returncode or not lines:
        raise RuntimeError(f"{shown} failed with exit code {process.returncode}:\n{errors[-2000:]}")
    return json.loads(lines[-1])


def end_session(process: subprocess.Popen[str]) -> str:
    """Ends a process that leads its session, and all that it started; returns what it wrote to standard error.

    It is told first (SIGTERM), so that it can end what it started in other sessions, and killed at the deadline.
    """
    process.terminate()
    try:
        _, errors = process.communicate(timeout=_END_SECS)
    except subprocess.TimeoutExpired:
        _kill_group(process.pid)
        _, errors = process.communicate()
    _kill_group(process.pid)
    return errors or ""


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
