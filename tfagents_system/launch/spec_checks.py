"""What a run asks of an environment's specs, goals and curriculum."""

from __future__ import annotations

import collections
import contextlib
import difflib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.agents.encoder import convolutions, has_own_networks, is_encoded
from tfagents_system.checks.findings import Findings
from tfagents_system.checks.rules import near_misses
from tfagents_system.envs import actions
from tfagents_system.envs.backends import is_batched
from tfagents_system.envs.curriculum import Curriculum, check_curriculum
from tfagents_system.envs.env_process import EnvProcess
from tfagents_system.envs.goals import ACHIEVED, DESIRED, OBSERVATION, REWARD, TERMINATED
from tfagents_system.envs.history import HORIZON_TIME, frames_in, is_image, leaf_names
from tfagents_system.envs.layers import gym_layers
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError, shown
from tfagents_system.launch.data_checks import told
from tfagents_system.train_params_base import TrainParamsBase, overrides_any

ENVIRONMENT, CURRICULUM = "environment", "curriculum"
_CHANNELS = {channels * frames for channels in (1, 3, 4) for frames in (1, 2, 3, 4)}  # Of an image or a stack of some.
_SIMILARITY_OF_PARTS = 0.6  # Their names are short.
_RTOL, _ATOL = 1e-3, 1e-4  # Goals are stored as float32.
_STEPS_WITH_VALUE = 5


def trial_action(env: TrainingEnvironment, rng: np.random.Generator) -> Any:
    """A random action; the default one of a device, which random ones may harm, or the middle of its bounds."""
    if env.device is None:
        return tree.map_structure(lambda spec: actions.random_actions(spec, rng), env.action_spec())
    return env.device.trial_action(env.actions)


def take_steps(env: TrainingEnvironment, seed: int, steps: int) -> list[ts.TimeStep]:
    """Time steps of an episode from its reset on, at most `steps`; the same seed gives the same actions."""
    rng = np.random.default_rng(seed)
    time_steps = [env.reset()]
    while len(time_steps) <= steps and time_steps[-1].step_type != ts.StepType.LAST:
        time_steps.append(env.step(trial_action(env, rng)))
    return time_steps


def first_difference(ours: Sequence[ts.TimeStep], theirs: Sequence[ts.TimeStep]) -> int | None:
    """The first step with another observation or reward; None without one."""
    for step, pair in enumerate(zip(ours, theirs, strict=False)):
        one, other = (tree.flatten((time_step.observation, time_step.reward)) for time_step in pair)
        if not all(map(np.array_equal, one, other)):
            return step
    return None


def in_words(nest: Any) -> str:
    return ", ".join(f"{spec.name} {tuple(spec.shape)} {np.dtype(spec.dtype)}" for spec in tree.flatten(nest))


# Observations and actions.


def check_specs(params: TrainParamsBase, env: TrainingEnvironment, findings: Findings) -> None:
    """Whether the run's agent can learn from such observations and actions; tells what images are used for."""
    for find in (_action_findings, _frame_stack_findings, actor_findings, horizon_time_findings, _goal_findings):
        findings.error(ENVIRONMENT, *find(params, env))
    if not findings.errors:
        _check_images(params, env, findings)


def _action_findings(params: TrainParamsBase, env: TrainingEnvironment) -> Iterator[str]:
    """The default networks have one action, of the kind that the algorithm learns; a user's hooks may have others."""
    names = [spec.name for spec in tree.flatten(env.action_spec())]
    if len(names) > 1 and not overrides_any(params, "agent_ctor", "actor_ctor"):
        yield (
            f"the action space has {len(names)} parts ({', '.join(names)}), the default networks take one: "
            "join them in one Box, or override actor_ctor and critic_ctor"
        )
    wanted, leaf = ALGORITHMS[params.algorithm].actions, tree.flatten(env.actions)[0]
    kind = "continuous" if leaf.rows is None else "discrete"
    if kind != wanted and not overrides_any(params, "agent_ctor"):
        fitting = " or ".join(name for name, algorithm in ALGORITHMS.items() if algorithm.actions == kind)
        remedies = [f"set algorithm to {fitting}"] if fitting else ["give it a Box with a float dtype"]
        if kind == "continuous":
            remedies.append(f"set action_table to rows of {leaf.spec.shape[0]} numbers, the actions to choose from")
        elif params.action_table is not None:
            remedies.append("remove action_table")
        yield (
            f"algorithm={params.algorithm} learns {wanted} actions, and the environment's are {kind} "
            f"({actions.in_words(leaf)}): {', or '.join(remedies)}"
        )


def _frame_stack_findings(params: TrainParamsBase, env: TrainingEnvironment) -> Iterator[str]:
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


