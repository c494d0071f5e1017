"""How many updates the experience asks for."""

import pytest

from tfagents_system.agents.iteration_counts import steps_of_worker, updates_due, updates_of_run, updates_per_iter
from tfagents_system.train_params_base import TrainParamsBase


@pytest.mark.parametrize(
    ("steps", "ratio", "updates"), [(7, 1, 7), (30, 0.1, 3), (29, 0.1, 2), (100, 0.29, 29), (3, 20.0, 60), (0, 1.0, 0)]
)
def test_updates_due_are_those_of_the_decimal_number(steps, ratio, updates):
    assert updates_due(steps, ratio) == updates


class Params(TrainParamsBase):
    def env_ctor(self, *args, seed=None, **kwargs):
        raise AssertionError("no environment is built here")


def made(**attributes):
    return type("TrainParams", (Params,), attributes)({"horizon": 100})


def test_an_asynchronous_iteration_has_the_updates_of_the_decimal_number():
    assert updates_per_iter(made(asynchronous=True, env_steps_per_iter=100, updates_per_env_step=0.29)) == 29
    assert updates_per_iter(made(asynchronous=True, env_steps_per_iter=3, updates_per_env_step=0.1)) == 1


@pytest.mark.parametrize(
    ("attributes", "updates"),
    [
        ({"env_steps_per_iter": 200, "num_iter": 100, "updates_per_env_step": 0.29}, 5800),
        ({"env_steps_per_iter": 200, "num_iter": 100, "env_steps_before_training": 70}, 20_000),
        # The first random experience counts as steps of the run.
        ({"env_steps_per_iter": 200, "num_iter": 10**6, "num_env_steps": 10_000}, 10_000 - 10 * 100),
        ({"env_steps_per_iter": 200, "num_iter": 10**6, "num_env_steps": 9000, "env_steps_before_training": 70}, 8930),
        ({"num_env_steps": 5000, "num_iter": 5000, "updates_per_env_step": 2}, 8000),
        # Each iteration has at least one update, or as many whole ones as its steps allow.
        ({"asynchronous": True, "env_steps_per_iter": 5, "updates_per_env_step": 0.3, "num_iter": 1000}, 1000),
        ({"asynchronous": True, "num_iter": 20, "num_steps_per_iter": 50}, 1000),
        ({"asynchronous": True, "num_iter": 9000, "num_env_steps": 3000, "updates_per_env_step": 0.5}, 1000),
        ({"num_iter": 20, "num_steps_per_iter": 50}, 1000),
        ({"num_iter": 20, "updates_per_env_step": 1}, None),
        ({"num_iter": 20, "num_steps_per_iter": 50, "prior_data": ["a"], "offline_updates": 300}, 1300),
        ({"num_iter": 20, "num_steps_per_iter": 50, "offline_updates": 300}, 1000),  # Without data there are none.
        ({"num_iter": 20, "updates_per_env_step": 1, "prior_data": ["a"], "offline_updates": 300}, None),
    ],
)
def test_updates_of_the_whole_run(attributes, updates):
    assert updates_of_run(made(**attributes)) == updates


def test_kept_steps_that_earn_no_updates_are_not_among_those_of_the_run():
    params = made(env_steps_per_iter=200, num_iter=10**6, num_env_steps=10_000)
    assert [updates_of_run(params, kept) for kept in (0, 500, 4000, 20_000)] == [9000, 9000, 6000, 0]


@pytest.mark.parametrize("workers", [1, 2, 5, 8])
@pytest.mark.parametrize("steps", [8, 9, 50, 1001])
def test_shares_of_an_iterations_steps_add_up_and_take_turns(workers: int, steps: int) -> None:
    totals = [0] * workers
    for iteration in range(2 * workers):
        shares = [steps_of_worker(worker, iteration, steps, workers) for worker in range(workers)]
        assert sum(shares) == steps and max(shares) - min(shares) <= 1
        totals = [total + share for total, share in zip(totals, shares, strict=True)]
    assert len(set(totals)) == 1, "over as many iterations as there are workers all have the same"
    assert steps_of_worker(workers + 3, 0, steps, workers) in (steps // (workers + 1), steps // (workers + 1) + 1)
