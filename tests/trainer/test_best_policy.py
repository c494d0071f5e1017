"""The best policy is that of the present task: a stage of the curriculum that evaluations have begins without one."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fakes import FakeParams
from tests.support.settings_for_tests import variables_with
from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.playing.saved_run import find_checkpoint
from tfagents_system.policies.names import MOMENT, checkpoint_name
from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.run_files.metrics import MetricsLog, read_rows
from tfagents_system.run_files.run_lock import TOKEN_VARIABLE
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.evaluations import EvaluatedCheckpoints
from tfagents_system.trainer.iteration_plan import IterationPlan, TrainerState
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.trainer.trainer_checkpoints import TrainerSaves, _SavedState

WIND = {"iters": [0, 20, 40], "range": [0.0, 0.2], "apply_to_eval": True}


def params_with(curriculum: Any = None, **attributes: Any) -> Any:
    config = {"horizon": 10, **({"curriculum": curriculum} if curriculum else {})}
    values = {"num_iter": 100, "checkpoint_period_iters": 1000, "stop_when": None}
    return type("TrainParams", (FakeParams,), values | attributes)(config)


class DiskExport:
    """Remembers which checkpoints there are, and what was the best one."""

    def __init__(self, has_all: bool = False) -> None:
        self.there, self.best, self._has_all = list[str](), list[Any](), has_all

    def save_checkpoint(self, iteration: int, env_steps: int, *, with_agent: bool, is_periodic: bool) -> str:
        del env_steps, is_periodic
        assert with_agent, "another run may begin with it"
        name = f"policy_checkpoint_{10 * iteration:010d}"
        self.there += [name] * (name not in self.there)
        return name

    def has_checkpoint(self, name: str) -> bool:
        return self._has_all or name in self.there

    def is_periodic(self, name: str) -> bool:
        return False

    def delete_agent(self, name: str) -> None:
        pass

    def checkpoints(self) -> list[str]:
        return sorted(self.there)

    def delete_checkpoint(self, name: str) -> None:
        self.there.remove(name)

    def mark_best(self, told: dict[str, Any]) -> None:
        self.best.append((told["checkpoint"], told["eval_return"]))


SAVES: Any = SimpleNamespace(try_to_write=lambda write: write())  # Writes at once.


def evaluated(params: Any, state: TrainerState, *rows: tuple[float, ...]) -> list[int]:
    """Iterations whose policy became the best one, of rows (iteration, return) or (iteration, return, success)."""
    export: Any = DiskExport(has_all=True)
    checkpoints, best = EvaluatedCheckpoints(params, state, export, SAVES), list[int]()
    for iteration, *result in rows:
        before = state.best
        names = dict(zip(("eval_return", "eval_success"), result, strict=False))
        checkpoints.take({"iteration": iteration, "train_step": iteration, **names})
        if state.best != before and state.best is not None:
            best.append(state.best["iteration"])
    return best


def after_a_resume(state: TrainerState) -> TrainerState:
    return TrainerState(**json.loads(json.dumps(dataclasses.asdict(state))))


def test_a_stage_begins_anew() -> None:
    state, params = TrainerState(), params_with({"wind": WIND})
    rows = ((10, 1.0), (15, 1.5), (19, 1.2), (20, -4.0), (30, -4.5))
    assert evaluated(params, state, *rows) == [10, 15, 20], "the best of the stage before goes"
    state = after_a_resume(state)
    assert evaluated(params, state, (39, -5.0), (50, -9.0)) == [50]
    assert state.best == {
        "checkpoint": "policy_checkpoint_0000000050",
        "eval_return": -9.0,
        "eval_success": None,
        "iteration": 50,
        "curriculum": {"wind": 0.2},
        "metric": "return",
    }


@pytest.mark.parametrize(
    "curriculum",
    [None, {"wind": {**WIND, "apply_to_eval": False}}, {"wind": {**WIND, "range": [0.3, 0.3]}}],
    ids=["none", "only in training", "one value"],
)
def test_where_evaluations_stay_the_same_the_highest_return_of_all_is_the_best(curriculum: Any) -> None:
    rows = ((10, 1.0), (20, -4.0), (40, 0.5), (60, 2.0))
    assert evaluated(params_with(curriculum), TrainerState(), *rows) == [10, 60]


def test_a_run_that_got_more_iterations_keeps_what_its_last_policy_was_evaluated_with() -> None:
    state = TrainerState()
    assert evaluated(params_with({"wind": WIND}, num_iter=40), state, (40, 3.0)) == [40]
    assert state.best is not None and state.best["curriculum"] == {"wind": 0.1}, "0.2 was never due"
    assert evaluated(params_with({"wind": WIND}, num_iter=100), state, (50, -9.0)) == [50]


def test_by_success_the_return_decides_among_equal_ones_and_where_none_is_told() -> None:
    by_success = params_with(best_metric="success")
    rows = ((10, 9.0, 0.5), (20, 1.0, 0.9), (30, 20.0, 0.8), (40, 2.0, 0.9), (50, 1.5, 0.9), (60, 0.0, 1.0))
    assert evaluated(by_success, TrainerState(), *rows) == [10, 20, 40, 60]
    assert evaluated(params_with(), TrainerState(), *rows) == [10, 30]
    assert evaluated(by_success, TrainerState(), (10, 1.0), (20, 2.0), (30, 1.5), (40, -5.0, 0.1)) == [10, 20, 40]


def test_the_task_in_words() -> None:
    curriculum = {"wind": WIND, "mass": {"iters": [30], "range": [2, 2]}}
    task = EvaluatedTask({"horizon": 1, "curriculum": curriculum}, 100)
    assert task.in_words(19) == "iteration 19: wind=0"
    assert task.in_words(39) == "iteration 39: wind=0.1 (only in training: mass=2)"
    assert [task.is_last_stage(iteration) for iteration in (0, 39, 40, 100, 200)] == [False, False, True, True, True]
    assert EvaluatedTask({"horizon": 1}, 100).in_words(5) == "" and EvaluatedTask({"horizon": 1}, 100).is_last_stage(0)
    only_trained = EvaluatedTask({"horizon": 1, "curriculum": {"mass": curriculum["mass"]}}, 100)
    assert only_trained.in_words(30) == "iteration 30: nothing set (only in training: mass=2)"
    assert EvaluatedTask({"horizon": 1, "curriculum": {"wind": WIND}}, 40).stage(40) == {"wind": 0.1}


# What an agent begins with.


def row_of(iteration: int, eval_return: float) -> dict[str, float]:
    """Of metrics, for an evaluation: an iteration has 10 updates."""
    return {"iteration": iteration, "train_step": 10 * iteration, "eval_return": eval_return}


@pytest.mark.parametrize(("begins_trained", "best"), [(True, "0000000000"), (False, "0000000010")])
def test_what_was_given_may_be_the_best(begins_trained: bool, best: str) -> None:
    export: Any = DiskExport()
    kept = EvaluatedCheckpoints(params_with(), TrainerState(), export, SAVES, begins_trained)
    for iteration, value in enumerate((-117.4, -908.9)):
        kept.write(iteration)
        kept.take(row_of(iteration, value))
    assert export.best[-1][0] == f"policy_checkpoint_{best}"
    assert f"policy_checkpoint_{best}" in export.there


def test_a_late_evaluation_leaves_the_policy_that_is_evaluated_meanwhile() -> None:
    export: Any = DiskExport()
    kept = EvaluatedCheckpoints(params_with(), TrainerState(), export, SAVES)
    for iteration in (1, 2):
        kept.write(iteration)
        kept.give_up()
    kept.write(3)
    kept.write(4)
    kept.take(row_of(2, -5.0))
    kept.take(row_of(4, -4.0))
    assert [int(name[-10:]) for name in export.there] == [10, 40]
    assert export.best[-1][0] == "policy_checkpoint_0000000040"


@pytest.mark.parametrize("env_steps", [None, 1000])
def test_policies_that_are_not_on_disk_leave_nothing_to_delete(env_steps: int | None) -> None:
    """Random weights, and one that a full disk has kept from being written; neither evaluation has a finite return."""
    export: Any = DiskExport()
    params = params_with(checkpoint_period_env_steps=env_steps)
    kept = EvaluatedCheckpoints(params, TrainerState(), export, SAVES)
    for iteration in (0, 1):
        kept.take({"iteration": iteration, "train_step": 10 * iteration})
        kept.give_up()
    assert export.there == export.best == []


# Whatever moment a kill hits, the best policy is that of the evaluations in metrics.csv, and it is on disk.

# A trainer without an agent writes what the real one does, in the same order: the policy before its evaluation, the
# row, best.json, checkpoints, and what it deletes. It is killed before each of these writes, in turn.


UPDATES, EVAL_PERIOD, POLICY_PERIOD = 100, 10, 50
PARAMS: Any = SimpleNamespace(
    env_config={"horizon": 10},
    num_iter=60,
    best_metric="return",
    stop_when=None,
    asynchronous=False,
    env_steps_per_iter=None,
    updates_per_env_step=None,
    updates_per_iter=UPDATES,
    checkpoint_period_iters=POLICY_PERIOD,
    checkpoint_period_env_steps=None,
)


class Killed(BaseException):
    """The process is gone, as after SIGKILL."""


class Export(PolicyExport):
    """The real one, whose weights are a text: what is trained, and when, in words; `moment` is called before writes."""

    def __init__(self, paths: RunPaths, weights: Callable[[int], str], moment: Callable[[], None]) -> None:
        self._paths, self._weights, self._moment = paths, weights, moment
        paths.policy_checkpoints.mkdir(parents=True, exist_ok=True)

    def save_checkpoint(self, iteration: int | None = None, *_: Any, is_periodic: bool = False, **__: Any) -> str:
        assert iteration is not None
        self._moment()
        folder = self._paths.policy_checkpoints / checkpoint_name(UPDATES * iteration)
        folder.mkdir(exist_ok=True)
        (folder / "weights").write_text(self._weights(iteration))
        write_json(folder / MOMENT, {"is_periodic": is_periodic})
        return folder.name

    def mark_best(self, best: Mapping[str, Any] | None) -> None:
        self._moment()
        super().mark_best(best)

    def delete_checkpoint(self, name: str) -> None:
        self._moment()
        super().delete_checkpoint(name)


def kept_in(folder: Path) -> tuple[Path, Path]:
    """The checkpoints that are kept, the newest first."""
    return folder / "checkpoint.json", folder / "checkpoint_before.json"


class Life:
    """A trainer from a start to its end, or to the kill.

    Args:
      folder: The run directory.
      number: Of the start: weights and results differ between them, but for what a checkpoint brings back.
      results: Returns of evaluations by iteration.
      saves_at: Iterations after which a checkpoint is written.
      is_late: Whether a result comes after the checkpoint of its iteration.
      kill_at: How many writes it does.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        results: Mapping[int, float],
        saves_at: Any,
        is_late: bool,
        kill_at: int = 10**6,
    ) -> None:
        self.writes, self._kill_at = 0, kill_at
        self._number, self._results, self._saves_at, self._is_late = number, results, saves_at, is_late
        paths = RunPaths(folder)
        self.state, (self._checkpoint, self._before) = TrainerState(), kept_in(folder)
        saved = read_json(self._checkpoint)
        if saved is not None:
            _SavedState(self.state).deserialize(json.dumps(saved["state"]).encode())
        self.resumed_at = self.state.iteration
        self._weights = dict(saved["weights"]) if saved else {}
        export = Export(paths, self._weights_of, self._moment)
        plan = IterationPlan(self.state, lambda: self.train_step, PARAMS.num_iter, UPDATES)
        self.checkpoints = SimpleNamespace(save=self._save, wait=lambda: None)
        learner: Any = self
        role: Any = SimpleNamespace(params=PARAMS, variables=variables_with())
        self._saves = TrainerSaves(role, learner, plan, export, TimeShares())
        self._evaluated = EvaluatedCheckpoints(PARAMS, self.state, export, self._saves)
        self._metrics = MetricsLog(paths, [])
        self._metrics.rewind(self.train_step if saved else -1, self.state.iteration)
        self._evaluated.begin(self._metrics.rows(), self.train_step if saved else -1)

    @property
    def train_step(self) -> int:
        return UPDATES * self.state.iteration

    def run(self) -> None:
        if self.state.iteration % EVAL_PERIOD == 0 and self.state.iteration > self._newest_evaluated():
            self._evaluated.write(self.state.iteration)  # The kill has lost it; the policy is that of the checkpoint.
            self._evaluate(self.state.iteration)
        while self.state.iteration < PARAMS.num_iter:
            self.state.iteration += 1
            iteration = self.state.iteration
            self._weights[str(iteration)] = self._weights_of(iteration)
            if iteration % EVAL_PERIOD == 0:
                self._evaluated.write(iteration)
                if not self._is_late:
                    self._evaluate(iteration)
            if iteration in self._saves_at:
                self._saves._save_checkpoint(wait=True)
            if iteration % EVAL_PERIOD == 0 and self._is_late:
                self._evaluate(iteration)
        self._saves._save_checkpoint(wait=True)

    def _newest_evaluated(self) -> int:
        return int(max((row["iteration"] for row in self._metrics.rows()), default=0))

    def _weights_of(self, iteration: int) -> str:
        """Those after an iteration that the checkpoint has seen are known; later ones are this start's own."""
        return self._weights.get(str(iteration), f"iteration {iteration} of start {self._number}")

    def _evaluate(self, iteration: int) -> None:
        self._moment()
        row = {"train_step": self.train_step, "iteration": iteration, "env_steps": 10 * iteration}
        result = {"eval_return": self._results[iteration], "eval/start": int(self._weights_of(iteration)[-1])}
        self._evaluated.take(self._metrics.write({**row, **result}))

    def _save(self, secs: float, *, wait: bool) -> None:
        saved = {"state": json.loads(_SavedState(self.state).serialize()), "weights": self._weights}
        self._moment()
        if self._checkpoint.exists():
            self._checkpoint.replace(self._before)
        write_json(self._checkpoint, saved)

    def _moment(self) -> None:
        if self.writes == self._kill_at:
            raise Killed
        self.writes += 1


