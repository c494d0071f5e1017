"""Files of named columns, one row a step: npz.

observations           [N, ...], or observations/<path> for each leaf
actions                [N, ...], likewise, in the environment's units
rewards                [N]
terminations           [N] (also: terminals, terminated, or dones, which may be true at truncations as well)
truncations            [N] (also: timeouts, truncated)
next_observations      like observations; may be missing
explored               [N], whether the action was another one than the greedy one; may be missing
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from tfagents_system.errors import UserError
from tfagents_system.experience.conversion import NamedEpisode
from tfagents_system.machine.files import replacing
from tfagents_system.run_files.episodes import WAS_GREEDY

SUFFIX = ".npz"
_RECORDED = (
    ". Such a file of keep_best_episodes is for --replay_actions: give the run's directory, or what `python -m "
    "tfagents_system.experience export RUN --out FILE.npz` writes"
)
_ROOTS = ("observations", "actions", "rewards", "terminations", "truncations", "next_observations", "explored")
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
    rewards = _required(columns, "rewards", path).reshape(-1)
    count = len(rewards)
    observations, actions = _leaves(columns, "observations"), _leaves(columns, "actions")
    if not observations or not actions:
        missing = "actions" if observations else "observations"
        remedy = _RECORDED if WAS_GREEDY in columns else ""
        raise UserError(f"{path} has no {missing}: it has {', '.join(columns)}{remedy}")
    following = _leaves(columns, "next_observations")
    if following and following.keys() != observations.keys():
        raise UserError(f"{path}: next_observations have other leaves than observations: {', '.join(following)}")
    ended = _required(columns, "terminations", path).reshape(-1)
    cut = columns.get("truncations", np.zeros(count, bool)).reshape(-1)
    explored = {"explored": columns["explored"].reshape(-1)} if "explored" in columns else {}
    flags = {"terminations": ended, "truncations": cut, **explored}
    read = {name: flags.get(name, each) for name, each in columns.items() if name.partition("/")[0] in _ROOTS}
    if {len(each) for each in read.values()} != {count}:
        raise UserError(f"{path}: columns have different numbers of rows, {_sizes(read)}: give each one row a step")
    if following:
        _check_that_rows_follow(path, observations, following, ended | cut)
    yield from _episodes(observations, actions, following, rewards, ended, cut, explored.get("explored"), tell)


def _sizes(columns: Mapping[str, np.ndarray]) -> str:
    """Numbers of rows with the columns that have so many."""
    names = dict[int, list[str]]()
    for name, each in columns.items():
        names.setdefault(len(each), []).append(name)
    return " and ".join(f"{count:,} ({', '.join(each)})" for count, each in sorted(names.items()))


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


def _episodes(
    observations: Mapping[str, np.ndarray],
    actions: Mapping[str, np.ndarray],
    following: Mapping[str, np.ndarray],
    rewards: np.ndarray,
    ended: np.ndarray,
    cut: np.ndarray,
    explored: np.ndarray | None,
    tell: Callable[[str], None],
) -> Iterator[NamedEpisode]:
    """Cuts columns of equal length into episodes. `following`: the next observations, or empty."""
    count = len(rewards)
    bounds = (np.flatnonzero(ended | cut) + 1).tolist()
    if count and (not bounds or bounds[-1] != count):
        bounds.append(count)
        tell("the last episode neither terminates nor is truncated: it counts as truncated at its last step")
    dropped = repeated = 0
    for begin, end in zip([0, *bounds[:-1]], bounds, strict=True):
        last, is_terminated = end, bool(ended[end - 1])
        if not following and is_terminated:  # The value of what comes after it counts as 0, whatever is there.
            repeated += 1
        elif not following:  # Nobody knows where the last action led to.
            last, dropped = end - 1, dropped + 1
        if last > begin:
            tails = following or observations
            yield NamedEpisode(
                {
                    name: np.concatenate([leaf[begin:last], tails[name][end - 1 : end]])
                    for name, leaf in observations.items()
                },
                {name: leaf[begin:last] for name, leaf in actions.items()},
                rewards[begin:last],
                is_terminated,
                explored=None if explored is None else explored[begin:last],
            )
    if repeated:
        tell(f"no next_observations: the last observation of {repeated:,} terminated episodes is also the one after it")
    if dropped:
        tell(f"no next_observations: the last step of {dropped:,} truncated episodes is left out")


def check_writable(path: Path) -> None:
    """Whether `write` can make the file.

    Raises:
      UserError: It is no .npz, it exists, or its folder does not.
    """
    if path.suffix != SUFFIX:
        raise UserError(f"--out={path} must end with {SUFFIX}, or be minari:NAME")
    if path.exists():
        raise UserError(f"--out={path} exists: give another name, or remove it")
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK | os.X_OK)):
        raise UserError(
            f"--out={path}: {path.parent} is no folder that can be written to: make it, or give another one"
        )


def write(path: Path, episodes: Sequence[NamedEpisode]) -> None:
    """Writes episodes, with next_observations; those that were cut off are truncated.

    Raises:
      OSError: It can't be written; there is no half of it.
    """

    def all_of(leaves: Callable[[NamedEpisode], Mapping[str, np.ndarray]], root: str, part: slice) -> dict:
        names = leaves(episodes[0])
        return {
            f"{root}/{name}" if name else root: np.concatenate([leaves(each)[name][part] for each in episodes])
            for name in names
        }

    lengths = [len(each.rewards) for each in episodes]
    last = np.cumsum(lengths) - 1
    ended = np.zeros(sum(lengths), bool)
    ended[last] = [each.is_terminated for each in episodes]
    cut = np.zeros(sum(lengths), bool)
    cut[last] = ~ended[last]
    columns = {
        **all_of(lambda each: each.observations, "observations", slice(None, -1)),
        **all_of(lambda each: each.actions, "actions", slice(None)),
        "rewards": np.concatenate([each.rewards for each in episodes]),
        "terminations": ended,
        "truncations": cut,
        **all_of(lambda each: each.observations, "next_observations", slice(1, None)),
    }
    if parts := [each.explored for each in episodes if each.explored is not None]:
        columns["explored"] = np.concatenate(parts).astype(bool)
    with replacing(path) as file:
        np.savez_compressed(file, **columns)


def _named(loaded: Mapping[str, np.ndarray], path: Path, tell: Callable[[str], None]) -> dict[str, np.ndarray]:
    """The columns by our names; flags are bool.

    Raises:
      UserError: Two mean the same, or flags are neither 0 nor 1.
    """
    flags = {name: _as_flags(array, name, path) for name, array in loaded.items() if _known(name) in _FLAGS}
    loaded = {**loaded, **flags}
    columns, theirs = dict[str, np.ndarray](), dict[str, str]()
    for name, array in loaded.items():
        if (before := theirs.setdefault(_known(name), name)) != name:
            raise UserError(f"{path} has {before} and {name}, which mean the same: remove one of them")
        columns[_known(name)] = array
    ended, cut = columns.get("terminations"), columns.get("truncations")
    if ended is None or cut is None or ended is not loaded.get("dones") or ended.size != cut.size:
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
    root, _, rest = name.partition("/")
    root = _OTHER_NAMES.get(root, root)
    return f"{root}/{rest}" if rest else root


def _required(columns: Mapping[str, np.ndarray], name: str, path: Path) -> np.ndarray:
    if name not in columns:
        raise UserError(f"{path} has no {name}: it has {', '.join(columns) or 'no columns'}")
    return columns[name]


def _leaves(columns: Mapping[str, np.ndarray], root: str) -> dict[str, np.ndarray]:
    return {
        name.partition("/")[2]: array for name, array in columns.items() if name == root or name.startswith(f"{root}/")
    }


def _load(path: Path) -> dict[str, np.ndarray]:
    """Its columns; those that nobody asks for may be of any kind, and are empty."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] if _is_read(name) else np.empty(0) for name in file.files}
    except Exception as error:  # Of zipfile, zlib or tokenize: NumPy reads a header before the zip's checksum is seen.
        raise UserError(f"{path} can't be read: {error}") from None


def _is_read(name: str) -> bool:
    return _known(name).partition("/")[0] in _ROOTS
