"""A trainer without agent and server, whose reports are put in by hand."""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfagents_system.machine.claims import SlotCounts
from tfagents_system.policies.names import checkpoint_name
from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.run_files.metrics import MetricsLog, read_rows
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer import trainer as trainer_module
from tfagents_system.trainer.evaluations import EvaluatedCheckpoints, WorkerReports
from tfagents_system.trainer.iteration_plan import TrainerState
from tfagents_system.trainer.trainer import Trainer
from tfagents_system.trainer.training_log import TrainingLog
from tfagents_system.transport.episode_reports import Episode, Report
from tfagents_system.transport.tables import Progress

PERIOD = 10


STRAGGLER_SECS = 30.0
ALL = 10**9  # A train step after all rows of metrics.


class FakeLearner:
    """100 updates an iteration, and no agent."""

    agent = None

    def __init__(self, state: TrainerState) -> None:
        self.state = state
        self.scheduled: Any = types.SimpleNamespace(metrics=lambda *position: {})

    def follow_schedules(self, env_steps: int | None = None) -> None:
        """Nothing is scheduled."""

    @property
    def train_step(self) -> int:
        return 100 * self.state.iteration

    def read_policy(self, session: int) -> list[np.ndarray]:
        return [np.array([session, self.state.iteration, self.train_step])]


class Run:
    """A trainer without agent and server, whose reports are put in by hand; its clock is `now`.

    Args:
      folder: The run directory.
      num_workers, num_episodes: Planned workers, and episodes of an evaluation.
      eval_workers: Further ones, which only evaluate.
    """

    def __init__(
        self,
        folder: Path,
        num_workers: int = 2,
        num_episodes: int = 4,
        eval_workers: int = 0,
        asynchronous: bool = True,
        deterministic: bool = False,
        num_iter: int = 100,
        session: int = 1,
        checkpoint_period_iters: int = 1,
        curriculum: Any = None,
        stop_when: Any = None,
        callbacks: Any = (),
    ) -> None:
        self.paths = RunPaths(folder)
        self.published: list[int] = []  # versions to be evaluated
        self.best: list[tuple[str, float]] = []
        self.deleted: list[str] = []
        self._reports: list[Report] = []
        self._periodic: list[str] = []
        self._written: set[str] = set()
        self.num_workers, self.num_episodes = num_workers, num_episodes
        trainer: Any = Trainer.__new__(Trainer)
        self.trainer = trainer
        slots = SlotCounts(num_workers, num_workers, num_workers + eval_workers, evaluators=eval_workers)
        role: Any = types.SimpleNamespace(
            paths=self.paths,
            deterministic=deterministic,
            has_left=lambda worker: False,
            is_far=False,
            run_id=0,
            variables=types.SimpleNamespace(slots=slots, straggler_secs=STRAGGLER_SECS),
            is_stopped=lambda: False,
        )
        trainer._role = role
        params: Any = types.SimpleNamespace(
            asynchronous=asynchronous,
            eval_period_iters=PERIOD,
            eval_period_env_steps=None,
            num_eval_episodes=num_episodes,
            num_iter=num_iter,
            checkpoint_period_iters=checkpoint_period_iters,
            checkpoint_period_env_steps=None,
            num_env_steps=None,
            keep_best_episodes=0,
            best_metric="return",
            stop_when=stop_when,
            max_hours=None,
            callbacks_ctor=lambda: callbacks,
            env_config={"horizon": 10, **({"curriculum": curriculum} if curriculum else {})},
        )
        trainer._params = role.params = params
        trainer._state = TrainerState()
        trainer._shares = TimeShares()
        trainer._session = session
        learner: Any = FakeLearner(trainer._state)
        plan: Any = types.SimpleNamespace(paced=(0, 0))
        trainer._plan = plan
        trainer._learner = learner
        saves: Any = types.SimpleNamespace(try_to_write=lambda write: write())
        trainer._saves = saves
        export: Any = types.SimpleNamespace(
            save_checkpoint=self._save_checkpoint,
            is_periodic=lambda name: name in self._periodic,
            has_checkpoint=self._written.__contains__,
            checkpoints=lambda: sorted(self._written),
            delete_checkpoint=self._delete_checkpoint,
            delete_agent=lambda name: None,
            delete_later=lambda train_step: None,
            mark_best=self._mark_best,
        )
        trainer._export = export
        log: Any = TrainingLog(role, learner, plan, saves, trainer._shares)
        log.beat = lambda *args, **kwargs: None
        trainer._log = log
        trainer._evaluated_checkpoints = EvaluatedCheckpoints(params, trainer._state, export, saves)
        trainer._publisher = types.SimpleNamespace(
            check=lambda: None, wait=lambda: None, publish=self._publish, repeat_if_restarted=lambda _: None
        )
        connection: Any = types.SimpleNamespace(
            feed_dead_reader=lambda table, arrays: None,
            reader=lambda table, prefetch: types.SimpleNamespace(
                get=lambda _: self._reports.pop(0).to_wire() if self._reports else None
            ),
        )
        trainer._reports = WorkerReports(role, log, trainer._evaluated_checkpoints, trainer._shares)
        trainer._reports.session = session
        trainer._reports.connect(connection)
        trainer._follow(ALL)

    def iterate(self, iteration: int) -> None:
        """As far as evaluations go; what is to be evaluated is noted in `published`."""
        self.trainer._state.iteration = iteration
        self.trainer._publish()
        self.trainer._reports.take()

    def _publish(
        self, policy: Sequence[np.ndarray], evaluated: Sequence[np.ndarray] | None, progress: Progress
    ) -> None:
        assert policy[0][1] == progress.iteration
        if evaluated is not None:
            assert evaluated[0][1] == progress.eval_iteration
            self.published.append(progress.eval_iteration)

    def _save_checkpoint(self, iteration: int, env_steps: int, *, with_agent: bool, is_periodic: bool) -> str:
        del env_steps, with_agent
        name = checkpoint_name(100 * iteration)
        self._written.add(name)
        self._periodic += [name] * is_periodic
        return name

    def _delete_checkpoint(self, name: str) -> None:
        self._written.remove(name)
        self.deleted.append(name)

    def _mark_best(self, best: dict[str, Any] | None) -> None:
        self.best += [(best["checkpoint"], best["eval_return"])] if best else []

    def tell(
        self,
        worker: int,
        version: int,
        returns: list[float],
        session: int | None = None,
        success: float | None = None,
    ) -> None:
        """`success`: the rate of the episodes."""
        episodes, session = [Episode(value, 10) for value in returns], session or self.trainer._session
        if success is not None:
            for k, episode in enumerate(episodes):
                episode.success = k < round(success * len(returns))
        self._reports.append(Report("eval", session, worker, version, 100 * max(0, version), version, episodes))

    def rows(self) -> list[dict[str, Any]]:
        return [row for row in read_rows(self.paths.metrics_csv) if row["eval_return"] is not None]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [1000.0]
    monkeypatch.setattr(trainer_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(MetricsLog, "_summarize", lambda *_: None)
    return clock