def check(paths: RunPaths) -> None:
    """best.json has the best row of metrics.csv, and the weights that were evaluated for it are on disk."""
    rows = [row for row in read_rows(paths.metrics_csv) if row["eval_return"] is not None]
    best = read_json(paths.best_json)
    if not rows:
        assert best is None
        return
    expected = max(rows, key=lambda row: row["eval_return"] or 0.0)
    assert best is not None
    assert (best["iteration"], best["eval_return"]) == (expected["iteration"], expected["eval_return"])
    assert best["checkpoint"] == checkpoint_name(int(expected["train_step"] or 0))
    weights = (paths.policy_checkpoints / best["checkpoint"] / "weights").read_text()
    assert weights == f"iteration {int(expected['iteration'] or 0)} of start {int(expected['eval/start'] or 0)}"


def check_kept(folder: Path) -> set[int]:
    """What the kept checkpoints name as the best is on disk; returns its iterations."""
    states = [saved["state"] for path in kept_in(folder) if (saved := read_json(path))]
    named = {state["best"]["iteration"]: state["best"]["checkpoint"] for state in states if state["best"]}
    assert all((RunPaths(folder).policy_checkpoints / name).exists() for name in named.values()), named
    return set(named)


def names_of(folder: Path) -> list[str]:
    """The policies on disk."""
    return sorted(path.name for path in RunPaths(folder).policy_checkpoints.iterdir())


