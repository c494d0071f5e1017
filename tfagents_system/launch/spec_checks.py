"""What an environment's specs must be for the agent that is to learn from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.algorithms import ALGORITHMS, ActionKind
from tfagents_system.agents.encoder import convolutions, has_own_networks, is_encoded, smallest_side
from tfagents_system.checks.checklist import Check
from tfagents_system.checks.spelling import near_misses
from tfagents_system.envs import actions
from tfagents_system.envs.action_history import OBSERVATION
from tfagents_system.envs.env_process import EnvProcess
from tfagents_system.envs.history import HORIZON_TIME, frames_in, has_images, is_image, leaf_names, seen_by_actor
from tfagents_system.envs.layers import gym_layers
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.settings.effects import without_effect
from tfagents_system.train_params_base import TrainParamsBase

EPISODE_SECS = 1.0  # Of stepping: a fast simulator's episode ends earlier, and for a slow one this is enough.
_CHANNELS = {channels * frames for channels in (1, 3, 4) for frames in (1, 2, 3, 4)}  # Of an image or a stack of some.
_SIMILARITY_OF_NAMES = 0.6  # They are short.
OWN_NETWORKS = {"agent_ctor", "actor_ctor", "preprocessing_combiner"}


def check_action_count(params: TrainParamsBase, env: TrainingEnvironment) -> list[str]:
    """The default networks have one action; a user's own hooks may handle more."""
    names = [spec.name for spec in tree.flatten(env.action_spec())]
    own = {"agent_ctor", "actor_ctor"} & overridden(params)
    if len(names) == 1 or own:
        return []
    return [
        f"the action space has {len(names)} parts ({', '.join(names)}), the default networks take one: "
        "join them in one Box, or override actor_ctor and critic_ctor"
    ]


def check_action_kind(params: TrainParamsBase, env: TrainingEnvironment) -> list[str]:
    """The kind of action that the algorithm learns must be the one that the environment, with a table, gives it."""
    wanted, leaf = ALGORITHMS[params.algorithm].actions, tree.flatten(env.actions)[0]
    found: ActionKind = "continuous" if leaf.rows is None else "discrete"
    if found == wanted or overridden(params) & {"agent_ctor"}:
        return []
    fitting = [name for name, algorithm in ALGORITHMS.items() if algorithm.actions == found]
    remedy = f"set algorithm to {' or '.join(filter(None, (', '.join(fitting[:-1]), fitting[-1])))}" if fitting else ""
    if found == "continuous":
        remedy += f", or set action_table to rows of {leaf.spec.shape[0]} numbers, which are the actions to choose from"
    elif params.action_table is not None:
        remedy += (", or " if remedy else "") + "remove action_table"
    elif not remedy:
        remedy = "no algorithm takes such actions, give the environment a Box with a float dtype"
    return [
        f"algorithm={params.algorithm} learns {wanted} actions, and the environment's are {found} "
        f"({actions.in_words(leaf)}): {remedy}"
    ]


def check_frame_stack(params: TrainParamsBase, env: TrainingEnvironment) -> list[str]:
    spec, frame_stack = env.observation_spec(), params.frame_stack
    if isinstance(frame_stack, Mapping):
        return _leaf_findings(frame_stack, dict(zip(leaf_names(spec), tree.flatten(spec), strict=True)))
    if frame_stack == 1 or has_images(spec):
        return []
    return [
        f"TrainParams.frame_stack={frame_stack} stacks images, but the observations hold none "
        f"(uint8 of shape [height, width, channels]), they are {in_words(spec)}: set it to 1, or name what is to be "
        'stacked, as in {"lidar": 4}'
    ]


def check_actor_observations(params: TrainParamsBase, env: TrainingEnvironment) -> list[str]:
    spec, names = env.observation_spec(), params.actor_observations
    if names is None:
        return []
    if not isinstance(spec, Mapping):
        return [
            f"TrainParams.actor_observations={tuple(names)} names parts of the observation, and this one has none, it "
            f"is {in_words(spec)}: let env_ctor give it a Dict space, or set actor_observations to None"
        ]
    leaves = leaf_names(spec)
    known = dict.fromkeys(
        "/".join(name.split("/")[:depth]) for name in leaves for depth in range(1, name.count("/") + 2)
    )
    findings = _unknown_parts("actor_observations has", names, known)
    alone = params.sample_form_ctor().has_horizon_time and set(seen_by_actor(spec, names)) == {OBSERVATION}
    if alone and not findings:
        findings.append(
            f'TrainParams.actor_observations={tuple(names)}: a part named "{OBSERVATION}" can\'t be all that the actor '
            f"sees where samples are mini-races (mini_race): rename it in env_ctor"
        )
    return findings


def check_horizon_time(params: TrainParamsBase, env: TrainingEnvironment) -> list[str]:
    spec = env.observation_spec()
    is_taken = isinstance(spec, Mapping) and HORIZON_TIME in spec
    if not is_taken or not params.sample_form_ctor().has_horizon_time:
        return []
    return [
        f'the observation has a part "{HORIZON_TIME}" of its own, where networks see how far a mini-race is '
        "(mini_race): rename it in env_ctor, or set mini_race to None"
    ]


# Each takes the params and the environment, and returns what the user must change.
SPEC_CHECKS = (check_action_count, check_action_kind, check_frame_stack, check_horizon_time, check_actor_observations)


def _leaf_findings(frame_stack: Mapping[str, int], leaves: Mapping[str, Any]) -> list[str]:
    """What is wrong with a frame_stack that names parts of the observation."""
    return _unknown_parts("frame_stack stacks", frame_stack, leaves) + [
        f'TrainParams.frame_stack stacks "{name}", which is a single number without an axis: give it the shape (1,) in '
        "env_ctor, observation and space"
        for name, frames in frame_stack.items()
        if name in leaves and frames > 1 and not leaves[name].shape
    ]


