"""Where the file of a recorded trajectory is looked for: a run's own copy, beside the params, and elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError

KEY = "trajectory_reward"  # In the JSON of SAC_CONFIG.
DEFAULT_FILE = "reward.npz"  # Where that names none.
KEPT = "reward.points"  # What a run calls its copy, which is beside its copy of the params file.
RECORD = "record it with `python -m tfagents_system.racing record_reward`"
_ROOT = Path(__file__).resolve().parents[2]


def find_reward_file(text: str) -> Path:
    """The file as given, or relative to the working directory or the repository.

    Raises:
      UserError: There is none.
    """
    for candidate in _candidates(text):
        if candidate.is_file():
            return candidate
    tried = " and ".join(dict.fromkeys(map(str, _candidates(text))))
    raise UserError(
        f"the reward file {text} does not exist (looked for {tried}, and beside the params): {RECORD}, or correct its "
        "path"
    )


def named_in(env_config: Mapping[str, Any], folder: Path) -> Path | None:
    """The file that a JSON names: beside the params, else as `find_reward_file`. None: it names none, or it is missing.

    Args:
      folder: Of the params file.
    """
    text = name_in(env_config)
    return None if text is None else next((path for path in _candidates(text, folder) if path.is_file()), None)


def name_in(env_config: Mapping[str, Any]) -> str | None:
    """How a JSON names its reward file; None: it names none."""
    section = env_config.get(KEY)
    text = section.get("file", DEFAULT_FILE) if isinstance(section, Mapping) else None
    return text if isinstance(text, str) and text else None


def with_file_of(params: Path, env_config: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON with the path of its reward file, where there is one: in a run that of the run's own copy.

    Args:
      params: The params file; in a run its copy of it.
    """
    kept = (params.parent / KEPT).absolute()
    found = kept if kept.is_file() else named_in(env_config, params.parent.absolute())
    return with_path(env_config, found) if found is not None else dict(env_config)


def with_path(env_config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """A JSON with another path of its reward file; unchanged where it asks for no such reward."""
    if not isinstance(env_config.get(KEY), Mapping):
        return dict(env_config)
    return {**env_config, KEY: {**env_config[KEY], "file": str(file)}}


def _candidates(text: str, *folders: Path) -> list[Path]:
    given = Path(text).expanduser()
    return [*(folder / given for folder in folders), given.absolute(), _ROOT / given]
