"""How long a run takes on this machine: foretold from what its updates and steps cost.

These are measured with the roles' own parts: the compiled update of a block, and a worker's loop without the server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tfagents_system.agents.iteration_counts import offline_updates, ratio_of_run, updates_of_iteration

# CPU of the replay server: per minibatch drawn and sent, and per step stored; measured by benchmarks/replay.py.
REPLAY_SECS_A_MINIBATCH, REPLAY_SECS_A_STEP = 4e-4, 2e-6
START_SECS = 12.0  # From the command to the first updates; measured by benchmarks/startup.py.
_MINIBATCHES = 20


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one update, or of one environment step in a worker.

    Attributes:
      secs: Wall time.
      cpu_secs: CPU time; waiting for a device takes none.
    """

    secs: float
    cpu_secs: float


@dataclasses.dataclass(frozen=True)
class Costs:
    """Measured costs.

    Attributes:
      update, step: An update of the trainer, and an environment step of one worker.
      steps_per_episode: On average.
    """

    update: Cost
    step: Cost
    steps_per_episode: float


def updates_per_step(params: Any, workers: int, steps_per_episode: float) -> float:
    """Updates per environment step of a run with `workers` workers, by its parameters."""
    if (ratio := ratio_of_run(params)) is not None:
        return ratio
    return float(params.updates_per_iter / (params.num_train_episodes_per_iter * workers * steps_per_episode))


def periods(params: Any, kind: str, iterations: int, steps: float) -> float:
    """How often a period of evaluations or checkpoints (`eval`, `checkpoint`) passes."""
    period_steps = getattr(params, f"{kind}_period_env_steps")
    return float(iterations / getattr(params, f"{kind}_period_iters") if period_steps is None else steps / period_steps)


def iteration_secs(
    costs: Costs, steps: float, updates: float, workers: int, cpus: int | None, *, takes_turns: bool = False
) -> float:
    """How long an iteration takes, without evaluations.

    Collecting overlaps the updates of the iteration before (docs/explanations/architecture.md, An iteration).

    Args:
      costs: As measured.
      steps, updates: Environment steps of all workers, and updates.
      workers: How many collect.
      cpus: CPUs that do the work of all roles, if they share them; None if each has its own.
      takes_turns: Collecting and updates never overlap.
    """
    train, collect = updates * costs.update.secs, steps * costs.step.secs / workers
    replay = updates * REPLAY_SECS_A_MINIBATCH + steps * REPLAY_SECS_A_STEP
    work = updates * costs.update.cpu_secs + steps * costs.step.cpu_secs + replay
    alone = train + collect if takes_turns else max(train, collect, replay)
    return alone if cpus is None else max(alone, work / cpus)


def foretell(
    params: Any, costs: Costs, workers: int, cpus: int | None, *, takes_turns: bool = False, eval_workers: int = 0
) -> list[str]:
    """What a user learns about a run before it starts: how long it takes, and who waits for whom.

    A worker evaluates after its iteration, while the trainer has one iteration's updates to do. Workers that only
    evaluate do so beside that: the run waits for the last evaluation.

    Args:
      params: The run's.
      costs, workers, cpus: See `iteration_secs`.
      takes_turns: Collecting and updates never overlap, as with SAC_DETERMINISTIC=1.
      eval_workers: How many only evaluate.
    """
    ratio = updates_per_step(params, workers, costs.steps_per_episode)
    steps = params.env_steps_per_iter or params.num_train_episodes_per_iter * workers * costs.steps_per_episode
    if params.asynchronous:
        steps = (updates_of_iteration(params) or 0) / ratio
    turns = takes_turns or params.max_policy_lag == 0
    iteration = iteration_secs(costs, steps, steps * ratio, workers, cpus, takes_turns=turns)
    train, collect = steps * ratio * costs.update.secs, steps * costs.step.secs / workers
    iterations = params.num_iter
    if params.num_env_steps is not None:
        iterations = min(iterations, math.ceil(params.num_env_steps / steps))
    episodes = math.ceil(params.num_eval_episodes / (eval_workers or workers))
    evaluations = episodes * costs.steps_per_episode * costs.step.secs
    if not eval_workers:
        count = 1 + math.ceil(periods(params, "eval", iterations, iterations * steps))
        evaluations = count * max(0.0, evaluations - max(0.0, iteration - collect))
    secs = START_SECS + offline_updates(params) * costs.update.secs + iterations * iteration + evaluations
    waits = "the trainer waits for the workers" if train < collect else "workers wait for the trainer"
    idle = 1 - min(train, collect) / max(train, collect, 1e-9)
    busy = max(1, math.ceil(costs.step.secs / max(ratio * costs.update.secs, 1e-9)))
    return [
        f"about {_time(secs)} for {iterations} iterations of {_time(iteration)}",
        f"{1 / costs.update.secs:,.0f} updates/s",
        f"{1 / costs.step.secs:,.0f} steps/s of a worker with its policy, in episodes of {costs.steps_per_episode:.0f}",
        f"{waits} {idle:.0%} of the time",
        f"{busy} worker{'' if busy == 1 else 's'} would keep the trainer busy at {ratio:.3g} updates per step",
    ]


