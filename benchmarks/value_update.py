"""Updates of learners of discrete actions' values: DQN's and IQN's beside Stable-Baselines3's DQN and contrib's QR-DQN.

    python -m benchmarks.value_update [--quick] [--peers_python PYTHON]

Batch 256, observation 28, 8 actions, networks (256, 256); IQN with 8 quantiles and two heads of 512 units, QR-DQN with
25 and none, as in RL Baselines3 Zoo. `iqn without heads` has QR-DQN's layers beside its fractions. One CPU; candidates
take turns in rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from typing import Any

import numpy as np

from benchmarks.outcome import Outcome, parse_args
from benchmarks.update import BATCH, OBSERVATION, UNITS, Rounds, answer_rounds

_NUM_ACTIONS = 8
_CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    **{algorithm: (algorithm, {}) for algorithm in ("dqn", "iqn", "sac_discrete")},
    "dqn, not double": ("dqn", {"double_q": False}),
    "iqn without heads": ("iqn", {"dueling": False}),
}


def make_update(algorithm: str, **attributes: Any) -> Any:
    """The trainer's compiled update of a block, with the algorithm's own defaults but for `attributes`."""
    import tensorflow as tf
    from tf_agents.specs import tensor_spec
    from tf_agents.trajectories import time_step as ts

    from tfagents_system.agents.block_update import BlockUpdate
    from tfagents_system.replay.sample_forms import TransitionForm
    from tfagents_system.train_params_base import TrainParamsBase

    class Params(TrainParamsBase):
        critic_joint_fc_layer_params = UNITS

        def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
            raise AssertionError("no environment is needed")

    params = Params({"horizon": 1})
    vars(params).update(algorithm=algorithm, **attributes)
    observation = tf.TensorSpec((OBSERVATION,), tf.float32, "observation")
    action = tensor_spec.BoundedTensorSpec((), tf.int32, 0, _NUM_ACTIONS - 1, "action")
    agent = params.agent_ctor(ts.time_step_spec(observation), action, tf.Variable(0, dtype=tf.int64))
    return BlockUpdate(agent, BATCH, TransitionForm())


def random_block(count: int) -> list[np.ndarray]:
    """Observations, actions, rewards, bootstrap factors and next observations `[count, BATCH, ...]`."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal((count, BATCH, *shape), np.float32)

    actions = rng.integers(0, _NUM_ACTIONS, (count, BATCH), np.int32)
    return [normal(OBSERVATION), actions, normal(), np.full((count, BATCH), 0.99, np.float32), normal(OBSERVATION)]


def dqn_mflop(is_double: bool) -> float:
    """Of one update, as `iqn_mflop`: 2 or 3 forward passes, and a backward one."""
    first, second = UNITS
    inputs = OBSERVATION * first
    forward = inputs + first * second + second * _NUM_ACTIONS
    return 2 * BATCH * ((5 if is_double else 4) * forward - inputs) / 1e6


def iqn_mflop(quantiles: int = 8, cosines: int = 64, head_units: int = 512) -> float:
    """Of one update, multiply-adds counted twice: 2 forward passes, and a backward one for weights and inputs.

    What goes into psi and phi, observations and cosines, needs no gradient. Of no head units: without heads.
    """
    rows, (first, second) = BATCH * quantiles, UNITS
    psi_inputs, phi = BATCH * OBSERVATION * first, rows * cosines * second
    heads = rows * (head_units * (2 * second + 1 + _NUM_ACTIONS) or second * _NUM_ACTIONS)
    forward = psi_inputs + BATCH * first * second + phi + heads
    return 2 * (4 * forward - psi_inputs - phi) / 1e6


def note_on_limit(rate: float, peers: float, limit: float) -> str:
    """How much of what the CPU can do DQN's target asks for, and what it has; in updates/s, none of them double."""
    return (
        f"the target for dqn, not double, twice Stable-Baselines3's rate, is {2.0 * peers / limit:.2f} of the limit of "
        f"its matrix products; it reaches {rate / limit:.2f}"
    )


def note_on_heads() -> str:
    """Why IQN's updates take so much longer than QR-DQN's."""
    share = 1.0 - iqn_mflop(head_units=0) / iqn_mflop()
    return f"{share:.2f} of IQN's matrix products are in its two heads of 512 units, which QR-DQN does not have"


def measure(rounds: int, updates: int) -> None:
    """Runs in a process of its own; a line of JSON for each round that stdin asks for."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    candidates = {name: make_update(algorithm, **more) for name, (algorithm, more) in _CANDIDATES.items()}
    answer_rounds(candidates, random_block(updates), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers_python", default=None, help="Python of the peers' virtual environment")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--updates", type=int, default=50, help="updates of a round")
    args = parse_args(parser)
    if args.measure:
        measure(args.rounds, args.updates)
        return
    rounds, updates = (2, 5) if args.quick else (args.rounds, args.updates)
    count = ["--rounds", str(rounds), "--updates", str(updates)]
    cpus = sorted(os.sched_getaffinity(0))[-1:]
    processes = [Rounds([sys.executable, "-m", "benchmarks.value_update", "--measure", *count], cpus)]
    for library, algorithm in (("sb3", "dqn"), ("contrib", "qrdqn")) if args.peers_python else ():
        script = [args.peers_python, "-m", "benchmarks.peers.updates", "--library", library, "--algorithm", algorithm]
        processes.append(Rounds([*script, *count], cpus))
    lines = [{name: rate for process in processes for name, rate in process.next().items()} for _ in range(rounds)]
    for process in processes:
        process.close()
    median = {name: statistics.median(line[name] for line in lines) for name in lines[0]}
    peak = median.pop("peak")
    mflop_of = {"iqn": iqn_mflop(), "dqn": dqn_mflop(True), "dqn, not double": dqn_mflop(False)}
    mflop_of["iqn without heads"] = iqn_mflop(head_units=0)
    limits = {name: peak * 1000 / mflop for name, mflop in mflop_of.items()}
    outcome = Outcome(__doc__.splitlines()[0])
    for name, rate in median.items():
        outcome.row(name, rate, "updates/s")
    for name, limit in limits.items():
        outcome.row(f"limit of the matrix products of {name}", limit, "updates/s")
        outcome.ratio(f"{name} over its limit", median[name] / limit, 0.6 if name == "iqn" else None)
    if args.peers_python:
        outcome.ratio(
            "dqn, not double, over Stable-Baselines3's, which is not",
            median["dqn, not double"] / median["sb3 dqn"],
            2.0,
        )
        outcome.ratio("dqn over Stable-Baselines3's", median["dqn"] / median["sb3 dqn"])
        for name in ("iqn", "iqn without heads"):
            outcome.ratio(f"{name} over contrib's QR-DQN", median[name] / median["contrib qrdqn"])
        outcome.note(note_on_limit(median["dqn, not double"], median["sb3 dqn"], limits["dqn, not double"]))
    outcome.note(note_on_heads())
    outcome.print()


if __name__ == "__main__":
    main()
