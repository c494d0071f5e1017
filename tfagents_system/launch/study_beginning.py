"""What the trials of a study have in common: they are compared, so all have the same settings and the same files."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.called_as import option
from tfagents_system.envs.reward_places import KEY as REWARD
from tfagents_system.envs.reward_places import named_in
from tfagents_system.launch.edit_checks import NEVER_KEPT
from tfagents_system.machine.files import write_atomically
from tfagents_system.run_files import params_folder
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.run_inputs import Inputs
from tfagents_system.run_files.task_edits import digests_of_task
from tfagents_system.settings.grid import in_words
from tfagents_system.settings.load_params import load_env_config
from tfagents_system.settings.overrides import Overrides, Setting, parse_assignments
from tfagents_system.settings.search_spaces import Space
from tfagents_system.settings.variable_table import VARIABLES
from tfagents_system.settings.variables import as_text, variable_name

# Variables that say what a trial begins with, by field. The numbers of CPUs may differ: machines share a study.
_BEGINNINGS = ("seed", "agent_from", "agent_parts", "replay_from", "expert_policy", "expert_workers")
_NAMES_OF_FILES = ("SAC_PARAMS", "SAC_CONFIG", f"config.{REWARD}.file")
_KNOWN = {variable.name for variable in VARIABLES}


@dataclasses.dataclass(frozen=True)
class Beginning:
    """What all trials have.

    Attributes:
      settings: By name, those of `--set` without variables.
      files: Digests of what the user's files mean, by the names that a run's copies have.
      variables: By name, those that say what a trial begins with or that are the user's own.
      paths: Of the files, as far as it is known.
    """

    settings: Mapping[str, Any]
    files: Mapping[str, str]
    variables: Mapping[str, str]
    paths: Mapping[str, Path] = dataclasses.field(default_factory=dict)

    @classmethod
    def now(
        cls, assignments: Sequence[str], trials: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
    ) -> Beginning:
        """Of trials that begin now.

        Args:
          assignments: `NAME=VALUE` of all trials, which are right.
          trials: Each choice of files, as of `choices_of_files`, with the variables of such a trial by field.
        """
        given, _ = parse_assignments(assignments)
        common, _ = Overrides.from_settings([each for each in given if not each.name.startswith("SAC_")])
        files, paths = dict[str, str](), dict[str, Path]()
        for choice, values in trials:
            own = [Setting(name, value, "space") for name, value in choice.items() if not name.startswith("SAC_")]
            found, known = _files(values, common.replaced_by(Overrides.from_settings(own)[0]))
            words = f"{in_words(choice)} " if choice else ""
            files |= {words + name: digest for name, digest in found.items()}
            paths |= {words + name: path for name, path in known.items()}
        return cls(common.settings(), files, _variables(trials[0][1], given), paths)

    @classmethod
    def read(cls, folder: Path) -> Beginning | None:
        """That of the study in a folder; None: it has not begun."""
        content = read_json(_file(folder))
        return cls(**content) if content else None

    def write(self, folder: Path) -> None:
        """Keeps it for later starts."""
        content = {"settings": self.settings, "files": self.files, "variables": self.variables}
        write_atomically(_file(folder), json.dumps(content, indent=2).encode() + b"\n")

    def faults_of(self, now: Beginning, folder: Path) -> list[str]:
        """Why trials that begin now can't be compared with those of the study in the folder."""
        other = "choose another SAC_EXP_NAME"
        if now.settings != self.settings:
            return [
                f"the study in {folder} has begun with {in_words(self.settings) or 'no settings'}, found "
                f"{in_words(now.settings) or 'none'}: its trials are compared, so give the same --set, or {other}"
            ]
        if words := self._other_variables(now):
            return [f"the study in {folder} has begun with {words}: its trials are compared, so undo that, or {other}"]
        shared = self.files.keys() & now.files.keys()
        edited = sorted(str(now.paths[name]) for name in shared if self.files[name] != now.files[name])
        if not edited:
            return []
        return [
            f"edited since the study in {folder} began: {', '.join(edited)}. Its trials are compared, so undo that, or "
            f"{other}; {option('take_edits')} compares trials before and after the edit"
        ]

    def _other_variables(self, now: Beginning) -> str:
        """`SAC_AGENT_FROM=/a, found SAC_AGENT_FROM=/b`; empty where nothing differs."""
        before, after = self.variables, now.variables
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        had, has = (in_words({name: each[name] for name in names if name in each}) for each in (before, after))
        return f"{had or f'no {names[0]}'}, found {has or 'none'}" if names else ""


def choices_of_files(space: Space) -> list[dict[str, Any]]:
    """Each combination of a space's values that name files; one without any if it has no such names."""
    axes = {name: values for name, values in space.items() if name in _NAMES_OF_FILES and isinstance(values, list)}
    return [dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*axes.values())]


def _variables(values: Mapping[str, Any], given: Sequence[Setting]) -> dict[str, str]:
    """The variables of a trial that are compared, by name."""
    own = {each.name: str(each.value) for each in given if each.name.startswith("SAC_") and each.name not in _KNOWN}
    fields = {field: values[field] for field in _BEGINNINGS if values.get(field) is not None}
    return {variable_name(field): as_text(value) for field, value in fields.items()} | own


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
