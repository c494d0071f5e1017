"""Whether workers of each kind that a run starts have what they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tfagents_system.checks.checklist import Check, Checklist
from tfagents_system.checks.rules import integer_from, is_kept
from tfagents_system.envs.faults import describe_error
from tfagents_system.errors import UserError, shown
from tfagents_system.machine.worker_slots import EVAL, EXPERT
from tfagents_system.train_params_base import TrainParamsBase

EXPERTS = "experts"
_SAVED = "SAC_EXPERT_POLICY"


def check_experts(
    params: TrainParamsBase, values: Mapping[str, Any], checks: Checklist, enter: Callable[[str], None]
) -> None:
    """Whether the experts that the run is to start have a policy: each without one would end the run.

    Args:
      params: Of the run; its hook runs.
      values: The variables that could be read, by field.
      checks: Get what was found, under `experts`.
      enter: Told when the hook begins.
    """
    if not values.get("expert_workers"):
        return
    enter("expert_policy_ctor")
    check, saved = checks[EXPERTS], values.get("expert_policy")
    check.facts.append(f"{values['expert_workers']} with {saved or 'TrainParams.expert_policy_ctor'}")
    if saved is not None:
        return
    try:
        policy = params.expert_policy_ctor()
    except (Exception, SystemExit) as error:
        check.errors.append(f"expert_policy_ctor raised {describe_error(error)}: correct the hook, or remove it")
        return
    if not callable(policy):
        check.errors.append(
            f"SAC_EXPERT_WORKERS={values['expert_workers']} needs a policy, and "
            f"TrainParams.expert_policy_ctor returned {shown(policy)}: set SAC_EXPERT_POLICY to a SavedModel, a "
            "policy checkpoint or an exported file, or have the hook return a function"
        )


def check_saved_expert(
    values: Mapping[str, Any], observation_spec: Any, action_spec: Any, checks: Checklist, enter: Callable[[str], None]
) -> None:
    """Whether the policy of SAC_EXPERT_POLICY can act in the environment, if an expert is to start.

    Args:
      values: The variables that could be read, by field.
      observation_spec, action_spec: Nests of the environment's observations and of its actions, in its own units.
      checks: Get what was found, under `experts`.
      enter: Told when the policy is loaded, which takes seconds.
    """
    path = values.get("expert_policy")
    if path is None or not (values.get("expert_workers") or values.get("worker_role") == EXPERT):
        return
    # Imported here: TensorFlow takes seconds, and the checks of the params should not wait for it.
    from tfagents_system.policies.files import load_policy
    from tfagents_system.policies.fit import bounds_findings, shape_findings

    enter(f"loading {_SAVED}={path}")
    try:
        policy = load_policy(path, _SAVED)
    except UserError as error:
        checks[EXPERTS].errors += error.findings
        return
    findings = shape_findings(policy, observation_spec, action_spec)
    checks[EXPERTS].errors += [
        f"{_SAVED}={path}: {finding}. Name a policy that was trained in this environment" for finding in findings
    ]
    if not findings:
        bounds = bounds_findings(policy, action_spec)
        checks[EXPERTS].notes += [f"{_SAVED}={path}: {finding}: they are clipped" for finding in bounds]


def check_evaluators(params: TrainParamsBase, values: Mapping[str, Any], check: Check) -> None:
    """Whether there is something to evaluate for workers that do nothing else.

    Args:
      params: Of the run.
      values: The variables that could be read, by field.
      check: Gets what was found.
    """
    count = values.get("eval_workers")
    if not is_kept(integer_from(0), params.num_eval_episodes):
        return  # Which is reported.
    if params.num_eval_episodes == 0 and count:
        check.errors.append(
            f"SAC_EVAL_WORKERS={count} does not work with num_eval_episodes=0, nothing is evaluated: set "
            "SAC_EVAL_WORKERS=0 (with --set where the run has begun with it), or num_eval_episodes to at least 1"
        )
    elif params.num_eval_episodes == 0 and values.get("worker_role") == EVAL:
        check.errors.append(
            "workers of kind eval have nothing to do in a run with num_eval_episodes=0: choose another kind, or "
            "continue the run with --set num_eval_episodes=10"
        )
