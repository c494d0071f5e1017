"""Experience that comes into rings and goes out of them: import, export, show, and a run's prior data."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tree

from tfagents_system.envs import loading, specs
from tfagents_system.envs.actions import LeafActions, in_words
from tfagents_system.errors import UserError
from tfagents_system.experience.data_sets import (
    Conversion,
    Tell,
    check_is_new,
    is_minari,
    is_terminated,
    read_episodes,
    stored_episodes,
    write_episodes,
)
from tfagents_system.hyperparameters import FrameStack
from tfagents_system.machine.files import sync_all
from tfagents_system.playing.saved_run import find_path, load_run_params
from tfagents_system.replay.ring import DESCRIPTION, Ring
from tfagents_system.replay.stored_ring import StoredRing, add_segments, differences, finite, ring_folder
from tfagents_system.report.long_work import LongWork, followed
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.segments import Layout, Segment

SPECS = "specs.pbtxt"  # Beside a ring: what its actions are in the environment.
Segments = Callable[[], Iterable[Segment]]  # Makes or reads them, as often as it is called.


def import_into(
    source: str, out: Path, exp_dir: str | None, params: str | None, config: str | None, tell: Tell
) -> list[str]:
    """Makes a new folder with a ring from a data set; complete or not there. Returns what was imported, in lines.

    Args:
      exp_dir, params, config: The run or the files that say how the environment's experience is stored.

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
        most = conversion.layout.max_segment_steps(None)
        segments = [segment for k, episode in enumerate(episodes) for segment in segments_of(episode, most, k)]
        with LongWork(f"writing {out.name}"):
            _write_ring(partial, conversion.layout, [(source, lambda: segments)])
        sync_all(partial)
        partial.rename(out)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)  # Not once it is `out`: then it may be another import's.
        if isinstance(error, OSError):
            raise UserError(f"{out} can't be written ({error.strerror}): give another folder") from None
        raise
    return [f"{out}: {_summary(episodes)}", f"begin a run with it: --from {out} --take replay"]


def _conversion_for(exp_dir: str | None, params_flag: str | None, config_flag: str | None, file: Path) -> Conversion:
    """For the environment of a run or of files; writes its specs to `file`."""
    paths = None if exp_dir is None else RunPaths(find_path(exp_dir, "--run", Path.is_dir))
    params = load_run_params(paths, params_flag, config_flag)
    if paths is not None and paths.specs.is_file():
        shutil.copyfile(paths.specs, file)
    else:
        with contextlib.closing(loading.make_play_env(params, 0, render=False)) as env:
            specs.save_specs(file, env.observation_spec(), env.environment_action_spec, params.action_table)
    return Conversion.of(params, file)


