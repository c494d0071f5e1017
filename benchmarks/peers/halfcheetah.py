"""HalfCheetah-v5 trained by SBX or Stable-Baselines3, one update per environment step: steps/s after the first update.

    PEERS_PYTHON -m benchmarks.peers.halfcheetah --library sbx --steps 3000

SAC's hyperparameters are those of the paper, which are also the defaults of both libraries. Several environments run in
processes of their own (SubprocVecEnv); as many updates follow as there were steps.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from typing import Any

from benchmarks.half_cheetah import environment

_BUFFER_STEPS = 400_000


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=("sbx", "sb3"), required=True)
    parser.add_argument("--steps", type=int, default=3000, help="environment steps after the first random ones")
    parser.add_argument("--learning_starts", type=int, default=1000, help="random steps before the first update")
    parser.add_argument("--step_ms", type=float, default=0.0, help="time that a step takes")
    parser.add_argument("--busy", action=argparse.BooleanOptionalAction, default=True, help="CPU time, else sleep")
    parser.add_argument("--horizon", type=int, default=environment.HORIZON)
    parser.add_argument("--n_envs", type=int, default=1, help="processes that step an environment each")
    parser.add_argument("--train_freq", type=int, default=1, help="steps of each environment between two updates")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_vec_env(arguments: argparse.Namespace) -> Any:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    make = functools.partial(environment.make, arguments.step_ms, arguments.busy, arguments.horizon)
    vec_env = DummyVecEnv if arguments.n_envs == 1 else SubprocVecEnv
    return vec_env([lambda: Monitor(make())] * arguments.n_envs)


def make_model(arguments: argparse.Namespace) -> Any:
    if arguments.library == "sbx":
        from sbx import SAC
    else:
        import torch
        from stable_baselines3 import SAC

        torch.set_num_threads(len(os.sched_getaffinity(0)))
    return SAC(
        "MlpPolicy",
        make_vec_env(arguments),
        learning_rate=3e-4,
        buffer_size=_BUFFER_STEPS,
        learning_starts=arguments.learning_starts,
        batch_size=256,
        tau=0.005,
        gamma=0.99,
        train_freq=arguments.train_freq,
        gradient_steps=-1,  # as many as environment steps since the last time
        ent_coef="auto",
        policy_kwargs={"net_arch": [256, 256]},
        stats_window_size=1000,
        device="cpu",
        seed=arguments.seed,
    )


class FirstUpdate:
    """Wraps `model.train` to learn when its first call, which compiles or warms up, has ended."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._train = model.train
        self.at: tuple[float, int, int] | None = None  # (time, environment steps, updates)
        model.train = self

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self._train(*args, **kwargs)
        if self.at is None:
            self.at = (time.perf_counter(), self._model.num_timesteps, self._model._n_updates)


def main() -> None:
    from stable_baselines3.common import logger

    arguments = parse_arguments()
    model = make_model(arguments)
    model.set_logger(logger.Logger(folder=None, output_formats=[]))  # Its default leaves an empty folder in /tmp.
    first = FirstUpdate(model)
    model.learn(total_timesteps=arguments.learning_starts + arguments.steps)
    now = time.perf_counter()
    if first.at is None:
        sys.exit(f"error: --steps {arguments.steps} ended before the first update: give more")
    since, steps, updates = first.at
    episodes = list(model.ep_info_buffer)
    model.env.close()
    result = {
        "library": arguments.library,
        "steps_per_s": (model.num_timesteps - steps) / (now - since),
        "updates_per_s": (model._n_updates - updates) / (now - since),
        "returns": [float(episode["r"]) for episode in episodes],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
