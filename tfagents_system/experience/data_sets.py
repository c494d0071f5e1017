"""Data sets that are read and written: files of named columns (npz), and those of Minari.

A file has one row a step:

observations           [N, ...], or observations/<path> for each leaf
actions                [N, ...], likewise, in the environment's units
rewards                [N]
terminations           [N] (also: terminals, terminated, or dones, which may be true at truncations as well)
truncations            [N] (also: timeouts, truncated); may be missing
next_observations      like observations; may be missing
explored               [N], whether the action was another one than the greedy one; may be missing
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tree

from tfagents_system.envs.actions import LeafActions
from tfagents_system.errors import UserError
from tfagents_system.experience.conversion import NamedEpisode
from tfagents_system.machine.files import replacing
from tfagents_system.playing.saved_run import find_path
from tfagents_system.policies.names import nest_of

SUFFIX = ".npz"
MINARI = "minari:"  # Before the name of a data set.
_NESTS = ("observations", "actions", "next_observations")
_FLAGS = ("terminations", "truncations", "explored")
_ROWS_AT_ONCE = 1000
_OTHER_NAMES = {
    "terminals": "terminations",
    "terminated": "terminations",
    "dones": "terminations",
    "timeouts": "truncations",
    "truncated": "truncations",
    "observation": "observations",
    "action": "actions",
    "reward": "rewards",
    "next_observation": "next_observations",
}

Tell = Callable[[str], None]  # Gets what was decided about the data, in words.


def read_episodes(source: str, tell: Tell) -> Iterator[NamedEpisode]:
    """The episodes of a file, of `minari:NAME`, or of the folder of a Minari data set, in their order.

    Raises:
      UserError: It can't be read, or a column is missing or too short.
    """
    if is_minari(source):
        return _read_minari(source, tell)
    path = find_path(source, "SOURCE", Path.is_file)
    if path.suffix != SUFFIX:
        raise UserError(f"{source} is of no known format: give a file {SUFFIX}, or minari:NAME")
    return read_npz(path, tell)


def check_is_new(out: str) -> None:
    """Whether a data set can be written to this file or `minari:NAME`.

    Raises:
      UserError: It exists, a file is no .npz, its folder does not exist, or Minari is not installed.
    """
    path = Path(out).expanduser().absolute()
    if out.startswith(MINARI):
        if _minari_folder(out).exists():
            raise UserError(f"{out} exists: give another name, or remove it with `minari delete`")
    elif path.suffix != SUFFIX:
        raise UserError(f"--out={path} must end with {SUFFIX}, or be minari:NAME")
    elif path.exists():
        raise UserError(f"--out={path} exists: give another name, or remove it")
    elif not path.parent.is_dir():
        raise UserError(f"--out={path}: {path.parent} is no folder: make it, or give another one")


def write_episodes(out: str, episodes: Sequence[NamedEpisode], actions: Sequence[LeafActions]) -> Path:
    """Writes a data set; returns its file or folder. `actions` are those of each leaf of the environment's.

    Raises:
      UserError: It can't be written; there is no half of it.
    """
    if out.startswith(MINARI):
        return _write_minari(out.removeprefix(MINARI), episodes, actions)
    path = Path(out).expanduser().absolute()
    try:
        write_npz(path, episodes)
    except OSError as error:
        raise UserError(f"--out={path} can't be written ({error.strerror}): give another one") from None
    return path


# Files of named columns.


def read_npz(path: Path, tell: Tell) -> Iterator[NamedEpisode]:
    """The episodes of a file, in its order.

    Args:
      path: The file.
      tell: Called with what was decided about the data, in words.

    Raises:
      UserError: It can't be read, or a column is missing or too short.
    """
    columns = _named(_load(path), path, tell)
    needed = ("rewards", "terminations", "observations", "actions")
    if missing := [name for name in needed if not _leaves(columns, name)]:
        raise UserError(f"{path} has no {' and no '.join(missing)}: it has {', '.join(columns) or 'no columns'}")
    rewards = columns["rewards"].reshape(-1)
    count = len(rewards)
    flags = {name: columns[name].reshape(-1) for name in _FLAGS if name in columns}
    columns |= flags
    if {len(column) for column in columns.values()} != {count}:
        rows = ", ".join(f"{name} {len(column):,}" for name, column in columns.items())
        raise UserError(f"{path}: columns have different numbers of rows ({rows}): give each one row a step")
    observations, actions = _leaves(columns, "observations"), _leaves(columns, "actions")
    following = _leaves(columns, "next_observations")
    if following and following.keys() != observations.keys():
        raise UserError(f"{path}: next_observations have other leaves than observations: {', '.join(following)}")
    ended = flags["terminations"]
    are_ends = ended | flags.get("truncations", np.zeros(count, bool))
    if following:
        _check_that_rows_follow(path, observations, following, are_ends)
    bounds = (np.flatnonzero(are_ends) + 1).tolist()
    if count and (not bounds or bounds[-1] != count):
        bounds.append(count)
        tell("the last episode neither terminates nor is truncated: it counts as truncated at its last step")
    dropped = repeated = 0
    tails = following or observations
    for begin, end in zip([0, *bounds[:-1]], bounds, strict=True):
        last, is_terminated = end, bool(ended[end - 1])
        if not following and is_terminated:  # The value of what comes after it counts as 0, whatever is there.
            repeated += 1
        elif not following:  # Nobody knows where the last action led to.
            last, dropped = end - 1, dropped + 1
        if last > begin:
            yield NamedEpisode(
                {
                    name: np.concatenate([leaf[begin:last], tails[name][end - 1 : end]])
                    for name, leaf in observations.items()
                },
                {name: leaf[begin:last] for name, leaf in actions.items()},
                rewards[begin:last],
                is_terminated,
                explored=flags["explored"][begin:last] if "explored" in flags else None,
            )
    if repeated:
        tell(f"no next_observations: the last observation of {repeated:,} terminated episodes is also the one after it")
    if dropped:
        tell(f"no next_observations: the last step of {dropped:,} truncated episodes is left out")


def _check_that_rows_follow(
    path: Path, observations: Mapping[str, np.ndarray], following: Mapping[str, np.ndarray], are_ends: np.ndarray
) -> None:
    """Whether each next observation within an episode is the observation of the next row.

    Args:
      following: The next observations.
      are_ends: `[N]` bool: an episode ends with this row.

    Raises:
      UserError: Where it is another one, rows are of different episodes.
    """
    breaks = np.zeros(max(len(are_ends) - 1, 0), bool)
    for name, leaf in observations.items():
        if leaf.shape != following[name].shape:
            raise UserError(
                f"{path}: observations have the shape {list(leaf.shape)}, and next_observations "
                f"{list(following[name].shape)}: give both the same"
            )
        for begin in range(0, len(breaks), _ROWS_AT_ONCE):
            rows = slice(begin, begin + _ROWS_AT_ONCE)
            breaks[rows] |= _differ(following[name][:-1][rows], leaf[1:][rows])
    if places := np.flatnonzero(breaks & ~are_ends[:-1]).tolist():
        raise UserError(
            f"{path}: next_observations of {len(places):,} rows, the first of row {places[0]:,}, are not the "
            "observations of the next row, and no episode ends there: mark the last step of each episode in "
            "truncations, or in terminations where no step could follow it; or leave next_observations out, if "
            "they were measured anew"
        )


def _differ(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Which rows of two arrays `[N, ...]` differ by more than rounding, `[N]` bool; not finite numbers never do."""
    if ours.dtype.kind == "f" and theirs.dtype.kind == "f":
        rtol = max(1e-4, 2 * float(max(np.finfo(ours.dtype).eps, np.finfo(theirs.dtype).eps)))
        same = np.isclose(ours, theirs, rtol=rtol, atol=1e-6) | ~np.isfinite(ours) | ~np.isfinite(theirs)
    else:
        same = ours == theirs
    return ~np.all(same, axis=tuple(range(1, ours.ndim)))


