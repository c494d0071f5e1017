"""The rules of the reward from a trajectory, by walks that are computed by hand, and against TMRL's loops."""

import gymnasium
import numpy as np
import pytest

from tests.support.devices_for_tests import DummyDevice
from tests.support.trajectory_walks import follow
from tfagents_system.envs.clocks import VirtualClock
from tfagents_system.envs.real_time import RealTimeEnvironment
from tfagents_system.envs.reward_files import write_points
from tfagents_system.envs.trajectory_reward import (
    FINISHED,
    NO_PROGRESS,
    STRAYED,
    TrajectoryReward,
    TrajectoryRewardEnvironment,
    TrajectoryRewardSettings,
    with_trajectory_reward,
)
from tfagents_system.errors import UserError

STRAIGHT = np.stack([np.arange(101) * 0.1, np.zeros(101)], axis=1)  # 10 m along x


def test_progress_is_a_hundredth_for_each_point():
    rewards, indices, end = follow(STRAIGHT, [(0.5, 1.0), (0.5, 1.0), (2.0, -1.0)])
    assert rewards == pytest.approx([0.05, 0.0, 0.15]) and indices == [5, 5, 20] and end == ""


def test_the_penalty_is_in_every_step_and_the_finish_ends():
    rewards, indices, end = follow(
        STRAIGHT, [(0.5, 0.0), (0.5, 0.0), (99.0, 0.0)], constant_penalty=-0.3, max_stray=200.0
    )
    assert rewards == pytest.approx([-0.25, -0.3, 0.95 - 0.3 + 100.0]) and indices[-1] == 100 and end == FINISHED


def test_equal_distances_ahead_take_the_later_point():
    points = np.stack([np.arange(30.0), np.zeros(30)], axis=1)
    assert follow(points, [(0.5, 0.0), (1.5, 0.0)])[1] == [1, 2]


def test_equal_distances_behind_take_the_earlier_point():
    points = np.stack([np.arange(30.0), np.zeros(30)], axis=1)
    assert follow(points, [(9.0, 0.0), (4.5, 0.0)])[1] == [9, 4]


HAIRPIN = np.concatenate([STRAIGHT, STRAIGHT[::-1] + (0.0, 2.0)])  # 10 m there, 10 m back, 2 m beside


@pytest.mark.parametrize(("patience", "index"), [(150, 171), (100, 30)])
def test_a_cut_pays_as_far_as_the_search_ahead_goes(patience, index):
    """At x = 3 the way back, 2 m beside, is 141 points further."""
    rewards, indices, _ = follow(HAIRPIN, [(3.0, 0.0), (3.0, 1.9)], check_forward=patience)
    assert indices == [30, index] and rewards == pytest.approx([0.3, (index - 30) / 100])


def test_an_improvement_renews_the_patience():
    """Points come nearer, go away and come nearer again: each search goes on from the nearest."""
    x = np.concatenate([np.arange(0, 10), np.arange(10, 5, -1), np.arange(5, 30)]).astype(float)
    points = np.stack([x, np.zeros(len(x))], axis=1)
    assert follow(points, [(25.0, 0.0)], check_forward=12, max_stray=50.0)[1] == [35]
    assert follow(points, [(25.0, 0.0)], check_forward=8, max_stray=50.0)[1] == [10]


def test_the_nearest_counts_as_one_of_the_points_without_improvement():
    """As in TMRL: with a patience of n, n - 1 points behind the nearest are looked at."""
    x = np.array([0.0, 5.0, 6.0, 0.5, 7.0])
    points = np.stack([x, np.zeros(5)], axis=1)
    walk = [(0.4, 0.0)]
    assert follow(points, walk, check_forward=3)[1] == [0] and follow(points, walk, check_forward=4)[1] == [3]


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
    for trial in range(60):
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
    env = TrajectoryRewardEnvironment(Walker(), STRAIGHT, TrajectoryRewardSettings(end_of_track=5.0))
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


