"""What a run asks of an environment's specs, images, goals and sizes, before a network is built."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.algorithms import ALGORITHMS, value
from tfagents_system.agents.encoder import convolutions, has_own_networks, is_encoded
from tfagents_system.checks.findings import Findings
from tfagents_system.checks.rules import is_meant
from tfagents_system.envs import actions, gym_driver
from tfagents_system.envs.gym_driver import ACHIEVED, ACTION_MASK, DESIRED, OBSERVATION, REWARD, TERMINATED
from tfagents_system.envs.history import HORIZON_TIME, frames_in, is_image, leaf_names
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError, shown
from tfagents_system.launch import machine_checks
from tfagents_system.train_params_base import TrainParamsBase, overrides_any
from tfagents_system.transport.segments import Layout

ENVIRONMENT = "environment"
_CHANNELS = {channels * frames for channels in (1, 3, 4) for frames in (1, 2, 3, 4)}  # Of an image or a stack of some.
_RTOL, _ATOL = 1e-3, 1e-4  # Goals are stored as float32.
_MOST_FEATURE_WEIGHTS = 2**26  # Of the dense layer behind an encoder; 84 x 84 pixels give 2 million.
_WEIGHT_BYTES = 16  # float32: value, gradient and Adam's two moments.
_SHORT_SIDE = 96  # Pixels, of what is proposed in place of an image that is too large.


def in_words(nest: Any) -> str:
    return ", ".join(f"{spec.name} {tuple(spec.shape)} {np.dtype(spec.dtype)}" for spec in tree.flatten(nest))


def _action_findings(params: TrainParamsBase, env: TrainingEnvironment) -> Iterator[str]:
    """The default networks have one action, of the kind that the algorithm learns; a user's hooks may have others."""
    leaves = tree.flatten(env.actions)
    learned = {"continuous" if leaf.rows is None else "discrete" for leaf in leaves}
    is_own = overrides_any(params, "agent_ctor") or (overrides_any(params, "actor_ctor") and len(learned) == 1)
    if len(leaves) > 1 and not is_own:
        parts = ", ".join(f"{leaf.spec.name}: {actions.in_words(leaf)}" for leaf in leaves)
        one, hook = "MultiDiscrete" if learned == {"discrete"} else "Box", "actor_ctor and critic_ctor"
        if len(learned) > 1:
            one, hook = "Box, of which a number makes the choice", "agent_ctor"
        yield (
            f"the action space has {len(leaves)} parts ({parts}), and a policy has one action: join them in one {one}, "
            f"and take it apart in a wrapper, or override {hook}"
        )
        return
    wanted, leaf, kind = ALGORITHMS[params.algorithm].actions, leaves[0], learned.pop()
    if kind != wanted and not overrides_any(params, "agent_ctor"):
        fitting = " or ".join(name for name, algorithm in ALGORITHMS.items() if algorithm.actions == kind)
        remedy = f"set algorithm to {fitting}"
        if kind == "continuous":
            remedy += f", or set action_table to rows of {leaf.spec.shape[0]} numbers, the actions to choose from"
        elif params.action_table is not None:
            remedy += ", or remove action_table"
        yield (
            f"algorithm={params.algorithm} learns {wanted} actions, and the environment's are {kind} "
            f"({actions.in_words(leaf)}): {remedy}"
        )


def _mask_findings(params: TrainParamsBase, env: TrainingEnvironment) -> Iterator[str]:
    """A mask is of the n actions of one Discrete space, and no networks see it."""
    spec, leaves = env.observation_spec(), tree.flatten(env.actions)
    is_discrete = ALGORITHMS[params.algorithm].actions == "discrete" and leaves[0].rows is not None
    if (mask := gym_driver.mask_of(spec)) is None or not is_discrete or overrides_any(params, "agent_ctor"):
        return
    shape, has_shape = getattr(mask, "shape", None), params.action_table is None and leaves[0].environment_spec.shape
    if len(leaves) > 1 or has_shape or shape != (len(leaves[0].rows),):
        yield (
            f"{ACTION_MASK} has a number for each action of one Discrete space, its shape is {shape} and the actions "
            f"are {', '.join(map(actions.in_words, leaves))}: correct one of them, or rename this part of observations"
        )
    elif len(spec) == 1:
        yield f"the observation is {ACTION_MASK} alone, which no network sees: give it another part, what decides"
    if isinstance(params.frame_stack, Mapping) and params.frame_stack.get(ACTION_MASK, 1) != 1:
        yield f'TrainParams.frame_stack stacks "{ACTION_MASK}", of which the newest one alone counts: leave it out'


