"""TD errors on their way from the trainer to the replay server, and draws that neither timing nor kills change."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.replay.blocks import make_block
from tfagents_system.replay.draw_settings import DrawSettings
from tfagents_system.replay.priorities import NO_ROW, Priorities, Prioritized
from tfagents_system.replay.priority_updates import PriorityUpdates
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sample_forms import TransitionForm
from tfagents_system.run_files.run_checkpoints import PRIORITIES
from tfagents_system.trainer.priority_reports import PriorityReports
from tfagents_system.trainer.trainer_checkpoints import TrainerState
from tfagents_system.transport import tables
from tfagents_system.transport.tables import MalformedMessageError, TdErrors

UPDATES, BLOCK, B = 6, 2, 16


class _Queue:
    """A queue between two roles of one process; what is put comes out only once it is `let`."""

    def __init__(self) -> None:
        self.items: list[list[np.ndarray]] = []

    def put(self, found: TdErrors) -> None:
        self.items.append(found.to_wire())

    def get(self, timeout_secs: float) -> list[np.ndarray] | None:
        return self.items.pop(0) if self.items else None


class _Run:
    """Replay server and trainer of a deterministic run, without their processes: both can be killed at any moment.

    Args:
      folder: Of the run; what is there is gone on with.
    """

    def __init__(self, folder: Path, session: int) -> None:
        self.folder, self.session, self.queue = folder, session, _Queue()
        self.ring = Ring.open(folder / "ring", LAYOUT, 60, 60)
        self.state = TrainerState()
        self.train_step = 0
        self.digest: list[np.ndarray] = []
        checkpoint = folder / "checkpoint"
        if checkpoint.exists():
            self.ring.rollback((checkpoint / "replay.bin").read_bytes())
            shutil.copy(checkpoint / PRIORITIES, folder / "ring" / PRIORITIES)
            self.state.iteration, self.state.iteration_start, self.train_step = np.load(
                checkpoint / "step.npy"
            ).tolist()
        self.priorities = Priorities(self.ring, 0.7)
        form = TransitionForm(2, is_prioritized=True)
        self.settings = DrawSettings(B, form, BLOCK, seed=5, prioritized=Prioritized(self.priorities, 0.6))
        reader: object = self.queue
        self.updates = PriorityUpdates(reader, self.ring, self.priorities, in_order=True)  # type: ignore[arg-type]
        self.reports = PriorityReports(self.queue.put, self.state, lambda: self.train_step, keeps=True)
        if checkpoint.exists():
            self.reports.restore(checkpoint)
        self.reports.begin(session)

    def train(self, until: int, takes: Sequence[bool] = (True,), *, repeats: bool = False) -> list[np.ndarray]:
        """Updates up to this one; returns the rows of each block.

        Args:
          until: Updates done then.
          takes: When the server looks into the queue.
          repeats: The trainer sends again what may be lost.
        """
        rows, turns = list[np.ndarray](), 0
        while self.train_step < until:
            if self.ring.worker(0).iteration_done < self.state.iteration:
                number = self.ring.worker(0).number + 1
                self.ring.append(numbered_segment(0, number, iteration=self.state.iteration, end_of_iteration=True))
            first = self.train_step - self.state.iteration_start
            request = tables.Request(self.session, self.state.iteration, first, UPDATES - first, self.train_step)
            while True:
                if takes[turns % len(takes)]:
                    assert self.updates.take() == 0
                turns += 1
                assert turns < 1000, "the draws wait without end"
                if repeats and turns % 5 == 0:
                    self.reports.repeat()
                if self.updates.precede(request):
                    break
            row, weight = make_block(self.ring, self.settings, request, 0, BLOCK).arrays[:-3:-1]
            rows += [row, weight]
            self.train_step += BLOCK
            errors = (np.abs(np.sin(row * 1.7 + self.train_step)) * 3).astype(np.float32)
            self.reports.tell(row, errors)
            if self.train_step - self.state.iteration_start == UPDATES:
                self.state.iteration += 1
                self.state.iteration_start = self.train_step
        return rows

    def save(self) -> None:
        checkpoint = self.folder / "checkpoint"
        checkpoint.mkdir()
        self.reports.save(checkpoint)
        (checkpoint / PRIORITIES).write_bytes(self.priorities.snapshot())
        (checkpoint / "replay.bin").write_bytes(self.ring.snapshot())
        np.save(checkpoint / "step.npy", [self.state.iteration, self.state.iteration_start, self.train_step])


@pytest.mark.parametrize("saved", [2, 6, 8, 12, 16, 24, 28])
def test_draws_depend_neither_on_timing_nor_on_kills(tmp_path: Path, saved: int) -> None:
    """The replay server has got none, some, or all of the newest errors when its part of the checkpoint is taken."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole = _Run(tmp_path / "whole", 1).train(36)
    first = _Run(tmp_path / "killed", 1)
    before = first.train(saved, takes=(False, False, True))
    first.save()
    first.train(saved + 5, takes=(False, True))
    again = _Run(tmp_path / "killed", 2)
    np.testing.assert_equal(before + again.train(36, takes=(False, True, False)), whole)
    assert len({tuple(rows.ravel()) for rows in whole[::2]}) == len(whole[::2])


