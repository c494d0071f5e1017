"""The replay server's own environment: its functions say what the goals of hindsight are worth (hindsight.py)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from absl import logging

from tfagents_system.envs import loading
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.envs.faults import EnvironmentDiedError, EnvironmentFault, describe_error
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.train_params_base import TrainParamsBase


class GoalEnvironment:
    """An environment that is never stepped, with the curriculum's values of the iteration whose minibatches are drawn.

    So what a goal is worth follows from the iteration, also after a restart, and after going back to an earlier one.

    Args:
      build: Makes an environment, always the same one.
      curriculum: Of the run.

    Raises:
      EnvironmentFault: Its reset fails.
      Exception: Those of `build`.
    """

    def __init__(self, build: Callable[[], TrainingEnvironment], curriculum: Curriculum) -> None:
        self._curriculum = curriculum
        self._env, self._set = build(), dict[str, float]()
        self._env.reset()  # Some environments only have what their functions need behind a reset.
        self._functions = self._env.goal_functions

    def at(self, iteration: int) -> GoalEnvironment:
        """Sets what the curriculum has for an iteration; a reset makes it take effect, as for a worker's next episode.

        Raises:
          UserError: The environment has no such parameter, or raises.
          EnvironmentFault: Its reset fails.
        """
        values = self._curriculum.values_at(iteration, is_eval=False)
        changed = {name: value for name, value in values.items() if self._set.get(name) != value}
        if changed:
            for name, value in changed.items():
                self._set_one(name, value)
            self._env.reset()
            logging.info("what goals are worth in iteration %d: %s", iteration, changed)
        return self

    def rewards(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """See hindsight.GoalFunctions."""
        return self._functions.rewards(achieved, desired)

    def terminated(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray | None:
        """See hindsight.GoalFunctions."""
        return self._functions.terminated(achieved, desired)

    def _set_one(self, name: str, value: float) -> None:
        try:
            self._env.set_state({name: value})
        except (UserError, EnvironmentFault, EnvironmentDiedError):
            raise
        except Exception as error:
            raise UserError(
                f"set_state({{{name!r}: {value}}}) of the replay server's environment failed: {describe_error(error)}"
            ) from error
        self._set[name] = value


def make_goal_environment(params: TrainParamsBase, env_id: int, seed: int) -> GoalEnvironment:
    """Builds and resets the replay server's environment.

    Args:
      params: The user's TrainParams.
      env_id: `id` for `collect_env_args_kwargs`: that of no worker's environment.
      seed: For the environment.

    Raises:
      UserError: A hook raises for this `id`, or returns something other than it should.
      EnvironmentFault: Its reset fails.
    """
    name = "the replay server's environment"

    def build() -> TrainingEnvironment:
        try:
            return loading.make_collect_env(params, env_id, seed, name=name)
        except (UserError, EnvironmentDiedError):
            raise
        except Exception as error:
            raise UserError(
                f"{name}, which computes the rewards of hindsight, could not be built: {describe_error(error)}. Its id "
                f"for collect_env_args_kwargs is {env_id}, the one behind those of all workers: let the hook take it"
            ) from error

    return GoalEnvironment(build, Curriculum.from_config(params.env_config))
