"""What a worker hears of its trainer: how far it is, when to wait for it, and the newest policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import greedy_policy
from tf_agents.trajectories import time_step as ts

from tests.support.acting import action
from tests.support.numpy_actors import VECTOR, as_after_training, build
from tests.support.workers_in_parts import bare_worker
from tfagents_system.policies import weights
from tfagents_system.policies.weights import NOWHERE, SharedWeights
from tfagents_system.policies.worker_policy import make_worker_policy
from tfagents_system.transport import tables
from tfagents_system.transport.connection import StoppedError
from tfagents_system.worker import newest_policy as module
from tfagents_system.worker import worker as worker_module
from tfagents_system.worker.actors import PolicyActor
from tfagents_system.worker.newest_policy import BackPressure, NewestPolicy, ProgressReader


class Policy:
    """Notes the weights that it was given."""

    def __init__(self) -> None:
        self.assigned: list[float] = []

    def assign(self, given: dict[str, np.ndarray]) -> None:
        assert set(given) == {"kernel", "bias"}
        (value,) = {*given["kernel"].flat, *given["bias"].flat}
        self.assigned.append(float(value))

    def reset(self, lanes: Any) -> None:
        pass

    def act(self, steps: Any, greedy: bool) -> list[np.ndarray]:
        return [np.array(self.assigned[-1:])]


class Run:
    """A trainer that publishes to memory, to the server, or to both; `server` counts how often that one is asked."""

    def __init__(self) -> None:
        self.server: list[np.ndarray] | None = None
        self.asked, self.looks = 0, 0
        self.on_ask: Callable[[], None] = lambda: None
        self.told: tables.Progress | None = None
        self.memory: SharedWeights | None = None
        self.policy = Policy()
        policy: Any = self.policy
        self.worker = NewestPolicy(self, policy, self._progress)

    def get(self) -> list[np.ndarray] | None:
        self.asked += 1
        self.on_ask()
        return self.server

    def _progress(self) -> tables.Progress | None:
        self.looks += 1
        return self.told

    def publish(
        self, session: int, version: int, step: int, *, memory: bool = True, server: bool = True, tell: bool = True
    ) -> tables.Progress:
        """Weights that are all the train step."""
        values = {"kernel": np.full((3, 4), step, np.float32), "bias": np.full(4, step, np.float32)}
        arrays = [np.array([session, version, step], np.int64), *weights.to_arrays(values)]
        if memory:
            self.memory = self.memory or SharedWeights(arrays)
            self.memory.write(arrays)
        if server:
            self.server = arrays
        place = self.memory.place if self.memory is not None else NOWHERE
        progress = tables.Progress(session, version, step, -1, memory=place)
        if tell:
            self.told = progress
        return progress


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def ids(run: Run) -> tuple[int, int, int]:
    return run.worker.session, run.worker.version, run.worker.train_step


def test_the_server_is_not_asked_where_memory_is_shared(run: Run) -> None:
    run.worker.follow(None)
    assert run.worker.version == -1
    for version in range(4):
        progress = run.publish(7, version, 10 * version)
        run.worker.follow(progress)
        run.worker.follow(progress)
        assert ids(run) == (7, version, 10 * version)
    assert run.policy.assigned == [0.0, 10.0, 20.0, 30.0] and run.asked == 0


@pytest.mark.parametrize("case", ["no memory", "another run's", "a trainer that is gone"])
def test_without_memory_it_asks_the_server(run: Run, clock: list[float], case: str) -> None:
    other = Run()
    other.publish(8, 0, 5)
    run.publish(7, 0, 0, memory=False)
    if case == "another run's":
        run.memory = other.memory
    progress = run.publish(7, 1, 10, memory=False)
    if case == "a trainer that is gone":
        progress = dataclasses.replace(progress, memory=(2**22 + 1, 3))
        run.told = progress
    run.worker.follow(progress)
    assert ids(run) == (7, 1, 10) and run.asked == 1
    if other.memory is not None:
        other.publish(8, 1, 99)
    for _ in range(100):
        run.worker.refresh()
    assert ids(run) == (7, 1, 10) and run.asked == 1


def test_within_an_episode_memory_is_looked_at_each_time(run: Run, clock: list[float]) -> None:
    run.worker.follow(run.publish(7, 1, 10))
    for step in range(11, 20):
        run.publish(7, 1, step, server=False, tell=False)
        run.worker.refresh()
        assert ids(run) == (7, 1, step) and run.policy.assigned[-1] == step
        run.worker.refresh()
    assert run.policy.assigned == [10.0, *map(float, range(11, 20))], "once each"
    assert run.asked == 0 and run.looks <= 1


def test_within_an_episode_the_server_is_looked_at_once_a_second_or_more_rarely(run: Run, clock: list[float]) -> None:
    run.worker.follow(run.publish(7, 1, 10, memory=False))
    taken = []
    for tenth in range(50):
        run.publish(7, 1, 11 + tenth, memory=False)
        run.worker.refresh()
        taken.append(run.worker.train_step)
        clock[0] += 0.1
    assert run.asked - 1 == len(set(taken)) == 5

    def be_slow() -> None:
        clock[0] += 0.4

    run.on_ask = be_slow
    before = run.asked
    for step in range(100, 200):
        run.publish(7, 1, step, memory=False)
        run.worker.refresh()
        clock[0] += 0.1
    assert run.asked - before == 2, "0.4 s each: then no more often than every 8 s"


def test_a_worker_does_not_stick_to_the_memory_of_a_trainer_that_is_gone(run: Run, clock: list[float]) -> None:
    run.worker.follow(run.publish(7, 3, 30))
    dead, run.memory = run.memory, None
    run.publish(9, 2, 20)  # It has gone back to its checkpoint.
    run.worker.refresh()
    assert ids(run) == (9, 2, 20), "in mid-episode, with the first look at the progress"
    run.publish(9, 2, 21, server=False, tell=False)
    run.worker.refresh()
    assert ids(run) == (9, 2, 21)
    del dead


def test_an_evaluation_acts_with_its_own_weights_and_gives_the_newest_back(run: Run) -> None:
    run.worker.follow(run.publish(7, 1, 10))
    evaluated = {"kernel": np.full((3, 4), 4.0, np.float32), "bias": np.full(4, 4.0, np.float32)}
    with run.worker.acting_with(evaluated):
        run.publish(7, 1, 15, tell=False)
        assert run.policy.assigned[-1] == 4.0
    assert run.policy.assigned[-1] == 10.0
    run.worker.refresh()
    assert run.policy.assigned[-1] == 15.0


def test_an_actor_looks_every_so_many_steps(run: Run) -> None:
    run.worker.follow(run.publish(7, 1, 10))
    plain, fresh = (PolicyActor(run.worker.policy, False, run.worker.refresh, period) for period in (None, 4))
    found = []
    for step in range(11, 23):
        run.publish(7, 1, step, tell=False)
        found.append(float(fresh.act(None)[0][0]))  # type: ignore[arg-type]
    assert found == [10.0] * 4 + [15.0] * 4 + [19.0] * 4
    run.publish(7, 1, 30, tell=False)
    assert plain.act(None)[0] == 19.0 and run.worker.train_step == 19  # type: ignore[arg-type]


def waiting_worker(run: Run, is_over: list[bool], get: Callable[..., tables.Progress | None]) -> Any:
    """A worker in lock-step of which only the wait for a policy works; `get` is its progress."""
    return bare_worker(
        _is_stopped=lambda: is_over[0],
        _params=SimpleNamespace(asynchronous=False, max_policy_lag=1),
        _policy=run.worker,
        _progress=SimpleNamespace(get=get),
    )


def test_a_worker_waits_for_the_word_of_a_policy_that_memory_has_already(run: Run) -> None:
    """With it comes the evaluation that is due."""
    words = [run.publish(7, 4, 40), run.publish(7, 5, 50)]
    heard: list[float] = []
    is_over = [False]

    def get(wait_secs: float = 0.0) -> tables.Progress:
        heard.append(run.worker.version)
        return words[min(1, len(heard) // 3)]

    worker = waiting_worker(run, is_over, get)
    worker._wait_for_policy(6)
    assert heard == [-1, 5, 5], "it had version 5 at once, and went on when it was told of it"
    is_over[0] = True
    with pytest.raises(StoppedError):  # Also where the run that it has joined is stopped, and nobody trains any more.
        worker._wait_for_policy(9)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_only_an_asynchronous_worker_collects_with_a_policy_of_before_the_trainer_went_back(
    run: Run, asynchronous: bool
) -> None:
    """The answer to a question of before comes late: it is of version 9, and iteration 6 needs version 5."""
    run.publish(1, 9, 90, memory=False)
    back = tables.Progress(2, 5, 50, -1)
    heard: list[tuple[int, int, int]] = []

    def get(wait_secs: float = 0.0) -> tables.Progress:
        heard.append(ids(run))
        if len(heard) == 3:
            run.publish(2, 5, 50, memory=False)
        return back

    worker = waiting_worker(run, [False], get)
    worker._params.asynchronous = asynchronous
    worker._wait_for_policy(6)
    assert ids(run) == ((1, 9, 90) if asynchronous else (2, 5, 50))
    assert heard == [(0, -1, 0), (1, 9, 90), (1, 9, 90)][: 1 if asynchronous else 3]


@pytest.mark.parametrize(("alone_secs", "waits"), [(0.0, 0), (30.0, 2)])
def test_an_asynchronous_worker_without_a_trainer_soon_acts_at_random(
    run: Run, alone_secs: float, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expert at once; and who has waited once waits no more until there is a policy."""
    clock, heard = [0.0], list[float]()

    def get(wait_secs: float = 0.0) -> tables.Progress | None:
        clock[0] += 15.0 * bool(wait_secs)
        heard.append(wait_secs)
        return None

    monkeypatch.setattr(worker_module.time, "monotonic", lambda: clock[0])
    worker = waiting_worker(run, [False], get)
    own = {"initial_collect_steps": 10, "num_initial_episodes": 0, "prior_data": None}
    worker._params = SimpleNamespace(asynchronous=True, max_policy_lag=1, policy_refresh_steps=None, **own)
    worker._alone_secs, worker._random, worker._actor = alone_secs, object(), object()
    worker._iteration_done = -1
    worker._wait_for_policy(0)
    assert heard == [0.0] + [worker_module._NEWS_SECS] * waits and worker._exploring() is worker._random
    worker._wait_for_policy(0)
    assert len(heard) == waits + 2
    progress = run.publish(7, 1, 10)
    worker._progress.get = lambda wait_secs=0.0: progress
    worker._wait_for_policy(0)
    assert worker._exploring() is not worker._random and run.worker.train_step == 10


