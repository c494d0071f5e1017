"""Minari data sets, read and written by Minari itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.envs.actions import LeafActions
from tfagents_system.errors import UserError
from tfagents_system.experience.conversion import NamedEpisode, flat, nested
from tfagents_system.transport.layout import Column, Layout

PREFIX = "minari:"


def is_one(source: str) -> bool:
    """`minari:NAME`, or a folder of a data set."""
    return source.startswith(PREFIX) or (Path(source) / "data" / "metadata.json").is_file()


def check_is_here(source: str) -> None:
    """Whether `minari:NAME` is on this machine.

    Raises:
      UserError: It is not, or Minari is not installed.
    """
    _minari()
    from minari.storage import get_dataset_path

    name = source.removeprefix(PREFIX)
    if not (get_dataset_path(name) / "data").exists():
        raise UserError(
            f"{source} is not on this machine: get it with `minari download {name}` (`minari list remote` shows what "
            "there is, `minari list local` what is here)"
        )


def check_is_new(source: str) -> None:
    """Whether `minari:NAME` is not on this machine.

    Raises:
      UserError: It is, or Minari is not installed.
    """
    _minari()
    from minari.storage import get_dataset_path

    if get_dataset_path(source.removeprefix(PREFIX)).exists():
        raise UserError(f"{source} exists: give another name, or remove it with `minari delete`")


def read(source: str, tell: Callable[[str], None]) -> Iterator[NamedEpisode]:
    """The episodes of a data set, one after another.

    Raises:
      UserError: It is not there or damaged, or Minari is not installed.
    """
    minari = _minari()
    if source.startswith(PREFIX):
        check_is_here(source)
    try:
        if source.startswith(PREFIX):
            data_set = minari.load_dataset(source.removeprefix(PREFIX))
        else:
            data_set = minari.MinariDataset(Path(source) / "data")
        cut = 0
        for episode in data_set.iterate_episodes():
            is_terminated = bool(episode.terminations[-1])
            cut += not (is_terminated or episode.truncations[-1])
            yield NamedEpisode(
                flat(episode.observations), flat(episode.actions), np.asarray(episode.rewards), is_terminated
            )
    except Exception as error:  # Whatever its storage raises.
        raise UserError(f"{source} can't be read by Minari: {error}") from None
    if cut:
        tell(f"{cut:,} episodes neither terminate nor are truncated: they count as truncated at their last step")


def write(name: str, episodes: Sequence[NamedEpisode], layout: Layout, actions: Sequence[LeafActions]) -> Path:
    """Writes a data set; returns its folder.

    Raises:
      UserError: One of that name is there, its name is no Minari name, or Minari is not installed.
    """
    minari = _minari()
    import gymnasium
    from minari.data_collector import EpisodeBuffer

    def space(columns: Sequence[Column], boxes: Sequence[gymnasium.spaces.Box]) -> Any:
        leaves = {column.name.partition("/")[2]: box for column, box in zip(columns, boxes, strict=True)}
        return _space(nested(leaves))  # type: ignore[arg-type]

    observations = space(layout.observation, [_box(column) for column in layout.observation])
    acted = space(layout.action, [_box_of_bounds(leaf.environment_spec) for leaf in actions])
    buffers = [
        EpisodeBuffer(
            id=number,
            observations=nested(each.observations),
            actions=nested(each.actions),
            rewards=each.rewards.tolist(),
            terminations=[*[False] * (len(each.rewards) - 1), each.is_terminated],
            truncations=[*[False] * (len(each.rewards) - 1), not each.is_terminated],
        )
        for number, each in enumerate(episodes)
    ]
    try:
        data_set = minari.create_dataset_from_buffers(
            name, buffers, observation_space=observations, action_space=acted, data_format="hdf5"
        )
    except (ValueError, OSError) as error:
        raise UserError(f"Minari does not write {name}: {error}") from None
    return Path(data_set.storage.data_path).parent


def _space(nest: Any) -> Any:
    import gymnasium

    return (
        gymnasium.spaces.Dict({key: _space(value) for key, value in nest.items()}) if isinstance(nest, dict) else nest
    )


def _box_of_bounds(spec: Any) -> Any:
    import gymnasium

    dtype = np.dtype(np.float32) if np.dtype(spec.dtype).kind == "f" else np.dtype(spec.dtype)
    low, high = (np.broadcast_to(np.asarray(bound, dtype), spec.shape) for bound in (spec.minimum, spec.maximum))
    return gymnasium.spaces.Box(low, high, tuple(spec.shape), dtype.type)


def _box(column: Column) -> Any:
    import gymnasium

    dtype = np.dtype(column.dtype)
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return gymnasium.spaces.Box(low, high, column.shape, dtype.type)


def _minari() -> Any:
    try:
        import minari
    except ImportError:
        raise UserError("Minari data sets need the package minari: pip install 'tfagents_system[experience]'") from None
    return minari
