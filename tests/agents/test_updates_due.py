"""How many updates the experience asks for."""

import pytest

from tfagents_system.agents.iteration_counts import steps_of_worker, updates_due, updates_of_iteration
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
    assert updates_of_iteration(made(asynchronous=True, env_steps_per_iter=100, updates_per_env_step=0.29)) == 29
    assert updates_of_iteration(made(asynchronous=True, env_steps_per_iter=3, updates_per_env_step=0.1)) == 1


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
