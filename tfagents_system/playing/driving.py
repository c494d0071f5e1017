"""Drives in an environment that tells its position: to record a reward, to check it, to measure it."""

from __future__ import annotations

import collections
import dataclasses
import gc
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tree

from tfagents_system.checks.frame_stacks import FrameStack
from tfagents_system.envs import reward_files
from tfagents_system.envs.history import frames_in, is_image, leaf_names
from tfagents_system.envs.rendering import NO_VIDEO
from tfagents_system.envs.trajectory_reward import KEY, POSITION
from tfagents_system.errors import UserError, shown
from tfagents_system.playing.played_environment import check_fit, make_env, stopping_between_steps
from tfagents_system.report.long_work import LongWork
from tfagents_system.train_params_base import TrainParamsBase

_PICTURE_SCALE = 4
_PATH = "path"  # In the info: where the agent was since the step before.
_LAP_TIME = "lap_time"  # In the info, seconds.
_MS = 1000.0


@dataclasses.dataclass(frozen=True)
class Driven:
    """One step.

    Attributes:
      observation: What the environment returned, before frames are stacked.
      positions: Where the agent was since the step before, `[n, 2]` or `[n, 3]`, metres.
    """

    step: int
    reward: float
    is_last: bool
    is_terminated: bool
    observation: Any
    info: dict[str, Any]
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
      UserError: The file exists or is no .npz, nobody drives, the lap is not finished, or it is no trajectory (see
        `reward_files.polyline`).
    """
    _check_process(params)
    params.env_config.pop(KEY, None)  # Its file may not exist yet.
    chosen, findings = policy, []
    if policy is None and not is_watched:
        chosen = params.expert_policy_ctor()
    if out.suffix != ".npz":
        findings.append(f"{out} must end with .npz: give such a file with --out")
    elif out.exists() and not is_forced:
        findings.append(f"{out} exists: give another --out, or --force to overwrite it")
    if chosen is None and not is_watched:
        findings.append(
            "nobody drives: give --policy, have TrainParams.expert_policy_ctor return a driver, or drive a device "
            "yourself (--watch)"
        )
    if policy is not None and is_watched:
        findings.append("with --policy the policy drives, with --watch somebody else: leave out one of them")
    if findings:
        raise UserError(*findings)
    lap = []
    env = make_env(params, seed, render=False)
    with stopping_between_steps(env) as check_stop:
        if policy is not None:
            check_fit(policy, env)
        steps = _watched(env, seed, params.horizon) if is_watched else _episode(env, _driver(chosen, env), env.reset())
        with LongWork("lap", unit="steps") as work:
            for step in steps:
                check_stop()
                lap.append(step)
                work.advance()
    return _written(lap, params.horizon, out)


def _check_process(params: TrainParamsBase) -> None:
    """Raises:
    UserError: The environment would be in a process of its own.
    """
    source = params._source
    if source is not None and source.process is not None:
        raise UserError(
            f"SAC_ENV_PYTHON={source.process.python}: an environment in a process of its own tells no positions, and "
            "its expert is not here: install the simulator in this Python, and begin the command with "
            "`SAC_ENV_PYTHON= `"
        )


def _written(lap: Sequence[Driven], horizon: int, out: Path) -> str:
    """Writes a lap's trajectory; returns that in a sentence."""
    last = lap[-1].info
    if not last.get("is_success"):
        where = f" at {last['metres']:.1f} m" if "metres" in last else ""
        raise UserError(
            f"the lap was not finished: it ended after {len(lap)} steps{where} ({_end(lap[-1], horizon)}): "
            "let a better driver record it, or raise the horizon"
        )
    if len({step.positions.shape[1] for step in lap}) > 1:
        raise UserError("positions have two coordinates in some steps and three in others: correct the environment")
    points = reward_files.polyline(np.concatenate([step.positions for step in lap]))
    about = {name: last[name] for name in ("track", _LAP_TIME) if name in last}
    reward_files.write_points(out, points, about)
    metres = (len(points) - 1) * reward_files.SPACING_METRES
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
    _check_process(params)
    total, step, undrawn = 0.0, None, ""
    chosen = policy if policy is not None else params.expert_policy_ctor()
    env = make_env(params, seed, render=True)
    with stopping_between_steps(env) as check_stop:
        if policy is not None:
            check_fit(policy, env)
        frames: dict[str, collections.deque[np.ndarray]] = {}
        drive = _driver(chosen, env)
        first = env.reset()
        _remember(frames, first.observation, params.frame_stack)
        for step in _episode(env, drive, first):
            check_stop()
            total += step.reward
            _remember(frames, step.observation, params.frame_stack)
            yield _line(step)
            if step.step % every == 1 or every == 1 or step.is_last:
                frame = None
                if not undrawn:
                    frame, undrawn = _drawn(env)
                    if undrawn:
                        yield undrawn
                _write_pictures(out / f"step_{step.step:04d}", frame, frames)
    assert step is not None
    yield f"end: {_end(step, params.horizon)} after {step.step} steps, return {total:.3f}{_lap_time(step.info)}"
    if frames or not undrawn:
        yield f"pictures: {out}"


