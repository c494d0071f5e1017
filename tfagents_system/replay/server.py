"""The replay server: hosts Reverb, owns the experience, draws the minibatches."""

from __future__ import annotations

import dataclasses
import functools
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import reverb
import reverb.platform.checkpointers_lib
from absl import logging

from tfagents_system.agents import iteration_counts
from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.agents.iteration_counts import most_updates_per_env_step, random_count, random_steps, updates_ratio
from tfagents_system.checks.schedules import Schedule, initial_value, is_schedule
from tfagents_system.envs import specs
from tfagents_system.errors import EXIT_RESUMABLE, UserError
from tfagents_system.machine.processes import is_alive
from tfagents_system.machine.signals import is_orphan
from tfagents_system.replay.filling import fill, folders_of_ring, move_ring
from tfagents_system.replay.goal_environment import make_goal_environment
from tfagents_system.replay.pacing import Asynchronous, Lockstep, Pacing, WorkerOrder
from tfagents_system.replay.priorities import Priorities, Prioritized, discard
from tfagents_system.replay.recovery import RingCopy, open_ring
from tfagents_system.replay.ring import INIT_ITERATION, Ring
from tfagents_system.replay.ring_files import capacity_rows, slack_rows
from tfagents_system.replay.sampling import DrawSettings, PriorData
from tfagents_system.replay.service import ReplayService
from tfagents_system.replay.snapshots import SnapshotWriter
from tfagents_system.replay.stored_ring import StoredRing, differences
from tfagents_system.report.long_work import LongWork
from tfagents_system.role import GOAL_STREAM, Role
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.run_paths import TRAINER
from tfagents_system.run_files.taken import taken_by
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport import loopback, tables
from tfagents_system.transport.connection import Connection
from tfagents_system.transport.segments import Layout, run_layout

_MAX_BLOCK_BYTES = 32 * 2**20
_MAX_BLOCK_MINIBATCHES = 100
_HELD_OUT_MINIBATCHES = 4  # Per iteration, with validation: few compared with its updates.
_DRAIN_SECS = 5.0
_SNAPSHOT_SECS = 30.0


def serve(role: Role) -> int:
    """Serves until told to stop; returns the exit code."""
    params = role.params
    layout = run_layout(params, *specs.load_specs(role.paths.specs))
    with LongWork("ring") as work, role.heartbeat.during("starting", work.__str__):
        ring, copy = _open_ring(role, layout, work)
    ring.counts_init_steps = params.initial_collect_steps is not None
    settings = settings_of_run(role, layout, ring)
    priorities = settings.prioritized.priorities if settings.prioritized else None
    snapshots = SnapshotWriter(ring, copy, role.paths.trainer_checkpoints, priorities)
    all_tables = tables.make_tables(role.max_workers)
    server = _start_server(int(role.server_address.rpartition(":")[2]), list(all_tables.values()))
    service = ReplayService(
        ring,
        Connection(role.server_address, role.stop.is_set),
        all_tables[tables.BLOCKS],
        role.max_workers,
        settings,
        _pacing(role, ring),
        snapshots,
        WorkerOrder(ring, functools.partial(_workers_of, role), snapshots.has_room) if role.deterministic else None,
    )
    ends, beat = _End(role), functools.partial(_beat, role, ring, settings, service, snapshots)
    while not ends.has_come():
        service.step()
        beat("serving")
    beat("saving")
    service.drain(_DRAIN_SECS)
    snapshots.close(_SNAPSHOT_SECS)
    server.stop()
    beat("stopped")
    return EXIT_RESUMABLE


def _open_ring(role: Role, layout: Layout, work: LongWork) -> tuple[Ring, RingCopy | None]:
    params, taken = role.params, taken_by(role.paths)
    rows = capacity_rows(params, layout)
    places = folders_of_ring(role.paths, role.variables.replay_dir or role.paths.replay, taken)
    if taken is not None and taken.has_rows:
        move_ring(taken, places, layout, rows)
    ring, copy = open_ring(
        places,
        layout,
        rows,
        slack_rows(params, layout),
        from_checkpoint=role.deterministic,
        work=work,
    )
    if taken is not None and taken.has_rows:
        work.doing = "experience of another run"
        # In lock-step an iteration promises updates for its own steps; else the ratio is a limit.
        fill(ring, taken, places, params.frame_stack, counts=params.asynchronous)
    return ring, copy


class _End:
    """When this server may end.

    The supervisor stops it last. If the supervisor was killed, all roles are told to stop at the same moment. The
    replay server then stays while the trainer saves, because a checkpoint includes a part of its own.

    Args:
      role: This one.
    """

    def __init__(self, role: Role) -> None:
        self._role = role
        self._stay_secs = role.variables.save_deadline_secs - _SNAPSHOT_SECS / 2
        self._stay_until: float | None = None

    def has_come(self) -> bool:
        if not self._role.stop.is_set():
            return False
        if self._stay_until is None:
            self._stay_until = time.monotonic() + self._stay_secs
        return not is_orphan() or time.monotonic() > self._stay_until or self._trainer_has_ended()

    def _trainer_has_ended(self) -> bool:
        """As far as can be seen: a trainer whose process is there has ended, too, once it has said so."""
        beat = read_heartbeat(self._role.paths.heartbeat(TRAINER)) or {}
        pid = beat.get("pid")
        return beat.get("state") == "stopped" or pid is None or not is_alive(pid)