def file_of(folder, about):
    path = folder / "reward.npz"
    write_points(path, np.concatenate([STRAIGHT, STRAIGHT + (10.1, 0.0)]), about)
    return {"trajectory_reward": {"file": str(path), "min_steps": 0, "failure_countdown": 1, "end_of_track": 7.0}}


@pytest.mark.parametrize("ends_by", ["standing", "finish"])
def test_a_device_knows_of_the_trajectorys_end_before_anything_is_sent(tmp_path, ends_by):
    """It waits then, and the time of its next reset is no time step's."""
    clock = VirtualClock()
    device = Driven(clock, reset_secs=2.0)
    env = RealTimeEnvironment(device, 0.05, wait_on_done=True, clock=clock)
    assert with_trajectory_reward(env, file_of(tmp_path, {})) is env
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


def test_a_device_of_another_track_is_refused_and_closed(tmp_path):
    clock, closed = VirtualClock(), []
    device = Driven(clock)
    device.close = lambda: closed.append(1)
    env = RealTimeEnvironment(device, 0.05, clock=clock)
    with pytest.raises(UserError, match="was recorded on closed/train/4, but the environment has closed/train/3"):
        with_trajectory_reward(env, file_of(tmp_path, {"track": "closed/train/4"}))
    assert closed == [1] and device.log == [], "nobody has driven it"


def test_a_device_of_rtgym_gets_the_reward_too(tmp_path):
    real_time_env = pytest.importorskip("rtgym.envs.real_time_env")
    config = {**real_time_env.DEFAULT_CONFIG_DICT, "interface": Driven, "time_step_duration": 0.02}
    env = real_time_env.RealTimeEnv({**config, "start_obs_capture": 0.02, "act_in_obs": False})
    with_trajectory_reward(env, file_of(tmp_path, {}))
    env.reset()
    _, reward, terminated, _, info = env.step(np.zeros(2, np.float32))
    assert reward == pytest.approx(0.025, abs=0.006) and not terminated and info["end"] == ""


class OwnDevice(gymnasium.Env):
    """Acts in real time; what it has as `interface` is its own."""

    real_time = True
    interface = "/dev/ttyUSB0"

    def reset(self, *, seed=None, options=None):
        return np.zeros(1), {}

    def step(self, action):
        return np.zeros(1), 0.0, False, False, {"position": (0.5, 0.0)}


def test_a_users_own_device_gets_the_reward_whatever_its_interface_is(tmp_path):
    env = with_trajectory_reward(OwnDevice(), file_of(tmp_path, {}))
    env.reset()
    assert env.step(np.zeros(2))[1] == pytest.approx(0.05) and env.unwrapped.interface == "/dev/ttyUSB0"


class OwnPosition(gymnasium.Wrapper):
    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, "position": (0.5, 0.0)}


def test_a_position_that_the_devices_own_info_lacks_is_told(tmp_path):
    clock = VirtualClock()
    env = OwnPosition(RealTimeEnvironment(DummyDevice(clock), 0.05, clock=clock))
    env = with_trajectory_reward(env, file_of(tmp_path, {}))
    env.reset()
    with pytest.raises(UserError, match='has no "position".*get_obs_rew_terminated_info'):
        env.step(np.zeros(2, np.float32))


def test_wrong_settings_are_told():
    with pytest.raises(UserError) as raised:
        TrajectoryRewardSettings.of({"file": "", "chek_forward": 3, "max_stray": 0, "regain": 1, "min_steps": -1})
    findings = "\n".join(raised.value.findings)
    for part in (
        "trajectory_reward.chek_forward is not known: check_forward is meant",
        "trajectory_reward.file must be the path of a reward.npz",
        "trajectory_reward.max_stray must be a number above 0",
        "trajectory_reward.regain must be True or False",
        "trajectory_reward.min_steps must be an integer of at least 0",
    ):
        assert part in findings, findings
