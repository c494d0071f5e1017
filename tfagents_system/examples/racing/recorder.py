"""Records a reward's trajectory, checks an environment, measures it: `sac racing`.

For any environment whose info has `position`; docs/how_to/racing.md says more.
"""

from __future__ import annotations

import argparse
import collections
import gc
import operator
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import tree

from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, OptionParser, UserError, exit_with, shown
from tfagents_system.hyperparameters import FrameStack
from tfagents_system.machine.files import replacing
from tfagents_system.playing.play import check_fit, make_env, stopping_between_steps
from tfagents_system.playing.saved_run import find_path, load_run_params, output_folder
from tfagents_system.report.long_work import LongWork
from tfagents_system.train_params_base import TrainParamsBase

_PICTURE_SCALE = 4


class Step(NamedTuple):
    """One step; `positions` says where the agent was since the step before, `[n, 2]` or `[n, 3]`, metres."""

    number: int
    reward: float
    is_last: bool
    is_terminated: bool
    observation: Any
    info: Mapping[str, Any]
    positions: np.ndarray


def record_reward(
    params: TrainParamsBase, policy: Any, seed: int, out: Path, is_forced: bool, *, is_watched: bool = False
) -> str:
    """Drives one lap and writes its trajectory.

    Args:
      policy: A loaded policy; None: the expert of the params.
      is_watched: Somebody else drives the device: its positions are recorded, and nothing is sent.

    Returns:
      What was written, in a sentence.

    Raises:
      UserError: The file exists or is no .npz, nobody drives, the lap is not finished, or it is no trajectory.
    """
    params.env_config.pop("trajectory_reward", None)  # Its file may not exist yet.
    driver = params.expert_policy_ctor() if policy is None and not is_watched else policy
    findings = []
    if out.suffix != ".npz":
        findings.append(f"{out} must end with .npz: give such a file with --out")
    elif out.exists() and not is_forced:
        findings.append(f"{out} exists: give another --out, or --force to overwrite it")
    if driver is None and not is_watched:
        findings.append(
            "nobody drives: give --policy, have TrainParams.expert_policy_ctor return a driver, or drive a device "
            "yourself (--watch)"
        )
    if findings:
        raise UserError(*findings)
    lap = []
    env = make_env(params, seed, render=False)
    with stopping_between_steps(env) as check_stop, LongWork("lap", unit="steps") as work:
        if policy is not None:
            check_fit(policy, env)
        steps = _watched(env, seed, params.horizon) if is_watched else _episode(env, _driver(driver, env), env.reset())
        for step in steps:
            check_stop()
            lap.append(step)
            work.advance()
    return _written(lap, params.horizon, out)


def _written(lap: Sequence[Step], horizon: int, out: Path) -> str:
    """Writes a lap's trajectory; returns that in a sentence."""
    from tfagents_system.examples.racing.trajectory_reward import SPACING_METRES, polyline

    last = lap[-1].info
    if not last.get("is_success"):
        where = f" at {last['metres']:.1f} m" if "metres" in last else ""
        raise UserError(
            f"the lap was not finished: it ended after {len(lap)} steps{where} ({_end(lap[-1], horizon)}): "
            "let a better driver record it, or raise the horizon"
        )
    if len({step.positions.shape[1] for step in lap}) > 1:
        raise UserError("positions have two coordinates in some steps and three in others: correct the environment")
    points = polyline(np.concatenate([step.positions for step in lap]))
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as file:
        np.savez_compressed(file, points=points)
    metres = (len(points) - 1) * SPACING_METRES
    track = f", track {last['track']}" if "track" in last else ""
    return f"{out}: {len(points):,} points of {metres:.1f} m, driven in {len(lap)} steps{track}{_lap_time(last)}"


