"""Tracks never cross themselves, are drawn from their number, and differ between training and evaluations."""

import numpy as np
import pytest

from tfagents_system.examples.racing.track import HELD_OUT, TRAIN, ZONE_METRES, make_track, track_along

WIDTH = 8.0


def crossings(line):
    """How many pairs of the line's segments, not neighbours, cross each other."""
    starts, ends = line, np.roll(line, -1, axis=0)
    along = ends - starts

    def side(a, b, c):
        return (b[:, 0] - a[:, 0]) * (c[:, 1] - a[:, 1]) - (b[:, 1] - a[:, 1]) * (c[:, 0] - a[:, 0])

    rows, columns = np.triu_indices(len(along), 2)
    keep = (columns - rows) < len(along) - 1
    a, b, c, d = starts[rows[keep]], ends[rows[keep]], starts[columns[keep]], ends[columns[keep]]
    return int(np.sum((side(a, b, c) * side(a, b, d) < 0) & (side(c, d, a) * side(c, d, b) < 0)))


@pytest.mark.parametrize("split", [TRAIN, HELD_OUT])
def test_neither_the_middle_nor_the_edges_of_a_road_cross(split):
    for number in range(6):
        track = make_track(split, number, WIDTH)
        normals = np.stack([-track.directions[:, 1], track.directions[:, 0]], axis=1)
        for beside in (-WIDTH / 2, 0.0, WIDTH / 2):
            assert crossings(track.centres[::2] + beside * normals[::2]) == 0, (track.name, beside)


@pytest.mark.parametrize("split", [TRAIN, HELD_OUT])
def test_zones_are_half_a_metre_apart_along_the_directions(split):
    track = make_track(split, 3, WIDTH)
    steps = np.diff(track.centres, axis=0, append=track.centres[:1])
    lengths = np.linalg.norm(steps, axis=1)
    assert abs(track.spacing - ZONE_METRES) < 0.01 and np.abs(lengths - track.spacing).max() < 0.02
    cosines = (steps * track.directions).sum(axis=1) / lengths
    assert cosines.min() > 0.99
    assert np.abs(track.curvatures).max() <= 1.0 / (WIDTH / 2 + 2.0)
    assert 200.0 < track.metres < 700.0


def test_the_finish_is_the_start_again():
    track = make_track(TRAIN, 0, WIDTH)
    assert track.finish == len(track.centres) and track.index(track.finish) == 0


def test_a_number_is_a_track_and_training_has_none_of_the_others():
    tracks = [make_track(split, number, WIDTH).centres for split in (TRAIN, HELD_OUT) for number in range(5)]
    assert np.array_equal(tracks[2], make_track(TRAIN, 2, WIDTH).centres)
    assert len({track.tobytes() for track in tracks}) == 10


def test_curvature_is_positive_to_the_left():
    angles = np.linspace(0.0, 2 * np.pi, 251, endpoint=False)  # Half a metre apart.
    circle = np.stack([20.0 * np.sin(angles), 20.0 - 20.0 * np.cos(angles)], axis=1)
    track = track_along(circle, WIDTH, name="left")
    assert track.curvatures[5:-5] == pytest.approx(1 / 20.0, rel=1e-3)
    x, y, heading = track.start()
    assert (x, y) == (0.0, 0.0) and abs(heading) < 0.02
