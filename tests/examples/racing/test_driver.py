"""The driver finishes every track, at the grip's limit, and as a policy."""

import numpy as np
import pytest

from tfagents_system.errors import UserError
from tfagents_system.examples.racing.car import GRAVITY, CarParameters, CarState
from tfagents_system.examples.racing.driver import Expert, PurePursuit, speed_profile
from tfagents_system.examples.racing.environment import RacingEnvironment, RacingSettings
from tfagents_system.examples.racing.track import HELD_OUT, TRAIN, Track, make_track, track_along


@pytest.mark.parametrize(("split", "friction"), [(TRAIN, 0.8), (HELD_OUT, 1.0), (HELD_OUT, 1.3)])
def test_it_finishes_all_tracks(split, friction):
    settings = RacingSettings.of({"racing": {"observations": ["motion"], "train_tracks": 8, "held_out_tracks": 8}})
    env = RacingEnvironment(settings, split)
    env.set_state({"friction": friction})
    env.reset(seed=1)
    speeds = []
    for _ in range(8):
        is_over, info = False, {}
        while not is_over:
            _, _, is_over, _, info = env.step(env.driver_action())
        assert info["is_success"], (env.track.name, info)
        speeds.append(env.track.metres / info["lap_time"])
        env.reset()
    assert 10.0 < np.mean(speeds) < 18.0


def test_the_profile_keeps_within_the_grip():
    track = make_track(TRAIN, 2, 8.0)
    speeds = speed_profile(track, CarParameters())
    assert speeds.min() > 4.0
    changes = np.diff(speeds**2) / (2 * track.spacing)
    assert changes.max() <= 0.4 * GRAVITY + 1e-6 and changes.min() >= -0.6 * GRAVITY - 1e-6


def test_the_profile_of_a_circle_is_that_of_its_radius():
    angles = np.arange(0, 2 * np.pi, 0.5 / 30.0)
    circle = track_along(30.0 * np.stack([np.cos(angles), np.sin(angles)], 1), 8.0, name="circle")
    assert speed_profile(circle, CarParameters())[10:-10] == pytest.approx(np.sqrt(0.85 * GRAVITY * 30.0), rel=0.02)


def test_it_steers_towards_the_road_ahead():
    centres = np.arange(0, 100, 0.5)[:, None] * (1.0, 0.0)
    straight = Track("straight", 8.0, 0.5, centres, np.full((200, 2), (1.0, 0.0)), np.zeros(200))
    driver = PurePursuit(straight, CarParameters())
    assert driver.action(CarState(10.0, 2.0, 0.0, 5.0), 20)[2] > 0.1, "to the right"
    assert driver.action(CarState(10.0, -2.0, 0.0, 5.0), 20)[2] < -0.1
    assert driver.action(CarState(10.0, 0.0, 0.0, 0.0), 20) == pytest.approx([1.0, -1.0, 0.0])
    assert driver.action(CarState(10.0, 0.0, 0.0, 60.0), 20)[1] == 1.0


def test_the_expert_drives_the_environment_that_it_sees():
    settings = RacingSettings.of({"racing": {"observations": ["lidar"]}})
    unused, one, other = (RacingEnvironment(settings) for _ in range(3))
    one.reset(seed=1)
    other.reset(seed=2)
    expert = Expert(lambda: (unused, one, other))
    for env in (other, one, other):
        for _ in range(20):
            env.step(env.driver_action())
        assert np.array_equal(
            expert({"lidar": env.observation["lidar"].copy(), "action_history": 0}), env.driver_action()
        )
    with pytest.raises(UserError, match="unset SAC_ENV_PYTHON"):
        expert({"lidar": np.zeros(19, np.float32)})