def _end(step: Driven, horizon: int) -> str:
    """Why the episode is over, as the environment says, or as far as its last step tells."""
    if named := step.info.get("end"):
        return str(named)
    if step.is_terminated:
        return "terminated"
    return "horizon" if step.step >= horizon else "truncated"


def _lap_time(info: Mapping[str, Any]) -> str:
    """`, lap time 30.628 s`, where a lap was finished and timed."""
    return f", lap time {info[_LAP_TIME]:.3f} s" if info.get("is_success") and _LAP_TIME in info else ""


def benchmark(params: TrainParamsBase, seed: int, steps: int) -> Iterator[str]:
    """Steps with random actions, a device with its default one; yields lines with times, rates and memory.

    Of RealTimeEnvironment also the parts of its steps, with rtgym's names.

    Args:
      steps: How many are measured, after as many episodes as there were before the first new one.
    """
    from tfagents_system.envs import loading  # noqa: F401 (its packages are not the environment's memory)
    from tfagents_system.envs.step_times import mean_and_deviation

    _check_process(params)
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    with make_env(params, seed, render=False) as env, LongWork("benchmark", steps, "steps") as work:
        drive = _trial(env, seed)
        times: dict[str, list[float]] = {"reset": [], "step": []}
        is_last, cpu_secs = True, 0.0
        while len(times["step"]) < steps:
            action = drive()
            start, cpu_start = time.perf_counter(), time.process_time()
            time_step = env.reset() if is_last else env.step(action)
            cpu = time.process_time() - cpu_start
            times["reset" if is_last else "step"].append(time.perf_counter() - start)
            cpu_secs += 0.0 if is_last else cpu
            is_last, work.done = bool(time_step.is_last()), len(times["step"])
        memory = process.memory_info().rss - before
        parts = env.device.take_times() if env.device is not None else {}
    yield f"{'':12} {'mean':>10} {'mean abs. deviation':>20}"
    times = {"reset": times["reset"], **(parts or {"step": times["step"]})}
    for name, values in times.items():
        mean, deviation = mean_and_deviation(values)
        yield f"{name:12} {mean * _MS:>7.3f} ms {deviation * _MS:>17.3f} ms"
    yield (
        f"{steps / cpu_secs:,.0f} steps per second of CPU time of this process, whose memory the environment and its "
        f"{steps:,} steps have raised by {memory / 2**20:.0f} MiB"
    )


def _trial(env: Any, seed: int) -> Callable[[], Any]:
    """Returns agent's actions: random ones, of a device, which these may harm, its default one.

    Raises:
      UserError: See `Device.trial_action`.
    """
    from tfagents_system.envs.actions import random_actions

    if env.device is not None:
        harmless = env.device.trial_action(env.actions)
        return lambda: harmless
    spec, rng = env.action_spec(), np.random.default_rng(seed)
    return lambda: tree.map_structure(lambda leaf: random_actions(leaf, rng), spec)


def _driver(policy: Any, env: Any) -> Callable[[Any], Any]:
    """A function from a time step to an agent's action: of a policy or an expert; None: see `_trial`."""
    from tfagents_system.policies.worker_policy import FixedPolicy, LaneSteps

    if policy is None:
        trial = _trial(env, 0)
        return lambda time_step: trial()
    fixed = FixedPolicy(policy, env.actions)

    def drive(time_step: Any) -> Any:
        try:
            actions = fixed.act(LaneSteps.of([time_step]), greedy=True)
        except FloatingPointError as error:
            raise UserError(str(error)) from None
        return tree.unflatten_as(env.action_spec(), [leaf[0] for leaf in actions])

    return drive