def _unknown_parts(what: str, names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Names of parts that the observations do not have."""
    names, known = list(names), list(known)
    meant = dict(near_misses(names, known, _SIMILARITY_OF_NAMES))
    return [
        f'TrainParams.{what} "{name}", but the observations have no such part: '
        + (f'"{meant[name]}" is meant' if name in meant else f"they have {', '.join(known)}. Name one of these")
        for name in names
        if name not in known
    ]


def without_effect_here(params: TrainParamsBase, env: TrainingEnvironment) -> list[str]:
    """Attributes that act only on images, if there are none; what follows from the params is already reported."""
    told = without_effect(params)
    return [note for note in without_effect(params, has_images(env.observation_spec())) if note not in told]


def check_images(params: TrainParamsBase, env: TrainingEnvironment, check: Check) -> None:
    """Reports the use of each image, and of what may be meant as one; says nothing about the user's own networks."""
    layers, flat = convolutions(params), "image_encoder_layers=()"
    is_own = has_own_networks(params) or "agent_ctor" in overridden(params)
    leaves = tree.flatten(env.observation_spec())
    for spec, frames in zip(leaves, frames_in(env.observation_spec(), params.frame_stack), strict=True):
        if not _may_be_image(spec):
            continue
        shape = tuple(spec.shape)
        needs_axes = frames > 1 or bool(params.image_augmentation_pixels)
        way_out = "" if needs_axes else f", or set {flat} to have it flattened"
        is_asked = needs_axes or bool(layers and not is_own)
        if is_asked and is_image(spec) and not is_encoded(spec, layers) and _has_channels_first(shape):
            check.errors.append(
                f"images are [height, width, channels], and {spec.name} {shape} has its channels first: transpose it "
                f"in env_ctor, observation and space, as by np.transpose(image, (1, 2, 0)){way_out}"
            )
        elif is_own:
            continue
        elif not is_image(spec):
            check.notes.append(
                f"{spec.name} {shape} {np.dtype(spec.dtype)} is flattened, images are uint8 of shape "
                "[height, width, channels], from 0 to 255: convert it in env_ctor, if it is meant as one"
            )
        else:
            check.facts.append(f"{spec.name} is {_use_in_words(spec, params)}")


def _use_in_words(image: Any, params: TrainParamsBase) -> str:
    layers = convolutions(params)
    if is_encoded(image, layers):
        return "encoded"
    if not layers:
        return "flattened: image_encoder_layers=()"
    side = smallest_side(layers)
    return f"flattened: smaller than {side} x {side} pixels"


def _may_be_image(spec: Any) -> bool:
    return len(spec.shape) > 2 or (len(spec.shape) == 2 and np.dtype(spec.dtype) == np.uint8)


def _has_channels_first(shape: tuple[int, ...]) -> bool:
    return shape[0] in _CHANNELS and min(shape[1:]) > max(_CHANNELS)


def overridden(params: TrainParamsBase) -> set[str]:
    return {
        name
        for name in dir(TrainParamsBase)
        if getattr(type(params), name) is not getattr(TrainParamsBase, name) or name in vars(params)
    }


def check_same_specs(collect_env: TrainingEnvironment, eval_env: TrainingEnvironment) -> list[str]:
    findings = []
    for what, ours, theirs in (
        ("observations", collect_env.observation_spec(), eval_env.observation_spec()),
        ("actions", collect_env.environment_action_spec, eval_env.environment_action_spec),
    ):
        try:
            same = bool(tree.flatten_with_path(ours) == tree.flatten_with_path(theirs))
        except ValueError:
            same = False
        if not same:
            findings.append(
                f"the {what} of the collect and the evaluation environment differ: "
                f"{in_words(ours)} and {in_words(theirs)}: build both with the same spaces"
            )
    return findings


def in_words(nest: Any) -> str:
    return ", ".join(f"{spec.name} {tuple(spec.shape)} {np.dtype(spec.dtype)}" for spec in tree.flatten(nest))


def actions_in_words(nest: Any) -> str:
    return ", ".join(map(actions.in_words, tree.flatten(nest)))


def end_in_words(last: ts.TimeStep, steps: int, horizon: int, actions: str = "random actions") -> str:
    if last.step_type != ts.StepType.LAST:
        return f"no end within {steps} steps ({EPISODE_SECS:g} s); horizon={horizon} ends it at the latest"
    if last.discount == 0.0:
        return f"terminates, with {actions} after {steps} steps"
    limit = "time limit of its own" if steps < horizon else f"time limit (horizon={horizon})"
    return f"ends by a {limit} after {steps} steps"


def same_step(ours: ts.TimeStep, theirs: ts.TimeStep) -> bool:
    """Whether two time steps have equal observations and rewards."""
    pairs = zip(
        tree.flatten((ours.observation, ours.reward)), tree.flatten((theirs.observation, theirs.reward)), strict=True
    )
    return all(np.array_equal(a, b) for a, b in pairs)


def name_of(env: Any) -> str:
    """The name of the innermost environment's class, or of the process in which it runs."""
    return repr(env) if isinstance(env, EnvProcess) else type(list(gym_layers(env))[-1]).__name__


def are_alike(params: TrainParamsBase) -> bool:
    """Whether evaluation environments are built like those for collecting: by the same hooks and arguments."""
    return not {"collect_env_args_kwargs", "eval_env_args_kwargs"} & overridden(params)
