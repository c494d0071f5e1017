"""Updates/s of SBX or Stable-Baselines3: batch 256, networks (256, 256), 28 observations, 8 actions.

    taskset -c 0,1 PEERS_PYTHON -m benchmarks.peers.updates --library sbx </dev/null

Their own `train(gradient_steps)` on a replay buffer full of random transitions, on all CPUs allowed. `ready` is
printed when the compilation is done, then, for each line of standard input, a round's rate: `{"sbx": 164.2}`.

A call of `train` does several updates, as is best for that library's speed: SBX draws their minibatches at once and
loops over them in one compiled function; Stable-Baselines3 loops in Python, where their number makes no difference.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from benchmarks.peers.learning import algorithm_class

_OBSERVATION_DIM, _NUM_ACTIONS = 28, 8
_TRANSITIONS = 100_000


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=("sbx", "sb3"), required=True)
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each begun by a line of standard input")
    parser.add_argument("--updates", type=int, default=200, help="updates of a round, at least")
    parser.add_argument("--gradient_steps", type=int, default=50, help="updates in a call of train(), at most")
    return parser.parse_args()


def make_model(library: str) -> Any:
    """A model whose replay buffer is full of random transitions."""
    import gymnasium
    import numpy as np
    from stable_baselines3.common import logger

    class Nothing(gymnasium.Env):
        """Spaces alone: no step is taken."""

        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (_OBSERVATION_DIM,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (_NUM_ACTIONS,), np.float32)

    model = algorithm_class(library, "sac")(
        "MlpPolicy",
        Nothing(),
        buffer_size=_TRANSITIONS,
        batch_size=256,
        policy_kwargs={"net_arch": [256, 256]},
        device="cpu",
        seed=0,
    )
    model.set_logger(logger.Logger(folder=None, output_formats=[]))
    random = np.random.default_rng(0)
    buffer = model.replay_buffer
    for array in (buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards):
        array[:] = random.uniform(-1.0, 1.0, array.shape)
    buffer.full = True
    return model


def measure(model: Any, updates: int, gradient_steps: int) -> float:
    """Updates/s, over at least `updates` of them."""
    calls = -(-updates // gradient_steps)
    began = time.perf_counter()
    for _ in range(calls):
        model.train(gradient_steps, 256)
    return calls * gradient_steps / (time.perf_counter() - began)


def main() -> None:
    arguments = parse_arguments()
    gradient_steps = min(arguments.gradient_steps, arguments.updates)
    model = make_model(arguments.library)
    model.train(gradient_steps, 256)
    print("ready", flush=True)
    for _ in range(arguments.rounds):
        sys.stdin.readline()
        rate = measure(model, arguments.updates, gradient_steps)
        print(json.dumps({f"{arguments.library} sac": rate}), flush=True)


if __name__ == "__main__":
    main()
