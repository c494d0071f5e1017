"""The environment in which a saved policy is played, and whether the policy fits it.

TensorFlow is imported when an environment is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tfagents_system.errors import UserError
from tfagents_system.train_params_base import TrainParamsBase


def make_env(params: TrainParamsBase, seed: int, render: bool) -> Any:
    """The TrainingEnvironment of `loading.make_play_env`.

    Raises:
      UserError: It can't be built.
    """
    from tfagents_system.envs import loading

    return _made(lambda: loading.make_play_env(params, seed, render))


def make_replay_env(params: TrainParamsBase, seed: int, env_id: int, render: bool) -> Any:
    """The TrainingEnvironment of `loading.make_replay_env`.

    Raises:
      UserError: It can't be built.
    """
    from tfagents_system.envs import loading

    return _made(lambda: loading.make_replay_env(params, seed, env_id, render))


def _made(make: Callable[[], Any]) -> Any:
    from tfagents_system.envs.faults import EnvironmentFault, describe_error

    try:
        return make()
    except (UserError, EnvironmentFault):
        raise
    except Exception as error:
        raise UserError(f"the environment can't be built: {describe_error(error)}") from error


def check_fit(policy: Any, env: Any) -> None:
    """Whether the environment gives what the policy asks for; observations may have other parts beside that.

    Raises:
      UserError: The policy was trained on another kind of environment.
    """
    import tree

    def describe(nest: Any) -> list[tuple[Any, ...]]:
        leaves = sorted(tree.flatten_with_path(nest), key=lambda leaf: str(leaf[0]))  # Files have dictionaries alone.
        return [(path, tuple(spec.shape), np.dtype(spec.dtype).name) for path, spec in leaves]

    trained, ours = describe(_as_arrays(policy.time_step_spec.observation)), describe(env.observation_spec())
    if not set(trained) <= set(ours):
        raise UserError(
            f"the policy was trained on observations {trained}, but this environment has {ours}: "
            "give --params and --config of the same run"
        )
    acts, takes = (
        [tuple(spec.shape) for spec in tree.flatten(specs)]
        for specs in (policy.action_spec, env.environment_action_spec)
    )
    if acts != takes:
        raise UserError(
            f"the policy gives actions of shapes {acts}, but this environment takes {takes}: "
            "give --params and --config of the same run"
        )
    for acts, takes in zip(tree.flatten(policy.action_spec), tree.flatten(env.environment_action_spec), strict=True):
        if hasattr(acts, "minimum") and not np.allclose(_bounds(acts), _bounds(takes)):
            raise UserError(
                f"the policy gives actions {_bounds_in_words(acts)}, but this environment takes them "
                f"{_bounds_in_words(takes)}: give --params and --config of the same run"
            )


def _bounds(spec: Any) -> np.ndarray:
    """The lowest and the highest action, `[2, n]`."""
    return np.stack([np.broadcast_to(bound, tuple(spec.shape)) for bound in (spec.minimum, spec.maximum)])


def _bounds_in_words(spec: Any) -> str:
    from tfagents_system.envs.specs import short_text

    low, high = map(short_text, _bounds(spec))
    return f"from {low} to {high}"


def _as_arrays(nest: Any) -> Any:
    import tree
    from tf_agents.specs import array_spec, tensor_spec

    def convert(spec: Any) -> Any:
        return spec if isinstance(spec, array_spec.ArraySpec) else tensor_spec.to_array_spec(spec)

    return tree.map_structure(convert, nest)