@pytest.mark.parametrize(
    ("own", "iteration_done", "acts"),
    [
        ({}, -1, True),
        ({}, 3, False),
        ({"initial_collect_steps": 0}, -1, False),
        ({"prior_data": "demos", "offline_updates": 5}, -1, False),
    ],
)
def test_only_where_a_run_begins_at_random_it_does_so_without_a_trainer(
    own: dict[str, Any], iteration_done: int, acts: bool
) -> None:
    params = {"initial_collect_steps": 10, "num_initial_episodes": 0, "prior_data": None}
    worker = bare_worker(_params=SimpleNamespace(**{**params, **own}), _iteration_done=iteration_done)
    assert worker._acts_alone(1e6) is acts


# A recurrent policy.

STEPS, PERIOD = 8, 4


def published(values, step):
    return [np.array([7, 0, step], np.int64), *weights.to_arrays(values)]


def test_a_policy_goes_on_with_newer_weights_and_its_state():
    agent = build(VECTOR, recurrent=True, normalize_observations=True)
    drawn = [as_after_training(agent, seed) for seed in range(STEPS + 2)]
    shared = SharedWeights(published(drawn[0], 1))
    shared.write(published(drawn[0], 1))
    policy = make_worker_policy(agent, 0)
    assert policy.inference == "numpy"
    worker = NewestPolicy(SimpleNamespace(get=lambda: pytest.fail("the server was asked")), policy)
    worker.follow(tables.Progress(7, 0, 1, -1, memory=shared.place))

    greedy, variables = greedy_policy.GreedyPolicy(agent.policy), weights.named_variables(agent.collect_policy)
    rng, state, newest = np.random.default_rng(0), greedy.get_initial_state(1), drawn[0]
    policy.reset([0])
    for step in range(STEPS):
        observation = rng.standard_normal(VECTOR.shape).astype(np.float32)
        time_step = ts.TimeStep(np.int32(step > 0), np.float32(0), np.float32(1), observation)
        if step % PERIOD == PERIOD - 1:
            newest = drawn[step]
            worker.refresh()
        weights.assign_weights(variables, newest)
        expected = greedy.action(tf.nest.map_structure(lambda value: tf.constant(value[None]), time_step), state)
        state = expected.state
        found = action(policy, time_step, True)
        np.testing.assert_allclose(found, expected.action[0], atol=1e-5, err_msg=f"step {step}")
        shared.write(published(drawn[step + 1], step + 2))
        for _ in range(2):  # What was read before is overwritten: the policy has copied it.
            assert worker._memory.read() is not None
    assert worker.train_step == STEPS


