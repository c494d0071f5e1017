"""Updates on a GPU, with and without XLA, are faster than on 1, 4 and 8 CPUs.

    python -m benchmarks.gpu_update [--quick]

One process for each device; the processes take turns in rounds. The GPU's process has two CPUs, as a trainer usually
has. SAC's sizes are (batch, units of each of two layers) with observation 28 and action 8, and Pendulum's pictures as
the example `pendulum_pixels` has them; XQC and FlashSAC have those of their papers, float32 and bfloat16. Without a GPU
the CPUs alone are measured.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.outcome import Outcome, parse_args
from benchmarks.update import ACTION, OBSERVATION, Rounds
from tfagents_system.machine.cpus import usable_gpus

_CPU, _GPU, _NO_XLA = "CPU", "GPU", "GPU without XLA"
_CPUS = (1, 4, 8)
_GPU_CPUS = 2
_SIZES = ((256, 256), (256, 1024), (4096, 256), (4096, 1024))
_PIXELS, _PIXELS_BATCH, _PICTURE = "pixels, batch 128", 128, (50, 50, 9)
_MAX_UPDATES = 50  # of a block; on a GPU always as many, so that what a block costs once counts as little as in a run.
_BLOCK_SECS = 0.5
_SHARED = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}  # Two processes hold memory of the GPU.


def make_update(batch: int, observation: Any, num_actions: int, precision: str = "float32", **attributes: Any) -> Any:
    """The trainer's compiled update of a block, of an algorithm with its defaults but for `attributes`."""
    import tensorflow as tf
    from tf_agents.specs import tensor_spec
    from tf_agents.trajectories import time_step as ts

    from tfagents_system.agents.block_update import BlockUpdate
    from tfagents_system.replay.sampling import TransitionForm
    from tfagents_system.settings.load_params import defaults_of
    from tfagents_system.train_params_base import TrainParamsBase

    class Params(TrainParamsBase):
        def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
            raise AssertionError("no environment is needed")

    params = Params({"horizon": 1000})
    vars(params).update(attributes)
    vars(params).update({name: value for name, value in defaults_of(params, 1).items() if name not in attributes})
    action = tensor_spec.BoundedTensorSpec((num_actions,), tf.float32, -1.0, 1.0, "action")
    agent = params.agent_ctor(ts.time_step_spec(observation), action, tf.Variable(0, dtype=tf.int64))
    return BlockUpdate(agent, batch, TransitionForm(), precision)


