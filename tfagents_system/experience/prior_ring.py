"""Prior data: the experience of others as a ring of its own, which a run draws from beside its own experience."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tfagents_system.checks.frame_stacks import FrameStack
from tfagents_system.errors import UserError
from tfagents_system.experience import minari_sets
from tfagents_system.experience.columns import StepRewards
from tfagents_system.experience.conversion import Conversion
from tfagents_system.experience.converted import stored_episodes
from tfagents_system.experience.episodes import segments_of
from tfagents_system.experience.ring_actions import action_differences
from tfagents_system.experience.transfer import read_episodes
from tfagents_system.machine.scratch import DESCRIPTION
from tfagents_system.replay.filling import add_segments, finite
from tfagents_system.replay.prior_data import REMEDY, mark_as_made
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.ring_files import RingFiles
from tfagents_system.replay.stored_ring import StoredRing, differences
from tfagents_system.transport.layout import Layout
from tfagents_system.transport.segments import Segment

Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Brought:
    """What experts have brought to prior data.

    Attributes:
      segments: Reads them, one after the other.
      rows: Of each of them.
      steps: Of all of them.
    """

    segments: Callable[[], Iterable[Segment]] = tuple
    rows: Sequence[int] = ()
    steps: int = 0


@dataclasses.dataclass(frozen=True)
class PriorForm:
    """How prior data is stored.

    Attributes:
      conversion: From data sets to what the run stores.
      sequence_length: Of the run's samples; None: transitions.
      frame_stack: How many frames of which leaves samples see at once.
      rewards: Of data without rewards; None: there must be some.
      expert_rows: Room for what experts bring, in rows.
      segment_rows: Of their segments, at most.
      kept: What they have brought already, which has a part of that room.
    """

    conversion: Conversion
    sequence_length: int | None = None
    frame_stack: FrameStack = 1
    rewards: StepRewards | None = None
    expert_rows: int = 0
    segment_rows: int = 1
    kept: Brought = Brought()


@dataclasses.dataclass(frozen=True)
class _Source:
    """Segments that are made, or read, as often as they are iterated over."""

    name: str
    segments: Callable[[], Iterable[Segment]]


def build(sources: Sequence[Path | str], folder: Path, form: PriorForm, tell: Tell) -> str:
    """Makes a ring that holds all of the sources, and has room for what experts bring, in a new folder.

    Args:
      sources: Run directories, folders with a ring, `.npz` files, Minari data sets; none where experts
        bring all of it.
      folder: Does not exist.
      form: Of the run.
      tell: Called with what was decided about the data.

    Returns:
      What it holds, in words.

    Raises:
      UserError: A source can't be read, does not fit, or has numbers that are not finite; with all that is wrong.
    """
    found, findings = list[_Source](), list[str]()
    for source in sources:
        try:
            found.append(_source(source, form, tell))
        except UserError as error:
            findings += [f"prior_data: {finding}" for finding in error.findings]
    if findings:
        raise UserError(*findings)
    sizes = [segment.num_rows for each in found for segment in each.segments()]
    if sources and not sizes:
        raise UserError("prior_data holds no step: give another data set")
    layout = form.conversion.layout
    slack_rows, filled_rows = max([*sizes, *form.kept.rows, form.segment_rows]), sum(sizes) + sum(form.kept.rows)
    files = RingFiles(
        folder, layout, sum(sizes) + form.expert_rows, slack_rows, reserved_rows=filled_rows, remedy=REMEDY
    )
    files.make()
    ring = Ring(files)
    for each in found:
        add_segments(ring, each.segments(), Path(each.name), form.frame_stack)
    if sources and not ring.training_steps:
        raise UserError("prior_data holds no step that may be trained on, all of it was held out: give another run")
    told = _in_words([each.name for each in found], ring, form)
    add_segments(ring, form.kept.segments(), Path("experts"), form.frame_stack)
    ring.make_durable()
    mark_as_made(ring)
    return told


def _in_words(sources: Sequence[str], ring: Ring, form: PriorForm) -> str:
    """What a ring holds, and has room for."""
    megabytes, told = ring.layout.step_bytes / 2**20, list[str]()
    if sources:
        size = f"{ring.filled_rows * megabytes:,.1f} MiB"
        told.append(f"{', '.join(sources)}: {ring.training_steps:,} steps in {size}")
    if form.expert_rows:
        told.append(f"room for {form.expert_rows:,} rows of experts, {form.expert_rows * megabytes:,.1f} MiB")
    if form.kept.steps:
        told.append(f"{form.kept.steps:,} steps that experts have brought before")
    return "; ".join(told)


def brought_by_experts(folder: Path, rows_of_files: int, layout: Layout, most_rows: int, tell: Tell) -> Brought:
    """What experts have added to a ring of prior data: the newest segments that fit a room.

    Args:
      folder: Of the ring.
      rows_of_files: Before theirs.
      layout: Of the ring that they are for.
      most_rows: The room.
      tell: Called if none of it fits.

    Raises:
      UserError: The ring can't be read.
    """
    stored = StoredRing(folder)
    if lines := differences(layout, stored.layout):
        tell(f"what experts have brought has other columns than this run, and is left out: {'; '.join(lines)}")
        return Brought()
    newest_rows = min(stored.rows - rows_of_files, most_rows)
    sizes = [(each.num_rows, each.num_steps) for each in stored.segments(newest_rows)]
    first = int(sum(rows for rows, _ in sizes) > most_rows)  # The oldest one may begin before the newest rows.
    rows, steps = [each for each, _ in sizes[first:]], sum(each for _, each in sizes[first:])
    return Brought(lambda: itertools.islice(stored.segments(newest_rows), first, None), rows, steps)


def _source(source: Path | str, form: PriorForm, tell: Tell) -> _Source:
    name = str(source)
    if not minari_sets.is_one(name) and any((Path(name) / each / DESCRIPTION).is_file() for each in ("", "replay")):
        stored = StoredRing(Path(name))
        lines = differences(form.conversion.layout, stored.layout)
        if lines := lines or action_differences(form.conversion.actions, stored):
            table = "\n  ".join(lines)
            raise UserError(
                f"{name} holds other experience than this run collects:\n  {table}\nGive a run of the same environment "
                "and settings (action_history, action_table, normalize_rewards, potential)"
            )
        return _Source(name, lambda: finite(stored.segments(), f"prior_data: {name}"))
    most = form.conversion.layout.max_segment_steps(form.sequence_length)
    read = read_episodes(name, tell, form.rewards)
    episodes = stored_episodes(read, form.conversion, name, tell, f"{name}: ")
    segments = [segment for number, episode in enumerate(episodes) for segment in segments_of(episode, most, number)]
    return _Source(name, lambda: segments)
