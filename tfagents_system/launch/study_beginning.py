"""What the trials of a study have in common: they are compared, so all have the same settings and the same files."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.called_as import option
from tfagents_system.envs.reward_places import named_in
from tfagents_system.launch.edit_checks import NEVER_KEPT
from tfagents_system.machine.files import write_atomically
from tfagents_system.run_files import params_folder
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.run_inputs import Inputs
from tfagents_system.run_files.task_edits import digests_of_task
from tfagents_system.settings.grid import in_words
from tfagents_system.settings.load_params import load_env_config
from tfagents_system.settings.overrides import Overrides, parse_assignments


@dataclasses.dataclass(frozen=True)
class Beginning:
    """What all trials have.

    Attributes:
      settings: By name, those of `--set` without variables.
      files: Digests of what the user's files mean, by the names that a run's copies have.
      paths: Of these files, as far as it is known.
    """

    settings: Mapping[str, Any]
    files: Mapping[str, str]
    paths: Mapping[str, Path] = dataclasses.field(default_factory=dict)

    @classmethod
    def now(cls, assignments: Sequence[str], values: Mapping[str, Any]) -> Beginning:
        """Of trials that begin now.

        Args:
          assignments: `NAME=VALUE` of all trials, which are right.
          values: The variables of a trial, by field.
        """
        given, _ = parse_assignments(assignments)
        overrides, _ = Overrides.from_settings([each for each in given if not each.name.startswith("SAC_")])
        return cls(overrides.settings(), *_files(values, overrides))

    @classmethod
    def read(cls, folder: Path) -> Beginning | None:
        """That of the study in a folder; None: it has not begun, or under an earlier version."""
        content = read_json(_file(folder))
        return cls(**content) if content else None

    def write(self, folder: Path) -> None:
        """Keeps it for later starts."""
        content = {"settings": self.settings, "files": self.files}
        write_atomically(_file(folder), json.dumps(content, indent=2).encode() + b"\n")

    def faults_of(self, now: Beginning, folder: Path) -> list[str]:
        """Why trials that begin now can't be compared with those of the study in the folder."""
        other = "choose another SAC_EXP_NAME"
        if now.settings != self.settings:
            return [
                f"the study in {folder} has begun with {in_words(self.settings) or 'no settings'}, found "
                f"{in_words(now.settings) or 'none'}: its trials are compared, so give the same --set, or {other}"
            ]
        shared = self.files.keys() & now.files.keys()  # Another version may look at other files.
        edited = sorted(str(now.paths[name]) for name in shared if self.files[name] != now.files[name])
        if not edited:
            return []
        return [
            f"edited since the study in {folder} began: {', '.join(edited)}. Its trials are compared, so undo that, or "
            f"{other}; {option('take_edits')} compares trials before and after the edit"
        ]


def _file(folder: Path) -> Path:
    return folder / "began_with.json"


def _files(values: Mapping[str, Any], overrides: Overrides) -> tuple[dict[str, str], dict[str, Path]]:
    """Digests of the user's files and their paths, by the names that a run's copies have."""
    params, config = values["params"], values["config"]
    folder, digests = None, dict[str, str]()
    if values.get("keep_folder", True) and not params_folder.is_kept_otherwise(params):
        left_out = [values[name] for name in NEVER_KEPT if name in values]
        with contextlib.suppress(params_folder.TooLargeError, OSError):  # The start of each trial tells it.
            files = params_folder.files_of(params.parent, left_out, values.get("snapshot_mb", 100))
            folder, digests = params.parent, params_folder.digests(params.parent, files)
    reward = named_in(overrides.merged(load_env_config(config)), params.parent)
    found = digests_of_task(Inputs(params, config, folder, digests, reward=reward), Overrides(), ())
    del found["settings"]  # They are told by their values.
    known = {"params.py": params, "config.json": config, "reward": reward}
    return found, {name: known.get(name) or params.parent / name.removeprefix("params/") for name in found}
