"""Every path inside a run directory, in one place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

TRAINER = "trainer"
REPLAY = "replay"
GATEWAY = "gateway"


def worker_role(worker_id: int) -> str:
    """The name of a worker in logs, heartbeats and messages: `worker_0`, `worker_1`, ..."""
    return f"worker_{worker_id}"


def is_worker(role: str) -> bool:
    """Whether a role's name is a worker's."""
    return role.startswith("worker_")


@dataclasses.dataclass(frozen=True)
class RunPaths:
    """The layout of one run directory.

    Attributes:
      exp_dir: The run directory itself, absolute.
    """

    exp_dir: Path

    @property
    def config(self) -> Path:
        """The run's own copy of SAC_CONFIG."""
        return self.exp_dir / "config.json"

    @property
    def params(self) -> Path:
        """The run's own copy of SAC_PARAMS."""
        return self.exp_dir / "params.py"

    @property
    def params_folder(self) -> Path:
        """The run's own copy of the folder of SAC_PARAMS; absent where it is not kept (see params_folder.py)."""
        return self.exp_dir / "params"

    @property
    def overrides(self) -> Path:
        """What the run has otherwise than its copies of params and configuration say; absent where nothing is."""
        return self.exp_dir / "overrides.json"

    @property
    def resolved(self) -> Path:
        """Every value that the last start had: attributes of TrainParams, configuration, variables; for people."""
        return self.exp_dir / "resolved.json"

    @property
    def run_json(self) -> Path:
        """Where the run came from: sources of the copies, seed, versions."""
        return self.exp_dir / "run.json"

    @property
    def specs(self) -> Path:
        """Observation and action specs of the environment, written when the run is prepared."""
        return self.exp_dir / "specs.pbtxt"

    @property
    def lock(self) -> Path:
        """Held (flock) by the supervisor of the run for as long as it lives."""
        return self.exp_dir / "run.lock"

    @property
    def policies(self) -> Path:
        """SavedModels `collect_policy`, `greedy_policy` and `policy`."""
        return self.exp_dir / "policies"

    @property
    def policy_checkpoints(self) -> Path:
        """`policy_checkpoint_<10 digits>`: weights of the policy after that many updates."""
        return self.policies / "checkpoints"

    @property
    def best_json(self) -> Path:
        """Which policy checkpoint had the highest evaluation return, and what it was."""
        return self.policies / "best.json"

    @property
    def trainer_checkpoints(self) -> Path:
        """What trainer and replay server resume from (see run_checkpoints.py)."""
        return self.exp_dir / "checkpoints"

    @property
    def trainer_session(self) -> Path:
        """Number of the trainer's newest session: a later one has a larger one."""
        return self.exp_dir / "trainer_session.json"

    @property
    def replay(self) -> Path:
        """The ring of experience (unless SAC_REPLAY_DIR moves it)."""
        return self.exp_dir / "replay"

    @property
    def train_summaries(self) -> Path:
        return self.exp_dir / "train"

    @property
    def eval_summaries(self) -> Path:
        return self.exp_dir / "eval"

    @property
    def metrics_csv(self) -> Path:
        return self.exp_dir / "metrics.csv"

    @property
    def status_json(self) -> Path:
        return self.exp_dir / "status.json"

    @property
    def heartbeats(self) -> Path:
        return self.exp_dir / "heartbeats"

    @property
    def logs(self) -> Path:
        return self.exp_dir / "logs"

    @property
    def credentials(self) -> Path:
        """Certificates of those who may join from other machines (unless SAC_CREDENTIALS_DIR has others)."""
        return self.exp_dir / "credentials"

    @property
    def gateway_json(self) -> Path:
        """Host and port at which other machines reach the run."""
        return self.exp_dir / "gateway.json"

    @property
    def gateway_slots(self) -> Path:
        """Which slot belongs to which remote worker, for a restarted gateway."""
        return self.exp_dir / "gateway_slots.json"

    @property
    def videos(self) -> Path:
        return self.exp_dir / "videos"

    @property
    def learning_curve(self) -> Path:
        return self.exp_dir / "learning_curve.png"

    @property
    def joined(self) -> Path:
        """Folders of workers that have joined from elsewhere, one for each start of join_script.sh."""
        return self.exp_dir / "joined"

    def log(self, role: str) -> Path:
        """The log file of one role, appended to by every start of it."""
        return self.logs / f"{role}.log"

    def heartbeat(self, role: str) -> Path:
        """What one role last said of itself (see run_files/heartbeat.py)."""
        return self.heartbeats / f"{role}.json"

    def slot(self, role: str) -> Path:
        """Which number a worker had in the run that it has joined (see transport/joining.py)."""
        return self.heartbeats / f"{role}.slot"

    def hang(self, role: str) -> Path:
        """Where a role that hung was (see machine/watchdog.py)."""
        return self.heartbeats / f"{role}.hang"