# How far the trainer is.


class Connection:
    """News and the newest item, whose reads are counted."""

    def __init__(self):
        self.news_items, self.newest_item, self.looks = [], None, 0

    def news(self, wait_secs):
        return self.news_items.pop(0) if self.news_items else None

    def newest(self):
        self.looks += 1
        return self.newest_item


def reader_of(connection, straggler_secs=120.0):
    news, newest = SimpleNamespace(get=connection.news), SimpleNamespace(get=connection.newest)
    return ProgressReader(news, newest, straggler_secs)


def version(iteration):
    return tables.Progress(session=1, iteration=iteration, train_step=0, eval_iteration=-1)


def wait(reader, clock, secs):
    for _ in range(round(secs / 0.2)):
        clock[0] += 0.2
        reader.get(0.2)


@pytest.mark.parametrize(
    "late", [version(4), dataclasses.replace(version(9), session=0)], ids=["older", "earlier trainer"]
)
def test_what_news_have_overtaken_on_the_way_is_passed_over_and_a_trainer_that_goes_back_is_followed(clock, late):
    connection = Connection()
    connection.news_items = [version(5).to_wire()]
    connection.newest_item = late.to_wire()  # Asked for before, over a slow line.
    reader = reader_of(connection)
    assert [reader.get(0.0).iteration for _ in range(2)] == [5, 5] and connection.looks == 1
    back = dataclasses.replace(version(3), session=2)
    connection.news_items = [back.to_wire()]
    assert reader.get(0.0) == back


