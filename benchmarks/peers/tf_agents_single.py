"""TF-Agents' own SAC example (examples/sac/haarnoja18/sac_train_eval.py) on HalfCheetah-v5, as it is installed.

    python -m benchmarks.peers.tf_agents_single --steps 2000

One process: a step of the environment, an update, and so on. Changed are the environment (Gymnasium's), the random
steps at the start, the reward scale (1, as in the other libraries) and that nothing is evaluated.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
import tensorflow as tf
from tf_agents.environments import suite_mujoco
from tf_agents.examples.sac.haarnoja18 import sac_train_eval
from tf_agents.train import learner

from benchmarks.half_cheetah import environment
from benchmarks.peers.tf_agents_environment import loader


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="environment steps after the first random ones")
    parser.add_argument("--learning_starts", type=int, default=1000, help="random steps before the first update")
    parser.add_argument("--step_ms", type=float, default=0.0, help="time that a step takes")
    parser.add_argument("--busy", action=argparse.BooleanOptionalAction, default=True, help="CPU time, else sleep")
    parser.add_argument("--horizon", type=int, default=environment.HORIZON)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def time_updates(ended_at: list[float]) -> type[learner.Learner]:
    """The example's Learner, which notes when each of its updates has ended."""

    class TimedLearner(learner.Learner):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().run(*args, **kwargs)
            ended_at.append(time.perf_counter())
            return loss

    return TimedLearner


def main() -> None:
    arguments = parse_arguments()
    np.random.seed(arguments.seed)
    tf.random.set_seed(arguments.seed)
    returns: list[float] = []
    ended_at: list[float] = []
    options = {"step_ms": arguments.step_ms, "busy": arguments.busy}
    suite_mujoco.load = loader(returns.append, arguments.horizon, **options)
    learner.Learner = time_updates(ended_at)
    with tempfile.TemporaryDirectory() as root_dir:
        sac_train_eval.train_eval(
            root_dir,
            strategy=tf.distribute.get_strategy(),
            env_name="HalfCheetah-v5",
            initial_collect_steps=arguments.learning_starts,
            num_iterations=arguments.steps,
            reward_scale_factor=1.0,
            eval_interval=0,
        )
    if len(ended_at) < 2:
        sys.exit(f"error: --steps {arguments.steps} leaves nothing to measure after the first update: give more")
    rate = (len(ended_at) - 1) / (ended_at[-1] - ended_at[0])
    result = {"library": "tf_agents_single", "steps_per_s": rate, "updates_per_s": rate, "returns": returns}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
