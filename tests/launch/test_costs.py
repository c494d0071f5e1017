"""How long a run takes follows from what updates and steps cost."""

from __future__ import annotations

import os
import types
from typing import Any

import pytest

from tests.support.fakes import CounterEnv, FakeParams
from tfagents_system.checks.findings import Findings
from tfagents_system.launch import costs
from tfagents_system.launch import environment_checks as checks_module
from tfagents_system.launch.costs import Cost, Costs, foretell
from tfagents_system.launch.cpus import plan_cpus
from tfagents_system.machine.cpus import allowed_cpus, cores_of

SLOW_UPDATES = Costs(Cost(0.01, 0.02), Cost(0.001, 0.001), steps_per_episode=100.0)
SLOW_STEPS = Costs(Cost(0.001, 0.002), Cost(0.02, 0.02), steps_per_episode=100.0)


def params(**attributes: Any) -> Any:
    values = {
        "asynchronous": False,
        "max_policy_lag": 1,
        "num_iter": 10,
        "updates_per_iter": 200,
        "num_train_episodes_per_iter": 1,
        "num_initial_episodes": 0,
        "updates_per_env_step": None,
        "env_steps_per_iter": None,
        "initial_collect_steps": None,
        "num_env_steps": None,
        "eval_period_env_steps": None,
        "num_eval_episodes": 2,
        "eval_period_iters": 10,
        "prior_data": None,
        "offline_updates": 0,
    }
    return types.SimpleNamespace(**(values | attributes))


def test_the_slower_of_updates_and_collecting_decides() -> None:
    trained = foretell(params(), SLOW_UPDATES, workers=2, cpus=None)
    assert trained.train_secs == pytest.approx(200 * 0.01) and trained.collect_secs == pytest.approx(100 * 0.001)
    assert trained.iteration_secs == pytest.approx(2.0)
    collected = foretell(params(), SLOW_STEPS, workers=2, cpus=None)
    assert collected.iteration_secs == pytest.approx(100 * 0.02)
    # Two evaluations, of an episode of 2 s in each worker, with nothing to hide behind.
    assert collected.evaluation_secs == pytest.approx(2 * 2.0)
    assert collected.secs == pytest.approx(costs.START_SECS + 10 * 2.0 + 4.0)


def test_updates_hide_evaluations_that_are_shorter() -> None:
    assert foretell(params(), SLOW_UPDATES, workers=2, cpus=None).evaluation_secs == 0.0
    long = foretell(params(num_eval_episodes=200), SLOW_UPDATES, workers=2, cpus=None)
    assert long.evaluation_secs == pytest.approx(2 * (100 * 100 * 0.001 - (2.0 - 0.1)))


def test_evaluations_beside_training_add_the_last_one_alone() -> None:
    beside = foretell(params(num_eval_episodes=6, eval_period_iters=1), SLOW_STEPS, 2, None, eval_workers=3)
    assert beside.iteration_secs == pytest.approx(2.0) and beside.evaluation_secs == pytest.approx(2 * 2.0)
    assert foretell(params(num_eval_episodes=0), SLOW_STEPS, 2, None).evaluation_secs == 0.0


def test_shared_cpus_do_the_work_of_all() -> None:
    shared = foretell(params(), SLOW_UPDATES, workers=2, cpus=1)
    assert shared.iteration_secs == pytest.approx(200 * (0.02 + 4e-4) + 200 * (0.001 + 2e-6))
    assert foretell(params(), SLOW_UPDATES, workers=2, cpus=8).iteration_secs == pytest.approx(2.0)


@pytest.mark.parametrize(("attributes", "takes_turns"), [({"max_policy_lag": 0}, False), ({}, True)])
def test_without_overlap_both_times_add_up(attributes: dict[str, Any], takes_turns: bool) -> None:
    duration = foretell(params(**attributes), SLOW_STEPS, 2, None, takes_turns=takes_turns)
    assert duration.iteration_secs == pytest.approx(200 * 0.001 + 100 * 0.02)


