"""Environments that share what they should not are refused before the start, with a remedy that helps."""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.environment_report import report
from tests.support.fakes import CounterEnv
from tfagents_system.checks.findings import Findings

IN_STEPS = 200
Options = dict[str, Any]  # Of a run.
SEPARATE, ITS_OWN = "gives each a process", "give each its own port, file or device"
shared: dict[str, Any] = {}
generator = np.random.default_rng(0)


class PointEnv(CounterEnv):
    """A point that is pushed. `where` holds it: one that several share is a fault."""

    def __init__(self) -> None:
        super().__init__()
        self.where: Any = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        _, info = super().reset(seed=seed)
        self.put(self.drawn())
        return self.seen(), info

    def step(self, action: Any) -> Any:
        self.put(self.get() + 0.1 * float(np.sum(action)) + self.noise())
        return self.seen(), *super().step(action)[1:]

    def seen(self) -> np.ndarray:
        return np.array([0.0, self.get()])

    def drawn(self) -> float:
        return float(self.np_random.uniform())

    def noise(self) -> float:
        return 0.0

    def get(self) -> float:
        return float(self.where["x"])

    def put(self, x: float) -> None:
        self.where["x"] = x


def found(make: Callable[[], Any] | None, **options: Any) -> Findings:
    findings, _ = report(make, **{"env_steps_per_iter": IN_STEPS, **options})
    return findings


class ModuleState(PointEnv):
    def __init__(self) -> None:
        super().__init__()
        self.where = shared


def test_a_shared_state_of_a_process_is_refused_where_two_environments_are_in_one() -> None:
    shared_by: list[tuple[Options, str]] = [
        ({}, "SAC_EVAL_WORKERS=1"),
        ({"num_eval_episodes": 0, "envs_per_worker": 2}, "SAC_ENVS_PER_WORKER=1"),
        ({"num_eval_episodes": 0, "envs_per_worker": 2, "env_steps_per_iter": None}, "SAC_ENVS_PER_WORKER=1"),
    ]
    for options, remedy in shared_by:
        (error,) = found(ModuleState, **options).errors
        assert "its actions change what happens" in error and remedy in error and SEPARATE in error, error
    apart: list[Options] = [
        {"evaluates": False, "workers": 2},
        {"num_eval_episodes": 0, "workers": 2},
        {"env_steps_per_iter": None},  # Evaluations are between whole episodes.
    ]
    for options in apart:
        assert found(ModuleState, **options).errors == [], options


def test_a_file_at_a_fixed_path_is_shared_by_processes_too(tmp_path: Path) -> None:
    class FileState(PointEnv):
        def get(self) -> float:
            return float((tmp_path / "state").read_text())

        def put(self, x: float) -> None:
            (tmp_path / "state").write_text(str(x))

    runs: list[Options] = [{}, {"evaluates": False}, {"num_eval_episodes": 0, "workers": 2}]
    for options in runs:
        (error,) = found(FileState, **options).errors
        assert "its actions change what happens" in error and ITS_OWN in error and SEPARATE not in error, error
    assert found(FileState, num_eval_episodes=0).errors == []


class SeededGenerator(PointEnv):
    """One of the module, which resets seed."""

    def reset(self, *, seed: int | None = None, **kwargs: Any) -> Any:
        global generator
        if seed is not None:
            generator = np.random.default_rng(seed)
        return super().reset(seed=seed, **kwargs)

    def drawn(self) -> float:
        return float(generator.uniform())

    def noise(self) -> float:
        return float(generator.uniform())


class Alternating(PointEnv):
    """Every other episode begins on the other side."""

    episodes = 0

    def drawn(self) -> float:
        self.episodes += 1
        return super().drawn() * (-1) ** self.episodes


class Global(PointEnv):
    def drawn(self) -> float:
        return float(np.random.uniform()) + random.random()

    def noise(self) -> float:
        return float(np.random.uniform())


class Unseeded(PointEnv):
    def noise(self) -> float:
        return float(np.random.default_rng().uniform()) + time.perf_counter() % 1.0


class OfOtherLengths(PointEnv):
    """An episode ends early by its actions, so others draw more or less."""

    def reset(self, *, seed: int | None = None, **kwargs: Any) -> Any:
        if seed is not None:
            np.random.seed(seed)
        return super().reset(seed=seed, **kwargs)

    def noise(self) -> float:
        return float(np.random.uniform())

    def step(self, action: Any) -> Any:
        observation, reward, _, is_over, info = super().step(action)
        return observation, reward, float(np.ravel(action)[0]) > 0.8, is_over, info


@pytest.mark.parametrize("kind", [SeededGenerator, Alternating, Global, Unseeded, OfOtherLengths])
def test_random_numbers_that_mix_are_no_fault(kind: Any) -> None:
    runs: list[Options] = [{"envs_per_worker": 2}, {"evaluates": False}]
    for options in runs:
        assert found(kind, **options).errors == [], options


# Workers that see the same episodes.


class OfConstructor(Global):
    def __init__(self) -> None:
        super().__init__()
        np.random.seed(0)
        random.seed(0)


