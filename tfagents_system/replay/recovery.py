"""The replay server's part of a checkpoint, and with which experience a server begins.

The part is the ring's header; all that it covers is on disk before it is written. After a process was killed the ring
is as it was, to the last segment: the kernel keeps the pages. After anything else (a power cut, a copied run directory,
another node, scratch that was cleared) nobody knows which pages reached the disk, and the ring goes back to the newest
complete checkpoint.

A ring on a node's own scratch (SAC_REPLAY_DIR) has a copy in the run directory, brought up to date with each
checkpoint: the same files, with the same rows in the same places, and the newest snapshot as header. Opened without
scratch, the copy is the ring of the run.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from absl import logging

from tfagents_system.errors import UserError
from tfagents_system.machine.files import make_private, read_json, sync, write_json
from tfagents_system.replay.priorities import Priorities
from tfagents_system.replay.ring import (
    DESCRIPTION,
    DamagedHeaderError,
    OverwrittenError,
    Ring,
    RingFiles,
    covered_rows,
    empty_header,
    header_bytes,
    parse_header,
)
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.kept_checkpoints import PRIORITIES, REPLAY, Checkpoint, newest_complete, why_lost
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.segments import Layout

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ORIGIN = "origin.json"
_LOOK_SECS, _LOOK_WHILE_FULL_SECS = 2.0, 0.2
_WANTED_SHARE = 0.4  # Of the slack: the older of two kept checkpoints is then 0.8 of it behind, at most.


# Opening.


def open_ring(
    folder: Path,
    paths: RunPaths,
    layout: Layout,
    capacity_rows: int,
    slack_rows: int | None,
    *,
    from_checkpoint: bool = False,
    work: LongWork | None = None,
) -> Ring:
    """Opens a run's ring, with its copy where it has one.

    Args:
      folder: Of the ring: `replay/` of the run directory, or elsewhere, perhaps on node-local scratch.
      paths: The run directory, which has the ring's copy if the ring is elsewhere.
      layout, capacity_rows, slack_rows: As of `RingFiles.prepare`.
      from_checkpoint: Go back to the newest checkpoint also where the ring is as a killed process left it.
      work: Is told what takes long.

    Raises:
      UserError: The disk is too small, a folder can't be written or holds a ring of another kind, or scratch has
        something in the ring's place that is not ours alone.
    """
    began = time.monotonic()
    origin = paths.replay / _ORIGIN
    is_copied = folder.resolve() != paths.replay.resolve()
    if is_copied:
        make_private(folder)
    is_as_it_was = _is_as_it_was(folder, origin)
    has_copy = is_copied and (paths.replay / DESCRIPTION).exists()
    files = RingFiles.prepare(folder, layout, capacity_rows, slack_rows)
    with files.usable():
        is_damaged = files.newest_header() is None
        recovers = from_checkpoint or is_damaged or not is_as_it_was
        if recovers:
            with contextlib.suppress(OSError):  # A file that can't be written is reported when it is written.
                origin.unlink()  # Killed before it is done, it recovers again.
        if is_damaged:
            files.write_header(empty_header())
    ring = Ring(files, RingFiles.prepare(paths.replay, layout, capacity_rows, files.slack_rows) if is_copied else None)
    if recovers:
        if has_copy:
            ring.clear()  # The copy is gone back to, not what is still on scratch.
        if work is not None:
            work.doing = "what a checkpoint has"
        _recover(ring, has_copy, _newest_checkpoint(paths))
    elif is_copied and (snapshot := _snapshot_of(_newest_checkpoint(paths))) is not None:
        with contextlib.suppress(DamagedHeaderError):  # Else the next checkpoint copies the whole ring.
            _, ring.copied_rows = covered_rows(parse_header(snapshot))
    try:
        write_json(origin, _origin_of(folder))
    except OSError as error:
        raise UserError(f"{origin} can't be written ({error.strerror}): free space, or make it writable") from None
    logging.info(
        "ring: %d of %d rows filled, %d env steps so far, opened in %.1f s",
        *(ring.filled_rows, ring.capacity_rows, ring.env_steps, time.monotonic() - began),
    )
    return ring


def _recover(ring: Ring, has_copy: bool, checkpoint: Checkpoint | None) -> None:
    """Goes back to a checkpoint, and checks every segment of it; without its header, takes all that is whole."""
    if checkpoint is None:
        if ring.filled_rows:
            logging.warning(
                "the experience in %s is not as a killed process left it, and there is no complete checkpoint to go "
                "back to: the run starts with an empty ring",
                ring.folder,
            )
            ring.clear()
        return
    try:
        snapshot = _snapshot_of(checkpoint)
        if has_copy and ring.copy is not None:
            with ring.copy.usable():
                header = ring.copy.newest_header() if snapshot is None else parse_header(snapshot)
                if header is None:
                    raise DamagedHeaderError("that of its copy is damaged")
                ring.read_copy(header)
            snapshot = header_bytes(header).tobytes()
        if snapshot is None:
            logging.warning("%s has no part of the replay server: continuing with all that is whole", checkpoint.name)
        else:
            ring.rollback(snapshot)
            logging.info("the ring goes back to %s: %d env steps", checkpoint.name, ring.env_steps)
    except (OverwrittenError, DamagedHeaderError) as error:
        logging.error(
            "the ring can't go back to %s (%s): continuing with all that is whole in it", checkpoint.name, error
        )
    held = ring.ring_steps
    dropped = ring.verify()
    if dropped:
        logging.error("%d of %d steps in %s were damaged and are left out", dropped, held, ring.folder)
    if ring.ring_steps == 0:
        logging.warning("the run has a checkpoint but no experience in %s: it starts with an empty ring", ring.folder)
        ring.clear()


def _snapshot_of(checkpoint: Checkpoint | None) -> bytes | None:
    return checkpoint.replay.read_bytes() if checkpoint is not None and checkpoint.has_replay else None


def _newest_checkpoint(paths: RunPaths) -> Checkpoint | None:
    """What a ring is gone back to.

    Raises:
      UserError: The run has lost its checkpoints: its ring must not be emptied in their place.
      OSError: One can't be read now.
    """
    newest = newest_complete(paths.trainer_checkpoints)
    if newest is None and (reason := why_lost(paths.trainer_checkpoints, paths.saved)):
        raise UserError(reason)
    return newest


def saved_priorities(checkpoints: Path) -> bytes:
    """Those of the newest checkpoint; empty where it has none."""
    newest = newest_complete(checkpoints)
    return newest.priorities.read_bytes() if newest is not None and newest.priorities.exists() else b""


def _is_as_it_was(folder: Path, origin: Path) -> bool:
    """Whether the ring is as the last process left it, killed or not: on this machine, which was not off since.

    The origin is in the run directory, also for a ring elsewhere: one that was left behind there is not taken for the
    run's ring.
    """
    known = read_json(origin)
    return known is not None and known == _origin_of(folder)


def _origin_of(folder: Path) -> dict[str, Any] | None:
    """What differs after the machine was off, and for another folder; None where there is no ring.

    A file restored from a backup may get the inode that it had, but never its time of change.
    """
    try:
        description = (folder / DESCRIPTION).stat()  # Written once, when the ring was made.
        return {
            "boot_id": _BOOT_ID.read_text().strip(),
            "device": description.st_dev,
            "made_ns": description.st_ctime_ns,
        }
    except OSError:
        return None


# Saving.


class SnapshotWriter:
    """Snapshots the ring in the caller's thread, between two appends, and writes it in one of its own.

    Attributes:
      written: Snapshots that are in their checkpoint.
      error: Why the last one could not be written, None if it was.
    """

    def __init__(self, ring: Ring, checkpoints: Path, priorities: Priorities | None = None) -> None:
        self._ring, self._checkpoints, self._priorities = ring, checkpoints, priorities
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
        """Snapshots the ring now for the checkpoint with this name; ValueError where it is none.

        Args:
          name: Of the checkpoint.
          is_far: The trainer writes its checkpoint elsewhere: one without an agent is made here.

        Returns:
          Whether it did: not if it is under way or done already, or if the checkpoint is not being written.
        """
        kept_checkpoints.train_step_of(name)  # Another name could be of a folder elsewhere.
        partial = self._partial(name)
        if name in self._under_way or (is_far and not self._begin(name)):
            return False
        if not partial.is_dir() or (partial / REPLAY).exists():
            return False
        with self._ring.lock:
            self._under_way[name] = self._ring.total_rows
            priorities = self._priorities.snapshot() if self._priorities else None
            self._requests.put((name, self._ring.snapshot(), priorities, is_far))
        return True

    @property
    def is_wanted(self) -> bool:
        """Whether a checkpoint is wanted early: with many more rows the kept ones could no longer be gone back to."""
        self._look_if_due()
        total_rows = self._ring.total_rows
        # Larger ones are from a time that the ring has gone back from.
        kept = [rows for rows in (*self._kept.values(), *self._under_way.copy().values()) if rows <= total_rows]
        return total_rows - max(kept, default=0) > _WANTED_SHARE * self._ring.files.slack_rows

    def has_room(self, num_rows: int) -> bool:
        """Whether so many more rows leave a way back to a checkpoint.

        That is the newest complete one: what it needs must not be overwritten. True as well where there is none, and
        where no checkpoint could leave so much room.
        """
        self._look_if_due()
        total_rows, slack_rows = self._ring.total_rows, self._ring.files.slack_rows
        complete = [
            rows for path, rows in self._kept.items() if path.parent.suffix != ".partial" and rows <= total_rows
        ]
        if not complete or num_rows > slack_rows or total_rows + num_rows - max(complete) <= slack_rows:
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

    def _begin(self, name: str) -> bool:
        """Makes the folder of a checkpoint whose agent is elsewhere; whether it could."""
        partial = self._partial(name)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            self._checkpoints.mkdir(exist_ok=True)
            partial.mkdir()
        except OSError as error:  # Also of a run directory that was moved away: it may be put back.
            self._tell(name, error)
            return False
        return True

    def _write_all(self) -> None:
        while (request := self._requests.get()) is not None:
            name, snapshot, priorities, is_far = request
            began = time.monotonic()
            try:
                num_bytes = self._ring.make_durable(snapshot)
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
        """Which checkpoints there are, complete or nearly so, and how much experience they have."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_SECS
        kept = {}
        with contextlib.suppress(OSError):
            for path in self._checkpoints.glob(f"checkpoint_*/{REPLAY}"):
                with contextlib.suppress(OSError, DamagedHeaderError):
                    kept[path] = self._kept.get(path) or int(parse_header(path.read_bytes())["total_rows"])
        self._kept = kept