def export(source: str, out: str, tell: Tell) -> list[str]:
    """Writes the whole episodes of a run or of an imported folder as a data set; returns what was written, in lines.

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
    """Those of a ring, of which there must be one."""
    parts = list(followed(episodes_of(stored), f"reading {source}", "episodes"))
    episodes = [part for part in parts if part.starts_episode and part.ends_episode]
    if late := sum(not part.starts_episode for part in parts):
        tell(f"{late:,} episodes without their beginning are left out: newer experience has taken its place")
    if cut := len(parts) - len(episodes) - late:
        tell(f"{cut:,} episodes without their end are left out: faults, stops and restarts cut them, or they continue")
    if stored.damaged_steps:
        tell(f"{stored.damaged_steps:,} damaged steps are left out")
    if held_out := sum(episode.held_out for episode in episodes):
        tell(f"{held_out:,} episodes that {source} has held out (validation_share) are like the others from now on")
    if not episodes:
        raise UserError(f"{stored.folder} holds no whole episode: let the run continue, or raise buffer_size")
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
    """Makes a ring that holds all of the sources, in a new folder; returns what it holds, in words.

    Args:
      sources: Run directories, folders with a ring, `.npz` files, Minari data sets.
      conversion: From data sets to what the run stores.
      sequence_length: Of the run's samples; None: transitions.
      frame_stack: How many frames of which leaves samples see at once.

    Raises:
      UserError: A source can't be read, does not fit, or has numbers that are not finite; with all that is wrong.
    """
    most = conversion.layout.max_segment_steps(sequence_length)
    read, findings = list[tuple[str, Segments]](), list[str]()
    for source in map(str, sources):
        try:
            read.append((source, _segments(source, conversion, most, tell)))
        except UserError as error:
            findings += [f"prior_data: {finding}" for finding in error.findings]
    if findings:
        raise UserError(*findings)
    if not any(True for _, segments in read for _ in segments()):
        raise UserError("prior_data holds no step: give another data set")
    ring = _write_ring(folder, conversion.layout, read, frame_stack)
    if not ring.training_steps:
        raise UserError("prior_data holds no step that may be trained on, all of it was held out: give another run")
    megabytes = ring.filled_rows * ring.layout.step_bytes / 2**20
    return f"{', '.join(source for source, _ in read)}: {ring.training_steps:,} steps in {megabytes:,.1f} MiB"


def _segments(source: str, conversion: Conversion, most: int, tell: Tell) -> Segments:
    """The segments of a source."""
    has_ring = any((Path(source) / folder / DESCRIPTION).is_file() for folder in ("", "replay"))
    if has_ring and not is_minari(source):
        stored = StoredRing(Path(source))
        lines = differences(conversion.layout, stored.layout) or action_differences(conversion.actions, stored)
        if lines:
            table = "\n  ".join(lines)
            raise UserError(
                f"{source} holds other experience than this run collects:\n  {table}\nGive a run of the same "
                "environment and settings (action_bounds, action_history, action_table, normalize_rewards, potential)"
            )
        return lambda: finite(stored.segments(), f"prior_data: {source}")
    episodes = stored_episodes(read_episodes(source, tell), conversion, source, tell, f"{source}: ")
    segments = [segment for number, episode in enumerate(episodes) for segment in segments_of(episode, most, number)]
    return lambda: segments


def _write_ring(
    folder: Path, layout: Layout, sources: Sequence[tuple[str, Segments]], frame_stack: FrameStack = 1
) -> Ring:
    """Makes a ring that holds exactly these segments, of which there is at least one."""
    rows = [segment.num_rows for _, segments in sources for segment in segments()]
    ring = Ring.open(folder, layout, sum(rows), max(rows))
    for source, segments in sources:
        add_segments(ring, segments(), Path(source), frame_stack)
    ring.make_durable()
    return ring


def actions_beside(stored: StoredRing) -> list[LeafActions] | None:
    """Of each leaf, as the specs file of the ring's run or folder has them; None where there is none."""
    for candidate in (stored.folder / SPECS, RunPaths(stored.folder.parent).specs):
        if candidate.is_file() and ring_folder(candidate.parent) == stored.folder:
            return tree.flatten(specs.load_actions(candidate))
    return None


def action_differences(ours: Sequence[LeafActions], stored: StoredRing) -> list[str]:
    """A line for each action of the same layout that means another one there; empty where nobody says what it means.

    A ring has actions in the agent's units: shares of the environment's bounds, or numbers of rows of a table.
    """
    return [
        f"{here.spec.name}: here {in_words(here)}, there {in_words(there)}, with other bounds, rows or order"
        for here, there in zip(ours, actions_beside(stored) or ours, strict=True)
        if not mean_the_same(here, there)
    ]


def mean_the_same(one: LeafActions, other: LeafActions) -> bool:
    """Whether the agent's actions are the same ones of the environment."""
    if one.rows is not None and other.rows is not None:
        return np.array_equal(one.rows, other.rows)
    bounds = ((leaf.environment_spec.minimum, leaf.environment_spec.maximum) for leaf in (one, other))
    is_same_kind = (one.rows is None) == (other.rows is None)
    return is_same_kind and all(np.array_equal(*pair) for pair in zip(*bounds, strict=True))


# Episodes of rings: each is a `Segment` of any length, without history, lead and number.
#
# A part of an episode is one that does not start it, or does not end it.


def episodes_of(stored: StoredRing) -> Iterator[Segment]:
    """The episodes of a ring, each put together from its segments; parts of which the rest is not there come last.

    Where the ring says of which episode a row is, that decides. Otherwise a segment continues the part that ends with
    the steps which the segment repeats, and with the observation behind them. Two episodes that are alike there may be
    mixed; each step is in one of them.
    """
    open_parts, lone = list[_OpenPart](), stored.lone_episodes()
    for segment in stored.segments():
        number, end = None, 0
        if segment.episode is not None and int(segment.episode[0, 0]) not in lone:
            episode_number, first = segment.episode[0].tolist()
            number, end = (segment.worker_id, episode_number), first + segment.num_rows - 1
        episode = _steps(segment, 0, len(segment.reward))
        for part in sorted(open_parts, key=lambda part: -part.deferred):
            if (repeated := part.repeated_by(segment, number)) is not None:
                open_parts.remove(part)
                episode = _joined(part.episode, _steps(segment, repeated, len(segment.reward)))
                break
        if segment.ends_episode:
            yield episode
        else:  # Where no sample starts in a segment, all its steps are deferred.
            deferred = segment.deferred if segment.num_starts else len(segment.reward)
            open_parts.append(_OpenPart(episode, deferred, number, end))
    yield from (part.episode for part in open_parts)


