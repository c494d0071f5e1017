"""The run's own copies of the user's files: which a start uses, how they differ from these, how they are replaced."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tfagents_system.envs import reward_places
from tfagents_system.machine.files import copy_with_holes, sync
from tfagents_system.run_files import params_folder, resets, run_checkpoints
from tfagents_system.run_files.agent_start import AgentStart
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.meaning import digest_of_meaning
from tfagents_system.run_files.resets import Reset
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.used_files import used_files
from tfagents_system.settings.overrides import Overrides

_STAGED, _RESET = ".inputs", "reset.json"
_TASK_BEFORE = "task_before"  # Of an edit in the run directory: as of `digests_of_task`, before it.
_NO = "no_"  # `no_params` stands for a folder that the run is not to have.
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


def edited_reward(paths: RunPaths, params: Path) -> Path | None:
    """The reward file of which the run has a copy, as it is found now, if it was edited since.

    Args:
      params: SAC_PARAMS, beside which it is looked for first.
    """
    if not paths.reward.exists() or _names_other_reward(paths, _own_config(paths)):
        return None  # The run needs none, or began before runs kept it; or its own JSON was edited.
    found, began = named_reward(paths, params), (read_json(paths.run_json) or {}).get("began_with", {})
    is_known = found is None or hashlib.sha256(found.read_bytes()).hexdigest() == began.get("reward")
    return None if is_known else found


def named_reward(paths: RunPaths, params: Path) -> Path | None:
    """The reward file that a run's own JSON names, as it is found now; beside `params` first."""
    return reward_places.named_in(_own_config(paths), params.parent)


def _own_config(paths: RunPaths) -> dict[str, Any]:
    return Overrides.read(paths.overrides).merged(read_json(paths.config) or {})


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


def of_params(
    paths: RunPaths, params: Path, new: Inputs | None, other: Inputs | None, before: Mapping[str, Any]
) -> dict[str, Any]:
    """What run.json has on the params, their folder, and what the run began with.

    Args:
      params: SAC_PARAMS.
      new: What is copied; None: the copies stay.
      other: See `other_reward`.
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


def _names_other_reward(paths: RunPaths, config: Mapping[str, Any]) -> bool:
    """Whether a run's JSON names another reward file than that of which the run has a copy."""
    named = (read_json(paths.run_json) or {}).get("reward_named")  # Runs that began earlier lack it.
    return named is not None and reward_places.name_in(config) not in (None, named)


def inputs_of_run(paths: RunPaths) -> Inputs:
    """The run's own copies; the digests are of the folder as it was when it was copied."""
    folder = paths.params_folder if paths.params_folder.is_dir() else None
    digests, reward = kept_digests(paths) or {}, paths.reward if paths.reward.exists() else None
    return Inputs(paths.params, paths.config, folder, digests, name=name_of_params(paths), reward=reward)


def digests_of_task(inputs: Inputs, overrides: Overrides, may_change: Collection[str]) -> dict[str, str]:
    """What decides which task a run trains on: digests of settings, and of what files mean.

    Of the folder of the params the files that these use, of the kinds that a run does not write itself.

    Args:
      inputs: Those that the run has, or gets.
      overrides: All of the run.
      may_change: Attributes that say nothing of the task.
    """
    own = {name: value for name, value in overrides.params.items() if name not in may_change}
    settings = json.dumps([own, overrides.config], sort_keys=True).encode()
    # Its own copies have these suffixes, whatever the user's files are called.
    files = {"params.py": (inputs.params, ".py"), "config.json": (inputs.config, ".json")}
    if inputs.reward is not None:
        files["reward"] = (inputs.reward, "")
    if inputs.folder is not None:
        name = inputs.name or inputs.params.name
        used = used_files(inputs.folder, name, inputs.digests, inputs.config, inputs.params) - {name}
        files |= {f"params/{each}": (inputs.folder / each, Path(each).suffix) for each in used if _is_decisive(each)}
    digests = {name: digest_of_meaning(*files[name]) for name in sorted(files)}
    return {**digests, "settings": hashlib.sha256(settings).hexdigest()}


def edits_after(
    paths: RunPaths, before: Mapping[str, Any], task: Mapping[str, str], *, takes: bool, goes_on: bool, now: str
) -> list[dict[str, Any]]:
    """What run.json has of edits from a start on: each may have changed the task, and `best` begins anew.

    A start that neither updates nor evaluates takes no edit of the run directory: the next one looks for edits since
    the start before it, so an edit that was undone meanwhile is none.

    Args:
      before: The content of run.json.
      task: As of `digests_of_task`.
      takes: The start takes edited files; the copies that there are go to `before_edits_<n>`.
      goes_on: The agent goes on: what was edited in the run directory since the last start counts, too.
      now: The time.
    """
    edits = list(before.get("edits", []))
    then = before.get("task", {})  # May lack files that another version of this toolkit did not look at.
    train_step = max(0, run_checkpoints.newest_train_step(paths.trainer_checkpoints))
    was_evaluated = bool(edits) and (read_json(paths.best_json) or {}).get("edits") == len(edits)
    if goes_on and edits and not was_evaluated and edits[-1]["train_step"] == train_step and _TASK_BEFORE in edits[-1]:
        then = edits.pop()[_TASK_BEFORE]
    edit = {"time": now, "train_step": train_step}
    if takes:
        edits.append({**edit, "before": copy_aside(paths).name})
    elif goes_on and any(then[name] != task[name] for name in then.keys() & task.keys()):
        edits.append({**edit, "before": None, _TASK_BEFORE: then})
    return edits


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
    return {name: digest for name, digest in digests.items() if _is_decisive(name)}


