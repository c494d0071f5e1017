"""The environment in which a saved policy is played, and whether the policy fits it.

TensorFlow is imported when an environment is built.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.machine.signals import raising_when_insisted
from tfagents_system.train_params_base import TrainParamsBase


def make_env(params: TrainParamsBase, seed: int, render: bool, env_id: int | None = None) -> Any:
    """The TrainingEnvironment of an evaluation.

    Args:
      render: `render_frame` will be called.
      env_id: Of the environment that collected an episode, to repeat it in.

    Raises:
      UserError: It can't be built.
    """
    from tfagents_system.envs import loading
    from tfagents_system.envs.faults import EnvironmentFault, describe_error

    try:
        if env_id is None:
            return loading.make_play_env(params, seed, render)
        return loading.make_collect_env(params, 0, seed, env_id, render=render)
    except (UserError, EnvironmentFault):
        raise
    except Exception as error:
        raise UserError(f"the environment can't be built: {describe_error(error)}") from error


@contextlib.contextmanager
def stopping_between_steps(env: Any) -> Iterator[Callable[[], None]]:
    """Closes an environment at the end. A device finishes what it does first, whatever stops the program.

    Yields:
      What is called between two steps. Where a signal has come that stops programs, it lets the device wait and raises
      KeyboardInterrupt. A second signal raises it at once, in whatever blocks; in a SLURM job only Ctrl-C does.
      Without a device, or in another thread than the main one, signals do what they did before.

    Raises:
      KeyboardInterrupt: At the end, where a signal has come since the last step.
    """
    if env.device is None or threading.current_thread() is not threading.main_thread():
        with env:
            yield lambda: None
        return

    def check() -> None:
        if stop.is_set():
            env.device.wait()
            raise KeyboardInterrupt

    with raising_when_insisted() as stop, env:
        try:
            yield check
        except KeyboardInterrupt:
            env.device.wait()
            raise
    if stop.is_set():
        raise KeyboardInterrupt


def check_fit(policy: Any, env: Any) -> None:
    """Whether the environment gives what the policy asks for; observations may have other parts beside that.

    Raises:
      UserError: The policy was trained on another kind of environment.
    """
    from tfagents_system.policies.fit import bounds_findings, shape_findings

    specs = env.observation_spec(), env.environment_action_spec
    if findings := shape_findings(policy, *specs) or bounds_findings(policy, specs[1]):
        raise UserError(*(f"{finding}: give --params and --config of the same run" for finding in findings))
