"""The rules of the reward from a trajectory, by walks that are computed by hand, and against TMRL's loops."""

import gymnasium
import numpy as np
import pytest

from tests.support.devices_for_tests import DummyDevice, Forwarding
from tfagents_system.envs.real_time import RealTimeEnvironment, VirtualClock
from tfagents_system.errors import UserError
from tfagents_system.examples.racing.trajectory_reward import (
    FINISHED,
    NO_PROGRESS,
    STRAYED,
    TrajectoryReward,
    TrajectoryRewardEnvironment,
    TrajectoryRewardSettings,
    polyline,
    read_points,
    with_trajectory_reward,
)
from tfagents_system.hyperparameters import read_section

STRAIGHT = np.stack([np.arange(101) * 0.1, np.zeros(101)], axis=1)  # 10 m along x


def follow(points, places, **settings):
    """Rewards, indices and the last step's end of a walk; it stops where the episode does."""
    reward = TrajectoryReward(points, TrajectoryRewardSettings(**settings))
    rewards, indices = [], []
    for place in places:
        paid, is_over = reward.step(place)
        rewards.append(paid)
        indices.append(reward.index)
        assert is_over == (reward.end != "")
        if is_over:
            break
    return rewards, indices, reward.end


def test_progress_is_a_hundredth_for_each_point():
    rewards, indices, end = follow(STRAIGHT, [(0.5, 1.0), (0.5, 1.0), (2.0, -1.0)])
    assert rewards == pytest.approx([0.05, 0.0, 0.15]) and indices == [5, 5, 20] and end == ""


def test_the_penalty_is_in_every_step_and_the_finish_ends():
    rewards, indices, end = follow(
        STRAIGHT, [(0.5, 0.0), (0.5, 0.0), (99.0, 0.0)], constant_penalty=-0.3, max_stray=200.0
    )
    assert rewards == pytest.approx([-0.25, -0.3, 0.95 - 0.3 + 100.0]) and indices[-1] == 100 and end == FINISHED


HAIRPIN = np.concatenate([STRAIGHT, STRAIGHT[::-1] + (0.0, 2.0)])  # 10 m there, 10 m back, 2 m beside


@pytest.mark.parametrize(("patience", "index"), [(150, 171), (100, 30)])
def test_a_cut_pays_as_far_as_the_search_ahead_goes(patience, index):
    """At x = 3 the way back, 2 m beside, is 141 points further."""
    rewards, indices, _ = follow(HAIRPIN, [(3.0, 0.0), (3.0, 1.9)], check_forward=patience)
    assert indices == [30, index] and rewards == pytest.approx([0.3, (index - 30) / 100])


def test_straying_moves_nothing_and_ends_after_the_first_steps():
    walk = [(1.0, 0.0), (3.0, 5.1), (3.0, 5.1), (2.0, 0.0), (3.0, 5.1), (3.0, 5.1)]
    rewards, indices, end = follow(STRAIGHT, walk, max_stray=5.0, min_steps=5, constant_penalty=0.5)
    assert rewards == pytest.approx([0.6, 0.5, 0.5, 0.6, 0.5, 0.5]) and indices == [10, 10, 10, 20, 20, 20]
    assert end == STRAYED and len(rewards) == 6
    assert follow(STRAIGHT, [(3.0, 5.0)], max_stray=5.0, min_steps=0)[2] == "", "farther than, not as far as"


def test_a_u_turn_goes_back_and_ends():
    """Back by 0.5 m a step: half of the points that the search behind reaches."""
    walk = [(5.0, 0.0), *((5.0 - 0.5 * k, 0.0) for k in range(1, 9))]
    rewards, indices, end = follow(STRAIGHT, walk, min_steps=3, failure_countdown=4)
    assert indices == [50, 45, 40, 35, 30, 25, 20, 15] and rewards == pytest.approx([0.5] + [0.0] * 7)
    assert end == NO_PROGRESS and len(rewards) == 8  # Steps 4 to 8 count: five are more than four.