def _start_server(port: int, all_tables: Sequence[reverb.Table]) -> reverb.Server:
    # Reverb makes a folder for checkpoints of its own, which are not used: the ring is the record.
    with tempfile.TemporaryDirectory() as unused:
        checkpointer = reverb.platform.checkpointers_lib.DefaultCheckpointer(unused)
        return loopback.start_confined(lambda: reverb.Server(all_tables, port, checkpointer), port)


def draw_settings(params: TrainParamsBase, layout: Layout, seed: int) -> DrawSettings:
    """How this run's minibatches are drawn; a block is limited in bytes, with images an iteration is many blocks."""
    form = params.sample_form_ctor()
    minibatch_bytes = params.batch_size * form.sample_bytes(layout, params.frame_stack)
    max_block_minibatches = max(1, min(_MAX_BLOCK_MINIBATCHES, _MAX_BLOCK_BYTES // minibatch_bytes))
    return DrawSettings(
        batch_size=params.batch_size,
        form=form,
        max_block_minibatches=max_block_minibatches,
        seed=seed,
        discount=initial_value(params.discount),
        gamma=Schedule.of(params.discount) if is_schedule(params.discount) else None,
        held_out_minibatches=min(_HELD_OUT_MINIBATCHES, max_block_minibatches) if params.validation_share else 0,
        frame_stack=params.frame_stack,
        whole_bootstrap=ALGORITHMS[params.algorithm].takes_bootstrap_factor,
    )


def settings_of_run(role: Role, layout: Layout, ring: Ring) -> DrawSettings:
    """With the run's priorities, prior data, and an environment that says what goals are worth, if it has them."""
    params, settings = role.params, draw_settings(role.params, layout, role.seed)
    more: dict[str, Any] = {}
    if settings.form.is_prioritized:
        priorities = Priorities(ring, float(params.priority_exponent or 0))
        more = {"prioritized": Prioritized(priorities), "beta": Schedule.of(params.priority_beta)}
    else:
        discard(ring.folder)  # They would be of other rows when they are asked for again.
    if settings.form.hindsight is not None:
        # Behind the ids of all workers: ports and folders that an environment derives from its id are its own.
        env_id = role.max_workers * role.variables.envs_per_worker
        more["goals_at"] = make_goal_environment(params, env_id, role.derived_seed(GOAL_STREAM)).at
    if iteration_counts.has_prior_data(params):
        taken = taken_by(role.paths)
        more["prior"] = PriorData(
            open_prior(role.paths.prior_data, layout),
            iteration_counts.prior_samples(params),
            taken.env_steps if taken is not None else 0,
        )
    return dataclasses.replace(settings, **more)


def _pacing(role: Role, ring: Ring) -> Pacing:
    params = role.params
    if params.asynchronous:
        return Asynchronous(ring, most_updates_per_env_step(params), random_count(params), random_steps(params))
    # A deterministic run waits for every worker, however late it is.
    straggler_secs = math.inf if role.deterministic else role.variables.straggler_secs
    return Lockstep(
        ring,
        role.num_workers,
        straggler_secs,
        has_left=role.has_left,
        updates_per_env_step=updates_ratio(params),
    )


def _workers_of(role: Role, iteration: int) -> range:
    """The workers that collect in an iteration; before the first one there may be fewer."""
    is_first = iteration == INIT_ITERATION
    return range(min(role.num_workers, random_count(role.params)) if is_first else role.num_workers)


def _beat(
    role: Role, ring: Ring, settings: DrawSettings, service: ReplayService, snapshots: SnapshotWriter, state: str
) -> None:
    role.heartbeat.beat(
        state,
        env_steps=ring.env_steps,
        ring_steps=ring.ring_steps,
        capacity_steps=role.params.buffer_size,
        segments=ring.segments,
        duplicates=service.duplicates,
        malformed=service.malformed,
        prior_steps=None if settings.prior is None else settings.prior.ring.training_steps,
        bytes=ring.filled_rows * ring.layout.step_bytes,
        checkpoint_wanted=snapshots.is_wanted,
        snapshots=snapshots.written,
        snapshot_error=snapshots.error,
        time_shares=service.time_shares.shares(),
        counted_secs=service.time_shares.counted_secs,
        waiting_for=service.waiting_for,
    )


def open_prior(folder: Path, layout: Layout) -> Ring:
    """Opens it without damaged segments, where nothing of it is written but what marks these.

    Args:
      folder: Of the ring.
      layout: Of the run.

    Raises:
      UserError: It is not there, is of another layout than the run, or nothing of it is whole.
    """
    stored = StoredRing(folder)
    if lines := differences(layout, stored.layout):
        raise UserError(f"{folder} has another layout than this run: {'; '.join(lines)}")
    ring = Ring.open(stored.folder, layout, stored.capacity_rows)
    damaged = ring.verify()
    logging.info("%s: %d steps, %d were damaged and are left out", folder, ring.training_steps, damaged)
    if not ring.training_steps:
        raise UserError(f"{folder} holds no step that may be trained on: begin another run (SAC_EXP_NAME)")
    return ring