def _is_decisive(name: str) -> bool:
    return Path(name).suffix in _DECISIVE


def install(
    paths: RunPaths,
    inputs: Inputs | None,
    run_json: bytes,
    reset: Reset | None = None,
    overrides: bytes = b"",
    begins: Inputs | None = None,
    other: Inputs | None = None,
) -> None:
    """Replaces the run's copies and run.json, which describes them: all of these, even if this process is killed.

    Args:
      paths: The run directory.
      inputs: The user's files; None: the run's copies stay.
      run_json: Its content.
      reset: Before that, what it replaces is set aside. The next start completes an interrupted reset before it reads
        anything else, so a run is as it was before the reset or as it is after it.
      overrides: Content of overrides.json, with a reset.
      begins: An agent begins with these inputs, and what another one began with is removed.
      other: See `other_reward`.

    Raises:
      OSError: They can't be written; those that are there stay.
    """
    staged, partial = paths.exp_dir / _STAGED, paths.exp_dir / f"{_STAGED}.partial"
    finish_install(paths)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / paths.run_json.name).write_bytes(run_json)
    if reset is not None:
        (partial / _RESET).write_text(json.dumps(dataclasses.asdict(reset)))
        (partial / paths.overrides.name).write_bytes(overrides)
    if inputs is not None:
        _stage_inputs(paths, inputs, partial)
    elif other is not None and other.reward is not None:
        (partial / paths.reward.name).write_bytes(other.reward.read_bytes())
    if begins is not None:
        _stage_beginning(paths, begins, partial)
    if reset is not None:  # After a power cut, too.
        for path in [*partial.rglob("*"), partial]:
            sync(path)
    os.rename(partial, staged)  # From here on it will be done, by the next start if not by this one.
    finish_install(paths)


def _stage_inputs(paths: RunPaths, inputs: Inputs, partial: Path) -> None:
    (partial / paths.params.name).write_bytes(inputs.params.read_bytes())
    (partial / paths.config.name).write_bytes(inputs.config.read_bytes())
    if inputs.reward is None:
        (partial / f"{_NO}{paths.reward.name}").touch()
    else:
        (partial / paths.reward.name).write_bytes(inputs.reward.read_bytes())
    if inputs.folder is None:
        (partial / f"{_NO}{paths.params_folder.name}").touch()
    else:
        params_folder.copy(inputs.folder, inputs.digests, partial / paths.params_folder.name)


def _stage_beginning(paths: RunPaths, inputs: Inputs, partial: Path) -> None:
    if inputs.agent is not None:
        inputs.agent.copy(partial / paths.agent_from.name)
    if inputs.prior_data is not None:
        shutil.copytree(inputs.prior_data, partial / paths.prior_data.name, copy_function=copy_with_holes)
    for folder, given in ((paths.agent_from, inputs.agent), (paths.prior_data, inputs.prior_data)):
        if given is None:
            (partial / f"{_NO}{folder.name}").touch()


def is_interrupted(paths: RunPaths) -> bool:
    """Whether an `install` was killed that `finish_install` completes."""
    return (paths.exp_dir / _STAGED).is_dir()


def finish_install(paths: RunPaths) -> None:
    """Completes an `install` that was killed."""
    staged = paths.exp_dir / _STAGED
    if not staged.is_dir():
        return
    reset = staged / _RESET
    if reset.exists():
        found = Reset(**json.loads(reset.read_bytes()))
        resets.set_aside(paths, found.kind, found.before)
        reset.unlink()  # Only now: what is set aside must not be what comes next.
    for folder in (paths.params_folder, paths.agent_from, paths.prior_data):
        new, none = staged / folder.name, staged / f"{_NO}{folder.name}"
        if new.is_dir() or none.exists():
            shutil.rmtree(folder, ignore_errors=True)
        if new.is_dir():
            os.replace(new, folder)
        none.unlink(missing_ok=True)
    if (no_reward := staged / f"{_NO}{paths.reward.name}").exists():
        paths.reward.unlink(missing_ok=True)
        no_reward.unlink()
    for path in (paths.params, paths.config, paths.reward, paths.overrides, paths.run_json):
        if (staged / path.name).exists():
            os.replace(staged / path.name, path)
    staged.rmdir()


def copy_aside(paths: RunPaths) -> Path:
    """Copies the run's copies to `before_edits_<n>`, which is returned."""
    aside = next(path for n in itertools.count(1) if not (path := paths.exp_dir / f"before_edits_{n}").exists())
    aside.mkdir()
    for path in filter(Path.exists, (paths.params, paths.config, paths.reward)):
        shutil.copy2(path, aside / path.name)
    if paths.params_folder.is_dir():
        shutil.copytree(paths.params_folder, aside / paths.params_folder.name)
    return aside


def move_aside(paths: RunPaths) -> Path:
    """Moves a whole run to `<its directory>_before_<n>`, for a fresh one; returns where it is.

    For the holder of its RunLock. Task 3 of a sweep goes to `<name>_before_<n>_task_3`: it is none of `<name>_task_*`
    any more.
    """
    name = re.sub(r"_task_\d+$", "", paths.exp_dir.name)
    task = paths.exp_dir.name.removeprefix(name)
    names = (paths.exp_dir.with_name(f"{name}_before_{n}{task}") for n in itertools.count(1))
    aside = next(path for path in names if not path.exists())
    os.rename(paths.exp_dir, aside)
    return aside