def test_ratios_say_how_many_updates_or_steps_an_iteration_has() -> None:
    more = foretell(params(updates_per_env_step=3.0), SLOW_UPDATES, workers=2, cpus=None)
    assert more.train_secs == pytest.approx(600 * 0.01)
    freely = foretell(params(asynchronous=True, updates_per_env_step=0.5), SLOW_STEPS, workers=4, cpus=None)
    assert freely.train_secs == pytest.approx(200 * 0.001) and freely.collect_secs == pytest.approx(400 * 0.02 / 4)


def test_offline_updates_come_first_beside_the_random_experience() -> None:
    secs = foretell(params(), SLOW_UPDATES, 2, None).secs
    offline = {"prior_data": ["demonstrations"], "offline_updates": 20_000}
    assert foretell(params(**offline), SLOW_UPDATES, 2, None).secs == pytest.approx(secs + 20_000 * 0.01)
    assert foretell(params(offline_updates=20_000), SLOW_UPDATES, 2, None).secs == secs, "there are no data"
    # 1000 random steps of two workers take 0.5 s, hidden behind the updates unless roles take turns or share a CPU.
    first = {**offline, "num_initial_episodes": 10}
    assert foretell(params(**first), SLOW_UPDATES, 2, None).secs == pytest.approx(secs + 200.0)
    turns = [foretell(params(**each), SLOW_UPDATES, 2, None, takes_turns=True).secs for each in ({}, first)]
    assert turns[1] - turns[0] == pytest.approx(200.5)
    shared = [foretell(params(**each), SLOW_UPDATES, 2, 1).secs for each in ({}, first)]
    assert shared[1] - shared[0] == pytest.approx(20_000 * (0.02 + 4e-4) + 1000 * (0.001 + 2e-6))


def test_words_say_how_long_and_who_waits() -> None:
    facts = costs.duration_in_words(foretell(params(num_iter=1000), SLOW_UPDATES, 2, 2), SLOW_UPDATES, 2)
    assert facts[0] == "about 36 min for 1000 iterations of 2.1 s"
    assert "100 updates/s" in facts and "workers wait for the trainer 95% of the time" in facts
    assert facts[-1] == "roles share 2 CPUs (SAC_SHARE_CPUS=1)"
    facts = costs.duration_in_words(foretell(params(), SLOW_STEPS, 2, None), SLOW_STEPS, None)
    assert "the trainer waits for the workers 90% of the time" in facts
    assert "evaluations take 11% of it" in facts


def test_a_check_measures_and_leaves_cpus_and_sizes_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_module, "_MEASURING_SECS", 0.05)
    here = os.sched_getaffinity(0)
    seen: list[set[int]] = []

    class Watched(CounterEnv):
        def step(self, action: Any) -> Any:
            seen.append(os.sched_getaffinity(0))
            return super().step(action)

    kind = type(
        "TrainParams",
        (FakeParams,),
        {"env_ctor": lambda self, *args, seed=None, **kwargs: Watched(), "compute_config": {}},
    )
    plan = plan_cpus(
        reverb_cpus=1,
        train_cpus=1,
        num_collect_workers=1,
        collect_worker_cpus=1,
        cores=cores_of(allowed_cpus()),
        share=True,
    )
    plain = checks_module.EnvironmentTrial(kind({"horizon": 10}), 0, Findings()).run()
    checks = Findings()
    measured = checks_module.EnvironmentTrial(kind({"horizon": 10}), 0, checks, plan=plan).run()
    assert plain is not None and measured is not None
    assert checks.errors == []
    assert checks.texts("ok", "duration")[0].startswith("about ")
    assert any("in episodes of 10" in fact for fact in checks.texts("ok", "duration"))
    assert set(plan.workers[0]) in seen and os.sched_getaffinity(0) == here
    assert (plain.agent_bytes, plain.policy_bytes) == (measured.agent_bytes, measured.policy_bytes)
    assert plain.signature == measured.signature


def test_iterations_of_steps_cost_what_their_steps_and_updates_cost() -> None:
    steps = foretell(params(env_steps_per_iter=50), SLOW_UPDATES, workers=2, cpus=None)
    assert steps.train_secs == pytest.approx(50 * 0.01), "an update a step"
    few = foretell(params(env_steps_per_iter=50, updates_per_env_step=0.5), SLOW_STEPS, workers=2, cpus=None)
    assert few.train_secs == pytest.approx(25 * 0.001) and few.collect_secs == pytest.approx(50 * 0.02 / 2)
