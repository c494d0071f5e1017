"""Tries the agent of a user's params before any process starts: building it, an update, saving it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.specs import tensor_spec

from tfagents_system.agents.agent import make_agent
from tfagents_system.agents.block_update import check_agent
from tfagents_system.checks.checklist import Check
from tfagents_system.envs.faults import describe_error
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError, shown
from tfagents_system.policies.network_check import inference_findings
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.worker.recording import takers_of


def build_agent(params: TrainParamsBase, env: TrainingEnvironment, check: Check, *, deterministic: bool = False) -> Any:
    """Calls the user's other hooks: a mistake in them would end every role repeatedly.

    With SAC_DETERMINISTIC=1 the policy must be one that workers can run in NumPy.
    """
    try:
        agent = make_agent_for(params, env)
    except UserError as error:
        check.errors += error.findings
        return None
    except (Exception, SystemExit) as error:
        check.errors.append(
            f"agent_ctor, actor_ctor or critic_ctor raised {describe_error(error)}: correct the hook, or remove it"
        )
        return None
    check.facts.append(f"{type(agent).__name__}, {sum(map(_count, agent.trainable_variables)):,} weights")
    for name, kind, of in (
        ("train_observers_ctor", "observer", "a Trajectory"),
        ("eval_observers_ctor", "observer", "a Trajectory"),
        ("callbacks_ctor", "callback", "what is logged"),
    ):
        check.errors += _check_observers(name, getattr(params, name), kind, of)
    try:
        check.errors += inference_findings(agent, params.frame_stack, deterministic=deterministic)
    except UserError as error:
        check.errors += error.findings
    except (Exception, SystemExit) as error:
        check.errors.append(f"an action of the agent's policy raised {describe_error(error)}: correct the hook")
    return agent


def make_agent_for(params: TrainParamsBase, env: TrainingEnvironment) -> tf_agent.TFAgent:
    """The agent of an environment.

    Raises:
      UserError: `agent_ctor` does not return one.
    """
    specs = tf.nest.map_structure(tensor_spec.from_spec, (env.observation_spec(), env.action_spec()))
    return make_agent(params, specs[0], specs[1], tf.Variable(0, dtype=tf.int64))


def try_update(params: TrainParamsBase, agent: tf_agent.TFAgent, check: Check) -> None:
    try:
        check_agent(params, agent)
    except UserError as error:
        check.errors += error.findings
    except (Exception, SystemExit) as error:
        check.errors.append(f"an update of the agent raised {describe_error(error)}: correct agent_ctor")


def try_saving(params: TrainParamsBase, agent: tf_agent.TFAgent, actions: Any, check: Check) -> None:
    """Writes the SavedModels of a start into a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="sac_check_") as folder:
        try:
            PolicyExport(
                RunPaths(Path(folder)), agent, actions, agent.train_step_counter, params.frame_stack
            ).save_models()
        except (OSError, tf.errors.ResourceExhaustedError):
            return  # A full disk says nothing about the agent.
        except (Exception, SystemExit) as error:
            check.errors.append(
                f"the agent's policies can't be saved as SavedModels ({describe_error(error)}): correct "
                "agent_ctor, actor_ctor or preprocessing_combiner"
            )


def sizes_of(agent: Any) -> tuple[int, int]:
    """(bytes of the agent's variables with Adam's two moments, bytes of the policy's)."""
    if agent is None:
        return 0, 0
    own = sum(_count(variable) * variable.dtype.size for variable in agent.variables)
    moments = 2 * sum(_count(variable) * variable.dtype.size for variable in agent.trainable_variables)
    policy = sum(_count(variable) * variable.dtype.size for variable in agent.policy.variables())
    return own + moments, policy


def _count(variable: Any) -> int:
    return int(np.prod(variable.shape, dtype=np.int64))


def _check_observers(name: str, hook: Callable[[], Any], kind: str, of: str) -> list[str]:
    try:
        observers = hook()
    except (Exception, SystemExit) as error:
        return [f"{name} raised {describe_error(error)}: correct the hook, or remove it"]
    if not isinstance(observers, tuple | list):
        return [f"{name} must return a list or tuple of {kind}s, found {shown(observers)}: () is none"]
    return [
        f"{name}: each {kind} must be callable with {of}, found {shown(observer)}"
        for observer in observers
        if not (callable(observer) or (kind == "observer" and takers_of([observer])))
    ]