def write_npz(path: Path, episodes: Sequence[NamedEpisode]) -> None:
    """Writes episodes, with next_observations; those that were cut off are truncated.

    Raises:
      OSError: It can't be written; there is no half of it.
    """
    columns: dict[str, np.ndarray] = {}
    for root, kind, rows in (
        ("observations", "observations", slice(None, -1)),
        ("actions", "actions", slice(None)),
        ("next_observations", "observations", slice(1, None)),
    ):
        for name in getattr(episodes[0], kind):
            leaves = [getattr(episode, kind)[name][rows] for episode in episodes]
            columns[f"{root}/{name}" if name else root] = np.concatenate(leaves)
    last = np.cumsum([len(episode.rewards) for episode in episodes]) - 1
    is_terminated = np.array([episode.is_terminated for episode in episodes])
    columns |= {
        "rewards": np.concatenate([episode.rewards for episode in episodes]),
        "terminations": np.zeros(last[-1] + 1, bool),
        "truncations": np.zeros(last[-1] + 1, bool),
    }
    columns["terminations"][last], columns["truncations"][last] = is_terminated, ~is_terminated
    if parts := [episode.explored for episode in episodes if episode.explored is not None]:
        columns["explored"] = np.concatenate(parts).astype(bool)
    with replacing(path) as file:
        np.savez_compressed(file, **columns)


