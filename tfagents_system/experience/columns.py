"""Files of named columns, one row a step: npz.

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

import numpy as np

from tfagents_system.errors import UserError
from tfagents_system.experience.conversion import NamedEpisode
from tfagents_system.machine.files import replacing

SUFFIX = ".npz"
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


def read(path: Path, tell: Callable[[str], None]) -> Iterator[NamedEpisode]:
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


def check_writable(path: Path) -> None:
    """Whether `write` can make the file.

    Raises:
      UserError: It is no .npz, it exists, or its folder does not.
    """
    if path.suffix != SUFFIX:
        raise UserError(f"--out={path} must end with {SUFFIX}, or be minari:NAME")
    if path.exists():
        raise UserError(f"--out={path} exists: give another name, or remove it")
    if not path.parent.is_dir():
        raise UserError(f"--out={path}: {path.parent} is no folder: make it, or give another one")


def write(path: Path, episodes: Sequence[NamedEpisode]) -> None:
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


def _named(loaded: Mapping[str, np.ndarray], path: Path, tell: Callable[[str], None]) -> dict[str, np.ndarray]:
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
