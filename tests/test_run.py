"""run.py: returns that repeat, videos, checkpoints by name, and errors that say what to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tests.support.fakes import CounterEnv, FakeParams
from tfagents_system import run
from tfagents_system.envs import specs
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.playing import export
from tfagents_system.playing import play as play_module
from tfagents_system.playing.saved_run import milestones
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.policy_export import PolicyExport

ROOT = Path(run.__file__).parents[1]

PARAMS = """
import numpy as np
from tests.support.fakes import CounterEnv, FakeParams

class Noisy(CounterEnv):
    '''Rewards are random, the action counts, and the seed decides.'''
    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(self.np_random.normal() + action[0]), terminated, truncated, info

class TrainParams(FakeParams):
    def env_ctor(self, *args, seed=None, **kwargs):
        return Noisy(truncate_at=5)
"""


def override(paths: RunPaths, **overrides: Any) -> None:
    """Gives a run that has none settings of its own."""
    run = {"params_source": str(ROOT / "no_longer_there" / "params.py"), "overrides": overrides}
    paths.run_json.write_text(json.dumps(run))


def save_run(folder: Path) -> RunPaths:
    """A run directory with policies of three moments that act differently."""
    paths = RunPaths(folder)
    folder.mkdir(parents=True)
    paths.params.write_text(PARAMS)
    paths.config.write_text(json.dumps({"horizon": 7}))
    override(paths)
    env = TrainingEnvironment(CounterEnv(), 7)
    specs.save_specs(paths.specs, env.observation_spec(), env.environment_action_spec)
    params = FakeParams({"horizon": 7})
    observation_spec, action_spec = specs.load_specs(paths.specs)
    rng = np.random.default_rng(0)
    train_step = tf.Variable(0, dtype=tf.int64)
    agent = params.agent_ctor(ts.time_step_spec(observation_spec), action_spec, train_step)
    export = PolicyExport(paths, agent, env.actions, train_step)
    for step in (8, 16, 24):
        train_step.assign(step)
        for variable in agent.policy.variables():
            variable.assign(rng.normal(scale=0.3, size=variable.shape))
        export.save_checkpoint()
    export.save_model()
    export.mark_best({"checkpoint": "policy_checkpoint_0000000016", "eval_return": 1.0})
    return paths


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    return save_run(tmp_path_factory.mktemp("runs") / "fake")


def play(capsys: pytest.CaptureFixture[str], paths: RunPaths, *flags: str) -> list[str]:
    capsys.readouterr()
    assert run.main(["--exp_dir", str(paths.exp_dir), *flags]) == 0
    return capsys.readouterr().out.splitlines()


def returns(lines: list[str]) -> list[float]:
    return [float(value) for line in lines for value in re.findall(r"^episode \d+: return (\S+),", line)]


def test_numbers_of_every_episode_then_mean_and_spread(capsys: Any, saved: RunPaths) -> None:
    lines = play(capsys, saved, "--num_episodes", "3", "--no_video", "--seed", "108")
    assert lines[0] == f"policy_checkpoint_0000000016 (best) of {saved.exp_dir}"
    values = returns(lines)
    assert len(values) == 3 and all(", 5 steps, success" in line for line in lines[1:4])
    mean, spread = map(float, re.findall(r"^mean return (\S+) \+- (\S+) ", lines[-1])[0])
    assert mean == pytest.approx(np.mean(values), abs=2e-3) and spread == pytest.approx(np.std(values), abs=2e-3)
    assert "over 3 episodes, success 100%" in lines[-1]


def test_settings_of_the_run_hold_for_its_own_files_alone(capsys: Any, saved: RunPaths, tmp_path: Path) -> None:
    override(saved, config={"horizon": 3})
    try:
        assert ", 3 steps" in play(capsys, saved, "--no_video")[1]
        (tmp_path / "other.json").write_text('{"horizon": 4}')
        assert ", 4 steps" in play(capsys, saved, "--no_video", "--config", str(tmp_path / "other.json"))[1]
        assert ", 3 steps" in play(capsys, saved, "--no_video", "--config", str(saved.config))[1]
        override(saved, params={"misspelt": 3})
        with pytest.raises(UserError, match="has no attribute misspelt"):
            run.main(["--exp_dir", str(saved.exp_dir), "--no_video"])
    finally:
        override(saved)


def test_the_seed_decides_the_returns_with_videos_or_without(capsys: Any, saved: RunPaths, tmp_path: Path) -> None:
    flags = ["--num_episodes", "2", "--seed", "5"]
    numbers = returns(play(capsys, saved, *flags, "--no_video"))
    assert numbers[0] != numbers[1]
    assert numbers != returns(play(capsys, saved, "--num_episodes", "2", "--no_video", "--seed", "6"))
    lines = play(capsys, saved, *flags, "--out", str(tmp_path / "videos"))
    assert returns(lines) == numbers
    videos = sorted((tmp_path / "videos").iterdir())
    assert [video.name for video in videos] == [f"policy_checkpoint_0000000016_seed_5_episode_{k}.mp4" for k in (1, 2)]
    assert str(videos[0]) in lines[1]
    reader: Any = imageio.get_reader(videos[0])
    frames = [np.asarray(frame) for frame in reader]
    assert len(frames) == 6 and np.any(frames[0] != frames[-1])


def test_an_environment_that_can_not_be_drawn_is_played_without_a_video(
    capsys: Any, saved: RunPaths, tmp_path: Path
) -> None:
    other = tmp_path / "other.py"
    other.write_text(saved.params.read_text().replace("    def step(", "    render = None\n    def step("))
    lines = play(capsys, saved, "--num_episodes", "2", "--params", str(other), "--out", str(tmp_path / "videos"))
    assert lines[1].startswith("note: no video: Noisy can't be drawn (TypeError") and "--no-video" not in lines[1]
    assert len(returns(lines)) == 2 and not (tmp_path / "videos").exists()
    with pytest.raises(UserError, match="a montage needs pictures"):
        play(capsys, saved, "--montage", "--params", str(other))


def test_videos_go_to_the_run_directory_and_nothing_else_does(capsys: Any, saved: RunPaths) -> None:
    before = {path for path in saved.exp_dir.rglob("*")}
    play(capsys, saved, "--no_video")
    assert {path for path in saved.exp_dir.rglob("*")} == before
    play(capsys, saved)
    new = {path for path in saved.exp_dir.rglob("*")} - before
    assert {path.name for path in new} == {"videos", "policy_checkpoint_0000000016_seed_0_episode_1.mp4"}


def test_checkpoints_are_found_by_name_and_what_is_no_checkpoint_is_none(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for name in (None, "latest", "best", "policy_checkpoint_0000000010"):
        with pytest.raises(UserError, match="has no policy: give the directory of a run"):
            run.find_checkpoint(paths, name)
    paths.run_json.touch()
    with pytest.raises(UserError, match=f"greedy_policy has no policy: give {tmp_path}$"):
        run.find_checkpoint(RunPaths(paths.policies / "greedy_policy"))
    names = [f"policy_checkpoint_{step:010d}" for step in (10, 20)]
    for name in (*names, names[1] + ".bak", names[1] + "_old", "policy_checkpoint_30"):
        (paths.policy_checkpoints / name).mkdir(parents=True)
    assert run.find_checkpoint(paths).name == run.find_checkpoint(paths, "latest").name == names[1]
    with pytest.raises(UserError, match="no policy was evaluated yet: wait for an evaluation, or take latest"):
        run.find_checkpoint(paths, "best")
    with pytest.raises(UserError, match=rf"no checkpoint .*\.bak: there are {', '.join(names)}, latest and best"):
        run.find_checkpoint(paths, names[1] + ".bak")
    paths.best_json.write_text(json.dumps({"checkpoint": names[0]}))
    assert run.find_checkpoint(paths).name == run.find_checkpoint(paths, "best").name == names[0]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--exp_dir", "logs/nowhere"], "logs/nowhere does not exist"),
        (["--config", "none.json"], "--config=none.json does not exist"),
        (["--exp_dir", "README.md"], "README.md is no directory"),
        (["--params", "config"], "--params=config is no file"),
        (["--policy", ""], "--policy is empty: give a path"),
    ],
)
def test_files_that_are_missing_or_of_another_kind_are_named(saved: RunPaths, flags: list[str], text: str) -> None:
    with pytest.raises(UserError, match=text):
        run.main(["--exp_dir", str(saved.exp_dir), "--no_video", *flags])


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--num_episodes", "0"], ["--num-episodes must be a whole number of at least 1, found 0"]),
        (["--seed", "-1"], ["--seed must be a whole number of at least 0, found -1"]),
        (
            [
                "--montage",
                "--num_episodes",
                "7",
                "--seed=x",
            ],
            [
                "--seed must be a whole number of at least 0, found x",
                "--montage plays one episode of each checkpoint: leave out --num-episodes",
            ],
        ),
    ],
)
def test_all_wrong_flags_are_told_at_once(saved: RunPaths, flags: list[str], told: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        run.main(["--exp_dir", str(saved.exp_dir), *flags])
    assert [*caught.value.findings] == told
    with pytest.raises(UserError) as caught:
        run.main(["--exp_dir", f"{saved.exp_dir}/nosuch", *flags])
    assert [*caught.value.findings[:-1]] == told and "nosuch does not exist" in caught.value.findings[-1]


def test_policy_of_another_environment(saved: RunPaths, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(
        "from tests.support.fakes import FakeParams, NumberedEnv\n"
        "class TrainParams(FakeParams):\n"
        "    def env_ctor(self, *args, seed=None, **kwargs):\n"
        "        return NumberedEnv()\n"
    )
    with pytest.raises(UserError, match="the policy was trained on observations"):
        run.main(["--exp_dir", str(saved.exp_dir), "--no_video", "--params", str(other)])


def test_a_file_where_a_folder_is_written_to(saved: RunPaths, tmp_path: Path) -> None:
    file = tmp_path / "policy.npz"
    file.write_text("mine")
    with pytest.raises(UserError, match="--out=.*policy.npz is a file: give a folder"):
        run.main(["--exp_dir", str(saved.exp_dir), "--out", str(file)])
    with pytest.raises(UserError, match="--out=.*policy.npz is a file: give a folder"):
        export.main([str(saved.exp_dir), "--out", str(file)])
    assert file.read_text() == "mine"


def test_curriculum_that_applies_to_evaluation_is_set() -> None:
    """Of a policy of the end the values of the last iteration."""
    entry = {"iters": [0, 2, 4], "range": [1.0, 3.0]}
    for apply, iteration, mass in ((True, 3, 2.0), (False, 3, 1.0), (True, 4, 2.0)):
        params = FakeParams({"horizon": 7, "curriculum": {"mass": entry, "apply_to_eval": apply}})
        params.num_iter = 4
        env = TrainingEnvironment(CounterEnv(), 7)
        played = play_module._apply_curriculum(params, env, iteration)
        assert env.user_env.mass == mass and played == ({"mass": 2.0} if apply else {})


def test_what_is_played_and_exported_says_its_stage(capsys: Any, saved: RunPaths, tmp_path: Path) -> None:
    entry = {"iters": [0, 2, 3], "range": [1.0, 3.0], "apply_to_eval": True}
    override(saved, config={"curriculum": {"mass": entry}})
    moments = [saved.policy_checkpoints / f"policy_checkpoint_{8 * k:010d}" / "moment.json" for k in (1, 2, 3)]
    try:
        for k, moment in enumerate(moments, 1):
            moment.write_text(json.dumps({"iteration": k}))
        assert play(capsys, saved, "--no_video", "--checkpoint", "best")[1] == "curriculum of iteration 2: mass=2"
        lines = play(capsys, saved, "--montage", "--out", str(tmp_path))
        assert [line for line in lines if "curriculum" in line] == [
            f"curriculum of iteration {k}: mass={k}" for k in (1, 2, 3)
        ]
        assert export.main([str(saved.exp_dir), "--out", str(tmp_path / "out")]) == 0
        assert capsys.readouterr().out.splitlines()[1] == "curriculum of iteration 2: mass=2"
        model = saved.policies / "greedy_policy"
        moments.append(model / "moment.json")
        moments[-1].write_text(json.dumps({"iteration": 2}))
        assert play(capsys, saved, "--no_video", "--policy", str(model))[1] == "curriculum of iteration 2: mass=2"
    finally:
        override(saved)
        for moment in moments:
            moment.unlink()


def script(cwd: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tfagents_system" / "run.py"), *flags]
    environ = {**os.environ, "PYTHONPATH": ""}
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=200)


def test_as_a_script_mistakes_exit_with_2_and_one_line(saved: RunPaths, tmp_path: Path) -> None:
    done = script(tmp_path, "--exp_dir", str(saved.exp_dir), "--checkpoint", "nope")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "policy_checkpoint_0000000008" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_policy_without_its_environment_is_refused(capsys: Any, saved: RunPaths) -> None:
    with pytest.raises(UserError, match="give a run directory, or --params and --config"):
        run.main(["--policy", str(saved.policies / "greedy_policy"), "--no_video"])
    with pytest.raises(UserError, match="--policy=nowhere.npz does not exist"):
        run.main(["--exp_dir", str(saved.exp_dir), "--policy", "nowhere.npz", "--no_video"])
    with pytest.raises(UserError, match=r"--policy=.*config.json is neither a SavedModel, nor"):
        run.main(["--exp_dir", str(saved.exp_dir), "--policy", str(saved.config), "--no_video"])
    with pytest.raises(UserError, match="--montage: not allowed with argument --policy"):
        run.main(["--policy", "x", "--montage"])
    for flags, told in (
        ([], "there is nothing to play"),
        (["--exp_dir", "x", "--montage", "--no_video"], "is a video"),
    ):
        with pytest.raises(UserError, match=told):
            run.main(flags)


def test_milestones_are_the_first_the_best_and_the_middle_one_between(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for step in range(10, 80, 10):
        (paths.policy_checkpoints / f"policy_checkpoint_{step:010d}").mkdir(parents=True)

    def steps() -> list[int]:
        return [int(path.name[-10:]) for path in milestones(paths)]

    assert steps() == [10, 40, 70], "nothing is evaluated: up to the latest"
    for best, expected in ((60, [10, 40, 60]), (30, [10, 20, 30]), (20, [10, 20, 70]), (10, [10, 70])):
        paths.best_json.write_text(json.dumps({"checkpoint": f"policy_checkpoint_{best:010d}"}))
        assert steps() == expected


def test_a_montage_shows_the_milestones_side_by_side(capsys: Any, saved: RunPaths, tmp_path: Path) -> None:
    assert run.main(["--exp_dir", str(saved.exp_dir), "--montage", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == [f"policy_checkpoint_{step:010d}" for step in (8, 16, 24)]
    assert [file.name for file in tmp_path.iterdir()] == ["montage.mp4"] and lines[-1] == str(tmp_path / "montage.mp4")
    reader: Any = imageio.get_reader(tmp_path / "montage.mp4")
    frames = [np.asarray(frame) for frame in reader]
    # A picture is 41 wide, 42 in its video, 252 enlarged by 6; a caption has three lines of 14.
    assert len(frames) == 6 and frames[0].shape == (3 * 14 + 34 * 6, 3 * 252 + 2 * 4, 3)
    first = frames[5][60:].astype(int)  # Step 5: the fake environment draws its number of steps.
    assert abs(first[:, :252].mean() - 5) < 3 and abs(first[:, 256:508].mean() - 5) < 3
    assert frames[0][:42, :252].max() > 150, "there is a caption"
