"""Files with a recorded trajectory: our reward.npz, and TMRL's reward.pkl, of which nothing is run."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.envs.reward_places import KEPT, RECORD
from tfagents_system.errors import UserError

SPACING_METRES = 0.1
MIN_METRES, MAX_GAP_METRES = 20.0, 1.0
_POINTS, _ABOUT = "points", "about"
_MAX_BYTES = 200 * 2**20
# All that a pickled array of numbers consists of: constructors of NumPy, which run no code of the file's.
_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    *(
        (f"numpy.{core}.{module}", name)
        for core in ("core", "_core")
        for module, name in (("multiarray", "_reconstruct"), ("numeric", "_frombuffer"))
    ),
}


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
    if not _is_npz(path):
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file[_ABOUT])) if _ABOUT in file else None
    except Exception:  # As in read_points.
        return None
    return about.get("track") if isinstance(about, dict) else None


def read_points(path: Path) -> np.ndarray:
    """The points of a reward.npz, or of a reward.pkl of TMRL, `[n, 2]` or `[n, 3]` float64.

    Raises:
      UserError: It is neither, or has fewer than two points, or NaN.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES // 2**20} MB")
        points = _points_of_npz(path) if _is_npz(path) else _unpickled(path.read_bytes())
    except pickle.UnpicklingError as error:
        raise UserError(f"the reward file {path} is no array of numbers ({error}): {RECORD}") from None
    except Exception as error:  # Of zipfile, zlib, or tokenize: NumPy reads a header before the zip's checksum is seen.
        raise UserError(f"the reward file {path} can't be read ({error}): {RECORD}") from None
    found = f"an array {points.shape} of {points.dtype}"
    if points.dtype.kind not in "fiu" or points.ndim != 2 or points.shape[1] not in (2, 3) or len(points) < 2:
        raise UserError(f"the reward file {path} must hold points [n, 2] or [n, 3], found {found}: {RECORD}")
    points = points.astype(np.float64)
    if not np.isfinite(points).all():
        raise UserError(f"the reward file {path} has points that are not finite: {RECORD}")
    return points


def _is_npz(path: Path) -> bool:
    """Rather than a pickle: the name of a run's copy does not tell."""
    if path.name != KEPT:
        return path.suffix != ".pkl"
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _points_of_npz(path: Path) -> np.ndarray:
    with np.load(path, allow_pickle=False) as file:
        return file[_POINTS]


class _ArrayUnpickler(pickle.Unpickler):
    """Makes arrays of numbers, and refuses everything else that a pickle could call."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _latin1  # How protocols up to 2 write bytes.
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it contains {module}.{name}")
        return super().find_class(module.replace("numpy._core", "numpy.core"), name)


def _latin1(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("it contains text in another encoding")
    return text.encode("latin1")


def _unpickled(data: bytes) -> np.ndarray:
    found = _ArrayUnpickler(io.BytesIO(data)).load()
    if type(found) is not np.ndarray:
        raise pickle.UnpicklingError(f"it is a {type(found).__name__}")
    return found
