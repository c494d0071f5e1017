"""Experience that comes into rings and goes out of them: import, export, show, and a run's prior data."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from tfagents_system.envs import loading, specs
from tfagents_system.errors import UserError
from tfagents_system.experience.conversion import (
    SPECS,
    Conversion,
    action_differences,
    actions_beside,
    stored_episodes,
)
from tfagents_system.experience.data_sets import Tell, check_is_new, is_minari, read_episodes, write_episodes
from tfagents_system.experience.episodes import episodes_of, is_terminated, segments_of, write_ring
from tfagents_system.hyperparameters import FrameStack
from tfagents_system.playing.saved_run import find_path, load_run_params
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.ring_files import DESCRIPTION
from tfagents_system.replay.stored_ring import StoredRing, add_segments, differences, finite
from tfagents_system.report.long_work import LongWork, followed
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.segments import Segment


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


def export(source: str, out: str, tell: Tell) -> list[str]:
    """Writes the whole episodes of a run or of an imported folder as a data set.

    Returns:
      What was written, in lines.

    Raises:
      UserError: There are none, or the data set is there already or can't be written.
    """
    check_is_new(out)
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
        path = write_episodes(out, named, actions)
    return [f"{path}: {_summary(episodes)}"]


def _whole_episodes(stored: StoredRing, source: str, tell: Tell) -> list[Segment]:
    """Those of a ring.

    Raises:
      UserError: There are none.
    """
    parts = list(followed(episodes_of(stored), f"reading {source}", "episodes"))
    episodes = [part for part in parts if part.starts_episode and part.ends_episode]
    if late := sum(not part.starts_episode for part in parts):
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


def _summary(episodes: Sequence[Segment]) -> str:
    steps = sum(len(episode.reward) for episode in episodes)
    parts = [episode for episode in episodes if episode.starts_episode and episode.ends_episode]
    whole = [float(episode.reward.sum(dtype=np.float64)) for episode in parts]
    ended = sum(map(is_terminated, episodes))
    text = f"{steps:,} steps, {len(episodes):,} episodes ({len(whole):,} whole, {ended:,} terminated)"
    return text + (f", mean return of the whole ones {np.mean(whole):,.1f}" if whole else "")


# Prior data: a ring of their own, which a run draws from beside its own experience.


def make_prior_ring(
    sources: Sequence[Path | str],
    folder: Path,
    conversion: Conversion,
    tell: Tell,
    sequence_length: int | None = None,
    frame_stack: FrameStack = 1,
) -> str:
    """Makes a ring that holds all of the sources, in a new folder.

    Args:
      sources: Run directories, folders with a ring, `.npz` files, Minari data sets.
      folder: Does not exist.
      conversion: From data sets to what the run stores.
      tell: Called with what was decided about the data.
      sequence_length: Of the run's samples; None: transitions.
      frame_stack: How many frames of which leaves samples see at once.

    Returns:
      What it holds, in words.

    Raises:
      UserError: A source can't be read, does not fit, or has numbers that are not finite; with all that is wrong.
    """
    most = conversion.layout.max_segment_steps(sequence_length)
    read, findings = list[tuple[str, Callable[[], Iterable[Segment]]]](), list[str]()
    for source in map(str, sources):
        try:
            read.append((source, _segments(source, conversion, most, tell)))
        except UserError as error:
            findings += [f"prior_data: {finding}" for finding in error.findings]
    if findings:
        raise UserError(*findings)
    sizes = [segment.num_rows for _, segments in read for segment in segments()]
    if not sizes:
        raise UserError("prior_data holds no step: give another data set")
    ring = Ring.open(folder, conversion.layout, sum(sizes), max(sizes))
    for source, segments in read:
        add_segments(ring, segments(), Path(source), frame_stack)
    if not ring.training_steps:
        raise UserError("prior_data holds no step that may be trained on, all of it was held out: give another run")
    ring.make_durable()
    megabytes = ring.filled_rows * ring.layout.step_bytes / 2**20
    return f"{', '.join(source for source, _ in read)}: {ring.training_steps:,} steps in {megabytes:,.1f} MiB"


def _segments(source: str, conversion: Conversion, most: int, tell: Tell) -> Callable[[], Iterable[Segment]]:
    """What makes or reads the segments of a source, as often as it is called."""
    has_ring = any((Path(source) / folder / DESCRIPTION).is_file() for folder in ("", "replay"))
    if has_ring and not is_minari(source):
        stored = StoredRing(Path(source))
        lines = differences(conversion.layout, stored.layout) or action_differences(conversion.actions, stored)
        if lines:
            table = "\n  ".join(lines)
            raise UserError(
                f"{source} holds other experience than this run collects:\n  {table}\nGive a run of the same "
                "environment and settings (action_history, action_table, normalize_rewards, potential)"
            )
        return lambda: finite(stored.segments(), f"prior_data: {source}")
    episodes = stored_episodes(read_episodes(source, tell), conversion, source, tell, f"{source}: ")
    segments = [segment for number, episode in enumerate(episodes) for segment in segments_of(episode, most, number)]
    return lambda: segments
