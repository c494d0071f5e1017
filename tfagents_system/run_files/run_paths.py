"""Every path inside a run directory, in one place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

TRAINER = "trainer"
REPLAY = "replay"
GATEWAY = "gateway"
TRACKER = "tracker"
# Of a call from Python, beside the run directory: its folder's name after the run's, and the file of what was printed.
INPUTS, OUTPUT = "_inputs", ".output.txt"
DISPENSABLE = (GATEWAY, TRACKER)  # The run continues without them.


def worker_role(worker_id: int) -> str:
    """The name of a worker in logs, heartbeats and messages: `worker_0`, `worker_1`, ..."""
    return f"worker_{worker_id}"


def is_worker(role: str) -> bool:
    """Whether a role's name is a worker's."""
    return role.startswith("worker_")


class Below:
    """A path below the run directory, as an attribute of RunPaths.

    Attributes:
      meaning: For docs/reference/run_directory.md.
    """

    def __init__(self, name: str, meaning: str) -> None:
        self.name, self.meaning = name, meaning

    def __get__(self, paths: RunPaths, kind: type) -> Path:
        return paths.exp_dir / self.name


@dataclasses.dataclass(frozen=True)
class RunPaths:
    """The layout of one run directory.

    Attributes:
      exp_dir: The run directory itself, absolute.
    """

    exp_dir: Path

    config = Below(
        "config.json",
        "copy of SAC_CONFIG; resumed runs use the copies, and a start shows how the sources differ",
    )
    params = Below("params.py", "copy of SAC_PARAMS")
    params_folder = Below("params", "copy of the folder of SAC_PARAMS")
    input_files = Below("input_files", "copies of the files that `input_files` of config.json names")
    run_json = Below(
        "run.json",
        "every setting. Fixed for the run's life: seed, environment, attributes of TrainParams, configuration, what "
        "`--set` and grids changed, paths of the sources. Of the newest start: variables, machine, versions, commit",
    )
    specs = Below("specs.pbtxt", "observation and action specs of the environment")
    lock = Below("run.lock", "held by the supervisor while the run lives, so a second start is refused")
    policies = Below(
        "policies",
        "the SavedModel `greedy_policy`, written every `checkpoint_period_iters` iterations and at the end",
    )
    policy_checkpoints = Below(
        "policies/checkpoints",
        "`policy_checkpoint_<10 digits>`, weights after that many updates: periodic, first, last and best ones (of a "
        "curriculum's newest stage); a former best one stays while one of the two checkpoints names it",
    )
    best_json = Below(
        "policies/best.json",
        "the best checkpoint by `best_metric`, its evaluation's results and `curriculum` values. Only complete "
        "evaluations count",
    )
    trainer_checkpoints = Below("checkpoints", "the last two checkpoints, from which trainer and replay server resume")
    saved = Below("saved.json", "updates at the newest checkpoint; a start without its checkpoints is refused")
    taken = Below("taken", "copy of the agent that the run began with (SAC_FROM)")
    prior_data = Below("prior_data", "ring of prior data, made once; only experts add to it")
    trainer_session = Below("trainer_session.json", "number that grows with each start of the trainer")
    replay = Below("replay", "ring of experience, unless SAC_REPLAY_DIR moves it")
    journals = Below(
        "journals",
        "actions from which workers repeat unfinished episodes, with SAC_DETERMINISTIC=1 and `env_steps_per_iter`",
    )
    train_summaries = Below("train", "TensorBoard files of training rows")
    eval_summaries = Below("eval", "TensorBoard files of evaluation rows")
    metrics_csv = Below("metrics.csv", "one row per log period or evaluation (docs/reference/metrics.md)")
    tracking_json = Below("tracking.json", "where metrics are sent (docs/how_to/watch.md)")
    tracking_sent = Below("tracking_sent.json", "how many rows were sent to each of these")
    tracking_lock = Below("tracking.lock", "held by the process that sends metrics")
    episodes_csv = Below(
        "episodes.csv",
        "return, length and success of training episodes; of more than 100 per log period only every second, third, "
        "... one",
    )
    status_json = Below("status.json", "state of every role, written at most every 2 s")
    heartbeats = Below("heartbeats", "last report of each role, from which `status.json` is made")
    logs = Below("logs", "`<role>.log`, to which every start appends; above 3 MiB only the first and last MiB stay")
    credentials = Below(
        "credentials",
        "what workers need to join, unless SAC_CREDENTIALS_DIR has it (docs/explanations/security.md)",
    )
    gateway_json = Below("gateway.json", "address at which workers join")
    videos = Below("videos", "MP4 files of finished runs (unless SAC_REPORT=0) and of `sac play`")
    exported = Below("exported", "files of `sac export`, unless `--out` says where (docs/how_to/play.md)")
    episodes = Below("episodes", "the best episodes, step by step (docs/how_to/play.md)")
    learning_curve = Below("learning_curve.png", "drawn at the end (unless SAC_REPORT=0) and by `sac plots`")
    report = Below(
        "report.html",
        "made at the end of a finished run (unless SAC_REPORT=0) and by `sac report` (docs/how_to/watch.md)",
    )
    joined = Below(
        "joined",
        "inputs, logs and heartbeats of workers that joined (docs/how_to/several_machines.md), one folder per "
        "machine. A machine that does not see the run directory keeps them in its own `logs/<SAC_EXP_NAME>`",
    )

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
        """How a role is known to the run that it has joined (see transport/tunnel.py)."""
        return self.heartbeats / f"{role}.slot"

    def hang(self, role: str) -> Path:
        """Where a role that hung was (see machine/watchdog.py)."""
        return self.heartbeats / f"{role}.hang"