class OfOwnSeed(PointEnv):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.RandomState(42)

    def drawn(self) -> float:
        return float(self.rng.uniform())


@pytest.mark.parametrize("kind", [OfOwnSeed, OfConstructor])
def test_workers_that_see_the_same_episodes_are_noted(kind: Any) -> None:
    findings = found(kind, workers=2)
    assert findings.errors == [] and "the same episodes" in findings.notes[0], findings.notes
    if kind is OfOwnSeed:
        assert "the same episodes" in found(kind, envs_per_worker=2).notes[0]


@pytest.mark.parametrize("kind", [CounterEnv, PointEnv, Global])
def test_other_workers_have_other_episodes_or_one_that_is_always_the_same(kind: Any) -> None:
    assert not any("the same episodes" in note for note in found(kind, workers=2).notes)


# What there is once.


class Flocked(CounterEnv):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = os.open(path, os.O_CREAT | os.O_RDWR)
        fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        os.close(self.file)


class OfProcesses(Flocked):
    """Its lock is the process's: a second one in the same process gets it, too."""

    def __init__(self, path: Path) -> None:
        CounterEnv.__init__(self)
        self.file = os.open(path, os.O_CREAT | os.O_RDWR)
        fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class OfReset(Flocked):
    """It takes its lock in the first reset."""

    def __init__(self, path: Path) -> None:
        CounterEnv.__init__(self)
        self.path, self.file = path, -1

    def reset(self, **kwargs: Any) -> Any:
        if self.file < 0:
            Flocked.__init__(self, self.path)
        return super().reset(**kwargs)

    def close(self) -> None:
        if self.file >= 0:
            super().close()


@pytest.mark.parametrize("kind", [Flocked, OfProcesses, OfReset])
def test_what_a_machine_has_once_is_refused_only_where_a_run_has_two(kind: Any, tmp_path: Path) -> None:
    make = lambda: kind(tmp_path / "lock")  # noqa: E731
    assert found(make, num_eval_episodes=0).errors == found(make, num_eval_episodes=0).notes == []
    runs: list[Options] = [{"evaluates": False}, {"num_eval_episodes": 0, "workers": 2}, {"workers": 2}]
    for options in runs:
        (error,) = found(make, **options).errors
        assert "beside the collect environment" in error and ITS_OWN in error and SEPARATE not in error, error


class Single(CounterEnv):
    live = False

    def __init__(self) -> None:
        super().__init__()
        if Single.live:
            raise RuntimeError("one engine only")
        Single.live = True

    def close(self) -> None:
        Single.live = False


def test_one_simulator_a_process_is_refused_only_where_a_process_has_two() -> None:
    runs: list[Options] = [{"evaluates": False, "workers": 3}, {"num_eval_episodes": 0, "workers": 2}]
    for options in runs:
        assert found(Single, render=True, **options).errors == []
    (error,) = found(Single).errors
    assert "one engine only" in error and ": SAC_ENV_PYTHON=" in error
    assert "or SAC_EVAL_WORKERS=1 gives each a process" in error


def test_one_that_can_never_be_built_twice_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Single, "close", lambda self: None)
    runs: list[Options] = [{"evaluates": False}, {"num_eval_episodes": 0}]
    for options in runs:
        monkeypatch.setattr(Single, "live", False)
        findings = found(Single, **options)
        assert findings.errors == [], options
    assert "could not be built again" in findings.notes[0]


class Raising(PointEnv):
    """The second one that is reset ends what the first one has."""

    live: Raising | None = None

    def drawn(self) -> float:
        Raising.live = self
        return super().drawn()

    def step(self, action: Any) -> Any:
        if Raising.live is not self:
            raise RuntimeError("not connected")
        return super().step(action)


def test_one_whose_steps_fail_once_another_one_acts_is_refused() -> None:
    (error,) = found(Raising).errors
    assert "its actions change what happens in that one from step 1 on" in error and SEPARATE in error
    assert found(Raising, evaluates=False).errors == []


def test_a_fault_of_the_hook_itself_is_told_as_it_is() -> None:
    def for_evaluation(self: Any, id: int = 0) -> Any:
        raise KeyError("wrong")

    (error,) = found(CounterEnv, eval_env_args_kwargs=for_evaluation).errors
    assert "KeyError: 'wrong'" in error and "beside" not in error
    (error,) = found(CounterEnv, eval_env_args_kwargs=for_evaluation, evaluates=False).errors
    assert "KeyError: 'wrong'" in error and "beside" not in error

    class Breaking(CounterEnv):
        def step(self, action: Any) -> Any:
            if self.breaks and self._buffer[0] == 3:
                raise ZeroDivisionError("of evaluation")
            return super().step(action)

        breaks = False

    def make(self: Any, *args: Any, breaks: bool = False) -> Any:
        env = Breaking()
        env.breaks = breaks
        return env

    hooks = {"env_ctor": make, "eval_env_args_kwargs": lambda self: ((), {"breaks": True})}
    (error,) = found(None, **hooks).errors
    assert error.startswith("the evaluation environment failed in step 4: ZeroDivisionError: of evaluation"), error
