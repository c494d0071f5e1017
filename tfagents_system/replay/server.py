"""The replay server: hosts Reverb, owns the experience, draws the minibatches.

Segments: `_ingest`, `_read_segments`, `_store`, `Ring.extend`. A request: `_accept`, `_next_count`, `make_block`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import reverb
import reverb.platform.checkpointers_lib
from absl import logging

from tfagents_system.agents import iteration_counts
from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.agents.iteration_counts import most_updates_per_env_step, random_count, random_steps, updates_ratio
from tfagents_system.checks.schedules import Schedule, initial_value
from tfagents_system.envs import specs
from tfagents_system.errors import EXIT_RESUMABLE, UserError
from tfagents_system.machine.processes import is_alive
from tfagents_system.machine.signals import is_orphan
from tfagents_system.replay.hindsight import make_goal_environment
from tfagents_system.replay.pacing import Asynchronous, Lockstep, Pacing, WorkerOrder
from tfagents_system.replay.priorities import Priorities
from tfagents_system.replay.recovery import SnapshotWriter, open_ring, saved_priorities
from tfagents_system.replay.ring import EPISODE_BITS, INIT_ITERATION, MAX_WORKERS, Ring, ring_rows
from tfagents_system.replay.sampling import DrawSettings, PriorData, make_block
from tfagents_system.replay.stored_ring import StoredRing, differences, fill
from tfagents_system.report.long_work import LongWork
from tfagents_system.role import GOAL_STREAM, Role
from tfagents_system.run_files.heartbeat import TimeShares, read_heartbeat
from tfagents_system.run_files.run_paths import TRAINER
from tfagents_system.run_files.taken import taken_by
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport import loopback, tables
from tfagents_system.transport.connection import Connection
from tfagents_system.transport.segments import Layout, MalformedSegmentError, Segment, from_wire, run_layout

_MAX_BLOCK_BYTES = 32 * 2**20
_HELD_OUT_MINIBATCHES = 4  # Per iteration, with validation: few compared with its updates.
_DRAIN_SECS = 5.0
_SNAPSHOT_SECS = 30.0
_IDLE_SECS = 0.02  # Until it looks whether the trainer has taken a block; what arrives wakes it at once.
_TELL_SECS = 0.02  # Between two messages of what is stored: one costs as much as storing a segment.
_MALFORMED = (ValueError, TypeError, IndexError)  # Of a message of another form.
_MOST_AHEAD_NS = 50 * 365 * 86_400 * 10**9  # Of a clock, 50 years.
_ITEMS_A_ROUND = 64  # Segments, or bundles of them: A flood of segments must not keep the trainer waiting.


def serve(role: Role) -> int:
    """Serves until told to stop; returns the exit code."""
    params = role.params
    layout = run_layout(params, *specs.load_specs(role.paths.specs))
    with LongWork("ring") as work, role.heartbeat.during("starting", work.__str__):
        ring = _open_ring(role, layout, work)
    ring.counts_init_steps = params.initial_collect_steps is not None
    settings = settings_of_run(role, layout, ring)
    snapshots = SnapshotWriter(ring, role.paths.trainer_checkpoints, settings.priorities)
    all_tables = tables.make_tables(role.variables.slots.most)
    server = _start_server(int(role.server_address.rpartition(":")[2]), list(all_tables.values()))
    service = ReplayService(
        ring,
        Connection(role.server_address, role.stop.is_set),
        all_tables[tables.BLOCKS],
        role.variables.slots.most,
        settings,
        _pacing(role, ring),
        snapshots,
        WorkerOrder(ring, functools.partial(_workers_of, role), snapshots.has_room) if role.deterministic else None,
    )
    beat = functools.partial(_beat, role, ring, settings, service, snapshots)
    while not role.stop.is_set():
        service.step()
        beat("serving")
    stay_until = time.monotonic() + role.variables.save_deadline_secs - _SNAPSHOT_SECS / 2
    while stays_for_trainer(role, stay_until):
        service.step()
        beat("serving")
    beat("saving")
    service.drain(_DRAIN_SECS)
    snapshots.close(_SNAPSHOT_SECS)
    server.stop()
    beat("stopped")
    return EXIT_RESUMABLE


class ReplayService:
    """One loop, `step`, in the server's process: segments are stored or refused, blocks of minibatches leave.

    Args:
      ring, connection: Where experience lives, and to the server of this process.
      blocks: The server's table of blocks: how full it is is known here without asking.
      max_workers: Slots for workers; segments of others are refused.
      draw, pacing: How minibatches are drawn, and when they may be.
      snapshots: Writes the replay server's part of checkpoints.
      order: Decides in which order segments are stored; None: as they come.

    Attributes:
      time_shares: Where the loop's time goes.
      duplicates, malformed: Segments that were stored already; items with segments, and requests, that were refused.
    """

    def __init__(
        self,
        ring: Ring,
        connection: Connection,
        blocks: reverb.Table,
        max_workers: int,
        draw: DrawSettings,
        pacing: Pacing,
        snapshots: SnapshotWriter,
        order: WorkerOrder | None = None,
    ) -> None:
        self._ring, self._connection, self._blocks = ring, connection, blocks
        self._max_workers = min(max_workers, MAX_WORKERS)
        self._draw_settings, self._pacing, self._snapshots, self._order = draw, pacing, snapshots, order
        self._wake = threading.Event()
        self._segments = connection.reader(tables.SEGMENTS, prefetch=_ITEMS_A_ROUND, wake=self._wake)
        self._requests = connection.reader(tables.REQUESTS, wake=self._wake)
        self._snapshot_requests = connection.reader(tables.SNAPSHOTS, wake=self._wake)
        if draw.priorities is not None:
            self._td_errors = connection.reader(tables.PRIORITIES, wake=self._wake)
        self._pending: list[tuple[tables.Request, int]] = []  # with the number of minibatches already sent
        self._server_start = time.time_ns()
        self._latest_session = 0
        self._is_held_back = False
        self._told: tuple[int, int, bool] | None = None  # What the newest message of what is stored was about.
        self._tell_at = 0.0
        self._received = 0
        self.time_shares = TimeShares(after_first=None)
        self.duplicates = self.malformed = 0
        self._publish_stored()

    @property
    def waiting_for(self) -> str | None:
        """What the trainer's request waits for, None if nothing waits."""
        if not self._pending or not self._is_held_back:
            return None
        request, done = self._pending[0]
        why, told = _why_untrained(self._ring), self._pacing.waiting_for(request)
        if why is None:
            return told
        if self._pacing.allowed(request, done) > 0:
            return f"experience to train on{why}"
        return f"{told}; nothing to train on so far{why}" if self._ring.filled_rows else told

    def step(self) -> None:
        """Takes in what has arrived, then serves what may be served; waits a few ms where there was nothing to do."""
        self._wake.clear()
        if (priorities := self._draw_settings.priorities) is not None:
            with self.time_shares.spend("priorities"):
                self._measure(priorities)
        self._take_snapshots()
        stored = self._ingest()
        served = self._serve()
        if not stored and not served:
            with self.time_shares.spend("idle"):
                self._wake.wait(_IDLE_SECS)

    def drain(self, secs: float) -> None:
        """Takes in the segments still on their way, when the run stops."""
        deadline = time.monotonic() + secs
        while time.monotonic() < deadline and (self._ingest() or self._connection.size(tables.SEGMENTS)):
            pass
        self._publish_stored()

    # What comes in.

    def _measure(self, priorities: Priorities) -> None:
        """The TD errors of drawn steps become their priorities."""
        while (arrays := self._td_errors.get(0)) is not None:
            try:
                rows, errors = (array.reshape(-1) for array in arrays)
                if (np.abs(errors.astype(np.float32)) < np.inf).all():  # Else training has diverged, and goes back.
                    with self._ring.lock:
                        priorities.measure(rows, np.abs(errors))
            except _MALFORMED as error:
                self._refuse("list of TD errors", error)

    def _take_snapshots(self) -> None:
        """Takes the ring's header for the checkpoints that the trainer is writing: here, nothing is half stored."""
        while (arrays := self._snapshot_requests.get(0)) is not None:
            try:
                request = tables.Snapshot.from_wire(arrays)
                with self.time_shares.spend("snapshots"):
                    self._snapshots.take(request.checkpoint, is_far=request.is_far)
            except _MALFORMED as error:
                self._refuse("request for a snapshot", error)

    def _ingest(self) -> bool:
        """Stores the segments that have arrived."""
        count = 0
        with self.time_shares.spend("storing"):
            while count < _ITEMS_A_ROUND and (arrays := self._segments.get(0)) is not None:
                count += 1
                segments = self._read_segments(arrays)
                if self._order is None:
                    self._append(segments)
                else:
                    for segment in segments:
                        self._append(self._order.take(segment))
                for worker_id in {segment.worker_id for segment in segments}:
                    self._pacing.heard(worker_id)
            self._received += count
            if count == 0 and self._order is not None:
                count = self._append(self._order.release())
        if self._news() != self._told and time.monotonic() >= self._tell_at:
            self._publish_stored()
        return count > 0

    def _read_segments(self, arrays: Sequence[np.ndarray]) -> list[Segment]:
        """What came from a worker; nothing if any of it can't be stored."""
        try:
            segments = from_wire(arrays, self._ring.layout)
            for segment in segments:
                if segment.worker_id >= self._max_workers:
                    raise MalformedSegmentError(f"worker {segment.worker_id} of at most {self._max_workers}")
                if segment.incarnation > time.time_ns() + _MOST_AHEAD_NS:  # No later start could have a larger one.
                    raise MalformedSegmentError(f"incarnation {segment.incarnation}: correct that machine's clock")
                if segment.episode is not None and not 0 <= segment.episode[0, 1] < 1 << EPISODE_BITS:
                    raise MalformedSegmentError(f"step {segment.episode[0, 1]} of an episode")
                if segment.num_rows > self._ring.max_segment_rows:
                    raise MalformedSegmentError(f"{segment.num_rows} rows, {self._ring.max_segment_rows} may be")
            return segments
        except MalformedSegmentError as error:
            self._refuse("segment", error)
            return []

    def _append(self, segments: Sequence[Segment]) -> int:
        """Stores segments, and returns how many there were."""
        self.duplicates += len(segments) - self._ring.extend(segments)
        return len(segments)

    def _news(self) -> tuple[int, int, bool]:
        """Changes where workers or the trainer have something to hear."""
        return self._received, self._ring.segments, self._snapshots.is_wanted

    def _publish_stored(self) -> None:
        self._told = self._news()
        received, _, is_wanted = self._told
        stored = tables.Stored(self._server_start, self._ring.env_steps, self._ring.worker_rows(), is_wanted, received)
        with self.time_shares.spend("telling what is stored"):
            self._connection.put(tables.STATUS, stored.to_wire())
        self._tell_at = time.monotonic() + _TELL_SECS

    def _refuse(self, what: str, error: Exception) -> None:
        self.malformed += 1
        logging.error("refused a %s: %s", what, error)

    # What goes out.

    def _serve(self) -> bool:
        """Draws one block for the oldest request, if it may be drawn and there is room for it."""
        while (arrays := self._requests.get(0)) is not None:
            try:
                self._accept(tables.Request.from_wire(arrays))
            except _MALFORMED as error:
                self._refuse("request", error)
        if not self._pending:
            return False
        count = self._next_count()
        self._is_held_back = count is None
        if count is None or self._blocks.info.current_size >= tables.MAX_BLOCKS:
            return False
        request, done = self._pending[0]
        is_offline = request.iteration == tables.OFFLINE
        env_steps = 0 if is_offline else self._pacing.env_steps(request.iteration)
        settings = self._draw_settings.at(env_steps, request.updates - request.first, request.iteration)
        with self.time_shares.spend("drawing"):
            block = make_block(self._ring, settings, request, done, count)
        if not is_offline:
            block.env_steps, block.init_steps = env_steps, self._ring.init_steps
        with self.time_shares.spend("sending minibatches"):
            self._connection.put(tables.BLOCKS, block.to_wire())
        self._pending[0] = (request, done + count)
        if done + count == request.count:
            self._pending.pop(0)
        return True

    def _accept(self, request: tables.Request) -> None:
        """Queues a request, by iteration; a newer trainer's, or a repeated one, replaces what it asks for again."""
        if request.iteration == tables.OFFLINE and (self._draw_settings.prior is None or request.count < 1):
            raise ValueError("this run has no prior data, or the number of offline updates is missing")
        if request.count == tables.AS_DUE and self._pacing.updates_per_env_step is None:
            raise ValueError("this run has no updates_per_env_step: say how many minibatches")
        if request.session < self._latest_session:
            logging.warning("a request of session %d is of an earlier trainer and is ignored", request.session)
            return
        self._latest_session = request.session
        self._pending = [
            (other, done)
            for other, done in self._pending
            if other.session == request.session and other.iteration != request.iteration
        ]
        self._pending.append((request, 0))
        self._pending.sort(key=lambda pending: pending[0].iteration)

    def _next_count(self) -> int | None:
        """Minibatches of the next block, for the oldest request; None while it is held back.

        An iteration that is complete has no updates where there is nothing to train on: they become due with a later
        one. It is not held back: its workers would wait for its end, and with them what is to be trained on.
        """
        (request, done), most = self._pending[0], self._draw_settings.max_block_minibatches
        if request.iteration == tables.OFFLINE:
            return min(request.count - done, most)
        why = _why_untrained(self._ring)
        if request.count == tables.AS_DUE:
            settled = self._pacing.settle(request)
            if settled is None:
                return None
            if settled.count and why is not None:
                what, secs = "iteration %d has no updates yet%s", 60
                logging.log_every_n_seconds(logging.WARNING, what, secs, request.iteration, why)
                settled = dataclasses.replace(settled, count=0)
            request = settled
            self._pending[0] = (request, 0)
        if request.count == 0:
            return 0  # A block that says so.
        allowed = self._pacing.allowed(request, done) if why is None else 0
        return min(allowed, most) if allowed > 0 else None


