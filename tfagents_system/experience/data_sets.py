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

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tree

from tfagents_system.checks.schedules import initial_value
from tfagents_system.envs import specs
from tfagents_system.envs.actions import LeafActions
from tfagents_system.envs.faults import describe_error
from tfagents_system.errors import UserError
from tfagents_system.machine.files import replacing
from tfagents_system.playing.saved_run import find_path
from tfagents_system.policies.names import nest_of
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.segments import Column, Layout, Segment, run_layout

SUFFIX = ".npz"
MINARI = "minari:"  # Before the name of a data set.
_FLAGS = ("terminations", "truncations", "explored")
_READ = ("observations", "actions", "next_observations", "rewards", *_FLAGS)
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
_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_ROUNDING = 1e-3  # As a share of the bounds' range: data are often stored with fewer digits.


@dataclasses.dataclass
class NamedEpisode:
    """An episode of a data set.

    Attributes:
      observations: `[T + 1, ...]` by name: "" where observations are one array, else the path, such as `robot/arm`.
      actions: `[T, ...]` in the environment's units, by name likewise.
      rewards: `[T]`.
      is_terminated: It ended in a terminal state; otherwise it was cut off.
      explored: `[T]`: whether an action was another one than the greedy one; None where nobody has said so.
    """

    observations: dict[str, np.ndarray]
    actions: dict[str, np.ndarray]
    rewards: np.ndarray
    is_terminated: bool
    explored: np.ndarray | None = None


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
    """The episodes of a file, in its order; arguments and errors as of `read_episodes`."""
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
    """Whether each next observation within an episode, which ends where `are_ends`, is that of the next row."""
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
    """The columns by our names; flags are bool."""
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
    """The same as bool; missing values (NaN), probabilities or texts, which would count as true, are refused."""
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
            return {name: file[name] for name in file.files if _known(name).partition("/")[0] in _READ}
    except Exception as error:  # Of zipfile, zlib or tokenize: NumPy reads a header before the zip's checksum is seen.
        raise UserError(f"{path} can't be read: {error}: give a file of numpy.savez") from None


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
        raise UserError(f"{source} can't be read by Minari: {error}: download or write it again") from None
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


# What a run stores of them.


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Converts episodes for one environment.

    Attributes:
      layout: What its runs store.
      actions: Those of each leaf of the environment's.
      gamma: Discount of the returns, where the layout has them.
      potential: Of an observation, its leaves given; for data sets, where the layout has potentials.
    """

    layout: Layout
    actions: Sequence[LeafActions]
    gamma: float
    potential: Callable[[Sequence[np.ndarray]], float] | None = None

    @classmethod
    def of(cls, params: TrainParamsBase, file: Path) -> Conversion:
        """For what a run with these parameters stores of the environment whose specs this file has."""
        observation_spec, action_spec = specs.load_specs(file)

        def potential(leaves: Sequence[np.ndarray]) -> float:
            return params.potential(tree.unflatten_as(observation_spec, leaves))

        layout, actions = run_layout(params, observation_spec, action_spec), tree.flatten(specs.load_actions(file))
        return cls(layout, actions, initial_value(params.discount), potential)

    def to_stored(self, episode: NamedEpisode, what: str) -> Segment:
        """An episode of a data set as runs store it.

        Raises:
          UserError: Names are missing, shapes are other ones, or numbers are not finite: with all that is wrong; `what`
            names the episode.
        """
        steps, findings = len(episode.rewards), list[str]()

        def read(make: Callable[..., np.ndarray], *arguments: Any) -> np.ndarray:
            try:
                return make(*arguments)
            except UserError as error:
                findings.extend(error.findings)
                return np.empty(0)

        observation = [
            read(_leaf, episode.observations, column, "observation", steps + 1, what)
            for column in self.layout.observation
        ]
        action = [
            read(_action, episode.actions, column, leaf, steps, what)
            for column, leaf in zip(self.layout.action, self.actions, strict=True)
        ]
        reward = read(_as_float32, episode.rewards, f"the rewards of {what}")
        if findings:
            raise UserError(*findings)
        discount = np.append(np.ones(steps - 1), not episode.is_terminated).astype(np.float32)
        explored = np.zeros(steps) if episode.explored is None else np.asarray(episode.explored).reshape(-1)
        return Segment(
            worker_id=0,
            incarnation=1,
            number=0,
            iteration=0,
            end_of_iteration=False,
            starts_episode=True,
            ends_episode=True,
            observation=observation,
            action=action,
            reward=reward,
            discount=discount,
            returns=self._returns(reward) if self.layout.returns else None,
            explored=explored.astype(bool).astype(np.uint8) if self.layout.explored else None,
            potential=self._potentials(observation, what) if self.layout.potential else None,
        )

    def to_named(self, episode: Segment) -> NamedEpisode:
        """An episode of a ring as data sets have it."""
        pairs = zip(self.layout.action, self.actions, episode.action, strict=True)
        return NamedEpisode(
            {name_of(column): leaf for column, leaf in zip(self.layout.observation, episode.observation, strict=True)},
            {name_of(column): actions.to_environment(leaf) for column, actions, leaf in pairs},
            episode.reward,
            is_terminated(episode),
            episode.explored,
        )

    def outside(self, episode: NamedEpisode) -> int:
        """Steps of a data set's episode whose action is outside of the action space by more than a rounding."""
        is_outside = np.zeros(len(episode.rewards), bool)
        for column, leaf in zip(self.layout.action, self.actions, strict=True):
            spec = leaf.environment_spec
            low, high = np.asarray(spec.minimum, np.float64), np.asarray(spec.maximum, np.float64)
            taken = np.asarray(episode.actions[name_of(column)], np.float64).reshape(-1, *spec.shape)
            is_far = np.maximum(low - taken, taken - high) > _ROUNDING * (high - low)
            is_outside |= is_far.reshape(len(taken), -1).any(axis=1)
        return int(is_outside.sum())

    def _potentials(self, observation: Sequence[np.ndarray], what: str) -> np.ndarray:
        """Those of the leaves of observations, `[n, ...]` each: `[n]` float32; `what` names where they are."""
        assert self.potential is not None, "the layout has potentials"
        try:
            values = [self.potential([leaf[row] for leaf in observation]) for row in range(len(observation[0]))]
        except Exception as error:
            raise UserError(f"{what}: TrainParams.potential raises {describe_error(error)}: correct it") from error
        return _as_float32(values, f"the potentials of {what}")

    def _returns(self, reward: np.ndarray) -> np.ndarray:
        """R_t = gamma R_(t-1) + r_t."""
        from scipy.signal import lfilter

        returns = lfilter([1.0], [1.0, -self.gamma], reward.astype(np.float64))
        return np.clip(returns, -_MAX_FLOAT32, _MAX_FLOAT32).astype(np.float32)


