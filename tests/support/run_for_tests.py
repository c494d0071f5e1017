"""A run's folders with a ring and its checkpoints, as the replay server and the trainer make them together."""

from __future__ import annotations

from pathlib import Path

from tests.support.segments_for_tests import LAYOUT
from tests.support.waiting import until
from tfagents_system.replay.priorities import Priorities
from tfagents_system.replay.recovery import SnapshotWriter, open_ring, saved_priorities
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.segments import Layout

CAPACITY, SLACK = 60, 24


class RunFolders:
    """One start of the replay server on the folders of a run; `scratch` is SAC_REPLAY_DIR."""

    def __init__(
        self,
        exp_dir: Path,
        scratch: Path | None = None,
        *,
        from_checkpoint: bool = False,
        capacity: int = CAPACITY,
        slack: int = SLACK,
        priority_exponent: float | None = None,
        layout: Layout = LAYOUT,
    ) -> None:
        paths = RunPaths(exp_dir)
        self.checkpoints = paths.trainer_checkpoints
        self.ring = open_ring(
            scratch or paths.replay,
            paths,
            layout,
            capacity,
            slack,
            from_checkpoint=from_checkpoint,
        )
        self.priorities = None
        if priority_exponent is not None:
            self.priorities = Priorities(self.ring, priority_exponent, saved_priorities(self.checkpoints))
        self.snapshots = SnapshotWriter(self.ring, self.checkpoints, self.priorities)

    def checkpoint(self, train_step: int, *, with_replay: bool = True) -> kept_checkpoints.Checkpoint:
        partial = kept_checkpoints.begin(self.checkpoints, train_step)
        (partial / "agent.index").write_bytes(b"index")
        if with_replay:
            assert self.snapshots.take(kept_checkpoints.finished_name(partial))
            until((partial / kept_checkpoints.REPLAY).exists, 20.0, "the copy of the ring")
        checkpoint = kept_checkpoints.finish(partial, train_step, train_step, {})
        kept_checkpoints.prune(self.checkpoints)
        return checkpoint
