"""A worker whose environment acts in real time: one device for all, which is told to wait. On a virtual clock."""

from __future__ import annotations

import contextlib
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from tests.support.acting import LaneActor
from tests.support.devices_for_tests import DummyDevice
from tests.support.fakes import FakeParams
from tests.support.workers_in_parts import bare_worker, runner_of
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.real_time import RealTimeEnvironment, VirtualClock
from tfagents_system.errors import UserError
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport import tables
from tfagents_system.transport.connection import StoppedError
from tfagents_system.transport.episode_reports import TRAIN, Episode, KeptEpisode, Report
from tfagents_system.transport.segments import Layout
from tfagents_system.worker.collector import Collector
from tfagents_system.worker.episode_runner import EnvironmentGuard
from tfagents_system.worker.evaluator import Evaluator
from tfagents_system.worker.sender import RefusedError
from tfagents_system.workers import Place, WorkerEnvironments

COLLECT, EVAL = Place(False, 0), Place(True, 0)
GAIN = {"gain": {"iters": [0, 3], "range": [1.0, 2.0], "apply_to_eval": True}}


class Device(DummyDevice):
    """Counts how many there are at a time."""

    open = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Device.open += 1
        assert Device.open == 1, "there is one device"
        super().__init__(*args, **kwargs)
        self.states: list[dict[str, Any]] = []

    def set_state(self, state: dict[str, Any]) -> None:
        self.states.append(state)

    def close(self) -> None:
        Device.open -= 1


class Params(FakeParams):
    num_train_episodes_per_iter = 1
    num_eval_episodes = 2
    env_steps_per_iter = 4

    def __init__(self) -> None:
        super().__init__({"horizon": 6, "curriculum": GAIN})
        self.clock = VirtualClock()
        self.devices: list[Device] = []
        self.built_as: list[str] = []

    def collect_env_args_kwargs(self, id: int = 0) -> Any:
        return ("collect",), {}

    def eval_env_args_kwargs(self, id: int = 0, collect_env: Any = None) -> Any:
        return ("eval",), {}

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        self.built_as.append(args[0])
        self.devices.append(Device(self.clock))
        return RealTimeEnvironment(self.devices[-1], 0.05, clock=self.clock)


@pytest.fixture(autouse=True)
def _none_is_open() -> None:
    Device.open = 0


def build(params: Params, count: int = 1, **more: Any) -> WorkerEnvironments:
    curriculum = Curriculum.from_config(params.env_config)
    return WorkerEnvironments(params, 0, count, 1, lambda *numbers: sum(numbers), curriculum, **more)


def fault() -> EnvironmentFault:
    return EnvironmentFault(0, 2, 1, ValueError("torn"))


def test_collecting_and_evaluating_use_the_same_device() -> None:
    environments = build(Params())
    assert environments.evaluation[0] is environments.collect[0] and environments.device is not None
    environments.close()
    assert Device.open == 0


def test_an_evaluator_has_one_device_for_evaluation() -> None:
    params = Params()
    environments = build(params, collects=False)
    assert params.built_as == ["eval"] and environments.device is not None
    environments.replace(EVAL, fault())
    assert params.built_as == ["eval", "eval"] and Device.open == 1
    environments.close()
    assert Device.open == 0
    for collects in (False, True):
        with pytest.raises(UserError, match="SAC_ENVS_PER_WORKER=2, but the environment acts in real time"):
            build(params, count=2, collects=collects)
        assert Device.open == 0


def test_a_device_that_fails_in_an_evaluation_is_closed_before_it_is_built_again() -> None:
    params = Params()
    params.env_config["curriculum"] = GAIN | {"mass": {"iters": [0, 3], "range": [5.0, 6.0]}}
    environments = build(params)
    environments.set_due(3)
    environments.begin_episode(COLLECT)
    environments.set_evaluated(0)
    environments.replace(EVAL, fault())
    assert len(params.devices) == 2 and environments.collect[0] is environments.evaluation[0]
    assert params.devices[1].states == [{"gain": 1.0}, {"mass": 6.0}], (
        "the evaluation's value, and what only training sets"
    )
    assert params.built_as == ["collect", "collect"]
    assert (environments.faults, environments.eval_faults) == (1, 1)
    environments.replace(COLLECT, fault())
    with pytest.raises(EnvironmentFault):
        environments.replace(EVAL, fault())  # The third in a row in this device.


