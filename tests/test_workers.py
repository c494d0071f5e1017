"""The environments of a worker: seeds and ids, faults in a row, curriculum values of new ones, memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.fakes import FakeParams, NumberedEnv
from tests.support.lanes_for_tests import NumberedLane, vector_of
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.machine import processes
from tfagents_system.role import COLLECT_STREAM, EVAL_STREAM
from tfagents_system.transport.segments import Layout
from tfagents_system.worker.actors import RandomActor
from tfagents_system.worker.episode_runner import EpisodeRunner
from tfagents_system.worker.rollout import Rollout, SegmentBuilder
from tfagents_system.workers import MemoryLimit, Place, TooLargeError, WorkerEnvironments

COLLECT, EVAL = Place(False, 0), Place(True, 0)
CURRICULUM = {"mass": {"iters": [0, 5], "range": [1.0, 2.0]}, "friction": {"iters": [3], "range": [0.5, 0.5]}}


class Env(NumberedEnv):
    """Remembers that it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Params(FakeParams):
    num_train_episodes_per_iter = 4

    def __init__(self, curriculum: Any = None) -> None:
        super().__init__({"horizon": 5, **({"curriculum": curriculum} if curriculum else {})})
        self.built: list[Any] = []
        self.errors: list[Exception] = []

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        if self.errors:
            raise self.errors.pop()
        self.built.append(Env(args[0], seed=seed))
        return self.built[-1]

    def collect_env_args_kwargs(self, id: int = 0) -> Any:
        return (id,), {}

    def eval_env_args_kwargs(self, id: int = 0, collect_env: Any = None) -> Any:
        return (100 + collect_env.worker,), {}


def seeds_of(worker: int) -> Any:
    """As a Role derives them for a worker's first start."""

    def derived_seed(stream: int, *further: int) -> int:
        return int(np.random.SeedSequence([0, stream, worker, 0, *further]).generate_state(1)[0] % 2**31)

    return derived_seed


def make(params: Any, worker: int = 0, count: int = 1, eval_count: int = 1, **more: Any) -> WorkerEnvironments:
    curriculum = Curriculum.from_config(params.env_config)
    return WorkerEnvironments(params, worker, count, eval_count, seeds_of(worker), curriculum, **more)


def run_episode(environments: WorkerEnvironments, place: Place = COLLECT) -> None:
    env = (environments.evaluation if place.is_eval else environments.collect)[place.number]
    assert isinstance(env, TrainingEnvironment)
    time_step = env.reset()
    while not time_step.is_last():
        time_step = env.step(np.zeros(2, np.float32))


def fault(text: str = "no luck") -> EnvironmentFault:
    return EnvironmentFault(0, 2, 1, ValueError(text))


def test_every_environment_has_its_own_id_and_seed() -> None:
    built = [make(Params(), worker, 3, 2) for worker in (0, 1)]
    collect = [env.user_env for environments in built for env in environments.collect]
    evaluate = [env.user_env for environments in built for env in environments.evaluation]
    assert [env.worker for env in collect] == [0, 1, 2, 3, 4, 5]
    assert [env.worker for env in evaluate] == [100, 101, 103, 104]
    assert len({env.seed_of_ctor for env in collect + evaluate}) == 10


def test_the_first_environment_is_the_same_however_many_there_are() -> None:
    for count in (1, 4):
        environments = make(Params(), count=count)
        assert environments.collect[0].user_env.seed_of_ctor == seeds_of(0)(COLLECT_STREAM)
        assert [env.user_env.seed_of_ctor for env in environments.evaluation] == [seeds_of(0)(EVAL_STREAM)]


@pytest.mark.parametrize("share", [0, 2])
def test_a_worker_that_only_evaluates_builds_no_collect_environment(share: int) -> None:
    class Alone(Params):
        def eval_env_args_kwargs(self, id: int = 0, collect_env: Any = None) -> Any:
            return (200 + id if collect_env is not None else 0,), {}

    params = Alone()
    environments = make(params, worker=1, count=4, eval_count=share, collects=False)
    assert [env.worker for env in params.built] == [204, 205][:share], "as beside collect environments"
    assert (environments.lanes, environments.eval_lanes, environments.collect) == (0, share, [])
    if share:
        environments.replace(Place(True, 1), fault())
        assert params.built[-1].worker == 205 and environments.evaluation[1].user_env is params.built[-1]
    environments.close()
    assert all(env.is_closed for env in params.built)


def test_environments_for_evaluation_that_need_others_have_them_while_they_are_built() -> None:
    params = Params()
    environments = make(params, worker=1, count=2, collects=False)
    assert [env.user_env.worker for env in environments.evaluation] == [102] and environments.collect == []
    assert [(env.worker, env.is_closed) for env in params.built] == [(2, True), (102, False)]