def test_progress_clears_the_count():
    standing, ahead = [(1.0, 0.0)] * 4, [(1.1, 0.0)]
    walk = [(1.0, 0.0), *standing, *ahead, *[(1.1, 0.0)] * 5]
    rewards, _, end = follow(STRAIGHT, walk, min_steps=0, failure_countdown=4)
    assert end == NO_PROGRESS and len(rewards) == 11


@pytest.mark.parametrize(("regain", "rest"), [(False, [0, 0, 0, 0, 0.1]), (True, [0, 0.2, 0, 0.2, 0.1])])
def test_going_to_and_fro_pays_once_unless_it_may_regain(regain, rest):
    walk = [(5.0, 0.0), (3.0, 0.0), (5.0, 0.0), (3.0, 0.0), (5.0, 0.0), (6.0, 0.0)]
    rewards, indices, _ = follow(STRAIGHT, walk, check_backward=30, regain=regain)
    assert rewards == pytest.approx([0.5, *rest]) and indices == [50, 30, 50, 30, 50, 60]


def tmrl_steps(points, places, check_forward, check_backward):
    """TMRL 0.7.1's loops, point by point, with 0 as the last point of the search behind: reward, index, count."""
    index, failures = 0, 0
    for place in places:
        best, least, patience, looked = index, np.inf, check_forward, index
        while looked < len(points) and patience > 0:
            distance = ((place - points[looked]) ** 2).sum()
            if distance <= least:
                best, least, patience = looked, distance, check_forward
            looked, patience = looked + 1, patience - 1
        reward, failures = (best - index) / 100, 0 if best > index else failures + 1
        if best == index:
            least, patience, looked = np.inf, check_backward, index
            while looked >= 0 and patience > 0:
                distance = ((place - points[looked]) ** 2).sum()
                if distance <= least:
                    best, least, patience = looked, distance, check_backward
                looked, patience = looked - 1, patience - 1
        index = best
        yield reward, index, failures


def test_random_walks_are_rewarded_as_by_tmrls_loops():
    rng = np.random.default_rng(0)
    for trial in range(20):
        points = np.cumsum(rng.normal(0.02, 0.1, (200, 3)), axis=0)
        places = np.cumsum(rng.normal(0.03, 0.3, (80, 3)), axis=0)
        if trial % 2:  # With distances that are equal exactly.
            points, places = np.round(points * 8) / 8, np.round(places * 8) / 8
        forward, backward = int(rng.integers(1, 60)), int(rng.integers(1, 15))
        settings = TrajectoryRewardSettings(
            check_forward=forward, check_backward=backward, regain=True, end_of_track=0.0, max_stray=1e6, min_steps=0,
            failure_countdown=1000,
        )  # fmt: skip
        reward = TrajectoryReward(points, settings)
        for place, (paid, index, _) in zip(places, tmrl_steps(points, places, forward, backward), strict=True):
            assert reward.step(place)[0] == pytest.approx(paid) and reward.index == index


class Walker(gymnasium.Env):
    """Moves along x by its action."""

    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        self.x = 0.0
        return np.zeros(1), {}

    def step(self, action):
        self.x += float(action[0])
        info = {"position": (self.x, 0.0), "is_success": self.x > 9.95, "end": "fell" if self.x < 0 else ""}
        return np.zeros(1), 77.0, self.x < 0, False, info


def test_an_environment_gets_its_reward_and_ends():
    env = TrajectoryRewardEnvironment(Walker(), TrajectoryReward(STRAIGHT, TrajectoryRewardSettings(end_of_track=5.0)))
    for _ in range(2):
        env.reset()
        _, reward, terminated, truncated, info = env.step([4.0])
        assert (reward, terminated, truncated) == (0.4, False, False) and not info["is_success"]
        assert env.step([-0.5])[1] == 0.0
        _, reward, terminated, _, info = env.step([6.46])
        assert reward == pytest.approx(0.6 + 5.0) and terminated and info["is_success"] and info["end"] == FINISHED
    env.reset()
    _, reward, terminated, _, info = env.step([-1.0])
    assert (reward, terminated, info["end"], info["is_success"]) == (0.0, True, "fell", False)


