"""The replay server's part of a checkpoint: the ring's header, and all that it covers on disk."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import time
from pathlib import Path

from absl import logging

from tfagents_system.machine.files import sync
from tfagents_system.replay.priorities import Priorities
from tfagents_system.replay.recovery import RingCopy
from tfagents_system.replay.ring import OverwrittenError, Ring
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.kept_checkpoints import PRIORITIES, REPLAY

_LOOK_SECS, _LOOK_WHILE_FULL_SECS = 2.0, 0.2
_WANTED_SHARE = 0.4  # Of the slack: the older of two kept checkpoints is then 0.8 of it behind, at most.


class SnapshotWriter:
    """Snapshots the ring in the caller's thread, between two appends, and writes it in one of its own.

    Args:
      ring: The ring.
      copy: Its copy in the run directory, if the ring is elsewhere.
      checkpoints: The run directory's checkpoints.
      priorities: Of the ring's rows, which change: checkpoints have a copy.

    Attributes:
      written: Snapshots that are in their checkpoint.
      error: Why the last one could not be written, None if it was.
    """

    def __init__(
        self,
        ring: Ring,
        copy: RingCopy | None,
        checkpoints: Path,
        priorities: Priorities | None = None,
    ) -> None:
        self._ring = ring
        self._copy = copy
        self._checkpoints = checkpoints
        self._priorities = priorities
        self._requests: queue.Queue[tuple[str, bytes, bytes | None, bool] | None] = queue.Queue()
        self._under_way: dict[str, int] = {}  # name -> total rows
        self._kept: dict[Path, int] = {}  # replay.bin -> total rows
        self._look_at = 0.0
        self.written = 0
        self.error: str | None = None
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)  # Left by a killed process.
        self._thread = threading.Thread(target=self._write_all, name="snapshots", daemon=True)
        self._thread.start()

    def take(self, name: str, *, is_far: bool = False) -> bool:
        """Snapshots the ring now for the checkpoint with this name.

        Args:
          name: Of the checkpoint.
          is_far: The trainer writes its checkpoint elsewhere: one without an agent is made here.

        Returns:
          Whether it did: not if it is under way or done already, or if the checkpoint is not being written.

        Raises:
          ValueError: A checkpoint that would be made here can't have this name.
        """
        partial = self._partial(name)
        if is_far and name not in self._under_way:
            kept_checkpoints.train_step_of(name)
            shutil.rmtree(partial, ignore_errors=True)
            try:
                self._checkpoints.mkdir(exist_ok=True)
                partial.mkdir()
            except OSError as error:  # Also of a run directory that was moved away: it may be put back.
                self._tell(name, error)
                return False
        if name in self._under_way or not partial.is_dir() or (partial / REPLAY).exists():
            return False
        with self._ring.lock:
            self._under_way[name] = self._ring.total_rows
            priorities = self._priorities.snapshot() if self._priorities else None
            self._requests.put((name, self._ring.snapshot(), priorities, is_far))
        return True

    @property
    def is_wanted(self) -> bool:
        """Whether a checkpoint is wanted early: with many more rows the kept ones could no longer be gone back to."""
        total_rows = self._ring.total_rows
        self._look_if_due()
        # Larger ones are from a time that the ring has gone back from.
        kept = [rows for rows in (*self._kept.values(), *self._under_way.copy().values()) if rows <= total_rows]
        return total_rows - max(kept, default=0) > _WANTED_SHARE * self._ring.files.slack_rows

    def has_room(self, num_rows: int, rows_before: int = 0) -> bool:
        """Whether so many more rows, behind others that are about to be stored, leave a way back to a checkpoint.

        That is the newest complete one: what it needs must not be overwritten. True as well where there is none, and
        where no checkpoint could leave so much room.
        """
        self._look_if_due()
        total_rows, slack_rows = self._ring.total_rows, self._ring.files.slack_rows
        complete = [
            rows for path, rows in self._kept.items() if path.parent.suffix != ".partial" and rows <= total_rows
        ]
        if not complete or num_rows > slack_rows or total_rows + rows_before + num_rows - max(complete) <= slack_rows:
            return True
        self._look_at = min(self._look_at, time.monotonic() + _LOOK_WHILE_FULL_SECS)
        return False

    def close(self, secs: float) -> None:
        """Finishes what is under way."""
        self._requests.put(None)
        self._thread.join(secs)

    @property
    def _temporary(self) -> Path:
        # Not in the checkpoint's folder: everything there is listed in its manifest.
        return self._checkpoints / f".{REPLAY}.tmp"

    def _partial(self, name: str) -> Path:
        return self._checkpoints / f"{name}.partial"

    def _write_all(self) -> None:
        while (request := self._requests.get()) is not None:
            name, snapshot, priorities, is_far = request
            began = time.monotonic()
            try:
                num_bytes = 0
                if self._copy is None:
                    self._ring.make_durable()
                else:
                    num_bytes = self._copy.update(snapshot)
                self._ring.check_covered(snapshot)  # Nothing of it may have been overwritten meanwhile.
                if priorities is not None:
                    self._write(name, PRIORITIES, priorities)
                self._write(name, REPLAY, snapshot)  # Last: the trainer waits for it.
                if is_far:
                    self._complete(name)
            except (OSError, OverwrittenError) as error:
                self._tell(name, error)
            else:
                self.error = None
                self.written += 1
                secs = time.monotonic() - began
                logging.info("%s: experience saved in %.2f s, %d bytes of it copied", name, secs, num_bytes)
            finally:
                self._look_at = 0.0
                del self._under_way[name]

    def _tell(self, name: str, error: Exception) -> None:
        self.error = f"{name}: {error}"
        logging.error("the replay server's part of %s can't be written: %s", name, error)

    def _write(self, name: str, file: str, data: bytes) -> None:
        """Whole or not at all."""
        partial = self._partial(name)
        self._temporary.write_bytes(data)
        sync(self._temporary)
        os.replace(self._temporary, partial / file)
        sync(partial)

    def _complete(self, name: str) -> None:
        """Completes a checkpoint whose agent is elsewhere."""
        partial, folder = self._partial(name), self._checkpoints / name
        shutil.rmtree(folder, ignore_errors=True)  # Of a trainer that has lost its own.
        kept_checkpoints.finish(partial, kept_checkpoints.train_step_of(name), 0, {}, has_agent=False)
        kept_checkpoints.delete_later(folder)
        kept_checkpoints.prune(self._checkpoints, written=folder)

    def _look_if_due(self) -> None:
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_SECS
            self._look()

    def _look(self) -> None:
        """Which checkpoints there are, complete or nearly so, and how much experience they have."""
        kept = {}
        with contextlib.suppress(OSError):
            for path in self._checkpoints.glob(f"checkpoint_*/{REPLAY}"):
                if path in self._kept:
                    kept[path] = self._kept[path]
                else:
                    with contextlib.suppress(OSError, ValueError):
                        header = self._ring.files.parse_header(path.read_bytes())
                        kept[path] = int(header["total_rows"])
        self._kept = kept
