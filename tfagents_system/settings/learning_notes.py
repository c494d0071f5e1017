"""Notes before a start: what makes a run costly, or keeps it from learning, though every value is right by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfagents_system.agents.algorithms import value
from tfagents_system.agents.iteration_counts import iterations_of_run, random_steps
from tfagents_system.agents.optimizer_settings import optimizer_settings
from tfagents_system.checks.rules import integer_from, is_kept
from tfagents_system.checks.schedules import Schedule
from tfagents_system.envs.curriculum import Curriculum, check_curriculum
from tfagents_system.errors import shown
from tfagents_system.train_params_base import TrainParamsBase

_LARGE_RATE, _SMALL_RATE = 1e-2, 1e-6
_LARGE_RETURN = 100.0
_FEW_UPDATES = 0.05
_COSTLY = 5.0
_NEW_STEPS = 25  # Of a segment, beside those that it repeats.
_UNITS, _BATCH = 256, 256  # Of plain SAC.
_MAKE_COSTLY = (
    "algorithm",
    "network",
    "num_critics",
    "actor_fc_layer_params",
    "critic_joint_fc_layer_params",
    "recurrent",
    "train_batch_size",
)


def learning_rates(params: TrainParamsBase) -> list[str]:
    """Rates with which Adam and its variants seldom learn."""
    notes = []
    for part in ("critic", "actor"):
        rate = max(Schedule.of(value(params, f"{part}_learning_rate")).values)  # A schedule may end near 0.
        if optimizer_settings(params, part)["name"] == "sgd" or _SMALL_RATE <= rate <= _LARGE_RATE:
            continue
        effect = "such steps mostly diverge" if rate > _LARGE_RATE else "such steps hardly change anything"
        notes.append(f"{part}_learning_rate={rate:g}: {effect}; common are 1e-4 to 1e-3")
    return notes


def curriculum(params: TrainParamsBase) -> list[str]:
    """Notes on values of the curriculum that never fall due in this run."""
    config = params.env_config
    if check_curriculum(config) or not is_kept(integer_from(1), config.get("horizon")):
        return []  # Reported already.
    count = iterations_of_run(params, params.compute_config.get("num_collect_workers", 1))
    length, remedy = f"{count} iterations", "num_iter"
    if count < params.num_iter:  # By its steps.
        length, remedy = f"num_env_steps={params.num_env_steps}, which are {count} iterations", "num_env_steps"
        length += " of full-length episodes" if params.env_steps_per_iter is None else ""
    return [
        f"curriculum.{name}.iters: {', '.join(map(str, late))} come after the last iteration, so their values never "
        f"fall due: the run has {length}, counted from 0. Lower these, or raise {remedy}"
        for name, late in Curriculum.from_config(config).after(count).items()
    ]


def returns(params: TrainParamsBase, episode_return: float) -> list[str]:
    """Notes on an episode return that the networks can hardly reach with small steps."""
    if params.normalize_rewards or abs(episode_return) <= _LARGE_RETURN:
        return []
    return [
        f"an episode with random actions has a return of {episode_return:,.0f}, of more than {_LARGE_RETURN:g} in "
        "size, and rewards are learned from as they are: where a run learns slowly or not at all, set "
        "normalize_rewards=True, or scale rewards in env_ctor"
    ]


def ratio(updates_per_step: float) -> list[str]:
    """Notes on a run with few updates for its experience."""
    if updates_per_step >= _FEW_UPDATES:
        return []
    return [
        f"{updates_per_step:.2g} updates for each environment step, fewer than {_FEW_UPDATES:g}: most of the "
        "experience is hardly learned from. Raise num_steps_per_iter, or set updates_per_env_step (1 is common)"
    ]


def random_first(params: TrainParamsBase) -> list[str]:
    """Notes on a run that may be over with the random actions of its beginning."""
    steps = random_steps(params)
    if params.num_env_steps is None or steps < params.num_env_steps:
        return []
    count = "n_buffer_init_episodes" if params.env_steps_before_training is None else "env_steps_before_training"
    return [
        f"num_env_steps={params.num_env_steps} may be over before the first update: {count}={getattr(params, count)} "
        f"come first, up to {steps:,} steps with random actions: lower that, or raise num_env_steps"
    ]


def short_shares(params: TrainParamsBase, lanes: int) -> list[str]:
    """Notes on iterations of steps that are short for the episodes which are collected side by side.

    Each of these is cut at an iteration's end, and its next segment repeats the steps that samples reach over.

    Args:
      lanes: Environments of a worker, or lanes of its vector environment.
    """
    steps, workers = params.env_steps_per_iter, params.compute_config.get("num_collect_workers", 1)
    if steps is None or (lanes == 1 and not params.recurrent):
        return []
    episodes, (back, ahead) = lanes * workers, params.sample_form_ctor().reach
    needed, each = episodes * (back + ahead + _NEW_STEPS), steps / episodes
    if steps >= needed:
        return []
    effects = [f"the replay buffer holds {1 + (back + ahead + 1) / max(1.0, each):.1f} rows for each step"]
    if each < 1:
        effects.append(f"{episodes - steps} of them wait, with observations that a later policy acts on")
    first = params.env_steps_before_training
    if params.n_buffer_init_episodes == 0 or first is not None:  # Whole random episodes are there to be drawn from.
        without = max(0, ahead * episodes - (first or 0)) // steps
        effects += [f"the first {without} iterations have no updates, which become due later"] if without else []
    return [
        f"env_steps_per_iter={steps} is {each:.2g} steps for each of {episodes} episodes side by side ({workers} "
        f"workers, {lanes} environments each): {', '.join(effects)}. Raise it to {needed}, or take fewer environments"
    ]


def update_cost(params: TrainParamsBase, agent: Any) -> float | None:
    """Multiplications of an update, as a multiple of plain SAC's; None with convolutions, which are not counted."""
    shapes = [tuple(variable.shape) for variable in agent.trainable_variables]
    if any(len(shape) > 2 for shape in shapes):
        return None
    import tree

    recurrent = value(params, "recurrent")
    length = recurrent["sequence_length"] + recurrent["burn_in"] if recurrent else 1
    ours = params.train_batch_size * length * sum(np.prod(shape) for shape in shapes if len(shape) == 2)
    observation, action = (
        sum(int(np.prod(spec.shape)) for spec in tree.flatten(nest))
        for nest in (agent.time_step_spec.observation, agent.action_spec)
    )
    actor = (observation + _UNITS + 2 * action) * _UNITS
    critic = (observation + action + _UNITS + 1) * _UNITS  # There are two, and as many targets.
    return float(ours / (_BATCH * (actor + 4 * critic)))


def costly_updates(params: TrainParamsBase, agent: Any) -> list[str]:
    """Notes on settings whose updates cost more than five times those of plain SAC."""
    cost = update_cost(params, agent)
    if cost is None or cost <= _COSTLY:
        return []
    values = {name: getattr(params, name) for name in _MAKE_COSTLY}
    own = ", ".join(f"{k}={shown(v)}" for k, v in values.items() if v != getattr(TrainParamsBase, k)) or "agent_ctor"
    return [
        f"an update takes about {cost:.0f} times the arithmetic of plain SAC's (2 layers of {_UNITS} units, batches of "
        f"{_BATCH}), by {own}: --check measures how long the run takes"
    ]