def _named(loaded: Mapping[str, np.ndarray], path: Path, tell: Tell) -> dict[str, np.ndarray]:
    """The columns by our names; flags are bool.

    Raises:
      UserError: Two mean the same, or flags are neither 0 nor 1.
    """
    columns, theirs = dict[str, np.ndarray](), dict[str, str]()
    for name, array in loaded.items():
        known = _known(name)
        if (before := theirs.setdefault(known, name)) != name:
            raise UserError(f"{path} has {before} and {name}, which mean the same: remove one of them")
        columns[known] = _as_flags(array, name, path) if known in _FLAGS else array
    ended, cut = columns.get("terminations"), columns.get("truncations")
    if ended is None or cut is None or theirs["terminations"] != "dones" or ended.size != cut.size:
        return columns
    # Stable-Baselines3's `dones` are true where an episode ends, and its `timeouts` where that was a time limit.
    ended, cut = ended.reshape(-1), cut.reshape(-1)
    if count := np.count_nonzero(ended & cut):
        tell(f"{path}: {count:,} rows of dones are truncations as well: these episodes count as truncated")
    return columns | {"terminations": ended & ~cut}


def _as_flags(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """The same as bool.

    Raises:
      UserError: Some are neither 0 nor 1: missing values (NaN), probabilities or texts would count as true.
    """
    wrong = array[~np.isin(array, (0, 1))] if array.dtype.kind in "biuf" else array.reshape(-1)
    if wrong.size:
        raise UserError(
            f"{path}: {name} must be 0 or 1 (false or true) in each row, {wrong.size:,} are not, such as {wrong[0]}: "
            "correct them"
        )
    return array.astype(bool)


def _known(name: str) -> str:
    root, slash, rest = name.partition("/")
    return f"{_OTHER_NAMES.get(root, root)}{slash}{rest}"


def _leaves(columns: Mapping[str, np.ndarray], root: str) -> dict[str, np.ndarray]:
    return {name.partition("/")[2]: array for name, array in columns.items() if name.partition("/")[0] == root}


def _load(path: Path) -> dict[str, np.ndarray]:
    """Its columns that have a meaning here; others may be of any kind, and are left out."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files if _is_read(_known(name))}
    except Exception as error:  # Of zipfile, zlib or tokenize: NumPy reads a header before the zip's checksum is seen.
        raise UserError(f"{path} can't be read: {error}") from None


def _is_read(name: str) -> bool:
    return name.partition("/")[0] in _NESTS or name in ("rewards", *_FLAGS)


# Minari, whose own library reads and writes.


def is_minari(source: str) -> bool:
    """`minari:NAME`, or a folder of a data set."""
    return source.startswith(MINARI) or (Path(source) / "data" / "metadata.json").is_file()


def check_is_here(source: str) -> None:
    """Whether `minari:NAME` is on this machine.

    Raises:
      UserError: It is not, or Minari is not installed.
    """
    if not (_minari_folder(source) / "data").exists():
        name = source.removeprefix(MINARI)
        raise UserError(
            f"{source} is not on this machine: get it with `minari download {name}` (`minari list remote` shows what "
            "there is, `minari list local` what is here)"
        )


def _read_minari(source: str, tell: Tell) -> Iterator[NamedEpisode]:
    minari = _minari()
    folder = Path(source)
    if source.startswith(MINARI):
        check_is_here(source)
        folder = _minari_folder(source)
    try:
        cut = 0
        for episode in minari.MinariDataset(folder / "data").iterate_episodes():
            is_terminated = bool(episode.terminations[-1])
            cut += not (is_terminated or episode.truncations[-1])
            leaves = _flat(episode.observations), _flat(episode.actions)
            yield NamedEpisode(*leaves, np.asarray(episode.rewards), is_terminated)
    except Exception as error:  # Whatever its storage raises.
        raise UserError(f"{source} can't be read by Minari: {error}") from None
    if cut:
        tell(f"{cut:,} episodes neither terminate nor are truncated: they count as truncated at their last step")


def _write_minari(name: str, episodes: Sequence[NamedEpisode], actions: Sequence[LeafActions]) -> Path:
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
    """The inverse of `_flat`, with dictionaries alone; the leaf itself where its name is empty."""
    return nest_of([(tuple(name.split("/")) if name else (), leaf) for name, leaf in leaves.items()])


def _minari_folder(source: str) -> Path:
    _minari()
    from minari.storage import get_dataset_path

    return Path(get_dataset_path(source.removeprefix(MINARI)))


def _minari() -> Any:
    try:
        import minari
    except ImportError:
        raise UserError("Minari data sets need the package minari: pip install 'tfagents_system[experience]'") from None
    return minari