def check_environment(params: TrainParamsBase, policy: Any, seed: int, out: Path, every: int) -> Iterator[str]:
    """Drives one episode; yields a line for each step, and writes pictures of what the policy sees.

    An environment that can't be drawn is driven all the same; a line says so.

    Args:
      policy: A loaded policy; None: the expert of the params, or without one random actions, a device's default one.
      out: Folder for the pictures: the environment's own, and images of its observation with those stacked before it.
      every: Steps between two pictures.
    """
    total, step = 0.0, None
    driver = policy if policy is not None else params.expert_policy_ctor()
    env = make_env(params, seed, render=True)
    with stopping_between_steps(env) as check_stop:
        if policy is not None:
            check_fit(policy, env)
        frames: dict[str, collections.deque[np.ndarray]] = {}
        drive = _driver(driver, env)
        first = env.reset()
        if undrawn := _undrawn(env):
            yield undrawn
        _remember(frames, first.observation, params.frame_stack)
        for step in _episode(env, drive, first):
            check_stop()
            total += step.reward
            _remember(frames, step.observation, params.frame_stack)
            yield _line(step)
            if (step.number - 1) % every == 0 or step.is_last:
                frame = None if undrawn else env.render_frame()
                _write_pictures(out / f"step_{step.number:04d}", frame, frames)
    assert step is not None
    yield f"end: {_end(step, params.horizon)} after {step.number} steps, return {total:.3f}{_lap_time(step.info)}"
    if frames or not undrawn:
        yield f"pictures: {out}"


def _end(step: Step, horizon: int) -> str:
    """Why the episode is over, as the environment says, or as far as its last step tells."""
    if reason := step.info.get("end"):
        return str(reason)
    if step.is_terminated:
        return "terminated"
    return "horizon" if step.number >= horizon else "truncated"


def _lap_time(info: Mapping[str, Any]) -> str:
    """`, lap time 30.628 s`, where a lap was finished and timed."""
    return f", lap time {info['lap_time']:.3f} s" if info.get("is_success") and "lap_time" in info else ""


def benchmark(params: TrainParamsBase, seed: int, steps: int) -> Iterator[str]:
    """Steps with random actions, a device with its default one; yields lines with times, rates and memory.

    Of RealTimeEnvironment also the parts of its steps, with rtgym's names.
    """
    process = psutil.Process()
    times: dict[str, list[float]] = {"reset": [], "step": []}
    is_last, cpu_secs = True, 0.0
    with make_env(params, seed, render=False) as env, LongWork("benchmark", steps, "steps") as work:
        gc.collect()
        before = process.memory_info().rss
        drive = _driver(None, env, seed)
        while len(times["step"]) < steps:
            action = drive(None)
            start, cpu_start = time.perf_counter(), time.process_time()
            time_step = env.reset() if is_last else env.step(action)
            cpu_secs += 0.0 if is_last else time.process_time() - cpu_start
            times["reset" if is_last else "step"].append(time.perf_counter() - start)
            is_last, work.done = bool(time_step.is_last()), len(times["step"])
        memory = process.memory_info().rss - before
        parts = env.device.take_times() if env.device is not None else {}
    yield f"{'':12} {'mean':>10} {'mean abs. deviation':>20}"
    for name, values in {"reset": times["reset"], **(parts or {"step": times["step"]})}.items():
        mean = np.mean(values) if values else 0.0
        deviation = np.mean(np.abs(np.array(values) - mean)) if values else 0.0
        yield f"{name:12} {mean * 1e3:>7.3f} ms {deviation * 1e3:>17.3f} ms"
    yield (
        f"{steps / cpu_secs:,.0f} steps per second of CPU time of this process, whose memory the {steps:,} steps have "
        f"raised by {memory / 2**20:.0f} MiB"
    )