FIRST = {10: -900.0, 20: -500.0, 30: -300.0, 40: -350.0, 50: -200.0, 60: -250.0}
SECOND = {10: -800.0, 20: -510.0, 30: -600.0, 40: -650.0, 50: -700.0, 60: -450.0}


@pytest.fixture(autouse=True)
def no_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetricsLog, "_summarize", lambda *_: None)


@pytest.mark.parametrize("is_late", [False, True], ids=["before the checkpoint", "after the checkpoint"])
@pytest.mark.parametrize("saves_at", [{0, 25, 45}, {10, 20, 30, 40, 50}], ids=["between", "each"])
def test_whatever_moment_a_kill_hits_the_best_policy_is_there(
    tmp_path: Path, saves_at: set[int], is_late: bool
) -> None:
    common = frozenset(saves_at), is_late
    whole = Life(tmp_path / "whole", 1, FIRST, *common)
    whole.run()
    check(RunPaths(tmp_path / "whole"))
    assert whole.writes > 15
    for kill_at in range(1, whole.writes):
        folder = tmp_path / str(kill_at)
        with pytest.raises(Killed):
            Life(folder, 1, FIRST, *common, kill_at).run()
        check_kept(folder)
        again = Life(folder, 2, SECOND, *common)
        check(RunPaths(folder))
        again.run()
        check(RunPaths(folder))
        best = read_json(RunPaths(folder).best_json)
        assert best is not None
        check_kept(folder)
        again._evaluated.give_up()
        # The first, a periodic one, the last, the best, and those of the checkpoints that are kept.
        needed = {*(checkpoint_name(UPDATES * iteration) for iteration in (10, 50, 60)), best["checkpoint"]}
        assert names_of(folder) == sorted(needed.union(*again.state.saved_policies)), kill_at


