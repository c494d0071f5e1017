"""The update of SAC is SBX's: the same weights, minibatches and noise give the same losses and weights.

    python -m benchmarks.same_updates --peers_python PYTHON

The peer writes what decides its updates and the weights after them (benchmarks/peers/sac_updates.py); the fused update
begins with these weights and gets the same minibatches and noise. Distances of weights are relative to the way that
the peer's have gone. Adam's epsilon differs: 1e-7 before the bias correction here, 1e-8 after it there. It counts for
gradients as small as that, so the comparison is also made with 1e-9.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.outcome import Outcome, parse_args
from benchmarks.processes import run_json

_DEADLINE_SECS = 600.0
_PARTS = ("actor", "critic 1", "critic 2", "target 1", "target 2", "log alpha")

Weights = dict[str, list[np.ndarray]]


def make_agent(observations: int, actions: int, **attributes: Any) -> Any:
    """SAC as the toolkit builds it by default, but for these attributes."""
    import tensorflow as tf
    from tf_agents.specs import tensor_spec
    from tf_agents.trajectories import time_step as ts

    from tfagents_system.train_params_base import TrainParamsBase

    class Params(TrainParamsBase):
        def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
            raise AssertionError("no environment is needed")

    params = Params({"horizon": 1})
    for name, value in attributes.items():
        setattr(params, name, value)
    observation = tf.TensorSpec((observations,), tf.float32, "observation")
    action = tensor_spec.BoundedTensorSpec((actions,), tf.float32, -1.0, 1.0, "action")
    return params.agent_ctor(ts.time_step_spec(observation), action, tf.Variable(0, dtype=tf.int64))


def variables_of(agent: Any) -> dict[str, Sequence[Any]]:
    """TensorFlow's variables by part."""
    return {
        "actor": agent._actor_network.variables,
        "critic 1": agent._critic_network_1.variables,
        "critic 2": agent._critic_network_2.variables,
        "target 1": agent._target_critic_network_1.variables,
        "target 2": agent._target_critic_network_2.variables,
        "log alpha": [agent._log_alpha],
    }


def peer_weights(record: Any, when: str) -> Weights:
    """The peer's weights by part, in the order and shapes of ours."""

    def layer(part: str, number: int) -> list[np.ndarray]:
        return [record[f"{when}/{part}/Dense_{number}/{name}"] for name in ("kernel", "bias")]

    # Mean and log(std) are two layers there and one here.
    head = [np.concatenate(pair, axis=-1) for pair in zip(layer("actor", 2), layer("actor", 3), strict=True)]
    found = {"actor": [*layer("actor", 0), *layer("actor", 1), *head]}
    for part in ("critic", "target"):
        for critic in (0, 1):
            found[f"{part} {critic + 1}"] = [array[critic] for n in (0, 1, 2) for array in layer(part, n)]
    return found | {"log alpha": [record[f"{when}/alpha/log_ent_coef"]]}


def norm(a: Sequence[Any], b: Sequence[Any]) -> float:
    """Euclidean norm of all differences."""
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(x) - np.asarray(y))) for x, y in zip(a, b, strict=True))))


def make_step(agent: Any) -> Any:
    """The fused update of a minibatch of the record, compiled: (observations, ..., noise) -> losses."""
    import tensorflow as tf
    from tf_agents.trajectories import policy_step, trajectory
    from tf_agents.trajectories import time_step as ts

    from tfagents_system.agents.agent_interface import make_update

    update: Any = make_update(agent, True)

    def step(observations: Any, actions: Any, next_observations: Any, rewards: Any, dones: Any, *noise: Any) -> Any:
        zeros = tf.zeros_like(rewards)
        middle = tf.ones_like(rewards, tf.int32)
        experience = trajectory.Transition(
            ts.TimeStep(middle, zeros, zeros + 1.0, observations),
            policy_step.PolicyStep(actions),
            ts.TimeStep(middle, rewards, 1.0 - dones, next_observations),
        )
        measured = update.step(experience, [[each] for each in noise])
        return [measured[name][0] for name in ("actor_loss", "critic_loss", "alpha_loss")]

    return tf.function(step, autograph=False)


def compare(outcome: Outcome, record: Any, what: str, **attributes: Any) -> None:
    """Follows the record from its first weights on."""
    arrays = [record[name] for name in ("observations", "actions", "next_observations", "rewards", "dones")]
    arrays += [record["next_noise"], record["noise"]]
    agent = make_agent(arrays[0].shape[-1], arrays[1].shape[-1], **attributes)
    ours, before = variables_of(agent), peer_weights(record, "before")
    for part in _PARTS:
        for variable, array in zip(ours[part], before[part], strict=True):
            variable.assign(array)
    step = make_step(agent)
    for number in range(len(arrays[0])):
        losses = np.array([float(loss) for loss in step(*(array[number] for array in arrays))])
        if f"after {number + 1}/alpha/log_ent_coef" not in record.files:
            continue
        theirs = peer_weights(record, f"after {number + 1}")
        error = np.max(np.abs(losses - record["losses"][number]) / (np.abs(record["losses"][number]) + 1e-6))
        outcome.row(f"{what}: losses, update {number + 1}", error, "relative")
        for part in _PARTS:
            distance = norm(ours[part], theirs[part]) / norm(before[part], theirs[part])
            outcome.row(f"{what}: {part} after {number + 1} updates", distance, "of the way")


def compare_initial(outcome: Outcome, record: Any) -> None:
    """Standard deviations of the initial kernels, which each library draws for itself."""
    agent = make_agent(record["observations"].shape[-1], record["actions"].shape[-1])
    ours, theirs = variables_of(agent), peer_weights(record, "before")
    for part in ("actor", "critic 1"):
        for layer in range(3):
            outcome.row(f"initial kernel {layer + 1}, {part}: ours", np.std(ours[part][2 * layer]), "std")
            outcome.row(f"initial kernel {layer + 1}, {part}: SBX", np.std(theirs[part][2 * layer]), "std")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers_python", help="without it nothing is compared")
    arguments = parse_args(parser)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    assert __doc__ is not None
    outcome = Outcome(__doc__.splitlines()[0])
    if not arguments.peers_python:
        outcome.note("nothing is compared without the peer")
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "updates.npz"
            command = [arguments.peers_python, "-m", "benchmarks.peers.sac_updates", "--output", str(path)]
            run_json([*command, "--updates", "10" if arguments.quick else "100"], _DEADLINE_SECS)
            with np.load(path) as record:
                compare_initial(outcome, record)
                compare(outcome, record, "default epsilon")
                small = {f"{part}_optimizer": {"epsilon": 1e-9} for part in ("actor", "critic", "alpha")}
                compare(outcome, record, "epsilon 1e-9", **small)
    outcome.print()


if __name__ == "__main__":
    main()
