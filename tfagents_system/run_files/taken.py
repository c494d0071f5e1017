"""What a run takes from another one (SAC_FROM, SAC_TAKE): where it is, and what run.json records of it.

    taken/agent.index, ...      in the new run directory: a copy, so that the other run may continue or be deleted
    run.json                    "from": the fields of `Taken`

This module imports neither TensorFlow nor Reverb.
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
from pathlib import Path

from tfagents_system.checks.rules import is_meant
from tfagents_system.errors import UserError
from tfagents_system.machine.files import read_json
from tfagents_system.policies.names import MOMENT, train_step_of
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.kept_checkpoints import DamagedCheckpointError
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import ALL, REPLAY


@dataclasses.dataclass(frozen=True)
class Taken:
    """What a run began with.

    Attributes:
      source: SAC_FROM, with an absolute path.
      take: One of variables.TAKES.
      run: The other run directory, or a folder of imported experience.
      checkpoint: The agent's folder in it; None: no agent is taken.
      train_step, iteration, env_steps: Where the other run was; counted on from with `all`, else 0.
      mark: Tells a ring that counts for this run from one that is still the other's.
    """

    source: str
    take: str
    run: str
    checkpoint: str | None = None
    train_step: int = 0
    iteration: int = 0
    env_steps: int = 0
    mark: int = 0

    @property
    def has_rows(self) -> bool:
        """Whether experience is taken."""
        return self.take in (REPLAY, ALL)

    @property
    def agent(self) -> Path | None:
        """Prefix of the agent's files in the other run."""
        return None if self.checkpoint is None else Path(self.run) / self.checkpoint / kept_checkpoints.AGENT

    def copy_agent(self, folder: Path) -> None:
        """Copies the agent's files into a new folder.

        Raises:
          OSError: It can't be written, or they are not there any more.
        """
        assert self.agent is not None
        folder.mkdir()
        for path in sorted(self.agent.parent.glob(f"{kept_checkpoints.AGENT}.*")):
            shutil.copyfile(path, folder / path.name)


def taken_by(paths: RunPaths) -> Taken | None:
    """What a run began with; None: nothing of another one."""
    fields = (read_json(paths.run_json) or {}).get("from")
    return Taken(**fields) if fields else None


def split(source: str) -> tuple[Path, str | None]:
    """RUN and CHECKPOINT of RUN@CHECKPOINT."""
    path, at, name = source.rpartition("@")
    is_named = at and "/" not in name and not Path(source).is_dir()
    return (Path(path), name) if is_named else (Path(source), None)


def find(source: str, take: str) -> Taken:
    """What SAC_FROM and SAC_TAKE mean. Of the experience nothing is looked at.

    Args:
      source: `RUN`, `RUN@best` or `RUN@CHECKPOINT` with an absolute path.
      take: One of variables.TAKES.

    Raises:
      UserError: There is no such run or checkpoint, or it is damaged.
    """
    (path, name), mark = split(source), 2 + secrets.randbelow(2**31)
    if not path.is_dir():
        raise UserError(f"SAC_FROM={source}: {path} is no folder: give the directory of a run")
    if take == REPLAY:
        if name is not None:
            raise UserError(f"SAC_FROM={source} names an agent, and SAC_TAKE=replay takes none: leave out @{name}")
        return Taken(source, take, str(path), mark=mark)
    paths = RunPaths(path)
    try:
        folder = _newest(paths) if name is None else _named(paths, name)
    except OSError as error:
        raise UserError(f"{error.filename} can't be read ({error.strerror}): make it readable") from None
    counters = _counters(folder) if take == ALL else {}
    return Taken(source, take, str(path), str(folder.relative_to(path)), mark=mark, **counters)


def _newest(paths: RunPaths) -> Path:
    newest = kept_checkpoints.newest_complete(paths.trainer_checkpoints, with_agent=True)
    if newest is None:
        raise UserError(
            f"{paths.exp_dir} has no checkpoint of an agent: give a run that has one, or take its experience alone "
            "(SAC_TAKE=replay)"
        )
    return newest.folder


def _named(paths: RunPaths, name: str) -> Path:
    """A checkpoint of the trainer, or one of the policies that were evaluated and have their agent."""
    if name == "best":
        name = str((read_json(paths.best_json) or {}).get("checkpoint", name))
    folders = (*paths.trainer_checkpoints.glob("checkpoint_*"), *paths.policy_checkpoints.glob("policy_checkpoint_*"))
    agents = {path.name: path for path in sorted(folders) if (path / f"{kept_checkpoints.AGENT}.index").is_file()}
    if name not in agents:
        names = [*(["best"] if read_json(paths.best_json) else []), *agents]
        there_are = f"there are {', '.join(names)}" if names else "it has none yet"
        raise UserError(f"{paths.exp_dir} has no agent {name}{is_meant(name, names)}: {there_are}")
    if agents[name].parent == paths.trainer_checkpoints:
        try:
            kept_checkpoints.read(agents[name])
        except DamagedCheckpointError as error:
            raise UserError(f"{agents[name]} is damaged ({error}): give another checkpoint") from None
    return agents[name]


def _counters(folder: Path) -> dict[str, int]:
    """Where a run was at a checkpoint."""
    train_step = train_step_of(folder.name)
    if train_step is None:
        manifest = read_json(folder / kept_checkpoints.MANIFEST) or {}
        return {name: int(manifest.get(name, 0)) for name in ("train_step", "iteration", "env_steps")}
    moment = read_json(folder / MOMENT) or {}
    return {"train_step": train_step, **{name: int(moment.get(name, 0)) for name in ("iteration", "env_steps")}}