def test_a_long_wait_costs_ever_fewer_questions(clock):
    connection = Connection()
    connection.newest_item = version(0).to_wire()
    reader = reader_of(connection)
    assert reader.get(0.0) == version(0)
    wait(reader, clock, 60.0)
    assert connection.looks == 5, "at once, then after 2, 4, 8, 16 and 30 s"
    wait(reader, clock, 300.0)
    assert connection.looks == 5 + 10


def test_news_are_taken_without_a_question(clock):
    connection = Connection()
    reader = reader_of(connection)
    assert reader.get(0.0) is None and connection.looks == 1
    connection.news_items.append(version(7).to_wire())
    assert reader.get(0.2) == reader.newest == version(7)
    assert connection.looks == 1


def test_news_that_got_lost_are_found_soon_after_a_start_and_within_half_a_minute_later(clock):
    connection = Connection()
    reader = reader_of(connection)
    reader.get(0.0)
    connection.newest_item = version(1).to_wire()
    wait(reader, clock, 4.2)
    assert reader.newest == version(1)
    wait(reader, clock, 200.0)
    connection.newest_item = version(2).to_wire()
    lost_at = clock[0]
    while reader.newest != version(2):
        wait(reader, clock, 0.2)
        assert clock[0] - lost_at < 30.5
    before = connection.looks
    wait(reader, clock, 2.2)
    assert connection.looks == before + 1, "what was lost once may be lost again"


