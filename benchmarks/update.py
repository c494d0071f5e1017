"""The SAC update runs at 0.85 of what the core's matrix products allow, and faster than the peers'.

    python -m benchmarks.update [--quick] [--peers_python PYTHON]

Batch 256, observation 28, action 8, networks (256, 256); small networks are (64, 64), with batch 100, observation 3 and
action 1. Candidates take turns in rounds, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.outcome import Outcome, parse_args


class Size(NamedTuple):
    """What is trained: numbers of an observation and an action, samples of a minibatch, units of each hidden layer."""

    observation: int = 28
    action: int = 8
    batch: int = 256
    units: tuple[int, ...] = (256, 256)


USUAL, SMALL = Size(), Size(3, 1, 100, (64, 64))
OBSERVATION, ACTION, *_ = USUAL
# One update of TF-Agents' SacAgent, multiply-adds counted twice, in passes of the size of one forwards: the actor's 5
# (3 forwards, 2 backwards) of 39 MFLOP and the critics' 12 (6 forwards; backwards, weights and inputs of 2 and inputs
# of 2) of 38. The fused update spares one pass of the actor and what no gradient needs: it does 605 MFLOP.
_UPDATE_MFLOP = 657.0


def make_agent(size: Size = USUAL) -> Any:
    """SAC as the toolkit builds it by default."""
    import tensorflow as tf
    from tf_agents.specs import tensor_spec
    from tf_agents.trajectories import time_step as ts

    from tfagents_system.train_params_base import TrainParamsBase

    class Params(TrainParamsBase):
        actor_fc_layer_params = size.units
        critic_joint_fc_layer_params = size.units

        def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
            raise AssertionError("no environment is needed")

    observation = tf.TensorSpec((size.observation,), tf.float32, "observation")
    action = tensor_spec.BoundedTensorSpec((size.action,), tf.float32, -1.0, 1.0, "action")
    return Params({"horizon": 1}).agent_ctor(ts.time_step_spec(observation), action, tf.Variable(0, dtype=tf.int64))


def make_update(size: Size = USUAL, **options: Any) -> Any:
    """The trainer's compiled update of a block."""
    from tfagents_system.agents.block_update import BlockUpdate
    from tfagents_system.replay.sampling import TransitionForm

    return BlockUpdate(make_agent(size), size.batch, TransitionForm(), **options)


def random_block(count: int, size: Size = USUAL) -> list[np.ndarray]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal((count, size.batch, *shape), np.float32)

    observation, action, discount = normal(size.observation), np.tanh(normal(size.action)), np.ones_like(normal())
    return [observation, action, normal(), discount, normal(size.observation)]


def stock_update() -> Any:
    """TF-Agents' own `agent.train`, compiled by its `common.function`, called once an update."""
    import tensorflow as tf
    from tf_agents.agents.sac.sac_agent import SacAgent
    from tf_agents.trajectories import policy_step, trajectory
    from tf_agents.trajectories import time_step as ts
    from tf_agents.utils import common

    agent = make_agent()
    networks = {"critic_network": agent.critics[0], "critic_network_2": agent.critics[1], "actor_network": agent.actor}
    optimizers = {name: getattr(agent, name) for name in ("actor_optimizer", "critic_optimizer", "alpha_optimizer")}
    settings = {"gamma": agent.gamma, "target_update_tau": agent.target_update_tau}
    stock = SacAgent(agent.time_step_spec, agent.action_spec, **networks, **optimizers, **settings)
    train = common.function(stock.train)
    mid, zeros, ones = tf.ones(USUAL.batch, tf.int32), tf.zeros(USUAL.batch), tf.ones(USUAL.batch)

    def update(block: list[np.ndarray]) -> None:
        for observation, action, reward, discount, next_observation in zip(*block, strict=True):
            train(
                trajectory.Transition(
                    ts.TimeStep(mid, zeros, ones, tf.constant(observation)),
                    policy_step.PolicyStep(tf.constant(action)),
                    ts.TimeStep(mid, tf.constant(reward), tf.constant(discount), tf.constant(next_observation)),
                )
            )

    return update


def peak_gflops(size: int = 1024, products: int = 6) -> float:
    """The best rate of float32 matrix products, of a size that keeps the core busy."""
    import tensorflow as tf

    matrix = tf.random.stateless_normal((size, size), (0, 0)) / size**0.5
    run = tf.function(lambda m: [m := tf.matmul(m, matrix) for _ in range(products)][-1], autograph=False)
    run(matrix)
    best = 0.0
    for _ in range(5):
        started = time.perf_counter()
        run(matrix).numpy()
        best = max(best, products * 2 * size**3 / (time.perf_counter() - started))
    return best / 1e9


