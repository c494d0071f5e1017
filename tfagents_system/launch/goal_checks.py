"""Whether an environment's goals are such that samples can get others (`hindsight_share`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tf_agents.trajectories import time_step as ts

from tfagents_system.checks.checklist import Check
from tfagents_system.envs.goals import ACHIEVED, DESIRED, OBSERVATION, REWARD, TERMINATED
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError, shown
from tfagents_system.launch.spec_checks import in_words
from tfagents_system.settings.sample_form_checks import hindsight_in_words
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.layout import Layout

_KEYS = (OBSERVATION, ACHIEVED, DESIRED)
_RTOL, _ATOL = 1e-3, 1e-4  # Goals are stored as float32.


def check_goal_spaces(params: TrainParamsBase, env: TrainingEnvironment) -> list[str]:
    """What is wrong with the observations; empty where no sample gets another goal."""
    hindsight, spec = params.sample_form_ctor().hindsight, env.observation_spec()
    if hindsight is None:
        return []
    asked, remedy = hindsight_in_words(params, hindsight.share)
    if env.device is not None:
        return [
            f"{asked} does not work with an environment that acts in real "
            f"time: the replay server needs another one, to compute rewards: {remedy}"
        ]
    missing = [key for key in _KEYS if key not in spec] if isinstance(spec, Mapping) else list(_KEYS)
    if missing:
        found = f"these are no dictionary, but {in_words(spec)}"
        if isinstance(spec, Mapping):
            found = (
                f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing, there are {', '.join(spec)}"
            )
        return [
            f"{asked} needs observations that are a dictionary with the keys {', '.join(_KEYS)}, as "
            f"Gymnasium-Robotics has them; {found}: build such a dictionary in env_ctor, or {remedy}"
        ]
    achieved, desired = spec[ACHIEVED], spec[DESIRED]
    kinds = [
        (tuple(each.shape), np.dtype(each.dtype)) if hasattr(each, "dtype") else None for each in (achieved, desired)
    ]
    if kinds[0] != kinds[1] or kinds[0] is None:
        return [
            f"{ACHIEVED} and {DESIRED} must be arrays of one shape and dtype, one takes the place of the other, found "
            f"{in_words(achieved)} and {in_words(desired)}: give them the same space, or {remedy}"
        ]
    layout = Layout.from_specs(spec, env.action_spec())
    frames = dict(zip(layout.leaves, layout.frames(params.frame_stack), strict=True))
    stacked = [key for key in (ACHIEVED, DESIRED) if frames[key] > 1]
    if stacked:
        return [
            f"TrainParams.frame_stack={shown(params.frame_stack)} stacks {' and '.join(stacked)}, and a stack of goals "
            f'has no single one that could be replaced: stack other parts, as in {{"{OBSERVATION}": 4}}, or {remedy}'
        ]
    if not env.goal_functions.has_reward:
        return [
            f"{asked} needs rewards as a function of goals, and the "
            f"environment has no {REWARD}(achieved_goal, desired_goal, info): give it, or a wrapper of it, this "
            f"method, for arrays of goals [N, ...], or {remedy}"
        ]
    return []


def check_goal_functions(params: TrainParamsBase, env: TrainingEnvironment, steps: Sequence[Any], check: Check) -> None:
    """Compares the functions of goals with steps that were taken, and calls of many goals with calls of one.

    Args:
      params: Of the run; nothing is done where no sample gets another goal.
      env: Was found right by `check_goal_spaces`.
      steps: Time steps of an episode, from its beginning on.
      check: Gets what was found.

    Raises:
      UserError: Rewards differ from those of the steps, or a function fails.
    """
    if params.sample_form_ctor().hindsight is None or len(steps) < 2:
        return
    functions = env.goal_functions
    achieved, desired, before = _goals(steps)
    rewards = functions.rewards(achieved, desired)
    recorded = np.array([step.reward for step in steps[1:]], np.float32)
    # A goal that was reached may be replaced by the next one in the same step.
    alike = _are_close(rewards, recorded) | _are_close(functions.rewards(achieved, before), recorded)
    if not alike.all():
        place = int(np.argmin(alike))
        raise UserError(
            f"step {place + 1} gave the reward {recorded[place]:g}, and {REWARD} of its goals, with info {{}}, "
            f"{rewards[place]:g}: let step() return what {REWARD} does, minibatches have both kinds; a wrapper that "
            "changes rewards must change both"
        )
    errors = _vector_findings(REWARD, functions.rewards, achieved, desired)
    if functions.has_terminated:
        errors += _vector_findings(TERMINATED, functions.terminated, achieved, desired)
    check.errors += errors
    ends = f"{TERMINATED} says where they end" if functions.has_terminated else "terminations stay as recorded"
    check.facts.append(f"rewards of other goals by {REWARD}, {ends}")


def _goals(steps: Sequence[ts.TimeStep]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each step but the first: what it achieved, and what was desired behind and before it."""
    achieved, desired = (np.stack([step.observation[key] for step in steps]) for key in (ACHIEVED, DESIRED))
    return achieved[1:], desired[1:], desired[:-1]


def _are_close(found: Any, expected: Any) -> np.ndarray:
    return np.isclose(found, expected, _RTOL, _ATOL)


def _vector_findings(
    name: str, function: Callable[[np.ndarray, np.ndarray], Any], achieved: np.ndarray, desired: np.ndarray
) -> list[str]:
    """Whether a call for many goals gives what a call for each of them does: reached ones and others."""
    left, right = np.concatenate([achieved, achieved]), np.concatenate([desired, achieved])
    together = function(left, right)
    each = np.concatenate([function(left[k : k + 1], right[k : k + 1]) for k in range(len(left))])
    if _are_close(together, each).all():
        return []
    place = int(np.argmin(_are_close(together, each)))
    return [
        f"{name} of {len(left)} goals at once gives {shown(together[place].item())} where it gives "
        f"{shown(each[place].item())} for the same goals alone: compute it along the last axis, such as "
        "np.linalg.norm(achieved_goal - desired_goal, axis=-1)"
    ]
