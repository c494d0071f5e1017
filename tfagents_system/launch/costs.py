"""How long a run takes on this machine: foretold from what its updates and steps cost.

These are measured with the roles' own parts: the compiled update of a block, and a worker's loop without the server.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfagents_system.agents.block_update import choose_precision, make_block_update
from tfagents_system.agents.iteration_counts import offline_updates, random_count, ratio_of_run, updates_of_iteration
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.policies.worker_policy import make_worker_policy
from tfagents_system.transport.segments import run_layout
from tfagents_system.worker.actors import Actor, PolicyActor
from tfagents_system.worker.rollout import Rollout, SegmentBuilder

# CPU of the replay server: per minibatch drawn and sent, and per step stored; measured by benchmarks/replay.py.
_REPLAY_SECS_A_MINIBATCH, _REPLAY_SECS_A_STEP = 4e-4, 2e-6
_START_SECS = 12.0  # From the command to the first updates; measured by benchmarks/startup.py.
_MINIBATCHES = 20


class Cost(NamedTuple):
    """Wall time and CPU time of one update, or of one environment step in a worker; waiting for a device takes none."""

    secs: float
    cpu_secs: float


class Costs(NamedTuple):
    """Measured costs: of an update of the trainer, of a step of one worker; and steps of an episode, on average."""

    update: Cost
    step: Cost
    steps_per_episode: float


def periods(params: Any, kind: str, iterations: int, steps: float) -> float:
    """How often a period of evaluations or checkpoints (`eval`, `checkpoint`) passes."""
    period_steps = getattr(params, f"{kind}_period_env_steps")
    return float(iterations / getattr(params, f"{kind}_period_iters") if period_steps is None else steps / period_steps)


def foretell(
    params: Any, costs: Costs, workers: int, cpus: int | None, takes_turns: bool = False, eval_workers: int = 0
) -> list[str]:
    """What a user learns about a run before it starts: how long it takes, and who waits for whom.

    Collecting overlaps the updates of the iteration before (docs/explanations/architecture.md, An iteration). A worker
    evaluates after its iteration, while the trainer has one iteration's updates to do. Workers that only evaluate do so
    beside that: the run waits for the last evaluation.

    Args:
      workers, eval_workers: How many collect, and only evaluate.
      cpus: CPUs that do the work of all roles, if they share them; None if each has its own.
      takes_turns: Collecting and updates never overlap, as with SAC_DETERMINISTIC=1.
    """
    update, step, steps_per_episode = costs
    steps = params.env_steps_per_iter or params.num_train_episodes_per_iter * workers * steps_per_episode
    if (ratio := ratio_of_run(params)) is None:
        ratio = params.updates_per_iter / (params.num_train_episodes_per_iter * workers * steps_per_episode)
    if params.asynchronous:
        steps = (updates_of_iteration(params) or 0) / ratio
    updates = steps * ratio
    train, collect = updates * update.secs, steps * step.secs / workers
    replay = updates * _REPLAY_SECS_A_MINIBATCH + steps * _REPLAY_SECS_A_STEP
    iteration = train + collect if takes_turns or params.max_policy_lag == 0 else max(train, collect, replay)
    if cpus is not None:
        iteration = max(iteration, (updates * update.cpu_secs + steps * step.cpu_secs + replay) / cpus)
    iterations = params.num_iter
    at_random = random_count(params) * (steps_per_episode if params.initial_collect_steps is None else 1)
    if params.num_env_steps is not None:
        iterations = min(iterations, math.ceil(max(0.0, params.num_env_steps - at_random) / steps))
    evaluations = math.ceil(params.num_eval_episodes / (eval_workers or workers)) * steps_per_episode * step.secs
    if not eval_workers:
        count = 1 + math.ceil(periods(params, "eval", iterations, iterations * steps))
        evaluations = count * max(0.0, evaluations - max(0.0, iteration - collect))
    before_secs = _START_SECS + at_random * step.secs / workers + offline_updates(params) * update.secs
    secs = before_secs + iterations * iteration + evaluations
    waits = "the trainer waits for the workers" if train < collect else "workers wait for the trainer"
    idle = 1 - min(train, collect) / max(train, collect, 1e-9)
    busy = max(1, math.ceil(step.secs / max(ratio * update.secs, 1e-9)))
    return [
        f"about {_time(secs)} for {iterations} iterations of {_time(iteration)}",
        f"{1 / update.secs:,.0f} updates/s",
        f"{1 / step.secs:,.0f} steps/s of a worker with its policy, in episodes of {steps_per_episode:.0f}",
        f"{waits} {idle:.0%} of the time",
        f"{busy} worker{'' if busy == 1 else 's'} would keep the trainer busy at {ratio:.3g} updates per step",
    ]


def _time(secs: float) -> str:
    if secs < 120:
        return f"{secs:.2g} s" if secs < 10 else f"{secs:.0f} s"
    return f"{secs / 60:.{int(secs < 600)}f} min" if secs < 7200 else f"{secs / 3600:.1f} h"


# Measuring.


def time_updates(params: Any, agent: Any, secs: float, seed: int, *, deterministic: bool = False) -> Cost:
    """Updates on random minibatches of the environment's shapes, for `secs`; the agent learns nonsense."""
    precision, _ = choose_precision(params.matmul_precision)
    update = make_block_update(params, agent, precision, deterministic=deterministic)
    rng = np.random.default_rng(seed)
    one = [  # Weights of steps are not negative.
        rng.random((1, *spec.shape[1:]), np.float32).astype(spec.dtype.as_numpy_dtype) for spec in update.block_spec
    ]
    update(one)  # The first takes longer.
    clock = _Clock()
    update(one)
    count = max(1, min(_MINIBATCHES, int(0.2 * secs / clock.secs)))
    block = [np.repeat(array, count, axis=0) for array in one]
    updates, clock = 0, _Clock()
    while clock.secs < secs:
        update(block)
        updates += count
    return clock.cost(updates)


