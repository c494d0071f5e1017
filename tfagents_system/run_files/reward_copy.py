"""A run's own copy of its reward file: what the user's file has become since, and another one that its JSON names."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.envs import reward_places
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.run_inputs import Inputs, inputs_of_run
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.overrides import Overrides


def edited_reward(paths: RunPaths, params: Path) -> Path | None:
    """The reward file of which the run has a copy, as it is found now, if it was edited since.

    Args:
      params: SAC_PARAMS, beside which it is looked for first.
    """
    if not paths.reward.exists() or _names_other_reward(paths, _own_config(paths)):
        return None  # The run needs none, or its own JSON was edited.
    found, began = named_reward(paths, params), (read_json(paths.run_json) or {}).get("began_with", {})
    is_known = found is None or hashlib.sha256(found.read_bytes()).hexdigest() == began.get("reward")
    return None if is_known else found


def named_reward(paths: RunPaths, params: Path) -> Path | None:
    """The reward file that a run's own JSON names, as it is found now; beside `params` first."""
    return reward_places.named_in(_own_config(paths), params.parent)


def with_other_reward(paths: RunPaths | None, config: dict[str, Any], folder: Path) -> tuple[dict[str, Any], bool]:
    """A JSON, and whether it names another reward file than that of which the run has a copy, since somebody has edited
    the run's own JSON or overrides: then with the path of that file.

    Args:
      paths: The run that goes on; None: there is none.
      config: With all that overrides it.
      folder: Of SAC_PARAMS, beside which the file is looked for first.

    Raises:
      UserError: There is no such file.
    """
    if paths is None or not _names_other_reward(paths, config):
        return config, False
    found = reward_places.named_in(config, folder)
    found = found or reward_places.find_reward_file(reward_places.name_in(config) or "")
    return reward_places.with_path(config, found), True


def other_reward(paths: RunPaths, inputs: Inputs, overrides: Overrides) -> Inputs | None:
    """The reward file that a run's JSON names since somebody edited that, and how: a start copies it. None: nobody has.

    Args:
      inputs: As a start finds them.
      overrides: All of the run.
    """
    config = overrides.merged(read_json(paths.config) or {})
    if inputs.reward is None or not _names_other_reward(paths, config):
        return None
    print(f"{paths.reward} becomes a copy of {inputs.reward}, which the run's own JSON names")
    return dataclasses.replace(inputs_of_run(paths), reward=inputs.reward, reward_named=reward_places.name_in(config))


def _own_config(paths: RunPaths) -> dict[str, Any]:
    return Overrides.read(paths.overrides).merged(read_json(paths.config) or {})


def _names_other_reward(paths: RunPaths, config: Mapping[str, Any]) -> bool:
    """Whether a run's JSON names another reward file than that of which the run has a copy."""
    named = (read_json(paths.run_json) or {}).get("reward_named")
    return named is not None and reward_places.name_in(config) not in (None, named)