def _driver(policy: Any, env: Any, seed: int = 0) -> Callable[[Any], Any]:
    """A function from a time step to an agent's action: of a policy or an expert.

    None: random ones; of a device, which these may harm, its default one.

    Raises:
      UserError: See `Device.trial_action`.
    """
    from tfagents_system.envs.actions import random_actions
    from tfagents_system.policies.worker_policy import FixedPolicy, LaneSteps

    if policy is None and env.device is not None:
        harmless = env.device.trial_action(env.actions)
        return lambda time_step: harmless
    if policy is None:
        rng = np.random.default_rng(seed)
        return lambda time_step: tree.map_structure(lambda leaf: random_actions(leaf, rng), env.action_spec())
    fixed = FixedPolicy(policy, env.actions)

    def drive(time_step: Any) -> Any:
        try:
            actions = fixed.act(LaneSteps.of([time_step]), greedy=True)
        except FloatingPointError as error:
            raise UserError(str(error)) from None
        return tree.unflatten_as(env.action_spec(), [leaf[0] for leaf in actions])

    return drive


def _episode(env: Any, drive: Callable[[Any], Any], time_step: Any) -> Iterator[Step]:
    """The steps of an episode, which begins with this time step."""
    number = 0
    while not time_step.is_last():
        time_step = env.step(drive(time_step))
        number += 1
        is_last, is_terminated = bool(time_step.is_last()), time_step.discount == 0.0
        yield _step(number, float(time_step.reward), is_last, is_terminated, time_step.observation, env.info)


def _watched(env: Any, seed: int, horizon: int) -> Iterator[Step]:
    """The steps of an episode of a device that somebody else drives: nothing is sent to it.

    Raises:
      UserError: It is no device.
    """
    watched = None if env.device is None else env.device.watched()
    if watched is None:
        raise UserError(
            "--watch is for a device: have env_ctor return a RealTimeEnvironment (or rtgym's), or leave it out"
        )
    interface, secs = watched
    interface.reset(seed=seed, options=None)
    due = time.monotonic()
    for number in range(1, horizon + 1):
        due += secs
        time.sleep(max(0.0, due - time.monotonic()))
        observation, reward, is_over, info = interface.get_obs_rew_terminated_info()
        yield _step(number, float(reward), is_over or number == horizon, is_over, observation, info)
        if is_over:
            return


def _step(
    number: int, reward: float, is_last: bool, is_terminated: bool, observation: Any, info: Mapping[str, Any]
) -> Step:
    if "position" not in info:
        raise UserError('the info of a step has no "position", the agent\'s coordinates in metres: add it')
    positions, path = _coordinates("position", [info["position"]]), info.get("path")
    if path is not None and operator.length_hint(path, 1):
        positions = _coordinates("path", path)
    return Step(number, reward, is_last, is_terminated, observation, dict(info), positions)


def _coordinates(name: str, value: Any) -> np.ndarray:
    """Positions of an info, `[n, 2]` or `[n, 3]` float64.

    Raises:
      UserError: They are something else.
    """
    try:
        coordinates = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        coordinates = np.empty(0)
    if coordinates.ndim != 2 or coordinates.shape[-1] not in (2, 3):
        raise UserError(
            f'"{name}" in the info of a step must have two or three coordinates in metres, found {shown(value)}: '
            "correct it"
        )
    return coordinates


def _line(step: Step) -> str:
    metres = f"  {step.info['metres']:8.2f} m" if "metres" in step.info else ""
    position = ", ".join(f"{value:.2f}" for value in step.info["position"])
    end = step.info.get("end", "")
    return f"step {step.number:5d}  reward {step.reward:9.4f}{metres}  at ({position})  {end}".rstrip()


def _remember(frames: dict[str, collections.deque[np.ndarray]], observation: Any, stack: FrameStack) -> None:
    """Adds the images of an observation to those before; the first, of a reset, is repeated."""
    from tfagents_system.envs.history import frames_in, is_image, leaf_names

    leaves = zip(leaf_names(observation), tree.flatten(observation), frames_in(observation, stack), strict=True)
    for leaf_name, leaf, count in leaves:
        if is_image(leaf) and leaf.shape[-1] in (1, 3):
            name = leaf_name.replace("/", "_")
            frames.setdefault(name, collections.deque([leaf] * count, maxlen=count)).append(leaf)


def _undrawn(env: Any) -> str:
    """Why the environment has no picture: it need not have any; empty if it has one."""
    from tfagents_system.envs.rendering import NO_VIDEO

    try:
        env.render_frame()
    except UserError as error:
        return f"no pictures of the environment itself: {error.findings[0].replace(f', {NO_VIDEO}', '')}"
    return ""


