"""A worker steps 64 lanes of a trivial vector environment 300,000 times a second a core, 16 of CartPole 60,000 times.

    python -m benchmarks.vector_steps [--quick]

Measures a worker's whole path on one core: policy, BatchedEnvironment, segments, the episodes' logs; with the default
network (256, 256), with one of (64, 64), and with actions that cost nothing, which leaves the path itself. Figures are
a second of wall time, and a second of CPU time, which other programs disturb less.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.outcome import Outcome, parse_args
from benchmarks.worker_steps import ACTION, HORIZON, OBSERVATION, Params  # Sets the number of threads, too.

# isort: split
import gymnasium
import numpy as np
import tensorflow as tf
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.batched_environment import BatchedEnvironment
from tfagents_system.policies.worker_policy import LaneSteps, make_worker_policy
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.segments import Layout
from tfagents_system.worker.actors import PolicyActor
from tfagents_system.worker.rollout import Rollout
from tfagents_system.worker.segment_builder import SegmentBuilder

_SEED = 1
_TARGET_TRIVIAL, _TARGET_CART_POLE = 300_000, 60_000


class TrivialVector(VectorEnv):
    """Lanes that take no time."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}
    single_observation_space = spaces.Box(-1.0, 1.0, (OBSERVATION,), np.float64)
    single_action_space = spaces.Box(-1.0, 1.0, (ACTION,), np.float32)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._observation = self.observation_space.sample()
        self._never, self._reward = np.zeros(num_envs, bool), np.ones(num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._observation, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self._observation, self._reward, self._never, self._never, {}


class CartPole(CartPoleEnv):
    """Gymnasium's, pushed by the sign of a continuous action; an episode of random actions has about 20 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space: Any = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self._pushes: Any = spaces.Discrete(2)

    def step(self, action: Any) -> Any:
        self.action_space, own = self._pushes, self.action_space
        try:
            return super().step(int(action[0] > 0))
        finally:
            self.action_space = own


class Small(Params):
    actor_fc_layer_params = (64, 64)


class Free:
    """Random actions that were drawn before."""

    def __init__(self, lanes: int, size: int) -> None:
        self._actions = np.random.default_rng(_SEED).uniform(-1.0, 1.0, (64, lanes, size)).astype(np.float32)
        self._next = 0

    def reset(self, lanes: Sequence[int]) -> None:
        pass

    def act(self, steps: LaneSteps) -> list[np.ndarray]:
        self._next = (self._next + 1) % 64
        return [self._actions[self._next]]


def steps_per_second(env: VectorEnv, params: type[TrainParamsBase] | None, rounds: int) -> tuple[float, float]:
    """Steps of all lanes together in a second of wall time and of CPU time: the best of some rounds."""
    lanes = BatchedEnvironment(env, HORIZON, seed=_SEED)
    observation_spec, action_spec = map(tensor_spec.from_spec, (lanes.observation_spec(), lanes.action_spec()))
    layout = Layout.from_specs(observation_spec, action_spec)
    actor: Any = Free(lanes.num_lanes, action_spec.shape[0])
    if params is not None:
        tf.keras.utils.set_random_seed(_SEED)
        time_step_spec = ts.time_step_spec(observation_spec)
        agent = params({"horizon": HORIZON}).agent_ctor(time_step_spec, action_spec, tf.Variable(0, dtype=tf.int64))
        actor = PolicyActor(make_worker_policy(agent, _SEED, lanes.num_lanes), greedy=False)
    rollout = Rollout([lanes], actor, new_builder=lambda: SegmentBuilder(layout, HORIZON, lambda segment: None))
    count, wall, cpu = 500 * lanes.num_lanes, [], []
    for _ in range(rounds + 1):  # The first one warms up.
        began, cpu_began = time.perf_counter(), time.process_time()
        rollout.steps(count)
        wall.append(count / (time.perf_counter() - began))
        cpu.append(count / (time.process_time() - cpu_began))
    return max(wall[1:]), max(cpu[1:])


def bare_steps_per_second(env: VectorEnv, rounds: int) -> float:
    """Of the environment alone, with the same kind of actions: the best of some rounds."""
    env.reset(seed=_SEED)
    actions, rates = env.action_space.sample(), []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(500):
            env.step(actions)
        rates.append(500 * env.num_envs / (time.perf_counter() - began))
    return max(rates)


def cart_poles(lanes: int) -> VectorEnv:
    """Stepped one after the other, in Python."""
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    return SyncVectorEnv([CartPole] * lanes, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)


def main() -> None:
    rounds = 2 if parse_args().quick else 10
    result = Outcome(__doc__.splitlines()[0])
    networks = {"actions for free": None, "network (64, 64)": Small, "default network (256, 256)": Params}
    result.row("16 lanes of CartPole, bare SyncVectorEnv", bare_steps_per_second(cart_poles(16), rounds), "steps/s")
    for what, env, target in (
        ("64 lanes of a trivial vector environment", TrivialVector(64), _TARGET_TRIVIAL),
        ("16 lanes of CartPole", cart_poles(16), _TARGET_CART_POLE),
    ):
        for network, params in networks.items():
            wall, cpu = steps_per_second(env, params, rounds)
            result.row(f"{what}, {network}", wall, "steps/s")
            result.row(f"{what}, {network}, of CPU time", cpu, "steps/s")
            if params is None:
                result.ratio(f"{what}: steps/s over {target}", wall / target, 1.0)
    for lanes in (1, 8, 256):
        wall, _ = steps_per_second(TrivialVector(lanes), Params, rounds)
        result.row(f"{lanes} trivial lanes, default network", wall, "steps/s")
    result.note("One core; the best of the rounds.")
    result.print()


if __name__ == "__main__":
    main()