def _stack_findings(params: TrainParamsBase, env: TrainingEnvironment) -> Iterator[str]:
    spec, frame_stack = env.observation_spec(), params.frame_stack
    if isinstance(frame_stack, Mapping):
        leaves = dict(zip(leaf_names(spec), tree.flatten(spec), strict=True))
        yield from _unknown_parts("frame_stack stacks", frame_stack, leaves)
        for name, frames in frame_stack.items():
            if name in leaves and frames > 1 and not leaves[name].shape:
                yield (
                    f'TrainParams.frame_stack stacks "{name}", which is a single number without an axis: give it the '
                    "shape (1,) in env_ctor, observation and space"
                )
    elif frame_stack != 1 and not any(map(is_image, tree.flatten(spec))):
        yield (
            f"TrainParams.frame_stack={frame_stack} stacks images, but the observations hold none (uint8 of shape "
            f"[height, width, channels]), they are {in_words(spec)}: set it to 1, or name what is to be stacked, as in "
            '{"lidar": 4}'
        )


def actor_findings(params: TrainParamsBase, env: TrainingEnvironment) -> Iterator[str]:
    spec, names = env.observation_spec(), params.actor_observations
    if names is None:
        return
    paths = [name.split("/") for name in leaf_names(spec)] if isinstance(spec, Mapping) else []
    known = dict.fromkeys("/".join(path[:depth]) for path in paths for depth in range(1, len(path) + 1))
    yield from _unknown_parts("actor_observations has", names, known)


def _unknown_parts(what: str, names: Iterable[str], known: Collection[str]) -> Iterator[str]:
    for name in names:
        if name not in known:
            wrong = f'TrainParams.{what} "{name}", but the observations have no such part{is_meant(name, known)}'
            yield f"{wrong}: they have {', '.join(known) or 'none'}. Name one of these"


def horizon_time_findings(params: TrainParamsBase, env: TrainingEnvironment) -> Iterator[str]:
    spec = env.observation_spec()
    if isinstance(spec, Mapping) and HORIZON_TIME in spec and params.sample_form_ctor().has_horizon_time:
        yield (
            f'the observation has a part "{HORIZON_TIME}" of its own, where networks see how far a mini-race is '
            "(mini_race): rename it in env_ctor, or set mini_race to None"
        )


def check_images(params: TrainParamsBase, env: TrainingEnvironment, findings: Findings) -> None:
    """Tells the use of each image by the default networks; one with its channels first is refused where it matters."""
    layers, spec = convolutions(params), env.observation_spec()
    is_own = has_own_networks(params) or overrides_any(params, "agent_ctor")
    for leaf, frames in zip(tree.flatten(spec), frames_in(spec, params.frame_stack), strict=True):
        shape, is_used = tuple(leaf.shape), is_encoded(leaf, layers)
        if not is_image(leaf):
            if leaf.dtype == np.uint8 and len(shape) in (2, 4) and min(shape[-3:][:2]) > max(_CHANNELS) and not is_own:
                findings.note(
                    ENVIRONMENT,
                    f"{leaf.name} {shape} is flattened, images are [height, width, channels]: give them one axis of "
                    "channels in env_ctor (AtariPreprocessing: grayscale_newaxis=True), and stack them by frame_stack",
                )
            continue
        needs_axes = frames > 1 or params.image_augmentation_pixels or (layers and not is_own)
        if needs_axes and not is_used and shape[0] in _CHANNELS and min(shape[1:]) > max(_CHANNELS):
            findings.error(
                ENVIRONMENT,
                f"images are [height, width, channels], and {leaf.name} {shape} has its channels first: transpose it "
                "in env_ctor, observation and space, as by np.transpose(image, (1, 2, 0))",
            )
        elif not is_own:
            findings.fact(ENVIRONMENT, f"{leaf.name} is {'encoded' if is_used else 'flattened'}")


