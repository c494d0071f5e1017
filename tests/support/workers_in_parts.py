"""Parts of workers, without their processes and servers."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.support.fakes import FakeParams
from tests.support.settings_for_tests import variables_with
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.role import Role
from tfagents_system.worker.episode_runner import Activity, EpisodeRunner
from tfagents_system.worker.newest_policy import BackPressure
from tfagents_system.worker.worker import Worker
from tfagents_system.workers import WorkerEnvironments


def runner_of(
    params: Any, policy: Any, worker_id: int = 0, envs: int = 1, eval_envs: int = 1, start: int = 0, **attributes: Any
) -> tuple[Any, EpisodeRunner]:
    """What runs a worker's episodes, and its role, which may have further attributes. It never hangs nor stops."""
    never = SimpleNamespace(is_set=lambda: False)
    variables = variables_with(seed=0)
    defaults = {"deterministic": False, "variables": variables, "name": f"worker_{worker_id}", "stop": never}
    role: Any = SimpleNamespace(params=params, worker_id=worker_id, **{**defaults, **attributes})
    role.derived_seed = functools.partial(Role.derived_seed, role)
    environments = WorkerEnvironments(
        params,
        worker_id,
        envs,
        eval_envs,
        lambda stream, *further: role.derived_seed(stream, worker_id, start, *further),
        Curriculum.from_config(params.env_config),
    )
    heartbeat: Any = SimpleNamespace(beat=lambda *args, **fields: None)
    guard: Any = SimpleNamespace(stepping=lambda envs: None, stopped_stepping=lambda: None)
    activity = Activity(heartbeat, worker_id, lambda state: {})
    return role, EpisodeRunner(role, environments, guard, activity, np.random.default_rng(start), policy)


def bare_worker(did: list[str] | None = None, **parts: Any) -> Any:
    """A worker's loop, which writes down what it does.

    Args:
      did: Where.
      parts: Attributes of the worker.
    """
    notes = [] if did is None else did

    def note(what: str) -> Any:
        return lambda *args, **kwargs: notes.append(what)

    worker: Any = Worker.__new__(Worker)
    worker._params = FakeParams({})
    worker._role = SimpleNamespace(deterministic=False, joined=None, stop=SimpleNamespace(is_set=lambda: False))
    worker._is_stopped = lambda: False
    worker._connection = SimpleNamespace(address="server")
    worker._runner = SimpleNamespace(rest=note("rest"))
    worker._guard = SimpleNamespace(stopped_stepping=lambda: None)
    worker._sender = SimpleNamespace(flush=note("flush"))
    worker._activity = SimpleNamespace(beat=note("beat"), steps=0, spend=nullcontext)
    worker._environments = SimpleNamespace(close=note("close"))
    worker._collector = SimpleNamespace(confirm=lambda: None)
    worker._evaluate_if_due = note("evaluate")
    worker._back_pressure = BackPressure(worker._params)
    vars(worker).update(parts)
    return worker