def _write_pictures(path: Path, frame: np.ndarray | None, frames: Mapping[str, Sequence[np.ndarray]]) -> None:
    import imageio.v3 as imageio

    pictures = {} if frame is None else {f"{path}.png": frame}
    for name, stack in frames.items():
        between = [np.pad(image, ((0, 0), (0, 1), (0, 0))) for image in list(stack)[:-1]]
        side_by_side = np.concatenate([*between, stack[-1]], axis=1)
        large = side_by_side.repeat(_PICTURE_SCALE, axis=0).repeat(_PICTURE_SCALE, axis=1)
        pictures[f"{path}_{name}.png"] = large[..., 0] if large.shape[-1] == 1 else large
    path.parent.mkdir(parents=True, exist_ok=True)
    for file, picture in pictures.items():
        imageio.imwrite(file, picture)


# The program.


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    flags = _parse(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    if python := os.environ.get("SAC_ENV_PYTHON"):
        raise UserError(
            f"SAC_ENV_PYTHON={python}: an environment in a process of its own tells no positions, and its expert is "
            "not here: install the simulator in this Python, and begin the command with `SAC_ENV_PYTHON= `"
        )
    path = None if flags.policy is None else find_path(flags.policy, "--policy", Path.exists)
    params = load_run_params(None, flags.params, flags.config)
    from tfagents_system.envs.faults import EnvironmentFault
    from tfagents_system.envs.rendering import prepare_headless

    prepare_headless()
    try:
        for line in _lines(flags, params, None if path is None else _load(path)):
            print(line)
    except EnvironmentFault as fault:
        print(f"error: {fault}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_DONE


def _lines(flags: argparse.Namespace, params: TrainParamsBase, policy: Any) -> Iterator[str]:
    if flags.command == "benchmark":
        yield from benchmark(params, flags.seed, flags.steps)
    elif flags.command == "check-environment":
        yield from check_environment(params, policy, flags.seed, output_folder(flags.out, "--out"), flags.every)
    else:
        named = (params.env_config.get("input_files") or {}).get("trajectory_reward", "reward.npz")
        out = Path(flags.out or named).expanduser().absolute()
        yield record_reward(params, policy, flags.seed, out, flags.force, is_watched=flags.watch)


def _load(policy: Path) -> Any:
    from absl import logging

    from tfagents_system.policies.files import load_policy

    logging.set_verbosity(logging.ERROR)
    return load_policy(policy, "--policy")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    common = OptionParser(add_help=False)
    common.add_argument("--params", required=True, metavar="PARAMS.py", help="file with TrainParams")
    common.add_argument("--config", required=True, metavar="JSON", help="JSON of the environment")
    common.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the environment (default: 0)")
    who = "who drives: a policy checkpoint, SavedModel or exported file (default: expert_policy_ctor)"
    parser = OptionParser()
    parser.set_defaults(policy=None)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    record = commands.add_parser("record-reward", parents=[common], help="drive one lap and write it as a trajectory")
    words = "file to write (default: trajectory_reward of the JSON's input_files, or reward.npz)"
    drivers = record.add_mutually_exclusive_group()
    drivers.add_argument("--policy", metavar="PATH", help=who)
    drivers.add_argument("--watch", action="store_true", help="somebody else drives the device: nothing is sent")
    record.add_argument("--out", metavar="FILE", help=words)
    record.add_argument("--force", action="store_true", help="overwrite the file")
    check = commands.add_parser("check-environment", parents=[common], help="print rewards and write pictures")
    check.add_argument("--policy", metavar="PATH", help=who)
    check.add_argument("--out", default="check_environment", metavar="FOLDER", help="folder (default: %(default)s)")
    check.add_count("--every", "steps between pictures", 20)
    measure = commands.add_parser("benchmark", parents=[common], help="measure times of reset and step, and memory")
    measure.add_count("--steps", "steps", 2000)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
