"""reward.npz holds points 0.1 m apart."""

import os

import gymnasium
import numpy as np
import pytest

from tfagents_system.envs.reward_files import polyline, read_points, recorded_track, write_points
from tfagents_system.envs.trajectory_reward import with_trajectory_reward
from tfagents_system.errors import UserError

LAP = np.stack([np.linspace(0.0, 30.0, 61), np.zeros(61)], axis=1)


def test_points_are_a_tenth_of_a_metre_apart_along_the_way():
    corner = np.concatenate([LAP, LAP[-1] + np.arange(0.5, 20.5, 0.5)[:, None] * (0.0, 1.0)])
    corner = np.concatenate([corner[:7], corner[6:]])  # It stood still for a step.
    points = polyline(corner)
    assert len(points) == 501
    assert np.linalg.norm(np.diff(points, axis=0), axis=1) == pytest.approx(np.full(500, 0.1), abs=1e-9)
    assert points[0] == pytest.approx([0.0, 0.0]) and points[-1] == pytest.approx([30.0, 20.0])
    assert points[300] == pytest.approx([30.0, 0.0]) and polyline(np.c_[LAP, LAP[:, 0] * 0]).shape == (301, 3)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (LAP[:30], r"14.5 m long, at least 20 m"),
        (np.concatenate([LAP[:20], LAP[23:]]), r"a gap of 2.00 m behind step 19"),
        (np.where(np.arange(61)[:, None] == 7, np.nan, LAP), r"position of step 7 is not finite"),
        (np.zeros((5, 4)), r"many points \[x, y\]"),
    ],
)
def test_what_is_no_lap_is_refused(positions, message):
    with pytest.raises(UserError, match=message):
        polyline(positions)


def test_an_npz_keeps_points_and_track(tmp_path):
    path = tmp_path / "new" / "reward.npz"
    write_points(path, polyline(LAP), {"track": "closed/train/3", "lap_time": 12.5})
    assert np.array_equal(read_points(path), polyline(LAP))
    assert recorded_track(path) == "closed/train/3" and os.listdir(path.parent) == ["reward.npz"]


def test_files_that_are_none_are_refused(tmp_path):
    for name, data in (("a.npz", b"no zip"), ("b.npz", b""), ("reward.pkl", b"")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=f"{name} can't be read"):
            read_points(tmp_path / name)
    np.savez(tmp_path / "other.npz", something=np.zeros(3))
    with pytest.raises(UserError, match="can't be read"):
        read_points(tmp_path / "other.npz")
    for points in (np.array([["a", "b"]]), np.zeros((5, 4)), np.zeros((1, 3)), np.full((5, 3), np.nan), np.zeros(7)):
        np.savez(tmp_path / "other.npz", points=points)
        with pytest.raises(UserError, match="record it with"):
            read_points(tmp_path / "other.npz")


def test_a_missing_file_and_another_track_are_errors(tmp_path):
    env = gymnasium.Env()
    config = {"trajectory_reward": {"file": str(tmp_path / "reward.npz")}}
    assert with_trajectory_reward(env, {}) is env
    with pytest.raises(UserError, match=r"reward.npz does not exist .*record it with"):
        with_trajectory_reward(env, config)
    write_points(tmp_path / "reward.npz", polyline(LAP), {"track": "closed/train/3"})
    assert len(with_trajectory_reward(env, config).trajectory._points) == 301
    env.track_names = ["closed/train/0", "closed/train/3"]
    with pytest.raises(
        UserError, match="recorded on closed/train/3, but the environment has closed/train/0 and 1 more"
    ):
        with_trajectory_reward(env, config)
