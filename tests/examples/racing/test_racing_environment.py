"""Zones, rewards, ends, snapshots, faults and settings of the racing environment."""

from pathlib import Path

import numpy as np
import pytest

from tfagents_system.errors import UserError
from tfagents_system.examples.racing.environment import (
    FINISHED,
    OFF_TRACK,
    STUCK,
    RacingEnvironment,
    RacingSettings,
)
from tfagents_system.examples.racing.track import HELD_OUT, TRAIN

ROOT = Path(__file__).resolve().parents[3]
GAS, NOTHING = np.array([1.0, -1.0, 0.0], np.float32), np.array([-1.0, -1.0, 0.0], np.float32)
ONE = "closed/train/1"


def build(split=TRAIN, **racing):
    env = RacingEnvironment(RacingSettings.of({"racing": {"observations": ["motion"], **racing}}), split)
    env.reset(seed=0)
    return env


def put(env, zone, beside=0.0, speed=0.0):
    """Puts the car into a zone; the counted zone stays as it is."""
    row = env.track.index(zone)
    (x, y), (dx, dy) = env.track.centres[row], env.track.directions[row]
    env.car = env.car._replace(
        x=x - dy * beside,
        y=y + dx * beside,
        heading=float(np.arctan2(dy, dx)),
        forward=speed,
        sideways=0.0,
        yaw_rate=0.0,
    )


def lap(env):
    rewards, info, is_over = [], {}, False
    while not is_over:
        _, reward, is_over, _, info = env.step(env.driver_action())
        rewards.append(reward)
    return rewards, info


def test_a_lap_pays_its_metres_and_the_finish():
    env = build(reward_per_metre=0.5, finish_reward=7.0)
    rewards, info = lap(env)
    assert info["end"] == FINISHED and info["is_success"] and info["zone"] == env.track.finish
    assert info["metres"] == pytest.approx(env.track.metres)
    assert sum(rewards) == pytest.approx(0.5 * env.track.metres + 7.0)
    assert (len(rewards) - 1) * 0.05 - 1e-9 <= info["lap_time"] <= len(rewards) * 0.05
    assert min(rewards) >= 0.0 and info["position"] == info["path"][-1]