@dataclasses.dataclass(eq=False)
class _OpenPart:
    """A part of an episode that continues.

    Attributes:
      deferred: Steps at its end that the next segment repeats.
      number: Worker and episode, where the ring says it.
      end: The place of its last observation in the episode, if it has a number.
    """

    episode: Segment
    deferred: int
    number: tuple[int, int] | None
    end: int

    def repeated_by(self, segment: Segment, number: tuple[int, int] | None) -> int | None:
        """With how many steps of the part a segment begins that continues it; None if it does not."""
        if number != self.number:
            return None
        if segment.episode is not None and number is not None:
            counts = [self.end - int(segment.episode[0, 1]) - segment.history]
        else:
            # It repeats its context, and what the part has deferred. Segments of other runs may have a context that
            # they do not repeat (replay/stored_ring.py).
            context = 0 if segment.starts_episode else segment.context
            counts = [context + self.deferred, self.deferred]
        return next((count for count in counts if self._is_continued(segment, count)), None)

    def _is_continued(self, segment: Segment, repeated: int) -> bool:
        """Whether a segment begins with the last `repeated` steps, and with the last observation behind them."""
        part, steps = self.episode, len(self.episode.reward)
        if not 0 <= repeated < len(segment.reward) or repeated > steps:
            return False
        if segment.starts_episode and not (part.starts_episode and repeated == steps):
            return False
        before = min(segment.history, steps - repeated)
        begin, end, last = segment.history - before, segment.history + repeated + 1, slice(steps - repeated, steps)
        ours = [leaf[begin:end] for leaf in segment.observation]
        ours += [column[:repeated] for column in (*segment.action, segment.reward, segment.discount)]
        theirs = [leaf[steps - repeated - before :] for leaf in part.observation]
        theirs += [column[last] for column in (*part.action, part.reward, part.discount)]
        return all(np.array_equal(*pair) for pair in zip(ours, theirs, strict=True))


def _steps(segment: Segment, begin: int, end: int) -> Segment:
    """Its transitions from `begin` to before `end`."""
    of_steps, of_rows = slice(begin, end), slice(segment.history + begin, segment.history + end + 1)
    return dataclasses.replace(
        segment,
        observation=[leaf[of_rows] for leaf in segment.observation],
        action=[leaf[of_steps] for leaf in segment.action],
        reward=segment.reward[of_steps],
        discount=segment.discount[of_steps],
        returns=None if segment.returns is None else segment.returns[of_steps],
        explored=None if segment.explored is None else segment.explored[of_steps],
        potential=None if segment.potential is None else segment.potential[of_rows],
        history=0,
        lead=0,
        context=0,
        deferred=0,
        episode=None,
    )


def _joined(first: Segment, second: Segment) -> Segment:
    """Two parts that follow each other: the first's last observation is the second's first."""
    leaves = zip(first.observation, second.observation, strict=True)
    columns: dict[str, Any] = {
        "observation": [np.concatenate([ours[:-1], theirs]) for ours, theirs in leaves],
        "action": [np.concatenate(pair) for pair in zip(first.action, second.action, strict=True)],
    }
    for name in ("reward", "discount", "returns", "explored", "potential"):
        ours, theirs = getattr(first, name), getattr(second, name)
        columns[name] = None if ours is None else np.concatenate([ours[: len(first.reward)], theirs])
    return dataclasses.replace(first, ends_episode=second.ends_episode, **columns)


def segments_of(episode: Segment, most: int, number: int) -> Iterator[Segment]:
    """Its steps in segments of at most so many, as workers cut them; `number` is the episode's, as of Segment."""
    steps = len(episode.reward)
    for begin in range(0, steps, most):
        end = min(steps, begin + most)
        yield dataclasses.replace(
            _steps(episode, begin, end),
            starts_episode=episode.starts_episode and begin == 0,
            ends_episode=episode.ends_episode and end == steps,
            episode=np.array([[number, begin]], np.int64),
        )
