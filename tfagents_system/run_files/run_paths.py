"""Every path inside a run directory, in one place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

TRAINER = "trainer"
REPLAY = "replay"
GATEWAY = "gateway"
TRACKER = "tracker"
DISPENSABLE = (GATEWAY, TRACKER)  # The run goes on without them.


def worker_role(worker_id: int) -> str:
    """The name of a worker in logs, heartbeats and messages: `worker_0`, `worker_1`, ..."""
    return f"worker_{worker_id}"


def is_worker(role: str) -> bool:
    """Whether a role's name is a worker's."""
    return role.startswith("worker_")


class _Below:
    """A path below the run directory, as an attribute of RunPaths."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: RunPaths, kind: type) -> Path:
        return paths.exp_dir / self._name


@dataclasses.dataclass(frozen=True)
class RunPaths:
    """The layout of one run directory.

    Attributes:
      exp_dir: The run directory itself, absolute.
    """

    exp_dir: Path

    config = _Below("config.json")  # The run's own copy of SAC_CONFIG.
    params = _Below("params.py")  # The run's own copy of SAC_PARAMS.
    params_folder = _Below("params")  # That of the folder of SAC_PARAMS, where it is kept (see params_folder.py).
    overrides = _Below("overrides.json")  # Where the run differs from these; absent if nowhere.
    resolved = _Below("resolved.json")  # Every value that the last start had, for people and for `report compare`.
    run_json = _Below("run.json")  # Where the run came from: sources of the copies, seed, versions.
    specs = _Below("specs.pbtxt")  # Observation and action specs of the environment, written when the run is prepared.
    lock = _Below("run.lock")  # Held (flock) by the supervisor of the run for as long as it lives.
    policies = _Below("policies")  # SavedModels `collect_policy`, `greedy_policy` and `policy`.
    policy_checkpoints = _Below("policies/checkpoints")  # policy_checkpoint_<10 digits>: after so many updates.
    best_json = _Below("policies/best.json")  # The policy checkpoint with the highest evaluation return.
    trainer_checkpoints = _Below("checkpoints")  # What trainer and replay server resume from (see run_checkpoints.py).
    agent_from = _Below("agent_from")  # What its agent began with, if that is another one (see agent_start.py).
    prior_data = _Below("prior_data")  # The ring that a start has made of it; see experience/prior_ring.py.
    trainer_session = _Below("trainer_session.json")  # Number of the trainer's newest session, increasing.
    replay = _Below("replay")  # The ring of experience (unless SAC_REPLAY_DIR moves it).
    journals = _Below("journals")  # What workers of a deterministic run repeat episodes from (see episode_journal.py).
    train_summaries = _Below("train")
    eval_summaries = _Below("eval")
    metrics_csv = _Below("metrics.csv")
    tracking_json = _Below("tracking.json")  # Where metrics are sent to (see report/tracking/).
    tracking_lock = _Below("tracking.lock")  # Held (flock) by the process that sends them.
    episodes_csv = _Below("episodes.csv")  # Single training episodes (see episode_rows.py).
    status_json = _Below("status.json")
    history = _Below("history.jsonl")  # What has happened to its roles, and where their time went (see history.py).
    heartbeats = _Below("heartbeats")
    logs = _Below("logs")
    credentials = _Below("credentials")  # Certificates of those who may join (unless SAC_CREDENTIALS_DIR has others).
    gateway_json = _Below("gateway.json")  # Host and port at which other machines reach the run.
    gateway_slots = _Below("gateway_slots.json")  # Which slot belongs to which remote worker, for a restarted gateway.
    videos = _Below("videos")
    episodes = _Below("episodes")  # The best ones, step by step (see recorded_episodes.py).
    learning_curve = _Below("learning_curve.png")
    report = _Below("report.html")
    joined = _Below("joined")  # Folders of workers that have joined, one for each start of join_script.sh.

    def log(self, role: str) -> Path:
        """The log file of one role, appended to by every start of it."""
        return self.logs / f"{role}.log"

    def heartbeat(self, role: str) -> Path:
        """What one role last reported (see run_files/heartbeat.py)."""
        return self.heartbeats / f"{role}.json"

    def journal(self, role: str) -> Path:
        """The journal of one worker's episodes."""
        return self.journals / f"{role}.journal"

    def slot(self, role: str) -> Path:
        """Which number a worker had in the run that it has joined (see transport/joining.py)."""
        return self.heartbeats / f"{role}.slot"

    def hang(self, role: str) -> Path:
        """Where a role that hung was (see machine/watchdog.py)."""
        return self.heartbeats / f"{role}.hang"