def time_steps(params: Any, agent: Any, env: TrainingEnvironment, secs: float, seed: int) -> tuple[Cost, list[int]]:
    """Steps of a worker's whole path without the server, for `secs`; returns what `run_lanes` does."""
    env.reset()  # Some simulators load their model now.
    policy = make_worker_policy(agent, seed, env.num_lanes, params.frame_stack, params.actor_observations)
    layout = run_layout(params, env.observation_spec(), env.action_spec())
    most = layout.max_segment_steps(None)
    return run_lanes(env, PolicyActor(policy), secs, new_builder=lambda: SegmentBuilder(layout, most, lambda _: None))


class _TimeIsUp(Exception):
    """Ends episodes in the middle."""


def run_lanes(
    env: TrainingEnvironment, actor: Actor, secs: float, episodes: int = sys.maxsize, **options: Any
) -> tuple[Cost, list[int]]:
    """Runs so many episodes, for `secs` at most; returns what a step costs, and the lengths of those that have ended.

    Args:
      **options: As of Rollout.

    Raises:
      EnvironmentFault: The environment has failed.
    """
    steps, lengths, clock = 0, list[int](), _Clock()

    def on_step(count: int) -> None:
        nonlocal steps
        steps += count
        if clock.secs > secs:
            raise _TimeIsUp

    with contextlib.suppress(_TimeIsUp):
        options["on_episode"] = lambda episode: lengths.append(episode.length)
        Rollout([env], actor, on_step=on_step, **options).episodes(episodes)
    return clock.cost(steps), lengths


class _Clock:
    """Time and CPU time since it was made."""

    def __init__(self) -> None:
        self._began, self._cpu_began = time.perf_counter(), time.process_time()

    @property
    def secs(self) -> float:
        return time.perf_counter() - self._began

    def cost(self, count: int) -> Cost:
        return Cost(self.secs / count, (time.process_time() - self._cpu_began) / count)


@contextlib.contextmanager
def on_cpus(cpus: Sequence[int]) -> Iterator[None]:
    """Moves all threads of this process to these CPUs; without any, or if that fails, they stay as they were."""
    before = os.sched_getaffinity(0)
    _pin(cpus or before)
    try:
        yield
    finally:
        _pin(before)


def _pin(cpus: Sequence[int] | set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # It has just ended.
            os.sched_setaffinity(int(thread), cpus)
