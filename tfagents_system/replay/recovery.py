"""With which experience a replay server begins: what its killed predecessor had, or what a checkpoint says.

After a process was killed the ring is as it was, to the last segment: the kernel keeps the pages. After anything else
(a power cut, a copied run directory, another node, scratch that was cleared) nobody knows which pages reached the
disk, and the ring goes back to the newest complete checkpoint, whose rows were on disk before it was complete.

A ring on a node's own scratch (SAC_REPLAY_DIR) has a copy in the run directory, brought up to date with each
checkpoint: the same files, with the same rows in the same places, and the newest snapshot as header. Opened without
scratch, the copy is the ring of the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from pathlib import Path
from typing import Any

from absl import logging

from tfagents_system.errors import UserError
from tfagents_system.machine.files import make_private, read_json, write_json
from tfagents_system.replay.priorities import discard
from tfagents_system.replay.ring import OverwrittenError, Ring
from tfagents_system.replay.ring_files import DESCRIPTION, RingFiles, row_ranges
from tfagents_system.replay.ring_header import DamagedHeaderError
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files.kept_checkpoints import PRIORITIES, Checkpoint, newest_complete, why_lost
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.segments import Layout

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ORIGIN = "origin.json"


@dataclasses.dataclass(frozen=True)
class RingFolders:
    """Where the experience of a run is.

    Attributes:
      ring: Folder of the ring, perhaps on node-local scratch.
      home: The run directory's `replay/`: the same folder, or that of the ring's copy.
      checkpoints: The run directory's checkpoints.
      earlier: Those of the run from which the ring was moved here: until this run has a checkpoint, these count.
    """

    ring: Path
    home: Path
    checkpoints: Path
    earlier: Path | None = None

    def newest_checkpoint(self) -> Checkpoint | None:
        """What a ring is gone back to.

        Raises:
          UserError: The run has lost its checkpoints: its ring must not be emptied in their place.
          OSError: One can't be read now.
        """
        if (newest := newest_complete(self.checkpoints)) is not None:
            return newest
        if reason := why_lost(self.checkpoints, RunPaths(self.checkpoints.parent).saved):
            raise UserError(reason)
        return None if self.earlier is None else newest_complete(self.earlier)

    @property
    def is_copied(self) -> bool:
        """Whether the ring is elsewhere and the run directory has a copy of it."""
        return self.ring.resolve() != self.home.resolve()


class RingCopy:
    """The copy of a ring in the run directory; takes what is new in the ring.

    Args:
      ring: The ring on scratch.
      folder: Of the copy; made where it does not exist.

    Raises:
      UserError: The folder is too small, can't be written, or holds a ring of another kind.
    """

    def __init__(self, ring: Ring, folder: Path) -> None:
        self._ring = ring
        self._files = RingFiles.prepare(folder, ring.layout, ring.capacity_rows, ring.files.slack_rows)
        self._files.mend_header()

    def restore(self, snapshot: bytes | None) -> bytes:
        """Writes the rows that a snapshot covers into the ring, at their places; it is to be rolled back to it then.

        Args:
          snapshot: None is that of the last copy.

        Returns:
          The snapshot.

        Raises:
          DamagedHeaderError: It is damaged, or of another ring.
        """
        if snapshot is None:
            newest = self._files.newest_header()
            snapshot = b"" if newest is None else newest.tobytes()
        first, last = self._covered(snapshot)
        with self._ring.lock:
            for column, rows in zip(self._files.columns, self._ring.columns, strict=True):
                copied = self._files.map(column)
                for part in row_ranges(first, last, self._files.num_rows):
                    rows[part] = copied[part]
        self._ring.copied_rows = last
        return snapshot

    def begin_after(self, snapshot: bytes) -> None:
        """Says that the copy has what this snapshot covers: it was written to a checkpoint, after the rows."""
        _, self._ring.copied_rows = self._covered(snapshot)

    def update(self, snapshot: bytes) -> int:
        """Makes durable what a snapshot covers: writes the rows that are new since the last time, and flushes them.

        It may run beside appends. Rows that were overwritten meanwhile are found by `Ring.check_covered`.

        Returns:
          Bytes of rows written.

        Raises:
          OSError: They can't be written.
        """
        oldest, last = self._covered(snapshot)
        first = max(oldest, min(self._ring.copied_rows, last))
        written = 0
        for column, rows in zip(self._files.columns, self._ring.columns, strict=True):
            with self._files.column(column).open("r+b") as file:
                for part in row_ranges(first, last, self._files.num_rows):
                    file.seek(part.start * column.step_bytes)
                    written += file.write(rows[part].data)
                file.flush()
                os.fdatasync(file.fileno())
        self._files.write_header(self._files.parse_header(snapshot))
        self._ring.copied_rows = last
        return written

    def _covered(self, snapshot: bytes) -> tuple[int, int]:
        """Numbers of the first row of a snapshot, and of the one after its last."""
        header = self._files.parse_header(snapshot)
        return int(header["total_rows"] - header["filled_rows"]), int(header["total_rows"])


def open_ring(
    folders: RingFolders,
    layout: Layout,
    capacity_rows: int,
    slack_rows: int | None,
    *,
    from_checkpoint: bool = False,
    work: LongWork | None = None,
) -> tuple[Ring, RingCopy | None]:
    """Opens a run's ring, with its copy where it has one.

    Args:
      folders: Where it is.
      layout, capacity_rows, slack_rows: As of `RingFiles.prepare`.
      from_checkpoint: Go back to the newest checkpoint also where the ring is as a killed process left it.
      work: Is told what takes long.

    Raises:
      UserError: The disk is too small, a folder can't be written or holds a ring of another kind, or scratch has
        something in the ring's place that is not ours alone.
    """
    began = time.monotonic()
    if folders.is_copied:
        make_private(folders.ring)
    is_as_it_was = _is_as_it_was(folders)
    home = RingFiles.find(folders.home)  # A ring on other scratch is made as its copy was.
    files = RingFiles.prepare(folders.ring, layout, capacity_rows, slack_rows if home is None else home.slack_rows)
    has_copy = folders.is_copied and home is not None
    recovers = from_checkpoint or files.newest_header() is None or not is_as_it_was
    if recovers:
        with contextlib.suppress(OSError):  # A file that can't be written is reported when it is written.
            (folders.home / _ORIGIN).unlink()  # Killed before it is done, it recovers again.
        files.mend_header()
        if has_copy:
            files.reset_header()  # The copy is gone back to, not what is still on scratch.
    ring = Ring(files)
    copy = RingCopy(ring, folders.home) if folders.is_copied else None
    if recovers:
        if work is not None:
            work.doing = "what a checkpoint has"
        _recover(ring, copy if has_copy else None, folders.newest_checkpoint())
    elif copy is not None and has_copy and (snapshot := _snapshot_of(folders.newest_checkpoint())) is not None:
        with contextlib.suppress(DamagedHeaderError):  # Else the next checkpoint copies the whole ring.
            copy.begin_after(snapshot)
    _write_origin(folders)
    logging.info(
        "ring: %d of %d rows filled, %d env steps so far, opened in %.1f s",
        *(ring.filled_rows, ring.capacity_rows, ring.env_steps, time.monotonic() - began),
    )
    return ring, copy


def _recover(ring: Ring, copy: RingCopy | None, checkpoint: Checkpoint | None) -> None:
    """Goes back to a checkpoint, and checks every segment of it; without its header, goes on with all that is whole."""
    discard(ring.folder)
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
        if copy is not None:
            snapshot = copy.restore(snapshot)
        if snapshot is None:
            logging.warning("%s has no part of the replay server: going on with all that is whole", checkpoint.name)
        else:
            ring.rollback(snapshot)
            logging.info("the ring goes back to %s: %d env steps", checkpoint.name, ring.env_steps)
            _restore_priorities(ring, checkpoint)
    except (OverwrittenError, DamagedHeaderError) as error:
        logging.error(
            "the ring can't go back to %s (%s): going on with all that is whole in it", checkpoint.name, error
        )
    held = ring.ring_steps
    dropped = ring.verify()
    if dropped:
        logging.error("%d of %d steps in %s were damaged and are left out", dropped, held, ring.folder)
    if ring.ring_steps == 0:
        logging.warning("the run has a checkpoint but no experience in %s: it starts with an empty ring", ring.folder)
        ring.clear()


def _restore_priorities(ring: Ring, checkpoint: Checkpoint) -> None:
    """Copies those of the checkpoint, if it has some, for a ring that has its rows.

    Raises:
      UserError: There is no space for them, or the folder can't be written.
    """
    if not checkpoint.priorities.exists():
        return
    try:
        shutil.copyfile(checkpoint.priorities, ring.folder / PRIORITIES)
    except OSError as error:
        discard(ring.folder)
        num_bytes = checkpoint.priorities.stat().st_size
        raise UserError(
            f"the priorities of {checkpoint.name} need {num_bytes:,} bytes that can be written in {ring.folder} "
            f"({error.strerror}): free space, or set SAC_REPLAY_DIR to another disk"
        ) from None


def _snapshot_of(checkpoint: Checkpoint | None) -> bytes | None:
    return checkpoint.replay.read_bytes() if checkpoint is not None and checkpoint.has_replay else None


def _is_as_it_was(folders: RingFolders) -> bool:
    """Whether the ring is as the last process left it, killed or not: on this machine, which was not off since."""
    # In the run directory, also for a ring elsewhere: one that was left behind there is not taken for the run's ring.
    origin = read_json(folders.home / _ORIGIN)
    return origin is not None and origin == _origin_of(folders.ring)


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


def _write_origin(folders: RingFolders) -> None:
    try:
        write_json(folders.home / _ORIGIN, _origin_of(folders.ring))
    except OSError as error:
        raise UserError(
            f"{folders.home / _ORIGIN} can't be written ({error.strerror}): free space, or make it writable"
        ) from None
