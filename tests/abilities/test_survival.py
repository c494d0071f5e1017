"""One run that is stopped, moved to another disk, killed part by part, extended, edited and begun anew."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.abilities.support import SMALL, Project, rows, sac, sets, status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HORIZON, WORKERS, ITERATIONS, UPDATES, RANDOM = 10, 2, 60, 4, 2

PARAMS = f"""
import os
import time
from pathlib import Path

import gymnasium
import numpy as np

from tfagents_system.train_params_base import TrainParamsBase


class Numbered(gymnasium.Env):
    '''Observes worker, process, episode and step.'''

    observation_space = gymnasium.spaces.Box(-1.0, 1e7, (4,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, worker):
        self.worker, self.episode = worker, 0

    def observe(self):
        return np.array([self.worker, os.getpid(), self.episode, self.steps], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self.observe(), {{}}

    def step(self, action):
        if not (Path("FOLDER") / "fast").exists():
            time.sleep(0.1)  # So slow that the run cannot reach its end while a killed role is down.
        self.steps += 1
        return self.observe(), 1.0, False, False, {{}}


class TrainParams(TrainParamsBase):
    {SMALL}
    num_iter = {ITERATIONS}
    checkpoint_period_iters = 10

    def env_ctor(self, worker):
        return Numbered(worker)

    def collect_env_args_kwargs(self, id):
        return (id,), {{}}
"""


def kill(project: Project, process: subprocess.Popen[str], role: str) -> None:
    """Kills a role, and waits until it is back and the run has trained on."""
    os.kill(project.role(role)["pid"], signal.SIGKILL)
    project.wait_until(process, lambda: project.role(role).get("restarts") == 1)
    before = project.train_step()
    project.wait_until(process, lambda: project.train_step() > before)


class Survivor:
    """The run after all that has happened to it.

    Attributes:
      stopped_at: The train step at which it was stopped.
      resumed_at: That from which it went on.
      seen: What was printed or listened to, by name.
    """

    def __init__(self, folder: Path) -> None:
        self.project = project = Project(
            folder,
            PARAMS,
            {"horizon": HORIZON},
            NUM_COLLECT_WORKERS=WORKERS,
            REPLAY_DIR=folder / "disk",
            WANDB="offline",
        )
        self.run = project.run
        self.seen: dict[str, str] = {}

        process = project.start()
        project.wait_until(process, lambda: project.train_step() >= 5 * UPDATES)
        self.seen["second start"] = project.refuse()
        server = psutil.Process(project.role("replay")["pid"])
        self.addresses = {held.laddr.ip for held in server.net_connections("tcp") if held.status == "LISTEN"}
        process.send_signal(signal.SIGTERM)
        self.seen["stop"] = project.finish(process, 75)
        self.stopped_at = project.train_step()

        shutil.rmtree(folder / "disk")  # The next start is on another node.
        process = project.start()
        project.wait_until(process, lambda: project.train_step() > self.stopped_at)
        self.resumed_at = project.role("trainer")["resumed_at_step"]
        for role in ("worker_1", "trainer", "replay"):
            kill(project, process, role)
        (folder / "fast").touch()
        self.seen["end"] = project.finish(process)
        self.roles = status(self.run)["roles"]
        sac("experience", "export", self.run, "--out", folder / "all.npz")
        with np.load(folder / "all.npz") as data:
            self.starts = data["observations"].astype(int)
            self.then = data["next_observations"].astype(int)


@pytest.fixture(scope="module")
def survivor(tmp_path_factory: pytest.TempPathFactory) -> Survivor:
    return Survivor(tmp_path_factory.mktemp("survival"))


def test_a_second_start_of_a_run_is_refused(survivor: Survivor) -> None:
    assert "is in use by the run with pid" in survivor.seen["second start"]


def test_nobody_else_reaches_the_replay_server(survivor: Survivor) -> None:
    assert survivor.addresses and survivor.addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_a_signal_saves_and_the_same_command_goes_on(survivor: Survivor) -> None:
    assert "everything is saved, the same command continues from here" in survivor.seen["stop"], "it has SAC_ variables"
    assert 5 * UPDATES <= survivor.stopped_at < ITERATIONS * UPDATES
    assert survivor.resumed_at == survivor.stopped_at


def test_the_ring_of_a_lost_disk_comes_from_the_run_directory(survivor: Survivor) -> None:
    pids = [int(pid) for pid in dict.fromkeys(survivor.starts[survivor.starts[:, 0] == 0, 1])]
    assert len(pids) >= 2, "steps of the first start are still there"


def test_each_step_is_stored_once_whatever_was_killed(survivor: Survivor) -> None:
    assert survivor.roles["trainer"]["train_step"] == ITERATIONS * UPDATES, "as many updates as promised"
    steps = set(map(tuple, survivor.starts))
    assert len(steps) == len(survivor.starts)
    np.testing.assert_array_equal(survivor.then - survivor.starts, np.tile([0, 0, 0, 1], (len(survivor.starts), 1)))
    # What killed and stopped workers were at is no whole episode.
    assert len(steps) >= HORIZON * (RANDOM + ITERATIONS * WORKERS - 4 * WORKERS)
    iterations = [row["iteration"] for row in rows(survivor.run) if "critic_loss" in row]
    assert iterations == sorted(set(iterations)) and iterations[-1] == ITERATIONS


def test_metrics_are_sent_once_over_all_starts(survivor: Survivor) -> None:
    folders = list((survivor.run / "wandb").glob("offline-run-*"))
    assert len(folders) == 1, "one run there, of one id"
    assert "wandb sync" in survivor.seen["end"]
    sac("track", survivor.run)


@pytest.fixture(scope="module")
def refusal(survivor: Survivor) -> str:
    """What a start says after an edit of the params."""
    params = survivor.project.folder / "params.py"
    params.write_text(params.read_text().replace("updates_per_iter = 4", "updates_per_iter = 7"))
    return survivor.project.refuse(WANDB="")


def test_a_finished_run_is_extended_with_another_rate_and_batch(survivor: Survivor, refusal: str) -> None:
    """With its own copies of the files that were edited."""
    assert "is finished" in survivor.seen["end"]
    settings = (f"num_iter={ITERATIONS + 2}", "batch_size=16", "critic_learning_rate=0.001")
    told = survivor.project.train("--keep", *sets(*settings), WANDB="")
    assert "num_iter" in told and survivor.project.train_step() == (ITERATIONS + 2) * UPDATES
    resolved = json.loads((survivor.run / "run.json").read_text())["attributes"]
    assert (resolved["batch_size"], resolved["critic_learning_rate"]) == (16, 0.001)
    assert "target_entropy" in survivor.project.refuse("--keep", "--set", "target_entropy=-3", WANDB="")


def test_edited_files_are_refused_with_a_diff_or_begun_anew(survivor: Survivor, refusal: str) -> None:
    assert re.search(r"-\s+updates_per_iter = 4\n.*\+\s+updates_per_iter = 7", refusal)
    assert "--keep" in refusal
    survivor.project.train("--fresh", *sets("num_iter=2"), WANDB="")
    assert survivor.project.train_step() == 2 * 7
    aside = [folder for folder in survivor.run.parent.iterdir() if folder != survivor.run and folder.is_dir()]
    assert any((folder / "metrics.csv").exists() for folder in aside), "the run before is moved aside"