def stored_episodes(
    episodes: Iterable[NamedEpisode], conversion: Conversion, source: str, tell: Callable[[str], None], what: str = ""
) -> list[Segment]:
    """Converts the episodes of a data set, which `source` names; `what` precedes `episode 3` in errors.

    Raises:
      UserError: As of `Conversion.to_stored`.
    """
    stored, outside = list[Segment](), 0
    for number, episode in enumerate(episodes):
        stored.append(conversion.to_stored(episode, f"{what}episode {number}"))
        outside += conversion.outside(episode)
    if outside:
        steps = sum(len(episode.reward) for episode in stored)
        tell(
            f"{source}: {outside:,} of {steps:,} actions ({outside / steps:.2%}) are outside of the bounds of "
            "actions and count as the nearest ones inside: give actions in the environment's units, or widen "
            "action_bounds where params have them"
        )
    return stored


def name_of(column: Column) -> str:
    """Of a leaf in a data set: its path without the root."""
    return column.name.partition("/")[2]


def _leaf(arrays: Mapping[str, np.ndarray], column: Column, kind: str, length: int, what: str) -> np.ndarray:
    name = name_of(column)
    if name not in arrays:
        raise UserError(
            f"{what} has no {kind} {name or '(one array)'}: it has {', '.join(map(repr, arrays)) or 'none'}, the "
            f"environment's leaf is {column.name}: rename the array"
        )
    array = np.asarray(arrays[name])
    wanted, dtype = (length, *column.shape), np.dtype(column.dtype)
    if array.shape[:1] != (length,) or not _are_rows(array.shape[1:], column.shape):
        has_all = sorted(array.shape[1:]) == sorted(column.shape)
        remedy = ": bring its axes into this order, as with numpy.transpose" if has_all else ""
        raise UserError(f"{what}: {column.name} has the shape {list(array.shape)}, this needs {list(wanted)}{remedy}")
    if dtype.kind != "f" and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise UserError(f"{what}: {column.name} is {array.dtype}, this needs {dtype}: convert it")
    return _converted(array, dtype, f"{column.name} of {what}").reshape(wanted)


def _are_rows(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether rows of one shape are those of the other: the same axes but for those of size 1, or one of both flat."""
    axes, others = ([size for size in sizes if size != 1] for sizes in (shape, wanted))
    is_flat = min(len(axes), len(others)) <= 1
    return axes == others or (is_flat and math.prod(axes) == math.prod(others))


def _action(
    arrays: Mapping[str, np.ndarray], column: Column, actions: LeafActions, steps: int, what: str
) -> np.ndarray:
    as_taken = dataclasses.replace(column, shape=tuple(actions.environment_spec.shape), dtype="float64")
    taken = _leaf(arrays, as_taken, "action", steps, what)
    try:
        return np.stack([actions.to_agent(action) for action in taken])
    except ValueError as error:
        raise UserError(f"{what}: {error}") from None


def _as_float32(values: Any, what: str) -> np.ndarray:
    return _converted(np.asarray(values, np.float64), np.dtype(np.float32), what)


def _converted(array: np.ndarray, dtype: np.dtype, what: str) -> np.ndarray:
    """The numbers as those of another type, which must be able to hold them; those that are not finite are refused."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        count = int((~np.isfinite(array)).sum())
        raise UserError(f"{what} have {count} numbers that are not finite (NaN or infinite): remove those episodes")
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    is_lost = ~np.isfinite(converted) if dtype.kind == "f" else converted != array
    if is_lost.any():
        raise UserError(
            f"{what} have {int(is_lost.sum())} numbers that {dtype} can't hold, such as {array[is_lost][0]}: scale "
            "them, or remove those episodes"
        )
    return converted


def is_terminated(episode: Segment) -> bool:
    return bool(episode.discount[-1] == 0)
