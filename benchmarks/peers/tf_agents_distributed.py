"""TF-Agents' distributed SAC example on HalfCheetah-v5: a Reverb server, a trainer and a collector, a process each.

    python -m benchmarks.peers.tf_agents_distributed --steps 2000

The example (experimental/distributed/examples/sac in TF-Agents' repository) is not in the installed package. This is
what its three programs do, with its networks, its replay buffer and its variable container: every step is an item of a
Reverb table, the trainer pushes the variables after every update and the collector pulls them after every step. As in
the example's own option `samples_per_insert`, the table's rate limiter holds one update (256 samples) against one step.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_MODULE = "benchmarks.peers.tf_agents_distributed"  # as __main__ it does not know its own name
ROLES = ("server", "train", "collect")
_BATCH_SIZE = 256
_DEADLINE_SECS = 3600.0
_TOLERANCE = 0.1  # of samples_per_insert, as in the example


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="environment steps after the first random ones")
    parser.add_argument("--learning_starts", type=int, default=1000, help="random steps first, at least 512")
    parser.add_argument("--step_ms", type=float, default=0.0, help="time that a step takes")
    parser.add_argument("--busy", action=argparse.BooleanOptionalAction, default=True, help="CPU time, else sleep")
    parser.add_argument("--horizon", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--role", choices=ROLES, help="one of the three programs; without it, all are started")
    parser.add_argument("--root_dir", type=Path, help="where they meet")
    parser.add_argument("--port", type=int, help="of the Reverb server")
    return parser.parse_args()


# The launcher.


def launch(arguments: argparse.Namespace) -> dict[str, Any]:
    """Starts the three programs, waits for the trainer, ends the others; returns the trainer's result."""
    with tempfile.TemporaryDirectory() as root:
        root_dir = Path(root)
        options = [*sys.argv[1:], "--root_dir", root, "--port", str(free_port())]
        processes = {
            role: subprocess.Popen([sys.executable, "-m", _MODULE, *options, "--role", role], stdout=sys.stderr)
            for role in ROLES
        }
        try:
            wait_for_trainer(processes)
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
        result = json.loads((root_dir / "result.json").read_text())
        returns = root_dir / "returns.txt"
        result["returns"] = [float(line) for line in returns.read_text().split()] if returns.exists() else []
        return result


