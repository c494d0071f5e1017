"""Tracks never cross themselves, are drawn from their number, and differ between training and evaluations."""

import numpy as np
import pytest

from tfagents_system.envs.racing.track import (
    CLOSED,
    HELD_OUT,
    POINT_TO_POINT,
    TRAIN,
    ZONE_METRES,
    make_track,
    track_along,
)

WIDTH = 8.0
ALL = [(kind, split) for kind in (CLOSED, POINT_TO_POINT) for split in (TRAIN, HELD_OUT)]


def crossings(line, is_closed):
    """How many pairs of the line's segments, not neighbours, cross each other."""
    ends = np.roll(line, -1, axis=0) if is_closed else line[1:]
    starts = line if is_closed else line[:-1]
    along = ends - starts

    def side(a, b, c):
        return (b[:, 0] - a[:, 0]) * (c[:, 1] - a[:, 1]) - (b[:, 1] - a[:, 1]) * (c[:, 0] - a[:, 0])

    rows, columns = np.triu_indices(len(along), 2)
    if is_closed:
        keep = (columns - rows) < len(along) - 1
        rows, columns = rows[keep], columns[keep]
    a, b, c, d = starts[rows], ends[rows], starts[columns], ends[columns]
    return int(np.sum((side(a, b, c) * side(a, b, d) < 0) & (side(c, d, a) * side(c, d, b) < 0)))


@pytest.mark.parametrize(("kind", "split"), ALL)
def test_neither_the_middle_nor_the_edges_of_a_road_cross(kind, split):
    for number in range(6):
        track = make_track(kind, split, number, WIDTH)
        normals = np.stack([-track.directions[:, 1], track.directions[:, 0]], axis=1)
        for beside in (-WIDTH / 2, 0.0, WIDTH / 2):
            assert crossings(track.centres[::2] + beside * normals[::2], track.is_closed) == 0, (track.name, beside)


@pytest.mark.parametrize(("kind", "split"), ALL)
def test_zones_are_half_a_metre_apart_along_the_directions(kind, split):
    track = make_track(kind, split, 3, WIDTH)
    line = np.concatenate([track.centres, track.centres[:1]]) if track.is_closed else track.centres
    steps = np.diff(line, axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    assert abs(track.spacing - ZONE_METRES) < 0.01 and np.abs(lengths - track.spacing).max() < 0.02
    cosines = (steps * track.directions[: len(steps)]).sum(axis=1) / lengths
    assert cosines.min() > 0.99
    assert np.abs(track.curvatures).max() <= 1.0 / (WIDTH / 2 + 2.0)
    assert 200.0 < track.metres < 700.0


def test_finish_and_rows_of_zones():
    closed, open_ = (make_track(kind, TRAIN, 0, WIDTH) for kind in (CLOSED, POINT_TO_POINT))
    assert closed.finish == len(closed.centres) and closed.index(closed.finish) == 0
    assert open_.finish == len(open_.centres) - 1 and open_.index(open_.finish + 9) == open_.finish
    behind = open_.road[-1] - open_.centres[-1]
    assert 20.0 < behind @ open_.directions[-1] < 25.0, "the road goes on behind the finish"


def test_a_number_is_a_track_and_training_has_none_of_the_others():
    kinds = {}
    for kind, split in ALL:
        tracks = [make_track(kind, split, number, WIDTH).centres for number in range(5)]
        assert np.array_equal(tracks[2], make_track(kind, split, 2, WIDTH).centres)
        kinds |= {(kind, split, number): each.tobytes() for number, each in enumerate(tracks)}
    assert len(set(kinds.values())) == 20


def test_curvature_is_positive_to_the_left():
    angles = np.arange(0.0, np.pi, 0.5 / 20.0)
    half_circle = np.stack([20.0 * np.sin(angles), 20.0 - 20.0 * np.cos(angles)], axis=1)
    track = track_along(half_circle, WIDTH, is_closed=False, name="left")
    assert track.curvatures[5:-5] == pytest.approx(1 / 20.0, rel=1e-3)
    x, y, heading = track.start()
    assert (x, y) == (0.0, 0.0) and abs(heading) < 0.02
