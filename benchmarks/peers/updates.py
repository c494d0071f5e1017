"""Updates/s of SBX, Stable-Baselines3 or RLtools: batch 256, networks (256, 256), 28 observations, 8 actions.

    taskset -c 0,1 PEERS_PYTHON -m benchmarks.peers.updates --library sbx </dev/null

Their own `train(gradient_steps)` on a replay buffer full of random transitions, on all CPUs allowed. `ready` is
printed when the compilation is done, then, for each line of standard input, a round's rate: `{"sbx": 164.2}`.

A call of `train` does several updates, as is best for that library's speed: SBX draws their minibatches at once and
loops over them in one compiled function; Stable-Baselines3 loops in Python, where their number makes no difference.

`--small`: batch 100, networks (64, 64), 3 observations, 1 action, the only size for RLtools, which g++ compiles with
MKL for it. RLtools has no call of updates alone: each is with a step of an environment that does nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from benchmarks.peers.learning import algorithm_class
from benchmarks.update import SMALL, USUAL, Size

_TRANSITIONS = 100_000


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=("sbx", "sb3", "rltools"), required=True)
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each begun by a line of standard input")
    parser.add_argument("--updates", type=int, default=200, help="updates of a round, at least")
    parser.add_argument("--gradient_steps", type=int, default=50, help="updates in a call of train(), at most")
    parser.add_argument("--small", action="store_true")
    return parser.parse_args()


def nothing(size: Size) -> Any:
    """An environment of these spaces in which nothing happens."""
    import gymnasium
    import numpy as np

    class Nothing(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (size.observation,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (size.action,), np.float32)
        spec: Any = types.SimpleNamespace(max_episode_steps=200)  # RLtools reads it.
        zeros = np.zeros(size.observation, np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.zeros, {}

        def step(self, action: Any) -> Any:
            return self.zeros, 0.0, False, False, {}

    return Nothing()


def rltools_updates() -> Callable[[int], None]:
    """RLtools' steps; its networks have 64 units by default, and its minibatches 100 samples."""
    from rltools import SAC

    state = SAC(lambda: nothing(SMALL), enable_evaluation=False, STEP_LIMIT=_TRANSITIONS).State(0)

    def run(count: int) -> None:
        for _ in range(count):
            state.step()

    run(200)  # It begins to learn when there are 100 transitions.
    return run


def stable_baselines_updates(library: str, size: Size, gradient_steps: int) -> Callable[[int], None]:
    """`train` of a model whose replay buffer is full of random transitions."""
    import numpy as np
    from stable_baselines3.common import logger

    model = algorithm_class(library, "sac")(
        "MlpPolicy",
        nothing(size),
        buffer_size=_TRANSITIONS,
        batch_size=size.batch,
        policy_kwargs={"net_arch": list(size.units)},
        device="cpu",
        seed=0,
    )
    model.set_logger(logger.Logger(folder=None, output_formats=[]))
    random = np.random.default_rng(0)
    buffer = model.replay_buffer
    for array in (buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards):
        array[:] = random.uniform(-1.0, 1.0, array.shape)
    buffer.full = True

    def run(count: int) -> None:
        for _ in range(count // gradient_steps):
            model.train(gradient_steps, size.batch)

    run(gradient_steps)
    return run


def main() -> None:
    arguments = parse_arguments()
    size, gradient_steps = SMALL if arguments.small else USUAL, min(arguments.gradient_steps, arguments.updates)
    if arguments.library == "rltools":
        run = rltools_updates()
    else:
        run = stable_baselines_updates(arguments.library, size, gradient_steps)
    count = -(-arguments.updates // gradient_steps) * gradient_steps
    print("ready", flush=True)
    for _ in range(arguments.rounds):
        sys.stdin.readline()
        began = time.perf_counter()
        run(count)
        print(json.dumps({f"{arguments.library} sac": count / (time.perf_counter() - began)}), flush=True)


if __name__ == "__main__":
    main()