def wait_for_trainer(processes: dict[str, subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _DEADLINE_SECS
    while processes["train"].poll() is None:
        ended = [role for role, process in processes.items() if process.poll() is not None and role != "train"]
        if ended:
            sys.exit(f"error: {', '.join(ended)} ended before the trainer")
        if time.monotonic() > deadline:
            sys.exit(f"error: the trainer was not done within {_DEADLINE_SECS:.0f} s")
        time.sleep(0.2)
    if processes["train"].returncode:
        sys.exit(f"error: the trainer failed with exit code {processes['train'].returncode}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


# The three programs.


def serve(arguments: argparse.Namespace) -> None:
    """The replay buffer and the variable container, as sac_reverb_server.py."""
    import reverb
    import tensorflow as tf
    from tf_agents.experimental.distributed import reverb_variable_container
    from tf_agents.replay_buffers import reverb_replay_buffer
    from tf_agents.specs import tensor_spec

    policy = wait_for_collect_policy(arguments.root_dir)
    variables = {
        reverb_variable_container.POLICY_KEY: policy.variables(),
        reverb_variable_container.TRAIN_STEP_KEY: tf.Variable(0, dtype=tf.int64),
    }
    min_size = arguments.learning_starts
    server = reverb.Server(
        tables=[
            reverb.Table(
                name=reverb_replay_buffer.DEFAULT_TABLE,
                sampler=reverb.selectors.Uniform(),
                remover=reverb.selectors.Fifo(),
                rate_limiter=reverb.rate_limiters.SampleToInsertRatio(
                    min_size_to_sample=min_size,
                    samples_per_insert=_BATCH_SIZE,
                    error_buffer=min_size * _TOLERANCE * _BATCH_SIZE,
                ),
                max_size=1_000_000,
                max_times_sampled=0,
                signature=tensor_spec.add_outer_dim(tensor_spec.from_spec(policy.collect_data_spec)),
            ),
            reverb.Table(
                name=reverb_variable_container.DEFAULT_TABLE,
                sampler=reverb.selectors.Uniform(),
                remover=reverb.selectors.Fifo(),
                rate_limiter=reverb.rate_limiters.MinSize(1),
                max_size=1,
                max_times_sampled=0,
                signature=tf.nest.map_structure(lambda value: tf.TensorSpec(value.shape, value.dtype), variables),
            ),
        ],
        port=arguments.port,
    )
    server.wait()


def collect(arguments: argparse.Namespace) -> None:
    """Steps one environment until it is killed, as sac_collect.py."""
    import numpy as np
    import reverb
    import tensorflow as tf
    from tf_agents.experimental.distributed import reverb_variable_container
    from tf_agents.metrics import py_metrics
    from tf_agents.policies import random_py_policy
    from tf_agents.replay_buffers import reverb_replay_buffer, reverb_utils
    from tf_agents.train import actor

    np.random.seed(arguments.seed)
    tf.random.set_seed(arguments.seed)
    policy = wait_for_collect_policy(arguments.root_dir)
    env = load_environment(arguments, arguments.root_dir / "returns.txt")
    train_step = tf.Variable(0, dtype=tf.int64)
    variables = {
        reverb_variable_container.POLICY_KEY: policy.variables(),
        reverb_variable_container.TRAIN_STEP_KEY: train_step,
    }
    address = f"localhost:{arguments.port}"
    container = reverb_variable_container.ReverbVariableContainer(
        address, table_names=[reverb_variable_container.DEFAULT_TABLE]
    )
    container.update(variables)
    observer = reverb_utils.ReverbAddTrajectoryObserver(
        reverb.Client(address), table_name=reverb_replay_buffer.DEFAULT_TABLE, sequence_length=2, stride_length=1
    )
    random_policy = random_py_policy.RandomPyPolicy(env.time_step_spec(), env.action_spec())
    # One step more: a step is an item together with the next one.
    n_random = arguments.learning_starts + 1
    actor.Actor(env, random_policy, train_step, steps_per_run=n_random, observers=[observer]).run()
    collector = actor.Actor(
        env,
        policy,
        train_step,
        steps_per_run=1,
        metrics=actor.collect_metrics(10),
        summary_dir=str(arguments.root_dir / "train" / "0"),
        observers=[observer, py_metrics.EnvironmentSteps()],
    )
    while True:
        collector.run()
        container.update(variables)


def train(arguments: argparse.Namespace) -> None:
    """Updates the agent `steps` times, as sac_train.py, and writes result.json."""
    import tensorflow as tf
    from tf_agents.experimental.distributed import reverb_variable_container
    from tf_agents.replay_buffers import reverb_replay_buffer
    from tf_agents.train import learner, triggers
    from tf_agents.train.utils import spec_utils

    root_dir = str(arguments.root_dir)
    tf.random.set_seed(arguments.seed)
    train_step = tf.Variable(0, dtype=tf.int64)
    agent = build_agent(train_step, *spec_utils.get_tensor_specs(load_environment(arguments)))
    save_policy = triggers.PolicySavedModelTrigger(
        os.path.join(root_dir, learner.POLICY_SAVED_MODEL_DIR), agent, train_step, interval=1000
    )
    variables = {
        reverb_variable_container.POLICY_KEY: agent.collect_policy.variables(),
        reverb_variable_container.TRAIN_STEP_KEY: train_step,
    }
    address = f"localhost:{arguments.port}"
    container = reverb_variable_container.ReverbVariableContainer(
        address, table_names=[reverb_variable_container.DEFAULT_TABLE]
    )
    container.push(variables)
    replay = reverb_replay_buffer.ReverbReplayBuffer(
        agent.collect_data_spec,
        sequence_length=2,
        table_name=reverb_replay_buffer.DEFAULT_TABLE,
        server_address=address,
    )
    sac_learner = learner.Learner(
        root_dir,
        train_step,
        agent,
        lambda: replay.as_dataset(sample_batch_size=_BATCH_SIZE, num_steps=2).prefetch(3),
        triggers=[save_policy, triggers.StepPerSecondLogTrigger(train_step, interval=1000)],
        strategy=tf.distribute.get_strategy(),
    )
    ended_at = []
    for _ in range(arguments.steps):
        sac_learner.run(iterations=1)
        container.push(variables)
        ended_at.append(time.perf_counter())
    rate = (len(ended_at) - 1) / (ended_at[-1] - ended_at[0])
    result = {"library": "tf_agents_distributed", "steps_per_s": rate, "updates_per_s": rate}
    (arguments.root_dir / "result.json").write_text(json.dumps(result))
    os._exit(0)  # The dataset's threads may wait for the server for ever.


# What they share.


def build_agent(train_step: Any, observation_spec: Any, action_spec: Any, time_step_spec: Any) -> Any:
    """The example's agent, with the reward scale of the other libraries."""
    import tensorflow as tf
    from tf_agents.agents.ddpg import critic_network
    from tf_agents.agents.sac import sac_agent, tanh_normal_projection_network
    from tf_agents.networks import actor_distribution_network

    critic = critic_network.CriticNetwork(
        (observation_spec, action_spec),
        joint_fc_layer_params=(256, 256),
        kernel_initializer="glorot_uniform",
        last_kernel_initializer="glorot_uniform",
    )
    actor = actor_distribution_network.ActorDistributionNetwork(
        observation_spec,
        action_spec,
        fc_layer_params=(256, 256),
        continuous_projection_net=tanh_normal_projection_network.TanhNormalProjectionNetwork,
    )
    return sac_agent.SacAgent(
        time_step_spec,
        action_spec,
        actor_network=actor,
        critic_network=critic,
        actor_optimizer=tf.compat.v1.train.AdamOptimizer(3e-4),
        critic_optimizer=tf.compat.v1.train.AdamOptimizer(3e-4),
        alpha_optimizer=tf.compat.v1.train.AdamOptimizer(3e-4),
        target_update_tau=0.005,
        target_update_period=1,
        td_errors_loss_fn=tf.math.squared_difference,
        gamma=0.99,
        reward_scale_factor=1.0,
        train_step_counter=train_step,
    )


def wait_for_collect_policy(root_dir: Path) -> Any:
    from tf_agents.train import learner
    from tf_agents.train.utils import train_utils

    folder = root_dir / learner.POLICY_SAVED_MODEL_DIR / learner.COLLECT_POLICY_SAVED_MODEL_DIR
    return train_utils.wait_for_policy(str(folder), num_retries=300, load_specs_from_pbtxt=True)


def load_environment(arguments: argparse.Namespace, returns: Path | None = None) -> Any:
    """The environment; each episode's return is appended to `returns`."""
    from benchmarks.peers.tf_agents_environment import loader

    def on_return(value: float) -> None:
        if returns is not None:
            with returns.open("a") as file:
                file.write(f"{value}\n")

    options = {"step_ms": arguments.step_ms, "busy": arguments.busy}
    return loader(on_return, arguments.horizon, **options)("HalfCheetah-v5")


def main() -> None:
    arguments = parse_arguments()
    if arguments.learning_starts < 2 * _BATCH_SIZE or arguments.steps < 2:
        # Reverb's limiter asks for twice as many items as samples_per_insert.
        sys.exit(f"error: --learning_starts must be at least {2 * _BATCH_SIZE} and --steps at least 2: give more")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    roles = {"server": serve, "train": train, "collect": collect}
    if arguments.role:
        roles[arguments.role](arguments)
        return
    # Told to end, it ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(json.dumps(launch(arguments)))


if __name__ == "__main__":
    main()