GROWING = {iteration: float(iteration) for iteration in FIRST}


def killed_after_improving(folder: Path) -> RunPaths:
    """Its checkpoint is of iteration 15, and later evaluations were the best, each in turn."""
    with pytest.raises(Killed):
        Life(folder, 1, GROWING, frozenset({15}), False, kill_at=19).run()
    assert names_of(folder)[-1] >= checkpoint_name(50 * UPDATES)
    return RunPaths(folder)


def test_policies_of_a_life_that_is_lost_are_deleted(tmp_path: Path) -> None:
    """Whether or not the next one evaluates at the same train steps."""
    paths = killed_after_improving(tmp_path)
    (paths.policy_checkpoints / "policy_checkpoint_mine").mkdir()
    again = Life(tmp_path, 2, SECOND, frozenset({15}), False)
    assert again.resumed_at == 15
    assert names_of(tmp_path) == [checkpoint_name(10 * UPDATES), "policy_checkpoint_mine"]
    assert find_checkpoint(paths, "latest").name == checkpoint_name(10 * UPDATES)
    check(paths)


def test_policies_of_another_start_that_has_the_run_now_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as where a trainer goes back that was taken to be dead."""
    paths = killed_after_improving(tmp_path)
    names = names_of(tmp_path)
    paths.lock.write_text("token of the other start")
    monkeypatch.setenv(TOKEN_VARIABLE, "own token")
    Life(tmp_path, 2, SECOND, frozenset({15}), False)
    assert names_of(tmp_path) == names


@pytest.mark.parametrize("is_late", [False, True], ids=["before the checkpoint", "after the checkpoint"])
def test_the_checkpoint_before_a_damaged_one_finds_its_best_policy(tmp_path: Path, is_late: bool) -> None:
    saves_at = frozenset({10, 20, 30, 40, 50})
    whole = Life(tmp_path / "whole", 1, GROWING, saves_at, is_late)
    whole.run()
    for kill_at in range(1, whole.writes):
        folder = tmp_path / str(kill_at)
        with pytest.raises(Killed):
            Life(folder, 1, GROWING, saves_at, is_late, kill_at).run()
        newest, before = kept_in(folder)
        if before.exists():
            named = json.loads(before.read_text())["state"]["best"]
            before.replace(newest)
            again = Life(folder, 2, GROWING, saves_at, is_late)
            assert named is None or (RunPaths(folder).policy_checkpoints / named["checkpoint"]).exists()
            check(RunPaths(folder))
            again.run()
            check(RunPaths(folder))
            check_kept(folder)


def test_the_same_results_in_each_start_end_as_without_a_kill(tmp_path: Path) -> None:
    """A deterministic run: also where a later evaluation is as good as the best one, to the last digit of metrics."""
    results = {10: -200.0 / 3, 20: -100.0, 30: -200.0 / 3, 40: -70.0, 50: -50.0 / 7, 60: -50.0 / 7}
    common = frozenset({10, 20, 30, 40, 50}), True
    whole = Life(tmp_path / "whole", 1, results, *common)
    whole.run()
    wanted = RunPaths(tmp_path / "whole").best_json.read_text()
    assert json.loads(wanted)["iteration"] == 50
    for kill_at in range(1, whole.writes):
        with pytest.raises(Killed):
            Life(tmp_path / str(kill_at), 1, results, *common, kill_at).run()
        again = Life(tmp_path / str(kill_at), 1, results, *common)
        again.run()
        assert RunPaths(tmp_path / str(kill_at)).best_json.read_text() == wanted
        assert again.state == whole.state


def test_where_the_best_policy_is_gone_there_is_none_until_the_next_evaluation(tmp_path: Path) -> None:
    common = frozenset({10, 20, 30, 40, 50, 55}), False
    Life(tmp_path, 1, FIRST, *common).run()
    paths = RunPaths(tmp_path)
    assert (read_json(paths.best_json) or {})["iteration"] == 50
    shutil.rmtree(paths.policy_checkpoints / checkpoint_name(50 * UPDATES))
    assert Life(tmp_path, 2, FIRST, *common).state.best is None
    assert not paths.best_json.exists(), "it would name a policy that is not there"
