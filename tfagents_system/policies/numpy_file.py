"""A policy as `policy.npz`, which `numpy_policy.py` plays with NumPy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tf_agents.policies import tf_policy
from tf_agents.policies.actor_policy import ActorPolicy

from tfagents_system.envs.history import horizon_time_leaf
from tfagents_system.policies import numpy_network, numpy_policy
from tfagents_system.policies.frame_stack_policy import FrameStackPolicy, innermost
from tfagents_system.policies.network_layers import NetworkLayers, UnsupportedNetworkError
from tfagents_system.policies.numpy_score_policy import scores_actions
from tfagents_system.policies.policy_description import Description
from tfagents_system.policies.score_layers import ScoreLayers
from tfagents_system.policies.weights import named_variables, read_weights

SUFFIX = ".npz"
PLAYER = "numpy_policy.py"
_PLAYER_PARTS = Path(numpy_policy.__file__), Path(numpy_network.__file__)
_IMPORT = "from tfagents_system.policies.numpy_network import Network"


def save(path: Path, policy: tf_policy.TFPolicy, description: Description) -> None:
    """Writes an agent's policy.

    Raises:
      UnsupportedNetworkError: It contains something that `numpy_network.py` can't compute.
    """
    given: Sequence[int] = ()
    if isinstance(policy, FrameStackPolicy):
        policy, given = policy.stacked, policy.frames
    policy = innermost(policy)
    own = horizon_time_leaf(policy.time_step_spec.observation)
    frames = (*given[:own], 1, *given[own:]) if given and own is not None else given
    variables = named_variables(policy)
    network = _network_of(policy, variables, frames, own)
    action = description["action"]
    names = ("low", "high", "rows") if "rows" in action else ("low", "high")
    bounds = {name: np.asarray(action[name], action["dtype"]) for name in names}
    arrays = network.arrays(read_weights(variables))
    told: dict[str, Any] = {"layers": network.layers}
    if own is not None:
        told["inputs"] = network.observation
    if any(count > 1 for count in frames):
        of_environment = [leaf for number, leaf in enumerate(network.observation) if number != own]
        leaves = zip(description["observation"], of_environment, strict=True)
        told["observation"] = [{**leaf, **of_network} for leaf, of_network in leaves]
        state = numpy_network.Network(network.observation, network.layers, arrays).state
        told["state"] = [
            {"name": f"state_{k}", "shape": [len(part)], "dtype": "float32"} for k, part in enumerate(state)
        ]
    text = np.array(json.dumps({**description, **told}))
    with path.open("wb") as file:
        np.savez(file, description=text, **bounds, **arrays)


def _network_of(
    policy: tf_policy.TFPolicy, variables: Mapping[str, Any], frames: Sequence[int], zero_leaf: int | None
) -> NetworkLayers:
    if scores_actions(policy):
        return ScoreLayers(policy.network, variables, frames, zero_leaf)
    if type(policy) is not ActorPolicy:
        raise UnsupportedNetworkError(f"{type(policy).__name__} is not TF-Agents' ActorPolicy")
    return NetworkLayers(policy._actor_network, variables, frames, zero_leaf)


def player() -> str:
    """The program that plays a file with NumPy alone: `numpy_policy.py` with `numpy_network.py` in it."""
    network = _PLAYER_PARTS[1].read_text().partition("from __future__ import annotations\n")[2].strip()
    return _PLAYER_PARTS[0].read_text().replace(_IMPORT, network)


class NumpyFile:
    """Plays a `policy.npz` for `ExportedPolicy`.

    Raises:
      ValueError: The file is not a policy.
    """

    inference = "policy file (numpy)"

    def __init__(self, path: Path) -> None:
        self._policy = numpy_policy.load(path)
        self.description: Description = self._policy.description
        self.run = self._policy.step
