"""Tries a user's environment before any process starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tfagents_system.curriculum import Curriculum, check_curriculum
from tfagents_system.envs import loading
from tfagents_system.envs.faults import EnvironmentFault, describe_error
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.train_params_base import TrainParamsBase

_TRIAL_STEPS = 5

Specs = tuple[Any, Any]  # (observation spec, the environment's own action spec), as envs.specs.save_specs takes them


def check_environment(params: TrainParamsBase, seed: int) -> tuple[list[str], Specs | None]:
    """Builds worker 0's environments, takes a few random steps in each and sets each parameter of the curriculum.

    Args:
      params: The user's TrainParams. With an impossible horizon nothing is tried: the check of the JSON has told it.
      seed: For environments and actions.

    Returns:
      What is wrong, one sentence each, and the environment's specs; None where it could not be built.
    """
    findings: list[str] = []
    found_specs = None
    horizon = params.env_config.get("horizon")
    if isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1:
        return findings, None
    with contextlib.ExitStack() as stack:
        collect_env = eval_env = None
        with _told(findings, "the collect environment"):
            collect_env = stack.enter_context(loading.make_collect_env(params, 0, seed))
            found_specs = collect_env.observation_spec(), collect_env.environment_action_spec
            findings += _check_action_count(params, collect_env)
            _try_steps(collect_env, seed)
        if collect_env is not None:
            with _told(findings, "the evaluation environment"):
                eval_env = stack.enter_context(loading.make_eval_env(params, 0, collect_env, seed))
                findings += _check_same_specs(collect_env, eval_env)
                if not findings:  # Else most likely the same again.
                    _try_steps(eval_env, seed)
        if collect_env is not None and eval_env is not None and not findings:
            findings += _check_curriculum(params, collect_env, eval_env)
        if collect_env is not None and not findings:
            findings += _check_agent(params, collect_env)
        with _told(findings, "closing the environments"):
            stack.close()
    return findings, found_specs


def _check_agent(params: TrainParamsBase, env: TrainingEnvironment) -> list[str]:
    """Builds what the user's other hooks build: a mistake in them would end every role again and again."""
    specs = tf.nest.map_structure(tensor_spec.from_spec, (env.observation_spec(), env.action_spec()))
    try:
        params.agent_ctor(ts.time_step_spec(specs[0]), specs[1], tf.Variable(0, dtype=tf.int64))
    except Exception as error:
        return [f"agent_ctor, actor_ctor or critic_ctor raised {describe_error(error)}"]
    try:
        for observer in (*params.train_observers_ctor(), *params.eval_observers_ctor()):
            if not callable(observer):
                return [f"an observer must be callable with a Trajectory, found {observer!r}"]
    except Exception as error:
        return [f"train_observers_ctor or eval_observers_ctor raised {describe_error(error)}"]
    return []


@contextlib.contextmanager
def _told(findings: list[str], what: str) -> Iterator[None]:
    """Turns an exception of the user's code into a finding."""
    try:
        yield
    except UserError as error:
        findings += [f"{what}: {finding}" for finding in error.findings]
    except EnvironmentFault as fault:
        where = f"step {fault.step}" if fault.step else "its first reset"
        findings.append(f"{what} failed in {where}: {describe_error(fault.__cause__ or fault)}")
    except Exception as error:
        findings.append(f"{what}: env_ctor or one of its hooks raised {describe_error(error)}")


def _try_steps(env: TrainingEnvironment, seed: int) -> None:
    rng = np.random.default_rng(seed)
    env.reset()
    for _ in range(_TRIAL_STEPS):
        env.step(tree.map_structure(lambda spec: rng.uniform(-1.0, 1.0, spec.shape), env.action_spec()))


def _check_action_count(params: TrainParamsBase, env: TrainingEnvironment) -> list[str]:
    """The default networks have one action; hooks of the user's own may do with more."""
    names = [spec.name for spec in tree.flatten(env.action_spec())]
    own = {name for name in ("agent_ctor", "actor_ctor") if name in _overridden(params)}
    if len(names) == 1 or own:
        return []
    return [
        f"the action space has {len(names)} parts ({', '.join(names)}), the default networks take one: "
        "join them in one Box, or override actor_ctor and critic_ctor"
    ]


def _overridden(params: TrainParamsBase) -> set[str]:
    return {name for name in dir(TrainParamsBase) if getattr(type(params), name) is not getattr(TrainParamsBase, name)}


def _check_same_specs(collect_env: TrainingEnvironment, eval_env: TrainingEnvironment) -> list[str]:
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
                f"{_in_words(ours)} and {_in_words(theirs)}: build both with the same spaces"
            )
    return findings


def _in_words(nest: Any) -> str:
    return ", ".join(f"{spec.name} {tuple(spec.shape)} {np.dtype(spec.dtype)}" for spec in tree.flatten(nest))


def _check_curriculum(
    params: TrainParamsBase, collect_env: TrainingEnvironment, eval_env: TrainingEnvironment
) -> list[str]:
    """Sets every parameter to its first value and takes a few steps with it."""
    if check_curriculum(params.env_config):
        return []  # Told by the check of the JSON.
    findings: list[str] = []
    curriculum = Curriculum.from_config(params.env_config)
    for name, value in curriculum.first_values().items():
        for env in (collect_env, eval_env) if curriculum.apply_to_eval(name) else (collect_env,):
            found: list[str] = []
            with _told_set_state(found, name, value):
                env.set_state({name: value})
            if not found:
                with _told(found, f"the environment with {name} = {value}"):
                    _try_steps(env, 0)
            findings += [finding for finding in found if finding not in findings]
    return findings


@contextlib.contextmanager
def _told_set_state(findings: list[str], name: str, value: Any) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        findings += [f"curriculum.{name}: {finding}" for finding in error.findings]
    except Exception as error:
        findings.append(
            f"curriculum.{name}: set_state({{{name!r}: {value}}}) of the environment raised {describe_error(error)}"
        )