def specs_of(env: TrainingEnvironment) -> dict[str, Any]:
    return {"observations": env.observation_spec(), "actions": env.environment_action_spec}


def check_same_specs(collect: Mapping[str, Any], others: Mapping[str, Any], name: str) -> list[str]:
    """What of the specs of two environments differs; `name` is the second one's."""
    return [
        f"the {part} of the collect environment and of {name} differ: {in_words(ours)} and {in_words(others[part])}: "
        "build both with the same spaces"
        for part, ours in collect.items()
        if tree.flatten_with_path(ours) != tree.flatten_with_path(others[part])
    ]


# Goals (`hindsight_share`).


def _goal_findings(params: TrainParamsBase, env: TrainingEnvironment) -> Iterator[str]:
    """What is wrong with the goals; nothing where no sample gets another one."""
    if params.sample_form_ctor().hindsight is None:
        return
    spec, keys, remedy = env.observation_spec(), (OBSERVATION, ACHIEVED, DESIRED), "or do without hindsight_share"
    if env.device is not None:
        yield (
            "hindsight does not work with an environment that acts in real time, the replay server needs another one "
            "to compute rewards: do without hindsight_share"
        )
        return
    parts = spec if isinstance(spec, Mapping) else {}
    kinds = {(getattr(parts.get(key), "shape", None), getattr(parts.get(key), "dtype", None)) for key in keys[1:]}
    if not parts.keys() >= set(keys) or len(kinds) > 1 or (None, None) in kinds:
        yield (
            f"hindsight needs observations that are a dictionary with the keys {', '.join(keys)}, as "
            f"Gymnasium-Robotics has them, both goals arrays of one shape and dtype, found {in_words(spec)}: build "
            f"such a dictionary in env_ctor, {remedy}"
        )
        return
    frames = dict(zip(leaf_names(spec), frames_in(spec, params.frame_stack), strict=True))
    if stacked := [key for key in (ACHIEVED, DESIRED) if frames[key] > 1]:
        yield (
            f"TrainParams.frame_stack={shown(params.frame_stack)} stacks {' and '.join(stacked)}, and a stack of goals "
            f'has no single one that could be replaced: stack other parts, as in {{"{OBSERVATION}": 4}}, {remedy}'
        )
    elif not env.goal_functions.has_reward:
        yield (
            f"hindsight needs rewards as a function of goals, and the environment has no {REWARD}(achieved_goal, "
            f"desired_goal, info): give it, or a wrapper of it, this method, for arrays of goals [N, ...], {remedy}"
        )


def check_goal_functions(
    params: TrainParamsBase, env: TrainingEnvironment, steps: Sequence[ts.TimeStep], findings: Findings
) -> None:
    """Compares the functions of goals with an episode's steps, and calls of many goals with calls of one.

    Raises:
      UserError: Rewards differ from those of the steps, or a function fails.
    """
    if params.sample_form_ctor().hindsight is None or len(steps) < 2:
        return
    functions = env.goal_functions
    achieved, desired = (np.stack([step.observation[key] for step in steps]) for key in (ACHIEVED, DESIRED))
    achieved, desired, desired_before = achieved[1:], desired[1:], desired[:-1]
    rewards = functions.rewards(achieved, desired)
    recorded = np.array([step.reward for step in steps[1:]], np.float32)
    # A goal that was reached may be replaced by the next one in the same step.
    is_same = _close(rewards, recorded) | _close(functions.rewards(achieved, desired_before), recorded)
    if not is_same.all():
        step = int(np.argmin(is_same))
        raise UserError(
            f"step {step + 1} gave the reward {recorded[step]:g}, and {REWARD} of its goals, with info {{}}, "
            f"{rewards[step]:g}: let step() return what {REWARD} does, minibatches have both kinds; a wrapper that "
            f"changes rewards must change both. {gym_driver.WITHOUT_INFO}"
        )
    calls: dict[str, Callable[..., Any]] = {REWARD: functions.rewards}
    calls |= {TERMINATED: functions.terminated} if functions.has_terminated else {}
    left, right = np.concatenate([achieved, achieved]), np.concatenate([desired, achieved])  # Reached ones, too.
    for name, function in calls.items():
        alone = [function(left[k : k + 1], right[k : k + 1]) for k in range(len(left))]
        if not _close(function(left, right), np.concatenate(alone)).all():
            findings.error(
                ENVIRONMENT,
                f"{name} of {len(left)} goals at once gives other values than for the same goals alone: compute it "
                "along the last axis, such as np.linalg.norm(achieved_goal - desired_goal, axis=-1)",
            )
    ends = f"{TERMINATED} says where they end" if functions.has_terminated else "terminations stay as recorded"
    findings.fact(ENVIRONMENT, f"rewards of other goals by {REWARD}, {ends}")