@pytest.mark.parametrize("lost", [0, 1, 2, 4, 6])
def test_errors_that_are_lost_or_refused_are_sent_again_and_draws_are_the_same(tmp_path: Path, lost: int) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "lossy").mkdir()
    whole = _Run(tmp_path / "whole", 1).train(36)
    run, count = _Run.__new__(_Run), [0]
    put = _Queue.put

    def lose(queue: _Queue, found: TdErrors) -> None:
        count[0] += 1
        put(queue, found)
        if count[0] == lost + 1:
            queue.items.pop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Queue, "put", lose)
        run.__init__(tmp_path / "lossy", 1)  # type: ignore[misc]
        np.testing.assert_array_equal(
            np.concatenate(run.train(36, takes=(True, False), repeats=True)), np.concatenate(whole)
        )
    assert count[0] > lost + 1


def test_it_is_said_which_errors_are_missing(tmp_path: Path) -> None:
    run = _Run(tmp_path, 1)
    request = tables.Request(1, 1, 0, UPDATES, 6)
    assert "first message" in run.updates.missing(request)
    run.train(4)
    run.updates.take()
    assert run.updates.missing(request) == "the priorities of the updates 5 to 6"


def test_errors_of_an_iteration_count_from_the_next_one_on_in_a_deterministic_run(tmp_path: Path) -> None:
    run = _Run(tmp_path, 1)
    run.train(4)
    assert run.updates.take() == 0
    assert (run.priorities._tree._priorities == 0).all()
    run.train(6)
    request = tables.Request(1, 1, 0, UPDATES, 6)
    assert not run.updates.precede(request), "the last block's errors have not been taken"
    run.updates.take()
    assert run.updates.precede(request)
    assert (run.priorities._tree._priorities > 0).any()
    assert not run.updates.precede(tables.Request(2, 1, 0, UPDATES, 6)), "its trainer has told nothing yet"


def test_otherwise_they_count_at_once_and_those_of_an_earlier_trainer_not_at_all(tmp_path: Path) -> None:
    ring = Ring.open(tmp_path, LAYOUT, 60, 24)
    ring.append(numbered_segment())
    queue, priorities = _Queue(), Priorities(ring, 1.0)
    reader: object = queue
    updates = PriorityUpdates(reader, ring, priorities, in_order=False)  # type: ignore[arg-type]
    reports = PriorityReports(queue.put, TrainerState(), lambda: 1, keeps=False)
    reports.begin(2)
    reports.tell(np.array([[0, 3, NO_ROW]]), np.array([[1.0, 2.0, 9.0]], np.float32))
    queue.put(TdErrors(1, 0, np.array([[1]]), np.array([[5.0]], np.float32)))
    assert updates.take() == 0 and updates.precede(tables.Request(7, 3, 0, 4, 900))
    np.testing.assert_allclose(priorities._tree._priorities.reshape(-1)[:6], [1.002, 0, 0, 2.002, 0, 0], rtol=1e-6)
    reports.save(tmp_path)
    assert not list(tmp_path.glob("*.npz"))


def test_errors_are_kept_for_two_iterations(tmp_path: Path) -> None:
    state, steps = TrainerState(), [0]
    reports = PriorityReports(lambda found: None, state, lambda: steps[0], keeps=True)
    for iteration in range(5):
        state.iteration_start = steps[0]
        for _ in range(iteration % 3):  # Two of them have no updates.
            steps[0] += 10
            reports.tell(np.zeros((10, 2), np.int64), np.zeros((10, 2), np.float32))
    assert [found.updates for found in reports._kept] == [10, 20, 30]
    reports.save(tmp_path)
    other, put = TrainerState(iteration_start=30), list[TdErrors]()
    again = PriorityReports(put.append, other, lambda: 40, keeps=True)
    again.restore(tmp_path)
    again.begin(9)
    assert [(found.session, found.updates, found.end) for found in put] == [
        (9, 10, 10),
        (9, 10, 20),
        (9, 20, 30),
        (9, 30, 40),
    ]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda arrays: arrays[:2],
        lambda arrays: [*arrays, arrays[1]],
        lambda arrays: [arrays[0] + [0, 0, 1], *arrays[1:]],
        lambda arrays: [arrays[0].astype(np.int32), *arrays[1:]],
        lambda arrays: [-arrays[0], *arrays[1:]],
        lambda arrays: [arrays[0], arrays[1].astype(np.int32), arrays[2]],
        lambda arrays: [arrays[0], arrays[1][:1], arrays[2]],
        lambda arrays: [arrays[0], arrays[1].ravel(), arrays[2].ravel()],
        lambda arrays: [*arrays[:2], arrays[2] * np.float32(np.nan)],
        lambda arrays: [*arrays[:2], arrays[2] * np.float32(np.inf)],
        lambda arrays: [*arrays[:2], -arrays[2]],
    ],
)
def test_malformed_errors_are_refused(spoil, tmp_path):
    good = TdErrors(3, 10, np.ones((2, 4), np.int64), np.ones((2, 4), np.float32))
    found = TdErrors.from_wire(good.to_wire())
    assert (found.session, found.updates, found.end) == (3, 10, 12)
    with pytest.raises(MalformedMessageError):
        TdErrors.from_wire(spoil(good.to_wire()))


def test_of_updates_from_prior_data_alone_only_the_number_is_told() -> None:
    put: list[TdErrors] = []
    reports = PriorityReports(put.append, TrainerState(), lambda: 3, keeps=True)
    reports.tell(np.full((3, 8), -1), np.ones((3, 8), np.float32))
    reports.tell(np.array([[-1, 5]] * 3), np.ones((3, 2), np.float32))
    assert [(found.rows.shape, found.errors.shape, found.end) for found in put] == [
        ((3, 0), (3, 0), 3),
        ((3, 2), (3, 2), 3),
    ]
