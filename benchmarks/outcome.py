"""What every benchmark prints: one JSON object in the last line of its output."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


class Outcome:
    """Collects figures and prints them.

    Args:
      claim: What the benchmark should show.
    """

    def __init__(self, claim: str) -> None:
        self._claim = claim
        self._rows: list[dict[str, Any]] = []
        self._ratios: list[dict[str, Any]] = []
        self._notes: list[str] = []

    def row(self, name: str, value: float, unit: str) -> None:
        """A measured figure."""
        print(f"{name}: {value:.4g} {unit}", file=sys.stderr, flush=True)
        self._rows.append({"name": name, "value": float(value), "unit": unit})

    def ratio(self, name: str, value: float, target: float | None = None) -> None:
        """One figure over another of the same run; `target` is the least required."""
        print(f"{name}: {value:.3f} (target {target})", file=sys.stderr, flush=True)
        self._ratios.append({"name": name, "value": float(value), "target": target})

    def note(self, text: str) -> None:
        """A note for the reader of the figures."""
        self._notes.append(text)

    def print(self) -> None:
        """Prints the JSON object."""
        print(json.dumps({"claim": self._claim, "rows": self._rows, "ratios": self._ratios, "notes": self._notes}))


def parse_args(parser: argparse.ArgumentParser | None = None) -> argparse.Namespace:
    """The flags that all benchmarks have, beside those of `parser`."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="shows that it runs; the figures mean little")
    return parser.parse_args()