def _close(values: Any, expected: Any) -> np.ndarray:
    return np.isclose(values, expected, _RTOL, _ATOL)


FINDINGS = (_action_findings, _mask_findings, _stack_findings, actor_findings, horizon_time_findings, _goal_findings)


# Sizes.


def too_large(
    params: TrainParamsBase, observation_spec: Any, layout: Layout, available: tuple[int, str] | None
) -> list[str]:
    """What does not fit, with the attribute to lower or the size to resize to.

    Memory is a lower bound: dense layers of actor and critics without their targets, and one minibatch.

    Args:
      observation_spec: As environments have it.
      available: As of `machine_checks.available_memory`; None: unknown.
    """
    if has_own_networks(params) or overrides_any(params, "agent_ctor"):
        return []
    inputs, images = 0, list[str]()
    for name, leaf in zip(leaf_names(observation_spec), tree.flatten(observation_spec), strict=True):
        shape = tuple(leaf.shape)
        if not is_encoded(leaf, convolutions(params)):
            inputs += math.prod(shape)
            continue
        inputs += params.image_encoder_features
        rows, columns, filters = features = _encoded(params, shape)
        weights = math.prod(features) * params.image_encoder_features
        if weights > _MOST_FEATURE_WEIGHTS:
            size = tuple(max(1, round(side * _SHORT_SIDE / min(shape[:2]))) for side in shape[:2])
            images.append(
                f'the encoder makes {rows} x {columns} x {filters} features of "{name}" {shape}, which need '
                f"{weights:,} weights: resize it to {size[0]} x {size[1]} in env_ctor, as by SmallPictures(env, "
                f'size={size}, key="{name}") of tfagents_system.envs.pictures, or give image_encoder_layers larger '
                "strides"
            )
    if images or available is None:
        return images
    has_actor = ALGORITHMS[params.algorithm].has_actor
    networks = {"critic_joint_fc_layer_params": int(value(params, "num_critics")) if has_actor else 1}
    if has_actor:
        networks["actor_fc_layer_params"] = 1
    steps = params.batch_size * (params.sample_form_ctor().sequence_length or 1)
    sizes = {f"batch_size={params.batch_size}": 2 * steps * layout.stacked_step_bytes(params.frame_stack)}
    for name, count in networks.items():
        widths = (inputs, *getattr(params, name))
        weights = sum(math.prod(pair) for pair in itertools.pairwise(widths))
        sizes[f"{name}={shown(getattr(params, name))}"] = count * weights * _WEIGHT_BYTES
    (free, limit), needed, largest = available, sum(sizes.values()), max(sizes, key=lambda name: sizes[name])
    if needed <= free:
        return []
    total, share, left = map(machine_checks.in_words, (needed, sizes[largest], free))
    return [
        f"an update needs at least {total} of memory (networks with gradients and Adam's moments, a minibatch), {left} "
        f"{limit} are available: lower {largest}, which takes {share}, or make observations smaller in env_ctor"
    ]


def _encoded(params: TrainParamsBase, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """What the convolutions make of an image: height, width, filters."""
    height, width, filters = shape
    for filters, kernel, stride in convolutions(params):  # noqa: B007
        height, width = ((side - kernel) // stride + 1 for side in (height, width))
    return height, width, filters
