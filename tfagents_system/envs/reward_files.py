"""reward.npz: a recorded trajectory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.envs.reward_places import RECORD
from tfagents_system.errors import UserError

SPACING_METRES = 0.1
MIN_METRES, MAX_GAP_METRES = 20.0, 1.0
_POINTS, _ABOUT = "points", "about"
_MAX_BYTES = 200 * 2**20


def polyline(positions: np.ndarray) -> np.ndarray:
    """The points of a trajectory, SPACING_METRES apart.

    Args:
      positions: Of a whole lap, one a step, `[n, 2]` or `[n, 3]`, metres.

    Raises:
      UserError: It has NaN, gaps above MAX_GAP_METRES, or is shorter than MIN_METRES.
    """
    positions = np.asarray(positions, np.float64)
    if positions.ndim != 2 or positions.shape[1] not in (2, 3) or len(positions) < 2:
        raise UserError(f"a trajectory is many points [x, y] or [x, y, z], found an array {positions.shape}")
    if not np.isfinite(positions).all():
        step = int(np.argmin(np.isfinite(positions).all(axis=1)))
        raise UserError(f"the position of step {step} is not finite ({positions[step]}): correct the environment")
    lengths = np.linalg.norm(np.diff(positions, axis=0), axis=1)
    along = np.concatenate([[0.0], np.cumsum(lengths)])
    if lengths.max() > MAX_GAP_METRES:
        step = int(lengths.argmax())
        raise UserError(
            f"the trajectory has a gap of {lengths.max():.2f} m behind step {step}, at most {MAX_GAP_METRES:g} m is "
            "allowed: drive slower, or have the position measured more often"
        )
    if along[-1] < MIN_METRES:
        raise UserError(f"the lap is {along[-1]:.1f} m long, at least {MIN_METRES:g} m is needed: drive a whole lap")
    moved = np.concatenate([[True], lengths > 0.0])
    places = np.linspace(0.0, along[-1], round(along[-1] / SPACING_METRES) + 1)
    return np.stack([np.interp(places, along[moved], axis[moved]) for axis in positions.T], axis=1)


def point_of_return(points: np.ndarray) -> int | None:
    """The first point that is back at the first one, within a gap that a trajectory may have; None: there is none.

    Args:
      points: See `polyline`; those of the first half of MIN_METRES are the start itself.
    """
    first = round(MIN_METRES / 2 / SPACING_METRES)
    is_back = np.linalg.norm(points[first:] - points[0], axis=1) <= MAX_GAP_METRES
    return first + int(is_back.argmax()) if is_back.any() else None


def write_points(path: Path, points: np.ndarray, about: Mapping[str, Any]) -> None:
    """Writes reward.npz: the points and where they came from, complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.npz")
    try:
        np.savez_compressed(temporary, **{_POINTS: points, _ABOUT: np.array(json.dumps(about))})
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def recorded_track(path: Path) -> str | None:
    """The track on which a reward.npz was recorded, after `read_points`; None if it does not say."""
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file[_ABOUT])) if _ABOUT in file else None
    except Exception:  # As in read_points.
        return None
    return about.get("track") if isinstance(about, dict) else None


def read_points(path: Path) -> np.ndarray:
    """The points of a reward.npz, `[n, 2]` or `[n, 3]` float64.

    Raises:
      UserError: It is none, or has fewer than two points, or NaN.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES // 2**20} MB")
        with np.load(path, allow_pickle=False) as file:
            points = file[_POINTS]
    except Exception as error:  # Of zipfile, zlib, or tokenize: NumPy reads a header before the zip's checksum is seen.
        raise UserError(f"the reward file {path} can't be read ({error}): {RECORD}") from None
    found = f"an array {points.shape} of {points.dtype}"
    if points.dtype.kind not in "fiu" or points.ndim != 2 or points.shape[1] not in (2, 3) or len(points) < 2:
        raise UserError(f"the reward file {path} must hold points [n, 2] or [n, 3], found {found}: {RECORD}")
    points = points.astype(np.float64)
    if not np.isfinite(points).all():
        raise UserError(f"the reward file {path} has points that are not finite: {RECORD}")
    return points