class Driven(DummyDevice):
    """Moves along x by the first number of its action in each time step."""

    track_names = ["closed/train/3"]

    def reset(self, seed=None, options=None):
        self.x = 0.0
        return super().reset(seed, options)

    def get_obs_rew_terminated_info(self):
        self.x += self._sent[-1][0]
        observation, reward, _, info = super().get_obs_rew_terminated_info()
        return observation, reward, False, {**info, "position": (self.x, 0.0)}


def file_of(folder, points=None):
    path = folder / "reward.npz"
    np.savez(path, points=np.concatenate([STRAIGHT, STRAIGHT + (10.1, 0.0)]) if points is None else points)
    settings = {"min_steps": 0, "failure_countdown": 1, "end_of_track": 7.0}
    return {"trajectory_reward": settings, "input_files": {"trajectory_reward": str(path)}}


@pytest.mark.parametrize("ends_by", ["standing", "finish"])
def test_a_device_knows_of_the_trajectorys_end_before_anything_is_sent(tmp_path, ends_by):
    """It waits then, and the time of its next reset is no time step's."""
    clock = VirtualClock()
    device = Driven(clock, reset_secs=2.0)
    env = RealTimeEnvironment(device, 0.05, wait_on_done=True, clock=clock)
    assert with_trajectory_reward(env, file_of(tmp_path)) is env
    for _ in range(2):
        env.reset()
        assert device.log[-1][0] == "send"
        device.log.clear()
        steps = [env.step([0.0 if ends_by == "standing" else 10.0, 0.0]) for _ in range(3)]
        assert [step[2] for step in steps] == [False, False, True]
        assert steps[0][1] == pytest.approx(0.025, abs=0.006), "0.25 m under the default action"
        told = NO_PROGRESS if ends_by == "standing" else FINISHED
        assert steps[-1][4]["end"] == told and steps[-1][4]["is_success"] == (told == FINISHED)
        assert steps[-1][1] == pytest.approx(0.0 if ends_by == "standing" else 7.0 + 0.99, abs=0.02)
        assert [what for what, _, _ in device.log] == ["capture", "send"] * 2 + ["capture", "wait"]
    assert env.take_metrics()["step_ms_p99"] == pytest.approx(50.0)


def test_a_device_whose_reward_has_no_file_is_closed(tmp_path):
    clock, closed = VirtualClock(), []
    device = Driven(clock)
    device.close = lambda: closed.append(1)
    env = RealTimeEnvironment(device, 0.05, clock=clock)
    with pytest.raises(UserError, match="reward.npz does not exist: record it with"):
        with_trajectory_reward(env, {"trajectory_reward": {}, "input_files": {"trajectory_reward": "no/reward.npz"}})
    assert closed == [1] and device.log == [], "nobody has driven it"


def test_a_device_of_rtgym_gets_the_reward_too(tmp_path):
    real_time_env = pytest.importorskip("rtgym.envs.real_time_env")
    config = {**real_time_env.DEFAULT_CONFIG_DICT, "interface": Driven, "time_step_duration": 0.02}
    env = real_time_env.RealTimeEnv({**config, "start_obs_capture": 0.02, "act_in_obs": False})
    with_trajectory_reward(env, file_of(tmp_path))
    env.reset()
    _, reward, terminated, _, info = env.step(np.zeros(2, np.float32))
    assert reward == pytest.approx(0.025, abs=0.006) and not terminated and info["end"] == ""


