"""How long a run takes follows from what updates and steps cost."""

from __future__ import annotations

import os
import types
from typing import Any

import pytest

from tests.support.fakes import CounterEnv, FakeParams
from tfagents_system.checks.findings import Findings
from tfagents_system.launch import environment_checks as checks_module
from tfagents_system.launch.costs import Cost, Costs, foretell
from tfagents_system.launch.cpus import plan_for
from tfagents_system.machine.cpus import Usable

SLOW_UPDATES = Costs(Cost(0.01, 0.02), Cost(0.001, 0.001), steps_per_episode=100.0)
SLOW_STEPS = Costs(Cost(0.001, 0.002), Cost(0.02, 0.02), steps_per_episode=100.0)


def params(**attributes: Any) -> Any:
    values = {
        "asynchronous": False,
        "max_policy_lag": 1,
        "num_iter": 10,
        "updates_per_iter": 200,
        "num_train_episodes_per_iter": 1,
        "updates_per_env_step": None,
        "env_steps_per_iter": None,
        "num_env_steps": None,
        "eval_period_env_steps": None,
        "num_eval_episodes": 2,
        "eval_period_iters": 10,
        "prior_data": None,
        "offline_updates": 0,
        "initial_collect_steps": None,
        "num_initial_episodes": 0,
    }
    return types.SimpleNamespace(**(values | attributes))


def told(
    costs: Costs, cpus: int | None = None, takes_turns: bool = False, eval_workers: int = 0, **attributes: Any
) -> str:
    """The first fact, of a run of a thousand iterations with two workers."""
    return foretell(params(num_iter=1000, **attributes), costs, 2, cpus, takes_turns, eval_workers)[0]


@pytest.mark.parametrize(
    ("costs", "attributes", "fact"),
    [
        (SLOW_UPDATES, {}, "about 34 min for 1000 iterations of 2 s"),
        (SLOW_STEPS, {"num_eval_episodes": 0}, "about 34 min for 1000 iterations of 2 s"),
        (SLOW_STEPS, {"max_policy_lag": 0, "num_eval_episodes": 0}, "about 37 min for 1000 iterations of 2.2 s"),
        (SLOW_STEPS, {"takes_turns": True, "num_eval_episodes": 0}, "about 37 min for 1000 iterations of 2.2 s"),
        # 200 (0.02 + 0.001) s of CPU time, and 0.08 s of the replay server's, on one or on many CPUs.
        (SLOW_UPDATES, {"cpus": 1}, "about 72 min for 1000 iterations of 4.3 s"),
        (SLOW_UPDATES, {"cpus": 8}, "about 34 min for 1000 iterations of 2 s"),
        # 101 evaluations of 2 s; beside the run the last one alone counts; long updates hide theirs.
        (SLOW_STEPS, {}, "about 37 min for 1000 iterations of 2 s"),
        (SLOW_STEPS, {"eval_workers": 2, "eval_period_iters": 1}, "about 34 min for 1000 iterations of 2 s"),
        (SLOW_UPDATES, {"updates_per_env_step": 3.0}, "about 100 min for 1000 iterations of 6 s"),
        (SLOW_UPDATES, {"env_steps_per_iter": 50}, "about 8.5 min for 1000 iterations of 0.5 s"),
        (SLOW_UPDATES, {"num_env_steps": 20_000}, "about 3.5 min for 100 iterations of 2 s"),
        # 9,000 random steps, of two workers, are not of these iterations.
        (SLOW_UPDATES, {"num_env_steps": 19000, "initial_collect_steps": 9000}, "about 116 s for 50 iterations of 2 s"),
        (SLOW_UPDATES, {"num_env_steps": 19000, "num_initial_episodes": 90}, "about 116 s for 50 iterations of 2 s"),
        (SLOW_STEPS, {"asynchronous": True, "updates_per_env_step": 0.5}, "about 70 min for 1000 iterations of 4 s"),
        (SLOW_UPDATES, {"prior_data": ["demos"], "offline_updates": 60_000}, "about 44 min for 1000 iterations of 2 s"),
    ],
)
def test_a_run_takes_its_iterations_and_the_evaluations_that_nothing_hides(
    costs: Costs, attributes: dict[str, Any], fact: str
) -> None:
    assert told(costs, **attributes) == fact


def test_words_say_who_waits_and_how_many_workers_the_trainer_needs() -> None:
    facts = foretell(params(), SLOW_UPDATES, 2, 2)
    assert "100 updates/s" in facts and "workers wait for the trainer 95% of the time" in facts
    assert facts[-1] == "1 worker would keep the trainer busy at 1 updates per step"
    facts = foretell(params(updates_per_env_step=2.0), SLOW_STEPS, 2, None)
    assert "the trainer waits for the workers 80% of the time" in facts
    assert facts[-1] == "10 workers would keep the trainer busy at 2 updates per step"


def test_a_check_measures_on_the_plans_cpus_and_leaves_them_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_module, "_MEASURING_SECS", 0.05)
    here = os.sched_getaffinity(0)
    seen: list[set[int]] = []

    class Watched(CounterEnv):
        def step(self, action: Any) -> Any:
            seen.append(os.sched_getaffinity(0))
            return super().step(action)

    hooks = {"env_ctor": lambda self, *args, seed=None, **kwargs: Watched(), "compute_config": {}}
    kind = type("TrainParams", (FakeParams,), hooks)
    sizes: dict[str, Any] = {"reverb_cpus": 1, "train_cpus": 1, "num_collect_workers": 1, "collect_worker_cpus": 1}
    plan = plan_for({**sizes, "share_cpus": True}, usable=Usable.here({}))
    checks = Findings()
    measured = checks_module.EnvironmentTrial(kind({"horizon": 10}), 0, checks, plan=plan).run()
    assert measured is not None and checks.errors == []
    assert checks.texts("ok", "duration")[0].startswith("about ")
    assert any("in episodes of 10" in fact for fact in checks.texts("ok", "duration"))
    assert set(plan.workers[0]) in seen and os.sched_getaffinity(0) == here
