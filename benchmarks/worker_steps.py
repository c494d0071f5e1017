"""A worker steps a trivial environment 20,000 times a second a core, and costs a simulator little of its speed.

    python -m benchmarks.worker_steps [--quick]

Measures a worker's whole path on one core: policy, TrainingEnvironment, segments, the episode's log. The bare
simulator gets the same seeds and actions, episode by episode in turn, including resets. Then what a newer policy in
mid-episode costs, with a million weights that another process shares in memory.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

# Before NumPy and TensorFlow are imported: as in a worker with one CPU.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import gymnasium
import numpy as np
import tensorflow as tf
from gymnasium import spaces
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from benchmarks.outcome import Outcome, parse_args
from benchmarks.processes import ROOT
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.examples.halfcheetah import params as halfcheetah
from tfagents_system.examples.minitaur import params as minitaur
from tfagents_system.policies import weights
from tfagents_system.policies.worker_policy import LaneSteps, WorkerPolicy, make_worker_policy
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport import tables
from tfagents_system.transport.segments import Layout
from tfagents_system.worker.actors import PolicyActor
from tfagents_system.worker.newest_policy import NewestPolicy
from tfagents_system.worker.rollout import Rollout, SegmentBuilder, StepTimes

HORIZON = 1000
OBSERVATION, ACTION = 28, 8

_TARGET_STEPS, _TARGET_STEPS_OF_ANY_NETWORK = 20_000, 5_000
_TARGET_HALF_CHEETAH, _TARGET_MINITAUR = 0.85, 0.97
_TARGET_IQN_MS, _NUM_ACTIONS = 0.4, 15
_TARGET_PUBLISH_MS, _TARGET_REFRESH_MS = 2.0, 1.0
_SEED = 1


class Trivial(gymnasium.Env):
    """An environment that takes no time."""

    action_space = spaces.Box(-1.0, 1.0, (ACTION,), np.float32)

    def __init__(self, observation_space: spaces.Space) -> None:
        self.observation_space = observation_space
        observation_space.seed(_SEED)
        self._observation = observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation, 1.0, False, False, {}


class Params(TrainParamsBase):
    """Networks of the default size: (256, 256), LSTM of 64."""

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        raise AssertionError("environments are built by the benchmark")


class Preprocessing(Params):
    """A preprocessing layer that is not one of ours."""

    preprocessing_combiner = staticmethod(lambda: tf.keras.layers.Dense(64, "elu"))


class Recurrent(Params):
    recurrent = True


class Iqn(Params):
    """Two heads of 512 units, 32 fractions."""

    algorithm = "iqn"


class Million(Params):
    """An actor with a million weights."""

    actor_fc_layer_params = (980, 980)
    critic_joint_fc_layer_params = (8,)


class CameraEncoder(tf.keras.layers.Layer):
    """Two convolutions over pixels, beside a vector."""

    def __init__(self) -> None:
        super().__init__()
        self._convolutions = [
            tf.keras.layers.Conv2D(16, 8, 4, activation="relu"),
            tf.keras.layers.Conv2D(32, 4, 2, activation="relu"),
        ]
        self._dense = tf.keras.layers.Dense(64, "relu")

    def call(self, inputs: Any) -> tf.Tensor:
        hidden = tf.cast(inputs["camera"], tf.float32) / 255.0
        for layer in self._convolutions:
            hidden = layer(hidden)
        flat = tf.reshape(hidden, [tf.shape(hidden)[0], np.prod(hidden.shape[1:])])
        return tf.concat([self._dense(flat), inputs["speed"]], -1)


class Camera(Params):
    preprocessing_combiner = CameraEncoder


VECTOR = spaces.Box(-1.0, 1.0, (OBSERVATION,), np.float64)
CAMERA = spaces.Dict(camera=spaces.Box(0, 255, (64, 64, 3), np.uint8), speed=spaces.Box(-1.0, 1.0, (2,), np.float64))


class Collector:
    """A worker's collection code without its processes.

    Args:
      params: For the networks.
      envs: Its environments.
      greedy: Without exploration.
    """

    def __init__(self, params: TrainParamsBase, envs: list[TrainingEnvironment], greedy: bool = False) -> None:
        tf.keras.utils.set_random_seed(_SEED)
        observation_spec, action_spec = (
            tensor_spec.from_spec(spec) for spec in (envs[0].observation_spec(), envs[0].action_spec())
        )
        agent = params.agent_ctor(ts.time_step_spec(observation_spec), action_spec, tf.Variable(0, dtype=tf.int64))
        self.policy: WorkerPolicy = make_worker_policy(agent, _SEED, len(envs))
        self._actor = PolicyActor(self.policy, greedy)
        self._envs = envs
        self._layout = Layout.from_specs(observation_spec, action_spec)
        self._times = StepTimes()
        self._due = time.monotonic() + 3600.0

    def episodes(self, count: int) -> int:
        """Collects episodes; returns their steps."""
        episodes = Rollout(
            self._envs,
            self._actor,
            new_builder=lambda: SegmentBuilder(self._layout, HORIZON, lambda segment: None),
            on_step=self._on_step,
            times=self._times,
        ).episodes(count)
        return sum(episode.length for episode in episodes)

    def _on_step(self, steps: int) -> None:
        del steps
        if time.monotonic() >= self._due:
            raise TimeoutError("an hour has passed")


def worker_steps_per_second(params: type[TrainParamsBase], space: spaces.Space, num_envs: int, rounds: int) -> Any:
    """Steps/s on a trivial environment, the best of some rounds, and how the policy was computed."""
    envs = [TrainingEnvironment(Trivial(space), HORIZON, seed=_SEED) for _ in range(num_envs)]
    collector = Collector(params({"horizon": HORIZON}), envs)
    rates = []
    for _ in range(rounds + 1):  # The first one warms up.
        began = time.perf_counter()
        steps = collector.episodes(num_envs)
        rates.append(steps / (time.perf_counter() - began))
    return max(rates[1:]), collector.policy.inference


def forward_per_second(rounds: int) -> float:
    """Sampled actions of the default actor in NumPy, a second."""
    envs = [TrainingEnvironment(Trivial(VECTOR), HORIZON, seed=_SEED)]
    policy = Collector(Params({"horizon": HORIZON}), envs).policy
    steps = LaneSteps.of([envs[0].reset()])
    rates = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(HORIZON):
            policy.act(steps, greedy=False)
        rates.append(HORIZON / (time.perf_counter() - began))
    return max(rates)


def iqn_action_ms(rounds: int) -> float:
    """Milliseconds of a greedy action of IQN in NumPy, the best of some rounds."""
    time_step_spec = ts.time_step_spec(tf.TensorSpec((OBSERVATION,), tf.float32, "observation"))
    action = tensor_spec.BoundedTensorSpec((), tf.int32, 0, _NUM_ACTIONS - 1, "action")
    agent = Iqn({"horizon": HORIZON}).agent_ctor(time_step_spec, action, tf.Variable(0, dtype=tf.int64))
    policy = make_worker_policy(agent, _SEED)
    assert policy.inference == "numpy"
    time_step = ts.restart(np.random.default_rng(_SEED).standard_normal(OBSERVATION).astype(np.float32))
    steps = LaneSteps.of([time_step])
    millis = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(100):
            policy.act(steps, greedy=True)
        millis.append(1e3 * (time.perf_counter() - began) / 100)
    return min(millis)


def share_of_bare_simulator(
    params: TrainParamsBase, simulator: Callable[[Any], Any], episodes: int, greedy: bool
) -> tuple[float, float]:
    """The worker's speed as a share of the bare simulator's (median over episodes), and that one's steps/s.

    Args:
      params: The example.
      simulator: From what its `env_ctor` returned to the environment with `reset` and `step` inside it.
      episodes: Of each.
      greedy: Without exploration.
    """
    recorded = _record_actions(params, episodes, greedy)
    ours = TrainingEnvironment(params.env_ctor(seed=_SEED), params.horizon, seed=_SEED)
    collector = Collector(params, [ours], greedy)
    bare_env = TrainingEnvironment(params.env_ctor(seed=_SEED), params.horizon, seed=_SEED)
    bare_env.reset()  # Seeds it.
    ours.reset()
    bare = simulator(bare_env.user_env)
    shares, rates = [], []
    for actions in recorded:
        began = time.perf_counter()
        steps = collector.episodes(1)
        own_secs = time.perf_counter() - began
        began = time.perf_counter()
        bare.reset()
        for action in actions:
            bare.step(action)
        bare_secs = time.perf_counter() - began
        assert steps == len(actions), f"{steps} steps and {len(actions)}: not the same episode"
        shares.append(bare_secs / own_secs)
        rates.append(steps / bare_secs)
    return statistics.median(shares), statistics.median(rates)


def _record_actions(params: TrainParamsBase, episodes: int, greedy: bool) -> list[list[np.ndarray]]:
    """The actions, in the environment's units, of what a collector with the same seeds will do."""
    env = TrainingEnvironment(params.env_ctor(seed=_SEED), params.horizon, seed=_SEED)
    collector = Collector(params, [env], greedy)
    env.reset()
    backend: Any = env._backend
    step = backend.step
    recorded: list[list[np.ndarray]] = []

    def record(action: np.ndarray) -> Any:
        recorded[-1].append(action.copy())
        return step(action)

    backend.step = record
    for _ in range(episodes):
        recorded.append([])
        collector.episodes(1)
    return recorded


