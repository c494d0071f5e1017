"""The workers' reports on their episodes, which the trainer turns into one row of metrics."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Annotated

import msgspec
import numpy as np

# What others send: sums and squares of the values, and numbers one larger, must fit into 64 bits.
_Value = Annotated[float, msgspec.Meta(ge=-1e150, le=1e150)]
_Number = Annotated[int, msgspec.Meta(ge=-2, le=2**62)]
_Values = Annotated[dict[str, _Value], msgspec.Meta(max_length=1000)]


class Episode(msgspec.Struct):
    """One episode that has ended.

    Attributes:
      episode_return: Undiscounted sum of rewards.
      success: From the environment (`is_success` or `success` in its info); None if it does not report it.
      logs: Means over the episode of the numeric `log/...` values of its info, without that prefix.
      has_failed: A fault of the environment ended it; all else is up to there.
    """

    episode_return: _Value
    length: _Number
    success: bool | None = None
    logs: _Values = {}
    has_failed: bool = False


TRAIN, EVAL, KEPT = "train", "eval", "kept"  # Kinds of reports.
MOST_KEPT_BYTES = 16 * 2**20  # Of the file of a kept episode.


class KeptEpisode(msgspec.Struct):
    """A recorded episode that may be among the best of the run.

    Attributes:
      train_step: Updates that its policy had.
      number: Of the worker's episodes.
      file: See run_files/episodes.py.
    """

    episode_return: _Value
    train_step: _Number
    number: _Number
    file: Annotated[bytes, msgspec.Meta(max_length=MOST_KEPT_BYTES)]


class Report(msgspec.Struct):
    """Episodes of one worker.

    Attributes:
      kind: `train`, `eval`, or `kept`, which has nothing but `kept`.
      session: The trainer's process that published the evaluated policy; else 0.
      iteration: The iteration it collected, or the version of the policy it evaluated.
      observed: Results of the user's observers, by name.
      curriculum: Values of the curriculum's parameters in the collect environment.
      device: What the steps of a device were like: milliseconds (`..._ms_p99`) and counts.
      kept: Those of the episodes that `keep_best_episodes` may keep.
    """

    kind: str
    session: int
    worker_id: Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
    iteration: _Number
    train_step: _Number
    policy_iteration: _Number
    episodes: list[Episode]
    observed: _Values = {}
    curriculum: _Values = {}
    device: _Values = {}
    kept: list[KeptEpisode] = []

    def parts(self) -> list[Report]:
        """What is sent of `train`, each as a message: the episodes, and each kept one."""
        where = self.worker_id, self.iteration, self.train_step, self.policy_iteration
        kept = [Report(KEPT, 0, *where, [], kept=[episode]) for episode in self.kept]
        return [msgspec.structs.replace(self, kept=[]), *kept]

    def to_wire(self) -> list[np.ndarray]:
        return [np.frombuffer(msgspec.json.encode(self), np.uint8)]

    @classmethod
    def from_wire(cls, arrays: list[np.ndarray]) -> Report:
        """Reads what `to_wire` made.

        Raises:
          msgspec.DecodeError: It is anything else.
        """
        return msgspec.json.decode(arrays[0].tobytes(), type=cls)


def summarize(kind: str, reports: Iterable[Report]) -> dict[str, float]:
    """Columns of metrics.csv for the episodes of some reports: means over episodes, `<kind>_return_std` their spread.

    For evaluations also `eval_episodes`, their number, and `eval_faults`, those that failed. Without episodes only what
    devices say: the largest of the durations, and the sums of counts.
    """
    reports = list(reports)
    of_devices = _of_devices(f"{kind}/", [report.device for report in reports])
    episodes = [episode for report in reports for episode in report.episodes]
    if not episodes:
        return of_devices
    returns = [episode.episode_return for episode in episodes]
    columns = {f"{kind}_return": statistics.fmean(returns)}
    columns[f"{kind}/episode_length"] = statistics.fmean(episode.length for episode in episodes)
    if kind == "eval":
        columns["eval_return_std"] = statistics.pstdev(returns)
        columns["eval_episodes"] = len(episodes)
        columns["eval_faults"] = sum(episode.has_failed for episode in episodes)
    if (rate := success_rate(episode.success for episode in episodes)) is not None:
        columns[f"{kind}_success"] = rate
    if kind == "train":
        columns["train/policy_lag"] = max(0, *(report.iteration - report.policy_iteration for report in reports))
    columns.update(_means(f"{kind}/", [episode.logs for episode in episodes]))
    columns.update(_means(f"{kind}/", [report.observed for report in reports]))
    return columns | of_devices


def success_rate(successes: Iterable[bool | None]) -> float | None:
    """Share of the episodes that are a success; None if no environment tells.

    An environment may tell of a success only where there is one: where any episode does, the others are none.
    """
    told = list(successes)
    return statistics.fmean(map(bool, told)) if any(each is not None for each in told) else None


def _means(prefix: str, rows: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {prefix + name: statistics.fmean(row[name] for row in rows if name in row) for name in names}


def _of_devices(prefix: str, rows: list[dict[str, float]]) -> dict[str, float]:
    columns: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            before = columns.get(prefix + name, 0.0)
            columns[prefix + name] = max(before, value) if name.endswith("_p99") else before + value
    return columns


def eval_episodes(num_episodes: int, sharing: range, worker_id: int) -> range:
    """The numbers, from 0, of an evaluation's episodes that are a worker's: those that share it have them in turn.

    Args:
      sharing: Their numbers; see `SlotCounts.sharing_evaluations`. Other workers have none, unless they have joined to
        evaluate (see `extra_episodes`).
    """
    return range(sharing.index(worker_id), num_episodes, len(sharing)) if worker_id in sharing else range(0)


def eval_share(num_episodes: int, sharing: range, worker_id: int) -> int:
    """How many they are."""
    return len(eval_episodes(num_episodes, sharing, worker_id))


def extra_episodes(num_episodes: int, sharing: range) -> range:
    """Those of each worker that has joined to evaluate: as many as the largest share, numbered behind the others."""
    return range(num_episodes, num_episodes + eval_share(num_episodes, sharing, sharing.start))


class Evaluations:
    """Gathers the evaluations of policies from all workers.

    Another worker that reports (see worker/worker.py) has a share from then on as well: its episodes are added to
    theirs.

    Args:
      num_episodes: Episodes of a whole evaluation by the workers that share it.
      sharing: The numbers of these; see `eval_share`.
    """

    def __init__(self, num_episodes: int, sharing: range) -> None:
        shares = {worker: eval_share(num_episodes, sharing, worker) for worker in sharing}
        self._sharing = sharing
        self._extra_share = len(extra_episodes(num_episodes, sharing))
        self._shares = {worker: share for worker, share in shares.items() if share}
        self._reports: dict[int, dict[int, Report]] = {}
        self._closed = -1
        self._absent: set[int] = set()

    def add(self, report: Report) -> None:
        """Stores a worker's share so far; replaces its earlier report on the same policy.

        A report of iteration -1 only announces the worker.
        """
        self._absent.discard(report.worker_id)
        if report.worker_id not in self._sharing:
            self._shares[report.worker_id] = self._extra_share
        elif report.worker_id not in self._shares:
            return  # There are fewer episodes than workers that share them.
        if report.iteration > self._closed:
            self._reports.setdefault(report.iteration, {})[report.worker_id] = report

    def missing(self, version: int) -> list[int]:
        """Workers whose share of a policy's evaluation is incomplete and awaited."""
        reports = self._reports.get(version, {})
        return [
            worker
            for worker in self._shares
            if worker not in self._absent and (worker not in reports or not self._is_whole(reports[worker]))
        ]

    def leave_out(self, workers: Iterable[int]) -> None:
        """Evaluations are complete without these workers until they report again."""
        self._absent.update(workers)

    def pop_ready(self) -> list[tuple[int, list[Report]]]:
        """Evaluations that are complete: (version of the policy, whole shares). Those before them are dropped.

        Partial shares of workers that were left out are dropped, too: short episodes end first and would bias the mean.
        """
        shares = {
            version: [report for report in reports.values() if self._is_whole(report)]
            for version, reports in self._reports.items()
        }
        ready = sorted(version for version, whole in shares.items() if whole and not self.missing(version))
        self._closed = max([self._closed, *ready])
        self._reports = {version: told for version, told in self._reports.items() if version > self._closed}
        return [(version, shares[version]) for version in ready]

    def _is_whole(self, report: Report) -> bool:
        return len(report.episodes) >= self._shares[report.worker_id]
