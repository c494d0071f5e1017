"""README's first command, and all that is made of the run that it trains; the seed's Minitaur beside it."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest

import tfagents_system
from tests.abilities.support import QUIET, ROOT, call, column, rows, sac, status, train_shipped

pytestmark = pytest.mark.slow

TINY = ("num_eval_episodes=2", "batch_size=32", "actor_fc_layer_params=[16]", "critic_joint_fc_layer_params=[16]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shipped")


@pytest.fixture(scope="module")
def output(folder: Path) -> str:
    """What the start of Pendulum printed, in logs/pendulum of the folder."""
    return train_shipped(
        "training_variables.sh", folder, "pendulum", *TINY, "num_env_steps=1600", "eval_period_env_steps=400"
    )


@pytest.fixture(scope="module")
def pendulum(folder: Path, output: str) -> Path:
    return folder / "logs" / "pendulum"


def test_the_vars_file_trains_as_it_is(output: str, pendulum: Path) -> None:
    assert f"run directory {pendulum}" in output and "starting pendulum" in output
    assert json.loads((pendulum / "status.json").read_text())["run"]["state"] == "done"
    last = rows(pendulum)[-1]
    assert last["env_steps"] == 1600 and last["train_step"] > 0
    assert len(status(pendulum)["plan"]) == 2 + 2, "replay, trainer and the two workers of the file"


def test_minitaur_trains_with_its_curriculum(folder: Path) -> None:
    settings = ("num_iter=2", "updates_per_iter=3", "num_initial_episodes=1", "config.horizon=15")
    few = ("SAC_NUM_COLLECT_WORKERS=1", *(f"SAC_{name}=0" for name in QUIET))
    shorter = "config.curriculum.base_mass.iters=[0,1,2,3,4,5]"
    train_shipped("training_variables_minitaur.sh", folder, "minitaur", *TINY, *settings, *few, shorter)
    run = folder / "logs" / "minitaur"
    assert status(run)["roles"]["trainer"]["train_step"] == 6
    assert max(column(run, "curriculum/base_mass")) > 2.5


def test_metrics_episodes_curves_report_and_video(output: str, pendulum: Path) -> None:
    trained = [row for row in rows(pendulum) if "critic_loss" in row]
    assert trained and all(row["alpha"] > 0 for row in trained)
    evaluated = [row["env_steps"] for row in rows(pendulum) if "eval_return" in row]
    assert evaluated[0] == 0 and evaluated[-1] == 1600 and len(evaluated) >= 3
    with (pendulum / "episodes.csv").open() as file:
        episodes = list(csv.DictReader(file))
    assert len(episodes) >= 4 and all(int(row["length"]) == 200 for row in episodes)
    assert list((pendulum / "train").glob("events*")) and list((pendulum / "eval").glob("events*"))
    assert (pendulum / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert "pendulum" in (pendulum / "report.html").read_text()
    [video] = (pendulum / "videos").glob("*.mp4")
    assert imageio.immeta(video, plugin="FFMPEG")["codec"] == "h264"
    assert re.search(r"^\[\d\d:\d\d\] (iteration|replay) ", output, re.M), "lines where there is no terminal"


def test_status_is_told_and_as_json(pendulum: Path) -> None:
    told = sac("status", "--follow", pendulum)
    assert "pendulum" in told and "done" in told
    as_json = json.loads(sac("status", "--json", pendulum))
    (content,) = as_json if isinstance(as_json, list) else as_json.values()
    assert "done" in json.dumps(content) and '"env_steps": 1600' in json.dumps(content)


def test_checkpoints_are_ten_digits_and_saved_models_load(pendulum: Path) -> None:
    from tf_agents.policies import policy_loader
    from tf_agents.trajectories import time_step as ts

    checkpoints = sorted(path.name for path in (pendulum / "policies" / "checkpoints").iterdir())
    assert all(re.fullmatch(r"policy_checkpoint_\d{10}", name) for name in checkpoints)
    assert checkpoints[-1] == f"policy_checkpoint_{int(rows(pendulum)[-1]['train_step']):010d}"
    best = json.loads((pendulum / "policies" / "best.json").read_text())
    assert best["checkpoint"] in checkpoints
    assert best["eval_return"] == pytest.approx(max(column(pendulum, "eval_return")[1:]))
    observation = np.array([0.5, 0.5, 1.0], np.float32)
    actions = []
    for name in (checkpoints[0], checkpoints[-1]):
        weights = str(pendulum / "policies" / "checkpoints" / name)
        policy = policy_loader.load(str(pendulum / "policies" / "greedy_policy"), weights)
        actions.append(np.asarray(policy.action(ts.restart(observation), policy.get_initial_state(1)).action).ravel())
    assert np.all(np.abs(actions) <= 2.0) and actions[0] != actions[1], "it has learned something"
    run = tfagents_system.load_run(pendulum)
    np.testing.assert_allclose(run.policy("latest")(observation), actions[1], rtol=1e-4, atol=1e-5)


def short_episodes(folder: Path) -> Path:
    """A configuration of which videos are quickly made."""
    (folder / "short.json").write_text('{"horizon": 40}')
    return folder / "short.json"


def test_run_py_plays_a_video_of_the_current_folders_run(pendulum: Path, tmp_path: Path) -> None:
    """Without what macOS lacks."""
    for name in ("reverb", "cryptography", "pybullet"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not for this system')\n")
    words = ["--exp_dir", "logs/pendulum", "--params", ROOT / "tfagents_system/examples/pendulum/params.py"]
    words += ["--config", short_episodes(tmp_path), "--num_episodes", 2, "--seed", 3, "--checkpoint", "best"]
    script, videos = ROOT / "tfagents_system" / "run.py", tmp_path / "videos"
    program = ["env", f"PYTHONPATH={tmp_path}:{ROOT}", sys.executable, script]
    played = call(*program, *words, "--out", videos, cwd=pendulum.parents[1])
    assert len(re.findall(r"^episode \d: return (\S+),", played, re.M)) == 2 and "over 2 episodes" in played
    assert len(list(videos.glob("*_seed_3_episode_*.mp4"))) == 2


def test_a_montage_shows_the_milestones(pendulum: Path, tmp_path: Path) -> None:
    sac("montage", pendulum, "--config", short_episodes(tmp_path))
    assert len(imageio.imread(pendulum / "videos" / "montage.mp4", plugin="FFMPEG")) >= 40


def test_exports_act_as_the_policy_and_are_played(pendulum: Path, tmp_path: Path) -> None:
    formats = [f"--format={name}" for name in ("onnx", "tflite")]
    told = sac("export", *formats, "--format", "numpy", pendulum, "--checkpoint", "latest", "--out", tmp_path)
    assert {"policy.npz", "numpy_policy.py", "policy.onnx", "policy.tflite"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert "actions differ by" in told
    observation = [0.5, 0.5, 1.0]
    act = f"import numpy_policy; print(numpy_policy.load('policy.npz').action({observation})[0])"
    action = float(call(sys.executable, "-c", act, cwd=tmp_path))
    expected = tfagents_system.load_run(pendulum).policy("latest")(np.array(observation, np.float32))
    assert action == pytest.approx(float(expected[0]), abs=1e-3)
    (tmp_path / "params.py").write_text((pendulum / "params.py").read_text())
    inputs = ["--params", tmp_path / "params.py", "--config", pendulum / "config.json", "--no_video", "--seed", "5"]
    played = sac("play", "--policy", tmp_path / "policy.onnx", *inputs)
    assert "mean return" in played


def test_experience_goes_out_comes_in_and_is_shown(
    pendulum: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    sac("experience", "export", pendulum, "--out", tmp_path / "pendulum.npz")
    data = np.load(tmp_path / "pendulum.npz")
    whole = len(data["rewards"])
    assert whole >= 800 and data["observations"].shape == (whole, 3)
    assert np.all(np.abs(data["actions"]) <= 2.0) and not data["terminations"].any()
    assert list(np.flatnonzero(data["truncations"]) % 200) == [199] * (whole // 200), "time limits"
    np.testing.assert_array_equal(data["observations"][1:200], data["next_observations"][:199])
    sac("experience", "import", tmp_path / "pendulum.npz", "--run", pendulum, "--out", tmp_path / "imported")
    assert f"{whole:,}" in sac("experience", "show", tmp_path / "imported").replace("_", ",")
    pytest.importorskip("minari")
    name = "minari:abilities/pendulum-v0"
    made = sac("experience", "export", pendulum, "--out", name)
    assert "pendulum-v0" in made


def test_runs_are_compared_with_intervals_and_stable_baselines3(pendulum: Path, tmp_path: Path) -> None:
    for seed in range(3):
        (tmp_path / f"peer_{seed}").mkdir()
        steps, results = np.arange(1, 9) * 100, np.full((8, 3), -1000.0 + 100 * seed)
        np.savez(tmp_path / f"peer_{seed}" / "evaluations.npz", timesteps=steps, results=results, ep_lengths=results)
    peers = [tmp_path / f"peer_{seed}" for seed in range(3)]
    words = ["--group", "ours=*pendulum", "--group", "theirs=*peer_*", "--metric", "eval_return"]
    sac("compare", pendulum, *peers, *words, "--out", tmp_path / "both.png")
    with (tmp_path / "both.csv").open() as file:
        table = {row["group"]: row for row in csv.DictReader(file)}
    assert set(table) == {"ours", "theirs"} and table["theirs"]["runs"] == "3"
    assert float(table["theirs"]["final_iqm"]) == pytest.approx(-900.0)


def test_plots_and_reports_are_made_again(pendulum: Path, tmp_path: Path) -> None:
    (pendulum / "learning_curve.png").unlink()
    sac("plots", pendulum)
    assert (pendulum / "learning_curve.png").exists()
    sac("report", pendulum, "--out", tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000