def _why_untrained(ring: Ring) -> str | None:
    """Why there is nothing to train on; None: there is."""
    if ring.training_steps:
        return None
    if ring.ring_steps:
        return ", all that the ring holds is held out: lower validation_share, or raise buffer_size"
    return (
        ", no sample starts yet at what the ring holds, because the steps behind it that a sample needs are still "
        "to come: raise env_steps_per_iter, or have fewer environments a worker"
    )


# Parts of a run's server.


def _open_ring(role: Role, layout: Layout, work: LongWork) -> Ring:
    params, paths, taken = role.params, role.paths, taken_by(role.paths)
    folder = role.variables.replay_dir or paths.replay
    ring = open_ring(folder, paths, layout, *ring_rows(params, layout), from_checkpoint=role.deterministic, work=work)
    if taken is not None and taken.has_rows:
        work.doing = "experience of another run"
        # In lock-step an iteration promises updates for its own steps; else the ratio is a limit.
        fill(ring, taken, paths.trainer_checkpoints, params.frame_stack, counts=params.asynchronous)
    return ring


def stays_for_trainer(role: Role, stay_until: float) -> bool:
    """Whether a server that is told to stop continues serving, up to a moment of `time.monotonic`.

    The supervisor stops it last. If the supervisor was killed, all roles are told to stop at the same moment. The
    replay server then stays while the trainer saves, because a checkpoint includes a part of its own.
    """
    if not is_orphan() or time.monotonic() > stay_until:
        return False
    beat = read_heartbeat(role.paths.heartbeat(TRAINER)) or {}
    pid = beat.get("pid")  # A trainer whose process is there has ended, too, once it has said so.
    return beat.get("state") != "stopped" and pid is not None and is_alive(pid)