def _time(secs: float) -> str:
    if secs < 120:
        return f"{secs:.2g} s" if secs < 10 else f"{secs:.0f} s"
    return f"{secs / 60:.{int(secs < 600)}f} min" if secs < 7200 else f"{secs / 3600:.1f} h"


# Measuring.


def time_updates(params: Any, agent: Any, secs: float, seed: int) -> Cost:
    """Updates on random minibatches of the environment's shapes, for `secs`; the agent learns nonsense."""
    import numpy as np

    from tfagents_system.agents.block_update import choose_precision, make_block_update

    update = make_block_update(params, agent, choose_precision(params.matmul_precision)[0])
    rng = np.random.default_rng(seed)
    one = [  # Weights of steps are not negative.
        rng.random((1, *spec.shape[1:]), np.float32).astype(spec.dtype.as_numpy_dtype) for spec in update.block_spec
    ]
    update(one)  # The first takes longer.
    began = time.perf_counter()
    update(one)
    count = max(1, min(_MINIBATCHES, int(0.2 * secs / (time.perf_counter() - began))))
    block = [np.repeat(array, count, axis=0) for array in one]
    updates, clock = 0, _Clock()
    while clock.secs < secs:
        update(block)
        updates += count
    return clock.cost(updates)


class _TimeIsUp(Exception):
    """Ends a measurement in the middle of an episode."""


def time_steps(params: Any, agent: Any, envs: Sequence[Any], secs: float, seed: int) -> tuple[Cost, float | None]:
    """Steps of a worker's whole path without the server, for `secs`.

    Returns:
      What a step costs, and the mean number of steps of an episode; None if none has ended.
    """
    from tfagents_system.policies.worker_policy import make_worker_policy
    from tfagents_system.transport.segments import run_layout
    from tfagents_system.worker.actors import PolicyActor
    from tfagents_system.worker.rollout import Rollout, SegmentBuilder

    for env in envs:
        env.reset()  # Some simulators load their model now.
    lanes = sum(env.num_lanes for env in envs)
    actor = PolicyActor(
        make_worker_policy(agent, seed, lanes, params.frame_stack, params.actor_observations), greedy=False
    )
    layout = run_layout(params, envs[0].observation_spec(), envs[0].action_spec())
    steps, lengths = 0, []

    def on_step(count: int) -> None:
        nonlocal steps
        steps += count
        if clock.secs > secs:
            raise _TimeIsUp

    clock = _Clock()
    with contextlib.suppress(_TimeIsUp):
        Rollout(
            envs,
            actor,
            new_builder=lambda: SegmentBuilder(layout, layout.max_segment_steps(None), lambda segment: None),
            on_step=on_step,
            on_episode=lambda episode: lengths.append(episode.length),
        ).episodes(sys.maxsize)
    return clock.cost(steps), sum(lengths) / len(lengths) if lengths else None


class _Clock:
    """Time and CPU time since it was made."""

    def __init__(self) -> None:
        self._began, self._cpu_began = time.perf_counter(), time.process_time()

    @property
    def secs(self) -> float:
        return time.perf_counter() - self._began

    def cost(self, count: int) -> Cost:
        """The cost of each of `count`."""
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