def _episode(env: Any, drive: Callable[[Any], Any], time_step: Any) -> Iterator[Driven]:
    """The steps of an episode.

    Args:
      time_step: Its first, of `reset`.
    """
    step = 0
    while not time_step.is_last():
        time_step = env.step(drive(time_step))
        step += 1
        is_last, is_terminated = bool(time_step.is_last()), time_step.discount == 0.0
        yield _driven(step, float(time_step.reward), is_last, is_terminated, time_step.observation, dict(env.info))


def _watched(env: Any, seed: int, horizon: int) -> Iterator[Driven]:
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
    for step in range(1, horizon + 1):
        due += secs
        time.sleep(max(0.0, due - time.monotonic()))
        observation, reward, is_over, info = interface.get_obs_rew_terminated_info()
        yield _driven(step, float(reward), is_over or step == horizon, is_over, observation, dict(info))
        if is_over:
            return


def _driven(
    step: int, reward: float, is_last: bool, is_terminated: bool, observation: Any, info: dict[str, Any]
) -> Driven:
    if POSITION not in info:
        raise UserError(f'the info of a step has no "{POSITION}", the agent\'s coordinates in metres: add it')
    position = _numbers(POSITION, info[POSITION], 1)
    path = info.get(_PATH)
    positions = position[None] if path is None or operator.length_hint(path, 1) == 0 else _numbers(_PATH, path, 2)
    return Driven(step, reward, is_last, is_terminated, observation, info, positions)


def _numbers(name: str, found: Any, ndim: int) -> np.ndarray:
    """A position or a path of an info, as float64.

    Raises:
      UserError: It is something else.
    """
    try:
        places = np.asarray(found, np.float64)
    except (TypeError, ValueError):
        places = np.empty(0)
    if places.ndim != ndim or places.shape[-1] not in (2, 3):
        raise UserError(
            f'"{name}" in the info of a step must be {"[n, 2] or [n, 3]" if ndim == 2 else "two or three coordinates"} '
            f"in metres, found {shown(found)}: correct it"
        )
    return places


def _line(step: Driven) -> str:
    metres = f"  {step.info['metres']:8.2f} m" if "metres" in step.info else ""
    position = ", ".join(f"{value:.2f}" for value in step.info[POSITION])
    return (
        f"step {step.step:5d}  reward {step.reward:9.4f}{metres}  at ({position})  {step.info.get('end', '')}".rstrip()
    )


def _remember(frames: dict[str, collections.deque[np.ndarray]], observation: Any, stack: FrameStack) -> None:
    """Adds the images of an observation to those before; the first, of a reset, is repeated."""
    leaves = zip(leaf_names(observation), tree.flatten(observation), frames_in(observation, stack), strict=True)
    for leaf_name, leaf, count in leaves:
        if is_image(leaf) and leaf.shape[-1] in (1, 3):
            name = leaf_name.replace("/", "_")
            frames.setdefault(name, collections.deque([leaf] * count, maxlen=count)).append(leaf)


def _drawn(env: Any) -> tuple[np.ndarray | None, str]:
    """The environment's picture, or why there is none: it need not have any."""
    try:
        return env.render_frame(), ""
    except UserError as error:
        return None, f"no pictures of the environment itself: {error.findings[0].replace(f', {NO_VIDEO}', '')}"


def _write_pictures(path: Path, frame: np.ndarray | None, frames: Mapping[str, Sequence[np.ndarray]]) -> None:
    import imageio.v3 as imageio

    pictures = {} if frame is None else {f"{path}.png": frame}
    for name, stack in frames.items():
        between = [np.pad(each, ((0, 0), (0, 1), (0, 0))) for each in list(stack)[:-1]]
        side_by_side = np.concatenate([*between, stack[-1]], axis=1)
        large = side_by_side.repeat(_PICTURE_SCALE, axis=0).repeat(_PICTURE_SCALE, axis=1)
        pictures[f"{path}_{name}.png"] = large[..., 0] if large.shape[-1] == 1 else large
    for file, picture in pictures.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        imageio.imwrite(file, picture)