def test_an_environment_that_fails_is_closed_and_another_takes_its_place() -> None:
    params = Params(CURRICULUM)
    environments = make(params, worker=2, count=2, eval_count=2)
    environments.set_due(4)
    before = [*environments.collect, *environments.evaluation]
    environments.replace(Place(False, 1), fault())
    environments.replace(Place(True, 1), fault("other"))
    after = [*environments.collect, *environments.evaluation]
    assert [old is new for old, new in zip(before, after, strict=True)] == [True, False, True, False]
    assert [old.user_env.is_closed for old in before] == [False, True, False, True]
    new, new_eval = after[1].user_env, after[3].user_env
    assert (new.worker, new_eval.worker) == (5, 105), "the same id"
    assert len({env.seed_of_ctor for env in params.built}) == 6, "another seed"
    assert new.states == [{"mass": 1.0}, {"friction": 0.5}], "the curriculum's values, as they are now"
    assert new_eval.states == [], "not those that are not for evaluation"
    assert environments.faults == 2 and "ValueError: other" in environments.last_fault


def test_evaluations_have_the_values_of_their_policy_however_far_was_collected() -> None:
    """A worker may have collected an iteration more than the policy is of: two workers would evaluate two tasks."""
    params = Params({"mass": {"iters": [0, 5], "range": [1.0, 2.0]}, "friction": {"iters": [5], "range": [3.0, 3.0]}})
    params.env_config["curriculum"]["mass"]["apply_to_eval"] = True
    environments = make(params)
    environments.set_due(5)
    environments.begin_episode(COLLECT)
    collect, evaluate = environments.collect[0].user_env, environments.evaluation[0].user_env
    assert collect.states == [{"mass": 2.0}, {"friction": 3.0}] and evaluate.states == []
    environments.set_evaluated(4)
    environments.set_evaluated(4)
    assert evaluate.states == [{"mass": 1.0}]
    environments.replace(EVAL, fault())
    assert environments.evaluation[0].user_env.states == [{"mass": 1.0}]
    environments.set_evaluated(5)
    assert environments.evaluation[0].user_env.states == [{"mass": 1.0}, {"mass": 2.0}]
    environments.set_evaluated(4)  # Training went back to a checkpoint.
    assert environments.evaluation[0].user_env.states[-1] == {"mass": 1.0}
    assert len(collect.states) == 2


def test_the_third_fault_in_a_row_is_the_callers() -> None:
    environments = make(Params())
    environments.replace(COLLECT, fault("first"))
    environments.replace(COLLECT, fault("second"))
    with pytest.raises(EnvironmentFault, match="third"):
        environments.replace(COLLECT, fault("third"))
    assert environments.faults == 3 and "third" in environments.last_fault


def test_an_episode_that_ends_forgives_those_before_in_its_own_place_only() -> None:
    environments = make(Params(), count=2, eval_count=1)
    for k in range(7):
        environments.replace(COLLECT, fault(f"{k}"))
        run_episode(environments)
    environments.replace(Place(False, 1), fault())
    environments.replace(EVAL, fault())
    environments.replace(Place(False, 1), fault())
    environments.replace(EVAL, fault())
    for place in (Place(False, 1), EVAL):
        run_episode(environments, COLLECT)
        with pytest.raises(EnvironmentFault):
            environments.replace(place, fault())
    assert environments.faults == 13


class Breaks(NumberedEnv):
    """Fails in a step of every episode."""

    at = 3

    def _step(self, action: Any) -> Any:
        time_step = super()._step(action)
        if self._step_of_episode == self.at:
            raise FloatingPointError("the solver has diverged")
        return time_step


@pytest.mark.parametrize("place", [COLLECT, EVAL])
@pytest.mark.parametrize("by", ["steps", "episodes"])
def test_a_policy_that_breaks_every_episode_never_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch, place: Place, by: str
) -> None:
    class Fragile(Params):
        def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
            return Breaks()

    environments, segments = make(Fragile()), list[Any]()
    envs = environments.evaluation if place.is_eval else environments.collect
    layout = Layout.from_specs(envs[0].observation_spec(), envs[0].action_spec())
    rollout = Rollout(
        envs,
        RandomActor(envs[0].action_spec(), np.random.default_rng(0)),
        new_builder=None if place.is_eval else lambda: SegmentBuilder(layout, 50, segments.append),
        on_fault=lambda env, fault: environments.replace(Place(place.is_eval, env), fault),
    )
    episodes = rollout.episodes(7) if by == "episodes" else rollout.steps(14)
    assert [(episode.length, episode.has_failed) for episode in episodes[:6]] == [(2, True)] * 6
    assert environments.faults >= 6
    if not place.is_eval:
        monkeypatch.setattr(Breaks, "at", 1)
        with pytest.raises(EnvironmentFault, match="diverged"):  # Such a simulator may be broken for good.
            rollout.episodes(7)