# As the trainer: shares a policy in memory when a line comes, and answers with the milliseconds that it took.
_TRAINER = """
import sys, time
import numpy as np
from tfagents_system.policies.weights import SharedWeights
policy = list(np.load(sys.argv[1]).values())
shared = SharedWeights(policy)
print(*shared.place, flush=True)
for _ in sys.stdin:
    policy[0][2] += 1
    began = time.perf_counter()
    shared.write(policy)
    print(1e3 * (time.perf_counter() - began), flush=True)
"""


def fresh_policy_costs(rounds: int) -> tuple[float, float, int]:
    """Milliseconds, medians, in which a trainer shares a policy and a worker takes it; and how many weights it has."""
    params = Million({"horizon": HORIZON})
    specs = tf.TensorSpec((OBSERVATION,), tf.float32), tensor_spec.BoundedTensorSpec((ACTION,), tf.float32, -1.0, 1.0)
    agent = params.agent_ctor(ts.time_step_spec(specs[0]), specs[1], tf.Variable(0, dtype=tf.int64))
    variables = weights.named_variables(agent.collect_policy)
    policy = [np.array([1, 0, 1], np.int64), *weights.to_arrays(weights.read_weights(variables))]
    no_table: Any = None
    worker = NewestPolicy(no_table, make_worker_policy(agent, _SEED))
    reads, writes, takes = [], [], []
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        np.savez(file, *policy)
        file.flush()
        command = [sys.executable, "-c", _TRAINER, file.name]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
        with subprocess.Popen(command, **pipes) as trainer:
            assert trainer.stdin is not None and trainer.stdout is not None
            pid, descriptor = map(int, trainer.stdout.readline().split())
            for number in range(rounds + 1):
                began = time.perf_counter()
                weights.read_weights(variables)
                reads.append(1e3 * (time.perf_counter() - began))
                print(file=trainer.stdin, flush=True)
                writes.append(float(trainer.stdout.readline()))
                if number == 0:
                    worker.follow(tables.Progress(1, 0, 2, -1, memory=(pid, descriptor)))
                    continue
                began = time.perf_counter()
                worker.refresh()
                takes.append(1e3 * (time.perf_counter() - began))
                assert worker.train_step == 2 + number, "not the newest policy"
            trainer.stdin.close()
    publish = statistics.median(read + write for read, write in zip(reads, writes, strict=True))
    return publish, statistics.median(takes), sum(array.size for array in policy[2:])


