"""Sends the rows of a run's metrics.csv to its destinations, each once, for as long as the run lasts.

    python -m tfagents_system.report.tracking.tracker logs/NAME

sends by hand what the run itself could not: metrics.csv is what waits while there is no network. Where the run is under
way, its own tracker does that.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tfagents_system.checks.called_as import called_as
from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, UserError, exit_with
from tfagents_system.machine.claims import lock
from tfagents_system.report.told_settings import told_settings
from tfagents_system.report.tracking.rows import MetricsReader, Sent, to_send
from tfagents_system.report.tracking.settings import Tracked, read_tracked
from tfagents_system.report.tracking.to_mlflow import ToMlflow
from tfagents_system.report.tracking.to_wandb import ToWandb
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.run_paths import TRAINER, RunPaths

_FIRST_RETRY_SECS, _LAST_RETRY_SECS = 10.0, 300.0


class Destination(Protocol):
    """Weights & Biases, or MLflow.

    Any method may raise anything, and may take as long as the network does.

    Attributes:
      name: For messages.
    """

    name: str

    def begin(self, resolved: Mapping[str, Any]) -> Sent:
        """Begins the run there, or goes on with it, and says what of it is there.

        Args:
          resolved: The run's settings, see told_settings.
        """

    def send(self, row: Mapping[str, float]) -> None:
        """One row; it may wait for `flush`."""

    def flush(self) -> None:
        """All rows so far are on their way when this returns."""

    def finish(self, is_done: bool) -> None:
        """The run has ended there, or is to go on later."""

    def has_refused(self, error: Exception) -> bool:
        """Whether a method has raised this because what was sent is not accepted there, though it is reached."""

    def where(self) -> str:
        """For the user: where it is to be seen, or the command that sends it there."""


@dataclasses.dataclass
class Feed:
    """One destination, and how far it has got.

    Attributes:
      problem: Why the last attempt failed; empty where it did not.
    """

    destination: Destination
    resolved: Mapping[str, Any]
    say: Callable[[str], None]
    problem: str = ""
    _sent: Sent = dataclasses.field(default_factory=Sent)
    _has_begun: bool = False
    _retry_secs: float = _FIRST_RETRY_SECS
    _next_at: float = 0.0

    def take(self, rows: Sequence[Mapping[str, float | None]]) -> None:
        """Sends what is new of all rows. After a failure, the destination is asked again what it has."""
        if time.monotonic() < self._next_at:
            return
        try:
            self._begin()
            for row in self._sent.new(rows):
                self.destination.send(to_send(row, self._sent))
                self._sent.add(row)
            self.destination.flush()
        except Exception as error:  # Of any package, any network: none of it is the run's.
            self._failed(error)
            return
        if self.problem:
            self.say(f"{self.destination.name} takes rows again")
        self.problem, self._retry_secs = "", _FIRST_RETRY_SECS

    def _begin(self) -> None:
        if not self._has_begun:
            self._sent, self._has_begun = self.destination.begin(self.resolved), True

    def waiting(self, rows: Sequence[Mapping[str, float | None]]) -> int:
        """Rows that it does not have."""
        return len(self._sent.new(rows))

    def close(self, is_done: bool) -> None:
        """Ends the run there, for now or for ever."""
        with contextlib.suppress(Exception):
            self.destination.finish(is_done)

    def _failed(self, error: Exception) -> None:
        words = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason'}"
        if words != self.problem:
            fault = "refuses what it is sent" if self._has_refused(error) else "can't be reached"
            self.say(f"{self.destination.name} {fault} ({words}): it is tried again, and nothing is lost")
        self.problem, self._has_begun = words, False
        self._next_at = time.monotonic() + self._retry_secs
        self._retry_secs = min(2 * self._retry_secs, _LAST_RETRY_SECS)

    def _has_refused(self, error: Exception) -> bool:
        try:
            return self.destination.has_refused(error)
        except Exception:  # Its package is not installed, or has other errors than ours knows.
            return False


class Tracker:
    """Sends a run's metrics to all its destinations.

    Args:
      paths: The run directory.
      tracked: Its tracking.json.
      say: Tells a line of text.
    """

    def __init__(self, paths: RunPaths, tracked: Tracked, say: Callable[[str], None]) -> None:
        run_id, name = tracked.run_id, paths.exp_dir.name
        destinations: list[Destination] = []
        if tracked.settings.wandb is not None:
            destinations.append(ToWandb(tracked.settings, paths, run_id, name))
        if tracked.settings.mlflow_uri is not None:
            destinations.append(ToMlflow(tracked.settings, run_id, name))
        self._paths, self._reader, self._rows = paths, MetricsReader(paths), list[Any]()
        self._settings = told_settings(paths)
        self.feeds = [Feed(destination, self._settings, say) for destination in destinations]

    def look(self) -> None:
        """Sends the rows that are new, and those that could not be sent before."""
        changed = self._reader.rows()
        if changed is not None:
            self._rows = changed
        for feed in self.feeds:
            if changed is not None or feed.problem or feed.waiting(self._rows):
                feed.take(self._rows)

    def waiting(self) -> int:
        """Rows that wait, over all destinations."""
        return sum(feed.waiting(self._rows) for feed in self.feeds)

    def close(self) -> None:
        """Ends the run at its destinations: for ever if its trainer is done."""
        is_done = (read_heartbeat(self._paths.heartbeat(TRAINER)) or {}).get("state") == "done"
        for feed in self.feeds:
            feed.close(is_done)


@contextlib.contextmanager
def alone(paths: RunPaths) -> Iterator[None]:
    """Holds the lock of those who send the metrics of a run.

    Raises:
      UserError: Somebody else does, or the file system has no locks.
    """
    with paths.tracking_lock.open("w") as file:
        if not lock(file.fileno(), Path(file.name), waits=False):
            raise UserError(
                f"the run in {paths.exp_dir} is under way and sends its metrics itself: its logs/tracker.log says how "
                "that goes"
            )
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog=called_as("python -m tfagents_system.report.tracking.tracker"),
        description="Sends what a run has not sent yet to Weights & Biases or MLflow, as its last start says.",
    )
    parser.add_argument("exp_dir", type=Path, help="the run directory")
    flags = parser.parse_args(arguments)
    paths = RunPaths(flags.exp_dir.resolve())
    tracked = read_tracked(paths)
    if tracked is None or not tracked.settings.is_wanted:
        raise UserError(
            f"{paths.exp_dir} is no run that was to be tracked: start it with SAC_WANDB=online, SAC_WANDB=offline or "
            "SAC_MLFLOW_URI=http://..."
        )
    for name, text in tracked.names.items():
        os.environ.setdefault(name, text)
    with alone(paths):
        return _send_all(paths, tracked)


def _send_all(paths: RunPaths, tracked: Tracked) -> int:
    tracker = Tracker(paths, tracked, lambda line: None)  # The last line says it.
    tracker.look()
    failed = [feed for feed in tracker.feeds if feed.problem]
    tracker.close()
    print("; ".join(f"{feed.destination.name}: {feed.problem or feed.destination.where()}" for feed in tracker.feeds))
    return EXIT_FAILED if failed else EXIT_DONE


if __name__ == "__main__":
    exit_with(main)