def test_what_an_evaluation_has_set_is_set_back_before_the_next_episode() -> None:
    params = Params()
    params.env_config["curriculum"] = GAIN | {"mass": {"iters": [0, 4], "range": [5.0, 6.0]}}
    environments = build(params)
    environments.set_due(3)
    environments.begin_episode(COLLECT)
    states = params.devices[0].states
    assert states[-1] == {"mass": 5.0} and {"gain": 2.0} in states
    for _ in range(2):
        environments.set_evaluated(2)
        assert states[-1] == {"gain": 1.0} and environments.has_due(COLLECT)
        environments.begin_episode(EVAL)
        environments.begin_episode(COLLECT)
        assert states[-1] == {"gain": 2.0} and not environments.has_due(COLLECT)
    environments.set_evaluated(2)
    environments.set_due(4)
    environments.begin_episode(COLLECT)
    assert states[-3:] == [{"gain": 1.0}, {"gain": 2.0}, {"mass": 6.0}], "though something else is due"


class Actor(LaneActor):
    """Always the same action."""

    def __init__(self, value: float) -> None:
        self.value = value

    def action(self, lane: int, time_step: Any) -> np.ndarray:
        return np.full(2, self.value, np.float32)


class Work:
    """What collects and evaluates in a worker, without its process and its server."""

    def __init__(self, folder: Path) -> None:
        self.params = params = Params()
        policy: Any = types.SimpleNamespace(policy=types.SimpleNamespace(with_lanes=lambda count: None), train_step=0)
        role, self.runner = runner_of(params, policy, paths=RunPaths(folder))
        self.environments = self.runner.environments
        self.sent: list[Any] = []
        sender: Any = types.SimpleNamespace(send=self.sent.append, confirm=lambda: None)
        env = self.environments.collect[0]
        layout = Layout.from_specs(env.observation_spec(), env.action_spec())
        self.collector = Collector(role, 0, 1, self.runner, sender, layout, policy)
        nothing: Any = None
        give_up = self.collector.give_up_episodes
        self.evaluator = Evaluator(params, 0, range(1), nothing, nothing, nothing, self.runner, policy, give_up)


def test_an_evaluation_drops_the_episode_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(tmp_path)
    monkeypatch.setattr("tfagents_system.worker.evaluator.PolicyActor", lambda policy, greedy: Actor(0.5))
    device, sent = work.params.devices[0], work.sent
    work.collector.collect_steps(0, 4, Actor(0.1))
    work.collector.collect_steps(1, 1, Actor(0.1))
    assert [segment.starts_episode for segment in sent] == [True, False]
    before = len(device.calls("reset"))
    episodes: list[Any] = []
    work.evaluator.play(0, 0, [3, 5], episodes.append)
    assert [episode.length for episode in episodes] == [6, 6] and len(device.calls("reset")) == before + 2
    assert [options for what, _, options in device.log if what == "reset"][before:] == [
        {"evaluation": True, "episode": 3},
        {"evaluation": True, "episode": 5},
    ]
    work.collector.collect_steps(2, 4, Actor(0.1))
    assert sent[-1].starts_episode and sent[-1].num_steps == 4 and len(device.calls("reset")) == before + 3
    assert [options for what, _, options in device.log if what == "reset"][-1] is None, "collected again"
    assert [segment.ends_episode for segment in sent] == [False, False, False]
    assert sum(segment.num_steps for segment in sent) == 9, "no step of an evaluation"
    assert len(work.params.devices) == 1


def test_a_device_waits_once_while_nobody_steps_it(tmp_path: Path) -> None:
    work = Work(tmp_path)
    device, env = work.params.devices[0], work.environments.collect[0].user_env
    work.collector.collect_steps(0, 4, Actor(0.1))
    device.log.clear()
    for _ in range(3):
        work.runner.rest()
    assert len(device.calls("wait")) == 1 and device.log[-1][0] == "wait"
    work.params.clock.advance(60.0)
    work.collector.collect_steps(1, 1, Actor(0.1))
    work.runner.rest()
    assert len(device.calls("wait")) == 2 and env.late_steps == 0
    assert sum(segment.num_steps for segment in work.sent) == 5 and device.calls("reset") == [], "it went on"


