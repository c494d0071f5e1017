"""Minari data sets, read and written by Minari itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tree

from tfagents_system.envs.actions import LeafActions
from tfagents_system.errors import UserError
from tfagents_system.experience.conversion import NamedEpisode

PREFIX = "minari:"


def is_one(source: str) -> bool:
    """`minari:NAME`, or a folder of a data set."""
    return source.startswith(PREFIX) or (Path(source) / "data" / "metadata.json").is_file()


def check_is_here(source: str) -> None:
    """Whether `minari:NAME` is on this machine.

    Raises:
      UserError: It is not, or Minari is not installed.
    """
    if not (_folder(source) / "data").exists():
        name = source.removeprefix(PREFIX)
        raise UserError(
            f"{source} is not on this machine: get it with `minari download {name}` (`minari list remote` shows what "
            "there is, `minari list local` what is here)"
        )


def check_is_new(source: str) -> None:
    """Whether `minari:NAME` is not on this machine.

    Raises:
      UserError: It is, or Minari is not installed.
    """
    if _folder(source).exists():
        raise UserError(f"{source} exists: give another name, or remove it with `minari delete`")


def _folder(source: str) -> Path:
    _minari()
    from minari.storage import get_dataset_path

    return Path(get_dataset_path(source.removeprefix(PREFIX)))


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
            leaves = _flat(episode.observations), _flat(episode.actions)
            yield NamedEpisode(*leaves, np.asarray(episode.rewards), is_terminated)
    except Exception as error:  # Whatever its storage raises.
        raise UserError(f"{source} can't be read by Minari: {error}") from None
    if cut:
        tell(f"{cut:,} episodes neither terminate nor are truncated: they count as truncated at their last step")


def write(name: str, episodes: Sequence[NamedEpisode], actions: Sequence[LeafActions]) -> Path:
    """Writes a data set; returns its folder. `actions` are those of each leaf of the environment's.

    Raises:
      UserError: One of that name is there, its name is no Minari name, or Minari is not installed.
    """
    minari = _minari()
    from minari.data_collector import EpisodeBuffer

    specs = [leaf.environment_spec for leaf in actions]
    taken = zip(episodes[0].actions.items(), specs, strict=True)
    spaces = {
        "observation_space": _space(_nested({name: _box(leaf) for name, leaf in episodes[0].observations.items()})),
        "action_space": _space(_nested({name: _box(leaf, spec.minimum, spec.maximum) for (name, leaf), spec in taken})),
    }
    buffers = [
        EpisodeBuffer(
            id=number,
            observations=_nested(episode.observations),
            actions=_nested(episode.actions),
            rewards=episode.rewards.tolist(),
            terminations=[*[False] * (len(episode.rewards) - 1), episode.is_terminated],
            truncations=[*[False] * (len(episode.rewards) - 1), not episode.is_terminated],
        )
        for number, episode in enumerate(episodes)
    ]
    try:
        data_set = minari.create_dataset_from_buffers(name, buffers, **spaces, data_format="hdf5")
    except (ValueError, OSError) as error:
        raise UserError(f"Minari does not write {name}: {error}") from None
    return Path(data_set.storage.data_path).parent


def _space(boxes: Any) -> Any:
    """The space of a nest of boxes."""
    import gymnasium

    if not isinstance(boxes, dict):
        return boxes
    return gymnasium.spaces.Dict({name: _space(box) for name, box in boxes.items()})


def _box(values: np.ndarray, minimum: Any = None, maximum: Any = None) -> Any:
    """The space of the rows of an array, within bounds if it has some."""
    import gymnasium

    shape, dtype = values.shape[1:], values.dtype
    least, most = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    bounds = least if minimum is None else minimum, most if maximum is None else maximum
    low, high = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in bounds)
    return gymnasium.spaces.Box(low, high, shape, dtype.type)


def _flat(nest: Any) -> dict[str, np.ndarray]:
    """The arrays of a nest by their paths."""
    return {"/".join(map(str, path)): np.asarray(leaf) for path, leaf in tree.flatten_with_path(nest)}


def _nested(leaves: Mapping[str, Any]) -> Any:
    """The nest of dictionaries whose paths the names are; the leaf itself where its name is empty."""
    if list(leaves) == [""]:
        return leaves[""]
    nest: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *folders, last = name.split("/")
        inner = nest
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[last] = leaf
    return nest


def _minari() -> Any:
    try:
        import minari
    except ImportError:
        raise UserError("Minari data sets need the package minari: pip install 'tfagents_system[experience]'") from None
    return minari
