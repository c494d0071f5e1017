"""What a run asks of an environment that acts in real time, and what it can't do with one."""

from __future__ import annotations

from tfagents_system.checks.checklist import Check
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.launch.spec_checks import overridden
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.worker.environments import several_devices


def check_device(
    params: TrainParamsBase,
    env: TrainingEnvironment,
    check: Check,
    envs_per_worker: int,
    deterministic: bool,
    is_driven: bool = True,
) -> None:
    """Adds what was found to `check`; does nothing with an environment that waits for the policy.

    Args:
      params: The user's.
      env: The collect environment.
      check: Gets facts, notes and errors.
      envs_per_worker, deterministic: SAC_ENVS_PER_WORKER, and SAC_DETERMINISTIC=1.
      is_driven: The check steps it.
    """
    if env.device is None:
        return
    tried = "tried with its default action" if is_driven else "not stepped, as this start has no workers"
    check.facts.append(f"acts in real time: {tried}; each worker builds it once")
    if envs_per_worker > 1:
        check.errors.append(several_devices(envs_per_worker))
    if deterministic and env.device.has_real_clock:
        check.errors.append(
            "SAC_DETERMINISTIC=1 repeats every step, and the environment acts in real time by a real clock: use "
            "SAC_DETERMINISTIC=0, or give RealTimeEnvironment a clock=VirtualClock() where the device is a simulation"
        )
    if deterministic and params.env_steps_per_iter is not None:
        check.errors.append(
            "SAC_DETERMINISTIC=1 repeats the episodes under way after a restart, which an environment that acts in "
            "real time can't: set num_train_episodes_per_iter instead of env_steps_per_iter"
        )
    if params.action_history == 0:
        check.notes.append(
            "action_history=0 in real time: the policy does not see the action that still acts while it computes the "
            "next one: set it to 1, or to 1 and the device's delay in time steps"
        )


def check_evaluating_devices(params: TrainParamsBase, check: Check) -> None:
    """Adds an error where workers that only evaluate would build a device that is most likely not one of theirs."""
    if overridden(params) & {"collect_env_args_kwargs", "eval_env_args_kwargs"} == {"collect_env_args_kwargs"}:
        check.errors.append(
            "workers that only evaluate build a device with eval_env_args_kwargs, and TrainParams has only "
            "collect_env_args_kwargs: add eval_env_args_kwargs(self, id=0, collect_env=None), or set "
            "SAC_EVAL_WORKERS=0 to evaluate in the devices that collect"
        )
