"""Updates/s of SAC in SBX or Stable-Baselines3: batch 256, networks (256, 256), 28 observations, 8 actions.

    PEERS_PYTHON benchmarks/peers/updates.py --library sbx --seconds 10 --threads 2

Their own `train(gradient_steps)` on a replay buffer full of random transitions, after its compilation. Each call does
as many updates as is best for that library's speed: SBX draws the minibatches of a call at once and loops over them in
one compiled function, Stable-Baselines3 loops in Python, where the number makes no difference.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

_OBSERVATION_DIM, _ACTION_DIM = 28, 8
_TRANSITIONS = 100_000
_GRADIENT_STEPS = {"sbx": 50, "sb3": 50}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=("sbx", "sb3"), required=True)
    parser.add_argument("--seconds", type=float, default=10.0, help="time to measure, after the compilation")
    parser.add_argument("--threads", type=int, default=1, help="CPUs: the first ones of those that are allowed")
    parser.add_argument("--gradient_steps", type=int, help="updates in a call of train()")
    return parser.parse_args()


def make_model(library: str, threads: int) -> Any:
    """A model whose replay buffer is full of random transitions."""
    import gymnasium
    import numpy as np
    from stable_baselines3.common import logger

    class Nothing(gymnasium.Env):
        """Spaces alone: no step is taken."""

        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (_OBSERVATION_DIM,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (_ACTION_DIM,), np.float32)

    if library == "sbx":
        from sbx import SAC
    else:
        import torch
        from stable_baselines3 import SAC

        torch.set_num_threads(threads)
    model = SAC(
        "MlpPolicy",
        Nothing(),
        buffer_size=_TRANSITIONS,
        batch_size=256,
        policy_kwargs={"net_arch": [256, 256]},
        device="cpu",
        seed=0,
    )
    model.set_logger(logger.configure(format_strings=[]))
    random = np.random.default_rng(0)
    buffer = model.replay_buffer
    for array in (buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards):
        array[:] = random.uniform(-1.0, 1.0, array.shape)
    buffer.full = True
    return model


def measure(model: Any, seconds: float, gradient_steps: int) -> float:
    """Updates/s, over at least `seconds`."""
    model.train(gradient_steps, 256)
    updates, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        model.train(gradient_steps, 256)
        updates += gradient_steps
    return updates / elapsed


def main() -> None:
    arguments = parse_arguments()
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < arguments.threads:
        raise SystemExit(f"error: --threads {arguments.threads} needs as many CPUs, {len(cpus)} are allowed: lower it")
    # Before JAX is imported: the size of its thread pool follows from it.
    os.sched_setaffinity(0, cpus[: arguments.threads])
    gradient_steps = arguments.gradient_steps or _GRADIENT_STEPS[arguments.library]
    updates_per_s = measure(make_model(arguments.library, arguments.threads), arguments.seconds, gradient_steps)
    result = {
        "library": arguments.library,
        "threads": arguments.threads,
        "gradient_steps": gradient_steps,
        "updates_per_s": updates_per_s,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
