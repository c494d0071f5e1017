"""The shipped examples as a user runs them: Pendulum to its goal, the others for a few iterations."""

import json
import subprocess
import sys

import imageio.v3 as imageio
import numpy as np
import pytest

from tests.support.launching import ROOT, UserRun, finish
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.run_files.recorded_episodes import load_episode

pytestmark = pytest.mark.slow

SHORT = """
from tfagents_system.examples.{example}.params import TrainParams as Shipped


class TrainParams(Shipped):
    num_iter = 3
    env_steps_per_iter = None
    num_steps_per_iter = 10
    updates_per_env_step = None
    n_buffer_init_episodes = 2
    n_eval_episodes = 2
    eval_period_itrs = 2
    train_batch_size = 8
"""

README_PARAMS = """
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = 2
    num_steps_per_iter = 3
    n_buffer_init_episodes = 32
    n_eval_episodes = 2
    train_batch_size = 64

    def env_ctor(self, *args, seed=None, **kwargs):
        return gymnasium.make("Pendulum-v1")
"""


def evaluations(run):
    return [row for row in read_metrics(run.exp_dir / "metrics.csv") if row["eval_return"] is not None]


def assert_playable(run):
    """The video is H.264 with frames that differ."""
    [video] = (run.exp_dir / "videos").glob("*.mp4")
    frames = imageio.imread(video, plugin="FFMPEG")
    assert frames.ndim == 4
    assert len(frames) > 5
    assert np.abs(frames[0].astype(int) - frames[-1].astype(int)).max() > 30
    meta = imageio.immeta(video, plugin="FFMPEG")
    assert meta["codec"] == "h264"
    assert meta["pix_fmt"].startswith("yuv420p")


@pytest.mark.timeout(1800)
def test_pendulum_is_solved_within_10_000_steps(tmp_path):
    run = UserRun(tmp_path, None, None, report=1)
    shipped = (ROOT / "training_variables.sh").read_text()
    run.vars_file.write_text(f"SAC_EXP_DIR={run.exp_dir}\n{shipped}")
    code, output = finish(run.start("--set", 'stop_when={"eval_return": -200}'), 1500.0)
    assert code == 0, f"{output}\n{run.logs()}"
    reached = [row for row in evaluations(run) if row["env_steps"] <= 10_000 and row["eval_return"] >= -200.0]
    assert reached, evaluations(run)
    status = run.status()
    shares = status["roles"]["trainer"]["time_shares"]
    assert min(shares.values()) >= 0.0 and sum(shares.values()) <= 1.0 + 1e-6, shares
    assert shares["updates"] > 0.0 and shares["saving"] > 0.0, shares
    assert status["roles"]["worker_0"]["inference"] == "numpy"
    assert status["roles"]["replay"]["env_steps"] <= reached[0]["env_steps"] + 3 * 400, "it ends once it is solved"
    for name in ("plot", "video", "report", "policy"):
        line = next(line for line in output.splitlines() if line.startswith(f"{name}:"))
        assert str(run.exp_dir) in line
    assert_playable(run)

    play = [sys.executable, str(ROOT / "tfagents_system" / "run.py"), "--exp_dir", str(run.exp_dir), "--no_video"]
    options = ["--num_episodes", "3", "--checkpoint", "best", "--seed", "108"]
    played = subprocess.run([*play, *options], cwd=tmp_path, text=True, capture_output=True, timeout=120)
    assert played.returncode == 0, played.stderr
    assert played.stdout.count("episode ") == 3 and "mean return " in played.stdout
    best = json.loads((run.exp_dir / "policies" / "best.json").read_text())
    assert best["eval_return"] == pytest.approx(max(row["eval_return"] for row in evaluations(run)[1:]))
    kept = sorted(int(path.name[-10:]) for path in (run.exp_dir / "policies" / "checkpoints").iterdir())
    first, last = evaluations(run)[1], evaluations(run)[-1]
    assert (kept[0], kept[-1]) == (first["train_step"], last["train_step"]) and int(best["checkpoint"][-10:]) in kept
    assert len(kept) <= 4, "these, the best, and that of iteration 12"


@pytest.mark.parametrize(
    ("example", "horizon"),
    [
        ("minitaur", 20),
        ("halfcheetah", 40),
        ("pendulum_pixels", 25),
        ("racing_iqn", 25),
    ],
)
def test_simulators_run_for_real(tmp_path, example, horizon):
    shipped = json.loads((ROOT / "tfagents_system/examples" / example / "config.json").read_text())
    for parameter in shipped.get("curriculum", {}).values():
        parameter["iters"] = list(range(len(parameter["iters"])))
    run = UserRun(
        tmp_path, SHORT.format(example=example), {**shipped, "horizon": horizon}, num_collect_workers=1, report=1
    )
    code, output = run.finish()
    assert code == 0, f"{output}\n{run.logs()}"
    assert [row["iteration"] for row in evaluations(run)] == [0, 2, 3]
    assert run.trainer()["train_step"] == 30
    names = shipped.get("curriculum", {})
    rows = read_metrics(run.exp_dir / "metrics.csv")
    for name in names:
        values = {row[f"curriculum/{name}"] for row in rows if row[f"curriculum/{name}"] is not None}
        assert len(values) >= 2, f"{name} varies"
    assert_playable(run)
    if example == "racing_iqn":
        assert_has_best_episodes_of_15_actions(run)


def assert_has_best_episodes_of_15_actions(run):
    """Five of the episodes that were collected; those of the policy have its values."""
    kept = [load_episode(path, "file") for path in (run.exp_dir / "episodes").iterdir()]
    assert len(kept) == 5 and any("q_values" in each.lists for each in kept)
    for episode in kept:
        actions, values = episode.lists["actions"], episode.lists.get("q_values")
        assert actions.dtype == np.int32 and actions.shape == (len(episode),)
        assert actions.min() >= 0 and actions.max() < 15
        if values is not None:
            np.testing.assert_array_equal(episode.lists["action_was_greedy"], actions == values.argmax(axis=1))


@pytest.mark.parametrize(
    ("settings", "workers"),
    [
        (["algorithm=crossq", "train_batch_size=4096", "critic_joint_fc_layer_params=[256, 256]"], 16),
        (["algorithm=redq", "updates_per_env_step=20", "critic_joint_fc_layer_params=[32, 32]"], 2),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else f"{value} workers",
)
def test_commands_of_the_readme_with_large_batches_and_many_workers(tmp_path, settings, workers):
    run = UserRun(tmp_path, README_PARAMS, {"horizon": 10}, num_collect_workers=workers)
    code, output = finish(run.start(*(part for text in settings for part in ("--set", text))), 200.0)
    assert code == 0, f"{output}\n{run.logs()}"
    ratio = 20 if "updates_per_env_step=20" in settings else None
    status = run.status()["roles"]
    assert status["replay"]["env_steps"] == 10 * (32 + 2 * workers)
    # The first random episodes have no updates of their own.
    assert status["trainer"]["train_step"] == (ratio * 10 * 2 * workers if ratio else 2 * 3)
    assert sum(name.startswith("worker_") for name in status) == workers
    assert not any(role["restarts"] for role in status.values())
    losses = [row["critic_loss"] for row in read_metrics(run.exp_dir / "metrics.csv") if row["critic_loss"] is not None]
    assert losses and np.isfinite(losses).all()
