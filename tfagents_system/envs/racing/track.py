"""Closed race tracks drawn from a number, for training and held out for evaluations.

Runs under SAC_ENV_PYTHON as well: NumPy and Gymnasium are needed, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

ZONE_METRES = 0.5
CLOSED = "closed"  # The beginning of their names.
TRAIN, HELD_OUT = "train", "held_out"

_SPLITS = {TRAIN: 0, HELD_OUT: 1}
_VERGE_METRES = 3.0  # Grass between two stretches of road, at least.
_SMALLEST_INNER_RADIUS = 2.0  # metres, of the inner edge of a bend
_MOST_ATTEMPTS = 1000


@dataclasses.dataclass(frozen=True)
class Track:
    """A road of constant width along a closed line of zones: the finish is the start.

    Attributes:
      name: `closed/train/3`.
      width: metres, from edge to edge.
      spacing: metres between two zones, about ZONE_METRES.
      centres: Centres of the zones in the order in which they are passed, `[n, 2]` float64, metres.
      directions: Unit vectors along the road at the centres, `[n, 2]`.
      curvatures: 1 / metres at the centres, positive to the left, `[n]`.
    """

    name: str
    width: float
    spacing: float
    centres: np.ndarray
    directions: np.ndarray
    curvatures: np.ndarray

    @property
    def finish(self) -> int:
        """The zone, counted from 0 at the start, whose line is the finish: that of zone 0 again."""
        return len(self.centres)

    @property
    def metres(self) -> float:
        """From start to finish."""
        return self.finish * self.spacing

    def index(self, zone: int) -> int:
        """The row of a zone; zones beyond the end are the first ones again."""
        return zone % len(self.centres)

    def start(self) -> tuple[float, float, float]:
        """X and y in metres and heading in radians of a car at the start."""
        (x, y), (dx, dy) = self.centres[0].tolist(), self.directions[0].tolist()
        return x, y, math.atan2(dy, dx)


def make_track(split: str, number: int, width: float) -> Track:
    """Draws a track. It never crosses itself, and its bends and verges are wide enough for its width.

    Args:
      split: TRAIN or HELD_OUT; no track of one is a track of the other.
      number: From 0; each is another track.
      width: metres.
    """
    for attempt in range(_MOST_ATTEMPTS):
        rng = np.random.default_rng([0, _SPLITS[split], number, attempt])
        line = _closed_line(rng, width)
        if _fits(line, width):
            return track_along(line, width, name=f"{CLOSED}/{split}/{number}")
    raise RuntimeError(f"no track of width {width} in {_MOST_ATTEMPTS} attempts")


def track_along(line: np.ndarray, width: float, *, name: str) -> Track:
    """The track along a line `[n, 2]` of points ZONE_METRES apart, which does not repeat its first point."""
    spacing = float(np.mean(np.linalg.norm(np.diff(line, axis=0, append=line[:1]), axis=1)))
    directions = _directions(line)
    return Track(name, width, spacing, line, directions, _curvatures(directions, spacing))


def _closed_line(rng: np.random.Generator, width: float) -> np.ndarray:
    """A loop through points at random radii around a centre, smoothed, from the middle of its straightest part."""
    corners = int(rng.integers(10, 16))
    angles = 2.0 * np.pi * (np.arange(corners) + rng.uniform(-0.3, 0.3, corners)) / corners
    radii = rng.uniform(60.0, 90.0) * rng.uniform(0.35, 1.0, corners)
    points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    if rng.random() < 0.5:
        points = points[::-1]
    line = _resampled(np.concatenate([points, points[:1]]), ZONE_METRES)[:-1]
    line = _resampled(_smoothed_loop(line, sigma_metres=0.75 * width), ZONE_METRES)[:-1]
    turning = np.abs(_curvatures(_directions(line), ZONE_METRES))
    window = round(40.0 / ZONE_METRES)
    around = np.convolve(np.concatenate([turning, turning[: window - 1]]), np.ones(window), "valid")
    return np.roll(line, -(int(np.argmin(around)) + window // 4), axis=0)


def _smoothed_loop(line: np.ndarray, sigma_metres: float) -> np.ndarray:
    """A closed line under a Gaussian, with its first point repeated at its end."""
    reach = round(4.0 * sigma_metres / ZONE_METRES)
    offsets = np.arange(-reach, reach + 1) * ZONE_METRES
    kernel = np.exp(-0.5 * (offsets / sigma_metres) ** 2)
    kernel /= kernel.sum()
    padded = np.concatenate([line[-reach:], line, line[:reach]])
    smooth = np.stack([np.convolve(padded[:, axis], kernel, "valid") for axis in range(2)], axis=1)
    return np.concatenate([smooth, smooth[:1]])


def _fits(line: np.ndarray, width: float) -> bool:
    """Whether no bend is too tight and no two stretches of the road come too near to each other."""
    radius = width / 2.0 + _SMALLEST_INNER_RADIUS
    track = track_along(line, width, name="")
    if np.abs(track.curvatures).max() > 1.0 / radius:
        return False
    points = track.centres[::4]
    apart = np.abs(np.subtract.outer(np.arange(len(points)), np.arange(len(points)))) * 4 * ZONE_METRES
    apart = np.minimum(apart, len(track.centres) * ZONE_METRES - apart)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    # The ends of the tightest U-turn are further apart than a road and a verge.
    return bool(distances[apart > np.pi * radius].min(initial=np.inf) > width + _VERGE_METRES)


def _resampled(points: np.ndarray, spacing: float) -> np.ndarray:
    """Points at equal distances along a polyline, about `spacing` apart, from its first to its last point."""
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
    places = np.linspace(0.0, along[-1], round(along[-1] / spacing) + 1)
    return np.stack([np.interp(places, along, points[:, axis]) for axis in range(points.shape[1])], axis=1)


def _directions(line: np.ndarray) -> np.ndarray:
    """Unit vectors from the point before to the point behind."""
    across = np.roll(line, -1, axis=0) - np.roll(line, 1, axis=0)
    return across / np.linalg.norm(across, axis=1, keepdims=True)


def _curvatures(directions: np.ndarray, spacing: float) -> np.ndarray:
    ahead = np.roll(directions, -1, axis=0)
    turns = directions[:, 0] * ahead[:, 1] - directions[:, 1] * ahead[:, 0]
    return np.arcsin(np.clip(turns, -1.0, 1.0)) / spacing
