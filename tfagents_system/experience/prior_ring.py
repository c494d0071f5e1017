"""Prior data: the experience of others as a ring of its own, which a run draws from beside its own experience."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tfagents_system.errors import UserError
from tfagents_system.experience import minari_sets
from tfagents_system.experience.conversion import Conversion, action_differences, stored_episodes
from tfagents_system.experience.episodes import segments_of
from tfagents_system.experience.transfer import read_episodes
from tfagents_system.hyperparameters import FrameStack
from tfagents_system.replay.filling import add_segments, finite
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.ring_files import DESCRIPTION
from tfagents_system.replay.stored_ring import StoredRing, differences
from tfagents_system.transport.segments import Segment

Tell = Callable[[str], None]


def build(
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
    if has_ring and not minari_sets.is_one(source):
        stored = StoredRing(Path(source))
        lines = differences(conversion.layout, stored.layout)
        if lines := lines or action_differences(conversion.actions, stored):
            table = "\n  ".join(lines)
            raise UserError(
                f"{source} holds other experience than this run collects:\n  {table}\nGive a run of the same "
                "environment and settings (action_history, action_table, normalize_rewards, potential)"
            )
        return lambda: finite(stored.segments(), f"prior_data: {source}")
    episodes = stored_episodes(read_episodes(source, tell), conversion, source, tell, f"{source}: ")
    segments = [segment for number, episode in enumerate(episodes) for segment in segments_of(episode, most, number)]
    return lambda: segments