def test_a_worker_that_ends_lets_the_device_wait_before_anything_else() -> None:
    did: list[str] = []
    bare_worker(did).close()
    assert did == ["rest", "flush", "beat", "close"]


@pytest.mark.parametrize(
    ("error", "is_told"),
    [(StoppedError(), False), (RefusedError("never stored"), True)],
)
def test_environments_are_closed_also_where_experience_can_not_be_stored(error: Exception, is_told: bool) -> None:
    did: list[str] = []
    sender = types.SimpleNamespace(flush=MagicMock(side_effect=error), unconfirmed_segments=3)
    worker = bare_worker(did, _sender=sender)
    outcome: Any = pytest.raises(type(error)) if is_told else contextlib.nullcontext()
    with outcome:
        worker.close()
    assert did == ["rest", "beat", "close"]


@pytest.mark.parametrize("waits", [False, True])
def test_the_device_waits_before_its_worker_does_and_only_then(waits: bool) -> None:
    did: list[str] = []
    versions = iter([3, 4] if waits else [4])

    def get(wait_secs: float = 0.0) -> Any:
        did.append("wait for news" if wait_secs else "look")
        return types.SimpleNamespace(iteration=next(versions))

    worker = bare_worker(did)
    worker._progress = types.SimpleNamespace(get=get)
    worker._policy = types.SimpleNamespace(
        follow=lambda progress: None,
        may_collect=lambda oldest, progress, lock_step: progress.iteration >= oldest,
    )
    worker._wait_for_policy(5)
    assert did == (["look", "rest", "beat", "wait for news", "evaluate"] if waits else ["look"])


def test_while_a_device_is_stepped_nothing_is_written(tmp_path: Path) -> None:
    guard = EnvironmentGuard(tmp_path / "hang", 3, 300.0)
    envs: Any = [types.SimpleNamespace(position="environment 0 (step 7)")]
    try:
        guard.stepping(envs)
        assert (tmp_path / "hang").read_text().startswith("worker 3: environment 0 (step 7) has not returned for 300 s")
        guard.is_real_time = True
        guard.stepping(envs)
        assert (tmp_path / "hang").read_text().startswith("worker 3: its environment has not returned for 300 s")
        (tmp_path / "hang").write_text("")
        guard.stopped_stepping()
        guard.stepping(envs)
        guard.still_stepping(envs)
        assert (tmp_path / "hang").read_text() == ""
    finally:
        guard.stopped_stepping()


def test_reports_are_made_where_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of kept episodes are large."""
    later, put = list[Any](), list[Any]()
    connection = types.SimpleNamespace(put=lambda table, arrays: put.append((table, arrays)))
    worker = bare_worker([], _sender=types.SimpleNamespace(call=later.append), _connection=connection)
    kept = [KeptEpisode(1.0, 7, number, bytes(number)) for number in range(2)]
    report = Report(TRAIN, 0, 0, 3, 7, 2, [Episode(1.0, 5)], kept=kept)
    with monkeypatch.context() as patch:
        patch.setattr(Report, "to_wire", None)
        worker._report_collected(report)
    assert len(later) == 3 and put == []
    for make in later:
        make()
    assert [table for table, _ in put] == [tables.REPORTS] * 3
    assert [Report.from_wire(arrays) for _, arrays in put] == report.parts()


def test_a_wait_that_fails_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, now = Work(tmp_path), VirtualClock(100.0)
    monkeypatch.setattr("tfagents_system.worker.episode_runner.time.monotonic", now.now)
    working, waits = Device.wait, list[float]()

    def fails(self: Device) -> None:
        waits.append(now.now())
        raise ValueError("no line to the device")

    monkeypatch.setattr(Device, "wait", fails)
    work.runner.rest()
    work.runner.rest()
    monkeypatch.setattr(Device, "wait", working)
    device = work.params.devices[0]
    for _ in range(8):
        now.advance(1.0)
        work.runner.rest()
    assert waits == [100.0] and len(device.calls("wait")) == 1, "not at once, and then once"