def _unknown_parts(what: str, names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Names of parts that the observations do not have."""
    names, known = list(names), list(known)
    meant = dict(near_misses(names, known, _SIMILARITY_OF_PARTS))
    return [
        f'TrainParams.{what} "{name}", but the observations have no such part: '
        + (
            f'"{meant[name]}" is meant'
            if name in meant
            else f"they have {', '.join(known) or 'none'}. Name one of these"
        )
        for name in names
        if name not in known
    ]


def horizon_time_findings(params: TrainParamsBase, env: TrainingEnvironment) -> Iterator[str]:
    spec = env.observation_spec()
    if isinstance(spec, Mapping) and HORIZON_TIME in spec and params.sample_form_ctor().has_horizon_time:
        yield (
            f'the observation has a part "{HORIZON_TIME}" of its own, where networks see how far a mini-race is '
            "(mini_race): rename it in env_ctor, or set mini_race to None"
        )


def _check_images(params: TrainParamsBase, env: TrainingEnvironment, findings: Findings) -> None:
    """Tells the use of each image by the default networks; one with its channels first is refused where it matters."""
    layers, spec = convolutions(params), env.observation_spec()
    is_own = has_own_networks(params) or overrides_any(params, "agent_ctor")
    for leaf, frames in zip(tree.flatten(spec), frames_in(spec, params.frame_stack), strict=True):
        if not is_image(leaf):
            continue
        shape, is_used = tuple(leaf.shape), is_encoded(leaf, layers)
        needs_axes = frames > 1 or params.image_augmentation_pixels or (layers and not is_own)
        if needs_axes and not is_used and shape[0] in _CHANNELS and min(shape[1:]) > max(_CHANNELS):
            findings.error(
                ENVIRONMENT,
                f"images are [height, width, channels], and {leaf.name} {shape} has its channels first: transpose it "
                "in env_ctor, observation and space, as by np.transpose(image, (1, 2, 0))",
            )
        elif not is_own:
            findings.fact(ENVIRONMENT, f"{leaf.name} is {'encoded' if is_used else 'flattened'}")


def check_same_specs(collect_env: TrainingEnvironment, eval_env: TrainingEnvironment) -> list[str]:
    """What of the two environments differs."""

    def are_same(ours: Any, theirs: Any) -> bool:
        with contextlib.suppress(ValueError):  # Of bounds with other shapes.
            return bool(tree.flatten_with_path(ours) == tree.flatten_with_path(theirs))
        return False

    specs = {
        "observations": (collect_env.observation_spec(), eval_env.observation_spec()),
        "actions": (collect_env.environment_action_spec, eval_env.environment_action_spec),
    }
    return [
        f"the {part} of the collect and the evaluation environment differ: {in_words(ours)} and {in_words(theirs)}: "
        "build both with the same spaces"
        for part, (ours, theirs) in specs.items()
        if not are_same(ours, theirs)
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
            "changes rewards must change both"
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


# Curriculum.


def check_values(
    params: TrainParamsBase,
    collect_env: TrainingEnvironment,
    eval_env: TrainingEnvironment | None,
    findings: Findings,
    enter: Callable[[str], None],
) -> None:
    """Sets every parameter of the curriculum to its first and to its last value and takes a few steps with each.

    Args:
      eval_env: Gets the values that are for evaluation; None: nothing is evaluated, or in the collect environment.
    """
    if not params.env_config.get("curriculum") or check_curriculum(params.env_config):
        return  # None, or reported by the check of the JSON.
    curriculum, failed = Curriculum.from_config(params.env_config), set[str]()
    can_be_seen = not (
        collect_env.device or is_batched(collect_env.user_env) or isinstance(collect_env.user_env, EnvProcess)
    )
    effects = collections.defaultdict[str, list[bytes]](list)
    for name, value in curriculum.end_values():
        for env in (collect_env, eval_env if curriculum.apply_to_eval(name) else None):
            if env is None or name in failed:  # With the other value most likely the same again.
                continue
            enter(f"set_state() of {name} = {value} or step() with it")
            before = len(findings.errors)
            with told(findings, CURRICULUM, f"curriculum.{name}: set_state({{{name!r}: {value}}})"):
                is_seen = not can_be_seen or env is not collect_env
                attributes = {} if is_seen else _attributes(env)
                env.set_state({name: value})
                is_unseen = not is_seen and _attributes(env) == attributes
                if is_unseen:
                    env.reseed(0)
                steps = pickle.dumps(tree.flatten(take_steps(env, 0, _STEPS_WITH_VALUE)))
                effects[name].append(steps if is_unseen else b"")
            failed |= {name} if len(findings.errors) > before else set()
    for name, seen in effects.items():
        unseen = [steps for steps in seen if steps]
        if name not in failed and len(unseen) == 2 and unseen[0] == unseen[1]:
            findings.note(CURRICULUM, _without_effect(collect_env, name))
    if not failed:
        values = ", ".join(f"{name} = {value:g}" for name, value in curriculum.end_values())
        findings.fact(CURRICULUM, f"set_state works with {values}")


def _attributes(env: TrainingEnvironment) -> dict[str, bytes]:
    """Content of the attributes of the environment and of its wrappers; without what can't be compared."""
    contents = {}
    for depth, layer in enumerate(gym_layers(env.user_env)):
        for name, value in getattr(layer, "__dict__", {}).items():
            with contextlib.suppress(Exception):
                contents[f"{depth}.{name}"] = b"" if name == "env" else pickle.dumps(value)
    return contents


def _without_effect(env: TrainingEnvironment, name: str) -> str:
    inner = list(gym_layers(env.user_env))[-1]
    near = difflib.get_close_matches(name, [attribute.strip("_") for attribute in vars(inner)], cutoff=0.4)
    meant = f"its attributes {', '.join(near)} have similar names" if near else "no attribute has a similar name"
    return (
        f"curriculum.{name}: set_state changes no attribute of {type(inner).__name__}, and nothing in "
        f"{_STEPS_WITH_VALUE} steps with the same seed: let set_state use it ({meant}), or remove the parameter"
    )
