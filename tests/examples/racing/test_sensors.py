"""Rays and pictures, where they can be computed by hand."""

import dataclasses
import math

import numpy as np
import pytest

from tfagents_system.examples.racing import sensors
from tfagents_system.examples.racing.car import CarState
from tfagents_system.examples.racing.track import HELD_OUT, PALETTE, TRAIN, Track, TrackMap, make_track

WIDTH = 8.0


def straight(angle=0.0):
    direction = np.array([(math.cos(angle), math.sin(angle))])
    along = np.arange(0.0, 300.0, 0.5)[:, None]
    return Track("straight", WIDTH, 0.5, along * direction, np.repeat(direction, 600, axis=0), np.zeros(600))


@pytest.fixture(scope="module")
def corridor():
    return TrackMap(straight())


@pytest.mark.parametrize("shift", [0.0, 1.5, -2.5])
def test_rays_of_a_straight_road(corridor, shift):
    """The edges are at y = 4 and y = -4: a ray at an angle t is as long as the way there over sin t."""
    found = sensors.lidar(corridor, CarState(100.0, shift, 0.0))
    sines = np.sin(np.radians(sensors.RAY_DEGREES))
    with np.errstate(divide="ignore"):
        expected = np.minimum(60.0, np.where(sines > 0, 4.0 - shift, 4.0 + shift) / np.abs(sines))
    assert found.dtype == np.float32 and found.shape == (19,)
    assert found == pytest.approx(expected, abs=0.15, rel=0.01)
    assert (np.diff(sensors.RAY_DEGREES) == -10.0).all() and found[9] == 60.0


def test_rays_turn_with_the_car(corridor):
    found = sensors.lidar(corridor, CarState(100.0, 0.0, math.radians(30)))
    assert found[9] == pytest.approx(4.0 / math.sin(math.radians(30)), abs=0.1)
    assert found[12] == pytest.approx(60.0), "30 degrees to its right it looks along the road"


def test_off_the_road_all_rays_are_zero(corridor):
    assert not sensors.lidar(corridor, CarState(100.0, 4.5, 0.0)).any()
    assert not sensors.lidar(corridor, CarState(100.0, 500.0, 0.0)).any()


def test_rays_on_drawn_tracks_end_at_the_edge():
    """The exact distance to the middle of the road is at most half a width up to a ray's end, and that at its end."""
    for number, split in ((0, TRAIN), (1, HELD_OUT)):
        track = make_track(split, number, WIDTH)
        track_map = TrackMap(track)
        for zone in range(0, len(track.centres), 150):
            (x, y), (dx, dy) = track.centres[zone] + 1.0, track.directions[zone]
            heading = math.atan2(dy, dx) + 0.3
            found = sensors.lidar(track_map, CarState(x, y, heading))
            for ray in range(0, 19, 3):
                angle = heading + math.radians(sensors.RAY_DEGREES[ray])
                places = np.linspace(0.0, found[ray], 50)
                points = np.stack([x + places * math.cos(angle), y + places * math.sin(angle)], axis=1)
                distance = distance_to(points, track.centres, np.roll(track.centres, -1, axis=0))
                assert distance.max() < WIDTH / 2 + 0.12
                assert distance[-1] > WIDTH / 2 - 0.12 or found[ray] == 60.0


def distance_to(points, starts, ends):
    along = ends - starts
    offsets = points[:, None] - starts[None]
    share = np.clip((offsets * along).sum(-1) / (along**2).sum(-1), 0.0, 1.0)
    return np.linalg.norm(offsets - share[..., None] * along, axis=-1).min(axis=1)


def test_the_picture_shows_the_road_where_it_is(corridor):
    picture = sensors.Camera(3).observe(corridor, CarState(100.0, 0.0, 0.0))
    assert picture.shape == (64, 64, 3) and picture.dtype == np.uint8
    is_grass = (picture[..., None, :] == PALETTE[:2]).all(-1).any(-1)
    beside = (31.5 - np.arange(64)) * 0.75
    assert (is_grass == (np.abs(beside) > 4.4)[None]).mean() > 0.97
    car = (picture == (40, 80, 220)).all(-1)
    assert car[54:59, 31:33].any() and not car[:50].any()
    right_of_middle = sensors.Camera(3).observe(corridor, CarState(100.0, -3.0, 0.0))
    assert (right_of_middle[10] != picture[10]).any(), "the road is further to the left"
    assert is_grass[10].argmin() > (right_of_middle[10, :, None] == PALETTE[:2]).all(-1).any(-1).argmin()


def test_the_picture_turns_with_the_car():
    """The same view of the same road in another direction of the world, up to its rounding to cells."""
    views = []
    for angle in (0.0, math.pi / 2):
        x, y = 100.0 * math.cos(angle), 100.0 * math.sin(angle)
        picture = sensors.Camera(3).observe(TrackMap(straight(angle)), CarState(x, y, angle))
        views.append((picture[..., None, :] == PALETTE[:2]).all(-1).any(-1))
    assert (views[0] == views[1]).mean() > 0.97


def test_one_channel_is_the_luminance_of_three(corridor):
    state = CarState(100.0, 1.0, 0.4)
    grey, colour = (sensors.Camera(channels).observe(corridor, state) for channels in (1, 3))
    assert grey.shape == (64, 64, 1)
    assert np.abs(grey[..., 0] - colour @ np.array((0.299, 0.587, 0.114))).max() <= 1.0


def test_one_channel_tells_the_road_from_grass(corridor):
    grey = sensors.Camera(1).observe(corridor, CarState(100.0, 0.0, 0.0))[:50, :, 0].astype(int)
    beside = np.abs((31.5 - np.arange(64)) * 0.75)
    road, grass = grey[:, beside < 3.0], grey[:, beside > 5.5]
    assert grass.min() - road.max() > 2 * max(np.ptp(road), np.ptp(grass))


def test_the_finish_is_ahead_in_the_picture():
    track = straight()
    track = dataclasses.replace(track, centres=np.roll(track.centres, -300, axis=0))  # It is at 150 m.
    picture = sensors.Camera(3).observe(TrackMap(track), CarState(130.0, 0.0, 0.0))
    rows = np.flatnonzero((picture == PALETTE[5]).all(-1).any(axis=1))
    assert ((56 - rows) * 0.75) == pytest.approx(np.full(len(rows), 20.0), abs=1.5) and len(rows)