def test_wrong_settings_are_told():
    with pytest.raises(UserError) as raised:
        read_section(
            TrajectoryRewardSettings,
            {"chek_forward": 3, "max_stray": 0, "regain": 1, "min_steps": -1},
            "trajectory_reward",
        )
    findings = "\n".join(raised.value.findings)
    for part in (
        "trajectory_reward.chek_forward is not known: check_forward is meant",
        "trajectory_reward.max_stray must be a number above 0",
        "trajectory_reward.regain must be True or False",
        "trajectory_reward.min_steps must be an integer of at least 0",
    ):
        assert part in findings, findings


@pytest.mark.parametrize(
    ("position", "told"),
    [
        ((1.0, np.inf), "is not finite"),
        ((1.0, 2.0, 3.0), "must be 2 coordinates"),
        (None, "must be 2 coordinates .* found None"),
    ],
)
def test_a_position_that_is_none_pays_nothing(position, told):
    """No point is farther than NaN: the search would reach the finish."""
    reward = TrajectoryReward(STRAIGHT, TrajectoryRewardSettings())
    reward.step((0.5, 0.0))
    with pytest.raises(ValueError, match=told):
        reward.step_of_info({"position": position})
    assert reward.index == 5 and reward.end == ""


def ring(metres, beyond):
    """A circle from (0, 0) along x, driven so many metres beyond its start."""
    along = np.arange(0.0, metres + beyond + 0.05, 0.1)
    radius = metres / 2 / np.pi
    return radius * np.stack([np.sin(along / radius), 1.0 - np.cos(along / radius)], axis=1)


@pytest.mark.parametrize("beyond", [-0.5, 3.0])
def test_the_search_ahead_does_not_go_from_the_start_of_a_closed_lap_to_its_finish(tmp_path, beyond):
    points = ring(40.0, beyond)
    places = [(-0.3, 0.0), *points[::5]]
    rewards, _, end = follow(points, places)
    assert len(rewards) <= 8 and sum(rewards) > 100.0 and end == FINISHED, "that is why"
    env = with_trajectory_reward(Walker(), file_of(tmp_path, points))
    assert isinstance(env, TrajectoryRewardEnvironment)
    check_forward = env.trajectory._settings.check_forward
    assert 190 <= check_forward < 200
    rewards, indices, end = follow(points, places, check_forward=check_forward)
    assert indices[:3] == [0, 0, 5] and end == FINISHED and len(rewards) == len(places)
    assert sum(rewards) == pytest.approx(100.0 + (len(points) - 1) / 100)


def test_a_device_within_a_wrapper_that_forwards_attributes_gets_the_reward(tmp_path):
    clock = VirtualClock()
    wrapper = Forwarding(RealTimeEnvironment(Driven(clock), 0.05, clock=clock))
    assert with_trajectory_reward(wrapper, file_of(tmp_path)) is wrapper
    wrapper.reset()
    assert wrapper.step([0.0, 0.0])[1] == pytest.approx(0.025, abs=0.006), "not the device's own, 1"
    assert "interface" not in vars(wrapper)


# The file.

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


def test_files_that_are_none_are_refused(tmp_path):
    for name, data in (("a.npz", b"no zip"), ("b.npz", b""), ("reward.pkl", b"")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=f"{name} can't be read"):
            read_points(str(tmp_path / name))
    np.savez(tmp_path / "other.npz", something=np.zeros(3))
    with pytest.raises(UserError, match="can't be read"):
        read_points(str(tmp_path / "other.npz"))
    for points in (np.array([["a", "b"]]), np.zeros((5, 4)), np.zeros((1, 3)), np.full((5, 3), np.nan), np.zeros(7)):
        np.savez(tmp_path / "other.npz", points=points)
        with pytest.raises(UserError, match="record it with"):
            read_points(str(tmp_path / "other.npz"))


def test_without_the_key_an_environment_stays_as_it_is(tmp_path):
    env = gymnasium.Env()
    assert with_trajectory_reward(env, {}) is env
    with pytest.raises(UserError, match="trajectory_reward has no file: add "):
        with_trajectory_reward(env, {"trajectory_reward": {}})
