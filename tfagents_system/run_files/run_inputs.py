"""The run's own copies of the user's files: which a start uses, and how they differ from these."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.run_files.agent_start import AgentStart
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.run_paths import RunPaths

# Files of these kinds decide what experience is; others may be what the run itself writes beside its params.
_DECISIVE = (".py", ".json", ".toml", ".yaml", ".yml", ".xml", ".urdf")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The user's files as a start finds them.

    Attributes:
      params, config: SAC_PARAMS and SAC_CONFIG.
      folder: A copy of the folder of SAC_PARAMS; None where the file alone is kept.
      name: Of the params file in that folder; None: that of `params`.
      digests: Of that folder's files, by relative path.
      reward: The file that `trajectory_reward` of the JSON names; None: there is none.
      reward_named: How the JSON names it, with what overrides that.
      agent: What a new agent begins with; None: random weights.
      prior_data: The ring of prior data for a new agent; None: there is none.
    """

    params: Path
    config: Path
    folder: Path | None = None
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    agent: AgentStart | None = None
    prior_data: Path | None = None
    name: str | None = None
    reward: Path | None = None
    reward_named: str | None = None

    def digests_of_files(self) -> dict[str, str]:
        """SHA-256 of params file and JSON, by `params` and `config`, and of the reward file, if any, by `reward`."""
        files = {"params": self.params, "config": self.config, "reward": self.reward}
        return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if path is not None}


def choose_input(copy: Path, source: Path, has_begun: bool = True) -> Path:
    """The copy of a run that has begun wins over its source."""
    return copy if has_begun and copy.exists() else source


def origin_of_run(paths: RunPaths) -> Path | None:
    """The path of the run's params.py for `__file__` and sys.path: modules and data files are found beside it.

    In the run's own copy of the folder; in the folder itself if none is kept; None if neither can be found.
    """
    run = read_json(paths.run_json) or {}
    source, kept = run.get("params_source"), run.get("params_kept")
    if not isinstance(source, str):
        return None
    candidates = [paths.params_folder / name_of_params(paths), *([Path(kept)] if kept else []), Path(source)]
    return next((path for path in candidates if path.parent.is_dir()), None)


def are_what_it_began_with(paths: RunPaths, params: Path, config: Path) -> tuple[bool, bool]:
    """Whether params file and JSON are those that the run has copied, though somebody may have changed the copies."""
    began = (read_json(paths.run_json) or {}).get("began_with", {})
    now = Inputs(params, config).digests_of_files()
    return now["params"] == began.get("params"), now["config"] == began.get("config")


def of_params(
    paths: RunPaths, params: Path, new: Inputs | None, other: Inputs | None, before: Mapping[str, Any]
) -> dict[str, Any]:
    """What run.json has on the params, their folder, and what the run began with.

    Args:
      params: SAC_PARAMS.
      new: What is copied; None: the copies stay.
      other: See `reward_copy.other_reward`.
      before: The content of run.json.
    """
    has_folder = paths.params_folder.is_dir() if new is None else new.folder is not None
    name = name_of_params(paths) if new is None else params.name
    began = before.get("began_with") if new is None else new.digests_of_files()
    if other is not None:
        began = {**(began or {}), "reward": other.digests_of_files()["reward"]}
    source = new or other
    named = before.get("reward_named") if source is None else source.reward_named
    return {
        "params_source": str(params),
        "params_kept": str(paths.params_folder / name) if has_folder else None,
        "params_files": dict(before.get("params_files", {}) if new is None else new.digests),
        **({"began_with": began} if began else {}),
        **({"reward_named": named} if named else {}),
    }


def inputs_of_run(paths: RunPaths) -> Inputs:
    """The run's own copies; the digests are of the folder as it was when it was copied."""
    folder = paths.params_folder if paths.params_folder.is_dir() else None
    digests, reward = kept_digests(paths) or {}, paths.reward if paths.reward.exists() else None
    return Inputs(paths.params, paths.config, folder, digests, name=name_of_params(paths), reward=reward)


def name_of_params(paths: RunPaths) -> str:
    """The name that the run's params file has in the run's copy of its folder: the user may have renamed it since."""
    run = read_json(paths.run_json) or {}
    return Path(str(run.get("params_kept") or run.get("params_source"))).name


def kept_digests(paths: RunPaths) -> Mapping[str, str] | None:
    """Digests of the folder that the run keeps, as it was when it was copied: a run may write beside its params."""
    digests = (read_json(paths.run_json) or {}).get("params_files")
    return digests if isinstance(digests, dict) and paths.params_folder.is_dir() else None


def are_same(paths: RunPaths, inputs: Inputs) -> bool:
    """Whether the run's copies are these files."""
    return _are_same_files(paths, inputs) and (kept_digests(paths) or {}) == inputs.digests


def fit_experience(paths: RunPaths, inputs: Inputs) -> bool:
    """Whether experience that was collected with the run's copies is of the task that these files describe."""
    before, now = (_decisive(digests) for digests in (kept_digests(paths) or {}, inputs.digests))
    return _are_same_files(paths, inputs) and before == now


def _are_same_files(paths: RunPaths, inputs: Inputs) -> bool:
    if inputs.reward is None and paths.reward.exists():
        return False
    pairs = ((paths.params, inputs.params), (paths.config, inputs.config), (paths.reward, inputs.reward))
    return all(
        copy.exists() and copy.read_bytes() == source.read_bytes() for copy, source in pairs if source is not None
    )


def _decisive(digests: Mapping[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in digests.items() if is_decisive(name)}


def is_decisive(name: str) -> bool:
    """Whether a file of this name is of a kind that decides what experience is, not one that a run may write itself."""
    return Path(name).suffix in _DECISIVE
