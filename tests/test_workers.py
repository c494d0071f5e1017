"""What a worker builds for itself."""

import numpy as np

from tests.fakes import FakeParams, NumberedEnv
from tfagents_system import workers
from tfagents_system.role import COLLECT_STREAM, EVAL_STREAM
from tfagents_system.workers import make_envs


class Params(FakeParams):
    n_train_episodes_per_iter = 4

    def env_ctor(self, *args, seed=None, **kwargs):
        return NumberedEnv(*args, seed=seed)

    def collect_env_args_kwargs(self, id=0):
        return (id,), {}

    def eval_env_args_kwargs(self, id=0, collect_env=None):
        return (100 + collect_env.worker,), {}


def seeds_of(worker):
    """As a Role derives them for a worker's first start."""

    def derived_seed(stream, *env):
        return int(np.random.SeedSequence([0, stream, worker, 0, *env]).generate_state(1)[0] % 2**31)

    return derived_seed


def test_every_environment_has_its_own_id_and_seed():
    built = [make_envs(Params({"horizon": 5}), worker, 3, 2, seeds_of(worker)) for worker in (0, 1)]
    collect = [env.user_env for envs, _ in built for env in envs]
    evaluate = [env.user_env for _, envs in built for env in envs]
    assert [env.worker for env in collect] == [0, 1, 2, 3, 4, 5]
    assert [env.worker for env in evaluate] == [100, 101, 103, 104]
    assert len({env.seed_of_ctor for env in collect + evaluate}) == 10


def test_the_first_environment_is_the_same_however_many_there_are():
    for count in (1, 4):
        envs, eval_envs = make_envs(Params({"horizon": 5}), 0, count, 1, seeds_of(0))
        assert envs[0].user_env.seed_of_ctor == seeds_of(0)(COLLECT_STREAM)
        assert [env.user_env.seed_of_ctor for env in eval_envs] == [seeds_of(0)(EVAL_STREAM)]


def test_environments_that_would_never_step_are_told(monkeypatch):
    told = []
    monkeypatch.setattr(workers.logging, "warning", lambda text, *args: told.append(text % args))
    make_envs(Params({"horizon": 5}), 0, 6, 1, seeds_of(0))
    assert len(told) == 1 and "2 of its environments have nothing to do" in told[0]