def test_what_building_anew_raises_counts_as_well() -> None:
    params = Params()
    environments = make(params)
    params.errors = [KeyError("licence")]
    environments.replace(COLLECT, fault())
    assert environments.faults == 2
    assert environments.last_fault.startswith(
        "worker 0: environment 0 failed in its construction: KeyError: 'licence' (test_workers.py, line"
    )
    run_episode(environments)
    params.errors = [KeyError("licence"), KeyError("licence")]
    with pytest.raises(EnvironmentFault, match="its construction"):
        environments.replace(COLLECT, fault())


def test_what_was_due_when_training_went_back_is_never_set() -> None:
    environments = make(Params({"mass": {"iters": [2], "range": [1, 1]}, "friction": {"iters": [5], "range": [3, 3]}}))
    environments.set_due(5)
    environments.set_due(4)
    environments.begin_episode(COLLECT)
    assert [env.user_env.states for env in environments.collect] == [[{"mass": 1}]]
    assert not environments.has_due(COLLECT)


def test_an_episode_under_way_keeps_its_values() -> None:
    environments = make(Params({"mass": {"iters": [0, 5], "range": [1.0, 2.0]}}), count=2)
    first, second = (env.user_env for env in environments.collect)
    environments.set_due(0)
    environments.begin_episode(COLLECT)
    assert (first.states, second.states) == ([{"mass": 1.0}], [])
    environments.set_due(5)
    assert environments.has_due(COLLECT) and first.states == [{"mass": 1.0}]
    for place in (COLLECT, Place(False, 1), COLLECT):
        environments.begin_episode(place)
    assert (first.states, second.states) == ([{"mass": 1.0}, {"mass": 2.0}], [{"mass": 2.0}]), "each once"


def test_set_state_that_raises_is_a_fault_and_the_new_environment_gets_the_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = Params(CURRICULUM)
    environments = make(params)
    fails = [ZeroDivisionError("torn")]

    def set_state(self: Any, state: Any) -> None:
        if fails:
            raise fails.pop()
        self.states.append(state)

    monkeypatch.setattr(Env, "set_state", set_state)
    environments.set_due(0)
    environments.begin_episode(COLLECT)
    assert environments.faults == 1
    assert "environment 0 failed in set_state({'mass': 1.0}): ZeroDivisionError: torn (" in environments.last_fault
    assert environments.collect[0].user_env.states == [{"mass": 1.0}]
    assert params.built[0].is_closed


def test_close_that_raises_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    environments = make(Params())
    monkeypatch.setattr(Env, "close", lambda self: 1 / 0)
    environments.replace(COLLECT, fault())
    environments.close()


# Memory.


def test_a_worker_above_its_limit_is_told_to_start_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    resident_bytes = 100 * 2**20
    monkeypatch.setattr(processes, "tree_resident_bytes", lambda pid: resident_bytes)
    limit = MemoryLimit(3, 100)
    for more_bytes in (0, 2**20):  # It measures once a second only.
        resident_bytes += more_bytes
        limit.look()
        limit.check()
    monkeypatch.setattr(limit, "_look_due", 0.0)
    limit.look()
    with pytest.raises(TooLargeError, match="worker 3: its processes take 101 MiB, more than SAC_WORKER_MEMORY_MB=100"):
        limit.check()


class VectorParams(Params):
    """An environment of three lanes."""

    num_train_episodes_per_iter = 3

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        self.built.append(vector_of([NumberedLane(lane, (3,)) for lane in range(3)]))
        return self.built[-1]

    def eval_env_args_kwargs(self, id: int = 0, collect_env: Any = None) -> Any:
        return (), {}


def test_a_vector_environment_has_all_of_its_lanes_and_is_replaced_as_a_whole() -> None:
    params = VectorParams({"mass": {"iters": [0, 5], "range": [1.0, 2.0]}})
    environments = make(params)
    assert (environments.lanes, environments.eval_lanes) == (3, 3)
    environments.set_due(5)
    assert environments.has_due(COLLECT)
    environments.begin_episode(COLLECT)
    assert [lane.mass for lane in environments.collect[0].user_env.envs] == [2.0] * 3
    before = environments.collect[0]
    environments.replace(COLLECT, fault())
    assert environments.collect[0] is not before
    assert [lane.mass for lane in environments.collect[0].user_env.envs] == [2.0] * 3
    assert environments.collect[0].position == "environment 0 (about step 0 of its 3 lanes)"
    environments.close()


def test_lanes_have_the_id_of_their_environment() -> None:
    def ids(count: int, environments: WorkerEnvironments) -> list[int]:
        runner = EpisodeRunner(None, environments, None, None, None, None)  # type: ignore[arg-type]
        return [runner.env_id(env) for env in range(count)]

    assert ids(3, make(VectorParams(), worker=3)) == [3, 3, 3]
    assert ids(4, make(Params(), worker=3, count=4, eval_count=2)) == [12, 13, 14, 15]


def test_several_vector_environments_in_a_worker_are_refused() -> None:
    with pytest.raises(UserError, match="SAC_ENVS_PER_WORKER=2, but env_ctor returns a vector environment of 3 lanes"):
        make(VectorParams(), count=2)