def main() -> None:
    quick = parse_args().quick
    rounds, episodes, most_envs, horizon = (1, 1, 4, 100) if quick else (10, 15, 16, HORIZON)
    result = Outcome(__doc__.splitlines()[0])

    result.row("default actor in NumPy, sampled actions", forward_per_second(5 * rounds), "actions/s")

    iqn_ms = iqn_action_ms(5 * rounds)
    result.row(f"IQN in NumPy, one of {_NUM_ACTIONS} actions", iqn_ms, "ms an action")
    result.ratio(f"{_TARGET_IQN_MS} ms over an action of IQN", _TARGET_IQN_MS / iqn_ms, 1.0)

    cases: list[tuple[str, type[Params], spaces.Space, int, int | None]] = [
        ("default network", Params, VECTOR, 1, _TARGET_STEPS),
        ("recurrent network", Recurrent, VECTOR, 1, _TARGET_STEPS_OF_ANY_NETWORK),
        ("network with preprocessing", Preprocessing, VECTOR, 1, _TARGET_STEPS_OF_ANY_NETWORK),
        ("network for 64 x 64 images", Camera, CAMERA, 1, _TARGET_STEPS_OF_ANY_NETWORK),
    ]
    for name, plain in (("default network", Params), ("recurrent network", Recurrent)):
        cases += [(name, plain, VECTOR, n, None) for n in (4, 16) if n <= most_envs]
    for name, params, space, num_envs, target in cases:
        rate, inference = worker_steps_per_second(params, space, num_envs, rounds)
        result.row(f"worker, {name} ({inference}), SAC_ENVS_PER_WORKER={num_envs}", rate, "steps/s")
        if target is not None:
            result.ratio(f"{name}: steps/s over {target}", rate / target, 1.0)

    # An untrained, exploring Minitaur falls at once, and its slow resets would dominate.
    simulators: list[tuple[str, Any, Callable[[Any], Any], bool, int, float]] = [
        ("HalfCheetah-v5", halfcheetah, lambda env: env, False, episodes, _TARGET_HALF_CHEETAH),
        ("Minitaur", minitaur, lambda env: env.env, True, min(episodes, 4), _TARGET_MINITAUR),
    ]
    for name, module, simulator, greedy, count, least in simulators:
        share, bare_rate = share_of_bare_simulator(module.TrainParams({"horizon": horizon}), simulator, count, greedy)
        result.row(f"{name}, bare simulator", bare_rate, "steps/s")
        result.ratio(f"{name}: worker over bare simulator", share, least)
    publish, refresh, size = fresh_policy_costs(10 * rounds)
    result.row(f"a policy of {size:,} weights: the trainer shares it in memory", publish, "ms")
    result.row("the same: a worker in mid-episode acts with it", refresh, "ms")
    result.ratio("2 ms over publishing", _TARGET_PUBLISH_MS / publish, 1.0)
    result.ratio("1 ms over refreshing", _TARGET_REFRESH_MS / refresh, 1.0)
    result.note("One core; the best of the rounds for trivial environments, the median of episodes for simulators.")
    result.print()


if __name__ == "__main__":
    main()