def _start_server(port: int, all_tables: Sequence[reverb.Table]) -> reverb.Server:
    # Reverb makes a folder for checkpoints of its own, which are not used: the ring is the record.
    with tempfile.TemporaryDirectory() as unused:
        checkpointer = reverb.platform.checkpointers_lib.DefaultCheckpointer(unused)
        return loopback.start_confined(lambda: reverb.Server(all_tables, port, checkpointer), port)


def draw_settings(params: TrainParamsBase, layout: Layout, seed: int) -> DrawSettings:
    """How this run's minibatches are drawn; a block is limited in bytes, with images an iteration is many blocks."""
    form = params.sample_form_ctor()
    minibatch_bytes = params.batch_size * form.sample_bytes(layout, params.frame_stack)
    max_block_minibatches = max(1, min(iteration_counts.MAX_BLOCK_MINIBATCHES, _MAX_BLOCK_BYTES // minibatch_bytes))
    return DrawSettings(
        batch_size=params.batch_size,
        form=form,
        max_block_minibatches=max_block_minibatches,
        seed=seed,
        discount=initial_value(params.discount),
        schedules={"discount": Schedule.of(params.discount), "beta": Schedule.of(params.priority_beta)},
        held_out_minibatches=min(_HELD_OUT_MINIBATCHES, max_block_minibatches) if params.validation_share else 0,
        frame_stack=params.frame_stack,
        whole_bootstrap=ALGORITHMS[params.algorithm].takes_bootstrap_factor,
    )


def settings_of_run(role: Role, layout: Layout, ring: Ring) -> DrawSettings:
    """With the run's priorities, prior data, and an environment that says what goals are worth, if it has them."""
    params, settings = role.params, draw_settings(role.params, layout, role.variables.seed)
    more: dict[str, Any] = {}
    if settings.form.is_prioritized:
        saved = saved_priorities(role.paths.trainer_checkpoints)
        more["priorities"] = Priorities(ring, float(params.priority_exponent or 0), saved)
    if settings.form.hindsight is not None:
        # Behind the ids of all workers: ports and folders that an environment derives from its id are its own.
        env_id = role.variables.slots.most * role.variables.envs_per_worker
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
    return Lockstep(ring, role.variables.num_collect_workers, straggler_secs, role.has_left, updates_ratio(params))


def _workers_of(role: Role, iteration: int) -> range:
    """The workers that collect in an iteration; before the first one there may be fewer."""
    count = role.variables.num_collect_workers
    return range(min(count, random_count(role.params)) if iteration == INIT_ITERATION else count)


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
    """Opens a run's prior data without damaged segments; nothing of it is written but what marks these.

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