def test_zones_count_in_their_order_alone():
    env = build(track=ONE)
    put(env, 10)
    _, reward, _, _, info = env.step(NOTHING)
    assert (info["zone"], info["metres"]) == (10, pytest.approx(10 * env.track.spacing, abs=0.01))
    put(env, 40)  # 15 m further, at once.
    assert env.step(NOTHING)[4]["zone"] == 10
    env.reset()
    put(env, env.track.finish // 2)  # Behind no line that is next: the road has turned round.
    _, reward, is_over, _, info = env.step(NOTHING)
    assert info["zone"] < 5 and reward < 3.0 and not is_over
    env.reset()
    put(env, env.track.finish - 3)  # A closed track's finish is no shortcut from its start backwards.
    _, _, is_over, _, info = env.step(NOTHING)
    assert info["zone"] == 0 and not is_over


def test_zones_far_beside_the_road_do_not_count():
    env = build(track=ONE, off_track_metres=None)
    put(env, 10, beside=7.0)
    assert env.step(NOTHING)[4]["zone"] == 0
    put(env, 10, beside=5.0)
    assert env.step(NOTHING)[4]["zone"] == 0, "zone 1 is further than 6 m from here"
    put(env, 1, beside=5.0)
    assert env.step(NOTHING)[4]["zone"] == 1


def test_the_way_back_and_forth_is_paid_once():
    env = build(track=ONE)
    total = 0.0
    for zone in (10, 4, 10, 4, 12):
        put(env, zone)
        total += env.step(NOTHING)[1]
    assert total == pytest.approx(12 * env.track.spacing, abs=0.01)


def test_ends():
    env = build(track=ONE, off_track_metres=1.5)
    put(env, 20, beside=5.2)
    assert env.step(NOTHING)[2:3] == (False,)
    put(env, 20, beside=-5.9)
    _, _, terminated, truncated, info = env.step(NOTHING)
    assert (terminated, truncated, info["end"], info["is_success"]) == (True, False, OFF_TRACK, False)
    env.reset()
    ends = [env.step(NOTHING)[4]["end"] for _ in range(100)]
    assert ends == [""] * 99 + [STUCK]
    free = build(track=ONE, off_track_metres=None, stuck_secs=None)
    put(free, 20, beside=50.0)
    assert not any(free.step(NOTHING)[2] for _ in range(120))


@pytest.mark.parametrize("beyond", [6.3, 6.35, 8.0, 40.0])
def test_leaving_the_road_ends_an_episode_however_far_that_may_be(beyond):
    env = build(track=ONE, off_track_metres=beyond)
    road, half_width = env.track.centres, env.track.width / 2.0
    outside = road.mean(axis=0) + [0.0, 300.0]  # No stretch of the road is nearer than the one above the middle.
    nearest = road[np.linalg.norm(road - outside, axis=1).argmin()]
    away = (outside - nearest) / np.linalg.norm(outside - nearest)
    for metres, is_over in ((beyond - 0.3, False), (beyond + 0.3, True), (beyond + 100.0, True)):
        env.reset()
        x, y = nearest + (half_width + metres) * away
        env.car = env.car._replace(x=float(x), y=float(y), forward=0.0)
        assert env.step(NOTHING)[4]["end"] == (OFF_TRACK if is_over else ""), metres


def test_grass_slows_down():
    env = build(track=ONE, off_track_metres=None)
    speeds = []
    for beside in (0.0, 6.0):
        put(env, 20, beside, speed=12.0)
        env.step(NOTHING)
        speeds.append(env.car.forward)
    assert speeds[0] - speeds[1] == pytest.approx(0.05 * (3.0 - 0.15), rel=0.01)


def test_training_draws_tracks_and_evaluations_take_them_in_turn():
    train = build(train_tracks=4)
    assert {(train.reset(), train.track.name)[1] for _ in range(40)} == {f"closed/train/{k}" for k in range(4)}
    held_out = build(HELD_OUT, held_out_tracks=3)
    names = [f"closed/held_out/{k}" for k in range(3)]
    assert held_out.track_names == names and held_out.track.name == names[0]
    assert [(held_out.reset(), held_out.track.name)[1] for _ in range(4)] == [names[1], names[2], names[0], names[1]]
    for number, seed in ((2, None), (0, 7), (4, 7), (4, None)):
        held_out.set_evaluation_episode(number)
        held_out.reset(seed=seed)
        assert held_out.track.name == names[number % 3]
    training, evaluation = build(held_out_tracks=2), {"evaluation": True}
    training.reset(seed=5)
    drawn = [(training.reset(), training.track.name)[1] for _ in range(4)]
    training.reset(seed=5)
    between = [
        (training.reset(options=evaluation), training.track.name, training.reset(), training.track.name)[1::2]
        for _ in range(4)
    ]
    assert [track for _, track in between] == drawn, "evaluations draw nothing"
    assert [track for track, _ in between] == 2 * ["closed/held_out/0", "closed/held_out/1"]
    training.reset(options={**evaluation, "episode": 3})
    assert training.track.name == "closed/held_out/1"
    assert build(HELD_OUT, track=ONE).track_names == [ONE]


def test_parameters_of_the_car():
    env = build(track=ONE)
    speeds = {}
    for name, state in {
        "plain": {},
        "heavy": {"mass": 4000.0},
        "weak": {"power": 5000.0},
        "icy": {"friction": 0.3},
    }.items():
        env.set_state({"mass": 800.0, "power": 60_000.0, "friction": 1.0})
        env.set_state(state)
        env.reset()
        for _ in range(20):
            env.step(GAS)
        speeds[name] = env.car.forward
    assert speeds["plain"] > speeds["heavy"] > speeds["weak"] and speeds["icy"] == pytest.approx(
        0.3 * 0.6 * 9.81, rel=0.1
    )
    with pytest.raises(UserError, match="no parameter 'colour': it knows mass, friction, power"):
        env.set_state({"colour": 1.0})
    with pytest.raises(UserError, match="friction of the car must be a number in"):
        env.set_state({"friction": 0.0})


@pytest.mark.parametrize("action", [[np.nan, 0.0, 0.0], [0.0, 0.0], [[0.0, 0.0, 0.0]]])
def test_actions_that_are_none(action):
    with pytest.raises((ValueError, TypeError)):
        build(track=ONE).step(np.array(action))


def test_observations_are_as_the_settings_say_and_within_their_spaces():
    env = build(observations=["camera", "lidar", "progress"], camera_channels=3)
    assert list(env.observation_space) == ["camera", "lidar", "progress"]
    for _ in range(60):
        observation, _, is_over, _, _ = env.step(env.driver_action())
        assert env.observation_space.contains(observation)
    assert 0.0 < observation["progress"][0] < 1.0
    _, info = lap(env)
    assert info["is_success"] and env.observation["progress"][0] == 1.0


def test_wrong_settings_are_told_all_at_once():
    with pytest.raises(UserError) as raised:
        RacingSettings.of(
            {"racing": {"observations": ["radar"], "train_track": 3, "width": 2, "track": "monza", "colour": 1}}
        )
    findings = "\n".join(raised.value.findings)
    for part in (
        "racing.train_track is not known: train_tracks is meant",
        "racing.colour is not known: there are observations, train_tracks",
        "racing.observations must be a list of some of lidar, motion",
        "racing.width must be a number in [5, 16], found 2",
        "racing.track must be a track's name, closed/SPLIT/NUMBER such as closed/train/3, where SPLIT is train or",
        "held_out, or None, found 'monza'",
    ):
        assert part in findings, findings
    with pytest.raises(UserError, match='"racing" must be an object'):
        RacingSettings.of({"racing": []})


def test_pictures_for_people_show_where_the_car_has_been():
    env = build(track=ONE)
    env.render_mode = "rgb_array"
    env.reset()
    first = env.render()
    for _ in range(80):
        env.step(env.driver_action())
    later = env.render()
    assert first.shape == later.shape == (512, 1024, 3) and later.dtype == np.uint8
    trail = (later[:, :512] == (250, 210, 40)).all(-1).sum()
    assert trail > 100 and not (first[:, :512] == (250, 210, 40)).all(-1).any()
    assert (later[:, 512:] == (250, 40, 40)).all(-1).sum() > 100, "where the rays end"