@pytest.mark.parametrize(("straggler_secs", "most_secs"), [(120.0, 30.0), (40.0, 10.0), (4.0, 1.0)])
def test_news_that_got_lost_are_found_well_before_the_worker_is_left_out(clock, straggler_secs, most_secs):
    connection = Connection()
    reader = reader_of(connection, straggler_secs)
    wait(reader, clock, 200.0)
    connection.newest_item, lost_at = version(2).to_wire(), clock[0]
    while reader.newest != version(2):
        wait(reader, clock, 0.2)
        assert clock[0] - lost_at < most_secs + 0.5


# `min_updates_per_env_step`: when a worker waits, by hand-computed numbers.


def pressure_params(least: float | None, asynchronous: bool = True) -> Any:
    return SimpleNamespace(
        min_updates_per_env_step=least,
        updates_per_env_step=2.0,
        asynchronous=asynchronous,
        env_steps_per_iter=None,
        updates_per_iter=10,
    )


def progress(updates: int, policy_steps: int) -> tables.Progress:
    return tables.Progress(1, updates // 10, updates, -1, paced_updates=updates, paced_steps=policy_steps)


@pytest.mark.parametrize(
    ("updates", "policy_steps", "is_held"),
    [(0, 20, False), (0, 21, True), (10, 40, False), (10, 41, True), (100, 41, False)],
)
def test_a_worker_waits_while_there_are_fewer_updates_than_the_ratio(updates, policy_steps, is_held) -> None:
    pressure = BackPressure(pressure_params(0.5))
    assert pressure.holds(progress(updates, policy_steps), steps=1000) == is_held


def test_steps_since_the_newest_progress_count() -> None:
    pressure = BackPressure(pressure_params(0.5))
    assert [pressure.holds(progress(10, 30), steps) for steps in (500, 510, 511)] == [False, False, True]
    assert not pressure.holds(progress(20, 41), 511), "steps that the trainer has counted do not count twice"


def test_nobody_waits_without_it_in_lock_step_or_before_the_first_word() -> None:
    assert not BackPressure(pressure_params(None)).holds(progress(0, 999), 0)
    assert not BackPressure(pressure_params(0.5, asynchronous=False)).holds(progress(0, 999), 0)
    assert not BackPressure(pressure_params(0.5)).holds(None, 0)


def test_a_trainer_that_waits_for_lost_steps_gets_new_ones() -> None:
    now = [0.0]
    pressure = BackPressure(pressure_params(0.5), clock=lambda: now[0])
    found = []
    for now[0] in (0.0, 599.0, 600.0, 601.0, 1200.0):
        found.append(pressure.holds(progress(0, 999), 0))
    assert found == [True, True, False, True, False]


def test_workers_never_wait_for_updates_that_the_trainer_may_not_do() -> None:
    """As long as the least is at most the most: what holds the workers lets the trainer finish its iteration."""
    settings = pressure_params(2.0)
    pressure = BackPressure(settings)
    for updates in range(0, 100, 10):
        for counted in range(100):
            if pressure.holds(progress(updates, counted), 0):
                assert counted * settings.updates_per_env_step >= updates + settings.updates_per_iter
