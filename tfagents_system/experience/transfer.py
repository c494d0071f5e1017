"""What `python -m tfagents_system.experience` does: import, export, show."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tfagents_system.envs import loading, specs
from tfagents_system.errors import UserError
from tfagents_system.experience import columns, minari_sets
from tfagents_system.experience.conversion import SPECS, Conversion, NamedEpisode, actions_beside, stored_episodes
from tfagents_system.experience.episodes import StoredEpisode, episodes_of, write_ring
from tfagents_system.playing.saved_run import find_path, load_run_params
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.report.long_work import LongWork, followed
from tfagents_system.run_files.run_paths import RunPaths

Tell = Callable[[str], None]


def import_into(
    source: str, out: Path, exp_dir: str | None, params: str | None, config: str | None, tell: Tell
) -> list[str]:
    """Makes a folder with a ring from a data set; complete or not there.

    Args:
      source: What is imported.
      out: The folder; does not exist.
      exp_dir, params, config: The run or the files that say how the environment's experience is stored.
      tell: Called with what was decided about the data.

    Returns:
      What was imported, in lines.

    Raises:
      UserError: The data do not fit the environment, or can't be read.
    """
    partial = out.with_name(f".{out.name}.partial")
    try:
        partial.mkdir(parents=True)
    except FileExistsError:
        raise UserError(f"{partial} is of an import under way, or that was killed: wait for it, or remove it") from None
    except OSError as error:
        raise UserError(f"{out} can't be written ({error.strerror}): give another folder") from None
    try:
        conversion = _conversion_for(exp_dir, params, config, partial / SPECS)
        read = followed(read_episodes(source, tell), f"reading {source}", "episodes")
        episodes = stored_episodes(read, conversion, source, tell)
        if not episodes:
            raise UserError(f"{source} holds no step: give another data set")
        with LongWork(f"writing {out.name}"):
            write_ring(partial, conversion.layout, episodes)
        partial.rename(out)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)  # Not once it is `out`: then it may be another import's.
        if isinstance(error, OSError):
            raise UserError(f"{out} can't be written ({error.strerror}): give another folder") from None
        raise
    return [f"{out}: {_summary(episodes)}", f"begin a run with it: --from {out} --take replay"]


def export(source: str, out: str, tell: Tell) -> list[str]:
    """Writes the whole episodes of a run or of an imported folder as a data set.

    Returns:
      What was written, in lines.

    Raises:
      UserError: There are none, or the data set is there already or can't be written.
    """
    is_minari, path = out.startswith(minari_sets.PREFIX), Path(out).expanduser().absolute()
    if is_minari:
        minari_sets.check_is_new(out)
    else:
        columns.check_writable(path)
    stored = StoredRing(find_path(source, "SOURCE", Path.is_dir))
    actions = actions_beside(stored)
    if actions is None:
        raise UserError(
            f"{stored.folder} has no {SPECS} beside it, which says the bounds of actions: give a run directory"
        )
    episodes = _whole_episodes(stored, source, tell)
    conversion = Conversion(stored.layout, actions, 1.0)
    named = [conversion.to_named(episode) for episode in followed(episodes, "converting", "episodes", len(episodes))]
    with LongWork(f"writing {out}"):
        if is_minari:
            path = minari_sets.write(out.removeprefix(minari_sets.PREFIX), named, actions)
        else:
            try:
                columns.write(path, named)
            except OSError as error:
                raise UserError(f"--out={path} can't be written ({error.strerror}): give another one") from None
    return [f"{path}: {_summary(episodes)}"]


def _whole_episodes(stored: StoredRing, source: str, tell: Tell) -> list[StoredEpisode]:
    """Those of a ring.

    Raises:
      UserError: There are none.
    """
    parts = list(followed(episodes_of(stored), f"reading {source}", "episodes"))
    episodes = [part for part in parts if part.starts and part.ends]
    if late := sum(not part.starts for part in parts):
        tell(f"{late:,} episodes without their beginning are left out: newer experience has taken its place")
    if cut := len(parts) - len(episodes) - late:
        tell(f"{cut:,} episodes without their end are left out: faults, stops and restarts cut episodes, or they go on")
    if stored.damaged_steps:
        tell(f"{stored.damaged_steps:,} damaged steps are left out")
    if held_out := sum(episode.held_out for episode in episodes):
        tell(f"{held_out:,} episodes that {source} has held out (validation_share) are like the others from now on")
    if not episodes:
        raise UserError(f"{stored.folder} holds no whole episode: let the run go on, or raise buffer_size")
    return episodes


def show(source: str) -> list[str]:
    """What a run or an imported folder holds, in lines."""
    stored = StoredRing(find_path(source, "SOURCE", Path.is_dir))
    episodes = list(followed(episodes_of(stored), f"reading {source}", "episodes"))
    lines = [f"{stored.folder}: {_summary(episodes) if episodes else 'empty'}"]
    lines += [f"  {column.name}: {column.dtype} {list(column.shape)}" for column in stored.layout.columns]
    if stored.damaged_steps:
        lines.append(f"  {stored.damaged_steps:,} steps are damaged")
    return lines


def _summary(episodes: Sequence[StoredEpisode]) -> str:
    steps = sum(len(episode.reward) for episode in episodes)
    whole = [float(episode.reward.sum(dtype=np.float64)) for episode in episodes if episode.starts and episode.ends]
    ended = sum(episode.is_terminated for episode in episodes)
    text = f"{steps:,} steps, {len(episodes):,} episodes ({len(whole):,} whole, {ended:,} terminated)"
    return text + (f", mean return of the whole ones {np.mean(whole):,.1f}" if whole else "")


def read_episodes(source: str, tell: Tell) -> Iterator[NamedEpisode]:
    """The episodes of a file or a Minari data set.

    Args:
      source: Which.
      tell: Called with what was decided about the data.

    Raises:
      UserError: It can't be read.
    """
    if minari_sets.is_one(source):
        return minari_sets.read(source, tell)
    path = find_path(source, "SOURCE", Path.is_file)
    if path.suffix != columns.SUFFIX:
        raise UserError(f"{source} is of no known format: give a file {columns.SUFFIX}, or minari:NAME")
    return columns.read(path, tell)


def _conversion_for(exp_dir: str | None, params_flag: str | None, config_flag: str | None, file: Path) -> Conversion:
    """For the environment of a run or of files; writes its specs to `file`."""
    paths = None if exp_dir is None else RunPaths(find_path(exp_dir, "--exp_dir", Path.is_dir))
    params = load_run_params(paths, params_flag, config_flag)
    if paths is not None and paths.specs.is_file():
        shutil.copyfile(paths.specs, file)
    else:
        with contextlib.closing(loading.make_play_env(params, 0, render=False)) as env:
            specs.save_specs(file, env.observation_spec(), env.environment_action_spec, params.action_table)
    return Conversion.of(params, file)
