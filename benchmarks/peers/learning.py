"""A learning curve of SBX, Stable-Baselines3 or its contrib, in JSON; the current folder gets files of theirs.

    PEERS_PYTHON -m benchmarks.peers.learning --library sbx --environment Pendulum-v1 --steps 10000 --eval_steps 1000

Hyperparameters are the library's own defaults for the algorithm, but for what is given.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

_BEGAN = time.monotonic()
LIBRARIES = ("sbx", "sb3", "contrib")
CLASSES = {"sac": "SAC", "tqc": "TQC", "crossq": "CrossQ", "droq": "DroQ", "dqn": "DQN", "qrdqn": "QRDQN"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=LIBRARIES, required=True)
    parser.add_argument("--algorithm", choices=tuple(CLASSES), default="sac")
    parser.add_argument("--environment", required=True)
    parser.add_argument("--steps", type=int, required=True, help="environment steps, the random ones included")
    parser.add_argument("--learning_starts", type=int, default=1000, help="random steps before the first update")
    parser.add_argument("--learning_rate", type=float, default=None, help="default: the library's")
    parser.add_argument("--updates_per_step", type=int, default=1)
    parser.add_argument("--eval_steps", type=int, required=True, help="environment steps between two evaluations")
    parser.add_argument("--eval_episodes", type=int, default=10)
    parser.add_argument("--options", type=json.loads, default={}, help="JSON: further arguments of the algorithm")
    parser.add_argument("--goals", action="store_true", help="with HER, four of five goals replaced")
    parser.add_argument("--normalize", action="store_true", help="observations, by running statistics (VecNormalize)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def algorithm_class(library: str, algorithm: str) -> Any:
    """An algorithm by name; where TQC and CrossQ are depends on the library."""
    name = CLASSES[algorithm]
    if library == "sbx":
        import sbx

        return getattr(sbx, name)
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if library == "sb3":
        import stable_baselines3

        return getattr(stable_baselines3, name)
    import sb3_contrib

    return getattr(sb3_contrib, name)


def environment(arguments: argparse.Namespace) -> Any:
    """One to train or to evaluate in; EvalCallback gives its own the statistics of the other."""
    import gymnasium
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = Monitor(gymnasium.make(arguments.environment))
    return VecNormalize(DummyVecEnv([lambda: env]), norm_reward=False) if arguments.normalize else env


def main() -> None:
    from stable_baselines3.common.callbacks import EvalCallback

    arguments = parse_arguments()
    own = {"train_freq": 1, "gradient_steps": arguments.updates_per_step, "device": "cpu"}
    options: dict[str, Any] = {**own, **arguments.options}
    if arguments.learning_rate is not None:
        options["learning_rate"] = arguments.learning_rate
    if arguments.goals:
        from stable_baselines3 import HerReplayBuffer

        options |= {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": {"n_sampled_goal": 4}}
    model = algorithm_class(arguments.library, arguments.algorithm)(
        "MultiInputPolicy" if arguments.goals else "MlpPolicy",
        environment(arguments),
        learning_starts=arguments.learning_starts,
        seed=arguments.seed,
        **options,
    )
    secs = list[float]()

    class TimedEvaluations(EvalCallback):
        def _on_step(self) -> bool:
            goes_on = super()._on_step()
            secs.extend([time.monotonic() - _BEGAN] * (len(self.evaluations_timesteps) - len(secs)))
            return goes_on

    evaluation = TimedEvaluations(
        environment(arguments),
        n_eval_episodes=arguments.eval_episodes,
        eval_freq=arguments.eval_steps,
        log_path=".",  # Without one it keeps nothing.
        deterministic=True,
        verbose=0,
    )
    model.learn(total_timesteps=arguments.steps, callback=evaluation)
    returns = [sum(episodes) / len(episodes) for episodes in evaluation.evaluations_results]
    print(json.dumps({"env_steps": evaluation.evaluations_timesteps, "eval_returns": returns, "secs": secs}))


if __name__ == "__main__":
    main()