def measure(threads: int, rounds: int, updates: int, is_small: bool) -> None:
    """Runs in a process of its own on `threads` CPUs; a line of JSON for each round that stdin asks for."""
    import tensorflow as tf

    from tfagents_system.agents.block_update import bfloat16_speedup

    inter = min(2, threads)
    tf.config.threading.set_inter_op_parallelism_threads(inter)
    tf.config.threading.set_intra_op_parallelism_threads(max(1, threads // inter))
    if is_small:
        names = {"fused": False, "one program": True}
        candidates = {name: make_update(SMALL, is_one_program=is_one) for name, is_one in names.items()}
        answer_rounds(candidates, random_block(updates, SMALL), rounds)
        return
    candidates = {
        "fused": make_update(),
        "TF-Agents, agent.train": stock_update(),
    }
    if bfloat16_speedup() > 1.0:
        candidates["fused, bfloat16"] = make_update(matmul_precision="bfloat16")
    block = random_block(updates)
    answer_rounds(candidates, block, rounds)


def answer_rounds(
    candidates: Mapping[str, Callable[[list[np.ndarray]], object]], block: list[np.ndarray], rounds: int
) -> None:
    """Compiles updates of a block, then prints a line of rates for each line of standard input, see `Rounds`."""
    for update in candidates.values():
        update(block)
    print("ready", flush=True)
    for _ in range(rounds):
        sys.stdin.readline()
        rates = {"peak": peak_gflops()}
        for name, update in candidates.items():
            started = time.perf_counter()
            update(block)
            rates[name] = len(block[0]) / (time.perf_counter() - started)
        print(json.dumps(rates), flush=True)


class Rounds:
    """A measuring process that waits between its rounds."""

    def __init__(self, command: list[str], cpus: list[int], **variables: str) -> None:
        environ = variables | {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_ENABLE_ONEDNN_OPTS": "1",
            "OMP_NUM_THREADS": str(len(cpus)),
        }
        self._process = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cpus)), *command],
            env=os.environ | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read("ready")

    def _read(self, word: str = "{") -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line
        raise RuntimeError(f"a measuring process ended with {self._process.wait()}")

    def next(self) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        rates: dict[str, float] = json.loads(self._read())
        return rates

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def medians(commands: Sequence[list[str]], cpus: list[int], rounds: int) -> dict[str, float]:
    """Rates of all candidates of these processes, which take turns on the same CPUs."""
    processes, rates = [Rounds(command, cpus) for command in commands], dict[str, list[float]]()
    for _ in range(rounds):
        for process in processes:
            for name, rate in process.next().items():
                rates.setdefault(name, []).append(rate)
    for process in processes:
        process.close()
    return {name: statistics.median(values) for name, values in rates.items()}


def commands_of(cpus: list[int], peers_python: str | None, libraries: Sequence[str], *options: str) -> list[list[str]]:
    """Of the process that measures ours, and of one for each library."""
    commands = [[sys.executable, "-m", "benchmarks.update", "--measure", str(len(cpus)), *options]]
    for library in libraries if peers_python else ():
        commands.append([peers_python or "", "-m", "benchmarks.peers.updates", "--library", library, *options])
    return commands


def compare_small(outcome: Outcome, cpus: list[int], peers_python: str | None, rounds: int, updates: int) -> None:
    """Small networks, on one CPU: XLA's program of a block beside TensorFlow's operations, and beside peers."""
    options = ["--small", "--rounds", str(rounds), "--updates", str(updates)]
    median = medians(commands_of(cpus, peers_python, ("sbx", "rltools"), *options), cpus, rounds)
    del median["peak"]
    for name, rate in median.items():
        outcome.row(f"{name}, small networks, 1 CPU", rate, "updates/s")
    outcome.ratio("one program over operations, small networks", median["one program"] / median["fused"], 1.6)
    if peers_python:
        outcome.ratio("one program over SBX, small networks", median["one program"] / median["sbx sac"])
        outcome.ratio("one program over RLtools, small networks", median["one program"] / median["rltools sac"], 0.7)


def compare(outcome: Outcome, cpus: list[int], peers_python: str | None, rounds: int, updates: int) -> None:
    """All candidates on the same CPUs, in turns."""
    options = ["--rounds", str(rounds), "--updates", str(updates)]
    median = medians(commands_of(cpus, peers_python, ("sbx", "sb3"), *options), cpus, rounds)
    where = f"{len(cpus)} CPU" + ("s" if len(cpus) > 1 else "")
    limit = median.pop("peak") * 1000 / _UPDATE_MFLOP
    for name, rate in median.items():
        outcome.row(f"{name}, {where}", rate, "updates/s")
    one = len(cpus) == 1
    if one:
        outcome.row("limit of the core's matrix products", limit, "updates/s")
        outcome.ratio("fused over the limit, 1 CPU", median["fused"] / limit, 0.85)
    outcome.ratio(f"fused over TF-Agents' agent.train, {where}", median["fused"] / median["TF-Agents, agent.train"])
    if peers_python:
        outcome.ratio(f"fused over SBX, {where}", median["fused"] / median["sbx sac"], 1.3 if one else 1.5)
        outcome.ratio(
            f"fused over Stable-Baselines3, {where}", median["fused"] / median["sb3 sac"], None if one else 2.7
        )
    if "fused, bfloat16" in median:
        outcome.ratio(f"bfloat16 over float32, {where}", median["fused, bfloat16"] / median["fused"], 1.4)
    else:
        outcome.note("bfloat16 is not measured: this CPU multiplies it more slowly than float32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers_python", default=None, help="Python of the peers' virtual environment")
    parser.add_argument("--measure", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--updates", type=int, default=100, help="updates of a round")
    args = parse_args(parser)
    if args.measure:
        measure(args.measure, args.rounds, args.updates, args.small)
        return
    outcome = Outcome(__doc__.splitlines()[0])
    rounds, updates = (2, 10) if args.quick else (args.rounds, args.updates)
    cpus = sorted(os.sched_getaffinity(0))
    compare(outcome, cpus[-1:], args.peers_python, rounds, updates)
    compare_small(outcome, cpus[-1:], args.peers_python, rounds, min(updates, 100))  # A block holds no more.
    if len(cpus) > 1 and not args.quick:
        compare(outcome, cpus[:2], args.peers_python, rounds, updates)
    outcome.print()


if __name__ == "__main__":
    main()