def random_block(count: int, batch: int, shape: tuple[int, ...], num_actions: int) -> list[np.ndarray]:
    """Observations, actions, rewards, bootstrap factors, next observations `[count, batch, ...]`; uint8 pictures."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal((count, batch, *shape), np.float32)

    def observations() -> np.ndarray:
        return normal(*shape) if len(shape) == 1 else rng.integers(0, 256, (count, batch, *shape), np.uint8)

    return [observations(), np.tanh(normal(num_actions)), normal(), np.ones((count, batch), np.float32), observations()]


def candidates(has_pixels: bool) -> dict[str, tuple[Callable[[], Any], Callable[[int], list[np.ndarray]]]]:
    """For each size what makes the update and what makes a block of so many minibatches."""
    import tensorflow as tf

    made: dict[str, tuple[Callable[[], Any], Callable[[int], list[np.ndarray]]]] = {}
    for batch, units in _SIZES:
        layers = {"actor_fc_layer_params": (units, units), "critic_joint_fc_layer_params": (units, units)}
        vector = tf.TensorSpec((OBSERVATION,), tf.float32, "observation")
        made[f"batch {batch}, ({units}, {units})"] = (
            functools.partial(make_update, batch, vector, ACTION, **layers),
            functools.partial(random_block, batch=batch, shape=(OBSERVATION,), num_actions=ACTION),
        )
    for algorithm, batch in (("xqc", 256), ("flash_sac", 512)):
        for precision in ("float32", "bfloat16"):
            vector = tf.TensorSpec((OBSERVATION,), tf.float32, "observation")
            attributes = {"algorithm": algorithm, "preset": "paper"}
            made[f"{algorithm}, {precision}"] = (
                functools.partial(make_update, batch, vector, ACTION, precision, **attributes),
                functools.partial(random_block, batch=batch, shape=(OBSERVATION,), num_actions=ACTION),
            )
    if has_pixels:
        from tf_agents.specs import tensor_spec

        picture = tensor_spec.BoundedTensorSpec(_PICTURE, tf.uint8, 0, 255, "observation")
        made[_PIXELS] = (
            functools.partial(make_update, _PIXELS_BATCH, picture, 1, image_encoder_layers=(16, 16, 16, 16)),
            functools.partial(random_block, batch=_PIXELS_BATCH, shape=_PICTURE, num_actions=1),
        )
    return made


def measure(device: str, rounds: int, has_pixels: bool, num_sizes: int | None) -> None:
    """Runs in a process of its own; a line of JSON for each round that stdin asks for."""
    import tensorflow as tf

    from tfagents_system.agents import block_update

    if device == _NO_XLA:
        block_update.xla_is_usable = lambda: False  # type: ignore[assignment]
    cpus = len(os.sched_getaffinity(0))
    inter = min(2, cpus)
    tf.config.threading.set_inter_op_parallelism_threads(inter)
    tf.config.threading.set_intra_op_parallelism_threads(max(1, cpus // inter))
    ready = {}
    for name, (make, block_of) in list(candidates(has_pixels).items())[:num_sizes]:
        update, block = make(), block_of(1)
        update(block)
        started = time.perf_counter()
        update(block)
        count = int(_BLOCK_SECS / (time.perf_counter() - started))
        block = block_of(_MAX_UPDATES if device != _CPU else min(max(count, 2), _MAX_UPDATES))
        update(block)
        ready[name] = (update, block)
    print("ready", flush=True)
    for _ in range(rounds):
        sys.stdin.readline()
        rates = {}
        for name, (update, block) in ready.items():
            started = time.perf_counter()
            update(block)
            rates[name] = len(block[0]) / (time.perf_counter() - started)
        print(json.dumps(rates), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no_pixels", action="store_true", help="leave the pictures out, which need cuDNN")
    args = parse_args(parser)
    if args.measure:
        measure(args.measure, args.rounds, not args.no_pixels, 1 if args.quick else None)
        return
    rounds = 1 if args.quick else args.rounds
    cpus, gpus = sorted(os.sched_getaffinity(0)), usable_gpus(os.environ)
    counts = [count for count in _CPUS if count <= len(cpus)][: 1 if args.quick else None]
    places = {f"{count} CPU" + ("s" if count > 1 else ""): (_CPU, cpus[:count], "-1") for count in counts}
    if gpus:
        places |= {name: (name, cpus[-_GPU_CPUS:], gpus[0]) for name in (_GPU, _NO_XLA)}
    outcome = Outcome(__doc__.splitlines()[0])
    if not gpus:
        outcome.note("there is no GPU here")
    command = [sys.executable, "-m", "benchmarks.gpu_update", "--rounds", str(rounds)]
    command += [flag for flag, is_set in (("--no_pixels", args.no_pixels), ("--quick", args.quick)) if is_set]
    processes = {
        place: Rounds([*command, "--measure", device], own_cpus, CUDA_VISIBLE_DEVICES=visible, **_SHARED)
        for place, (device, own_cpus, visible) in places.items()
    }
    lines = [{place: process.next() for place, process in processes.items()} for _ in range(rounds)]
    for process in processes.values():
        process.close()
    for name in lines[0][next(iter(processes))]:
        median = {place: statistics.median(line[place][name] for line in lines) for place in processes}
        for place, rate in median.items():
            outcome.row(f"{name}, {place}", rate, "updates/s")
        for place, rate in median.items():
            if _GPU in median and place != _GPU:
                outcome.ratio(f"{name}: GPU over {place}", median[_GPU] / rate)
    outcome.print()


if __name__ == "__main__":
    main()
