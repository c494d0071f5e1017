"""Pictures of environments without a screen. playing/video.py makes videos of them.

Drawing runs under SAC_ENV_PYTHON as well: standard library and NumPy only, Python 3.9.
"""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tfagents_system.checks.findings import is_installed
from tfagents_system.envs.gym_driver import gym_layers
from tfagents_system.errors import UserError

_PROBE_DEADLINE_SECS = 60.0
_DEFAULT_FPS = 30.0
_MAX_FPS = 120.0
NO_VIDEO = "or do without: SAC_REPORT=0 for a run, --no-video for `sac play`"
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
_MUJOCO_FIX = (
    "MuJoCo finds neither EGL nor OSMesa to draw without a screen: `apt-get install libegl1` (or `libosmesa6`), "
    f"in a conda environment `conda install -c conda-forge libegl`, {NO_VIDEO}"
)


def prepare_headless() -> None:
    """Selects off-screen rendering unless already set. Call it before MuJoCo or pygame is imported."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # pygame's own import warns of this; a user can't fix it.
    warnings.filterwarnings("ignore", "pkg_resources is deprecated", module=r"pygame\b")
    if "MUJOCO_GL" not in os.environ and is_installed("mujoco"):
        backend = next((name for name in _LIBRARIES if _can_draw(name)), None)
        if backend:
            os.environ["MUJOCO_GL"] = backend


def _can_draw(backend: str) -> bool:
    """Whether MuJoCo really gets a context: a library without a driver is not enough."""
    if ctypes.util.find_library(_LIBRARIES[backend]) is None:
        return False
    probe = f"from mujoco.{backend} import GLContext; context = GLContext(64, 64); context.make_current()"
    try:
        process = subprocess.run(
            [sys.executable, "-c", probe],
            env={**os.environ, "MUJOCO_GL": backend},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_DEADLINE_SECS,
        )
    except subprocess.TimeoutExpired:
        return False
    return process.returncode == 0


def enable_frames(env: Any) -> None:
    """Makes a Gymnasium environment that was built without a render mode return pictures."""
    for layer in gym_layers(env):
        if getattr(layer, "render_mode", "none at all") is None:
            try:
                # Classic control, MuJoCo and most others read it only when they render.
                layer.render_mode = "rgb_array"
            except AttributeError:
                pass  # A wrapper, which reports the mode of the environment inside.
        for lane in getattr(layer, "__dict__", {}).get("envs", []):  # Of a vector environment in one process.
            enable_frames(lane)


def frame_of(render: Callable[[], Any], env: Any) -> np.ndarray:
    """What an environment's `render` returns as `[H, W, 3]` uint8; the last one of a list of pictures.

    Raises:
      UserError: It raises, or returns no picture.
    """
    try:
        picture = render()
    except UserError:
        raise
    except Exception as error:
        raise _no_frame(error, env) from error
    if isinstance(picture, list) and picture and getattr(picture[-1], "ndim", 0) in (2, 3):
        picture = picture[-1]
    frame = np.asarray(picture) if picture is not None else np.empty(0)
    if frame.ndim == 2:
        frame = np.repeat(frame[..., None], 3, axis=-1)
    if frame.ndim != 3 or frame.shape[-1] not in (3, 4) or 0 in frame.shape or frame.dtype.kind not in "uif":
        found = "nothing" if picture is None else f"{type(picture).__name__} of shape {frame.shape}"
        raise _no_frame(ValueError(f"expected an [H, W, 3] array, found {found}"), env)
    if frame.dtype.kind == "f" and frame.max() <= 1.0:
        frame = frame * 255.0
    return np.ascontiguousarray(np.clip(frame[..., :3], 0, 255).astype(np.uint8))


def _no_frame(error: Exception, env: Any) -> UserError:
    """The error, with its remedy, of an environment that can't render."""
    what = f"{type(env).__name__} can't be drawn ({type(error).__name__}{f': {error}' if str(error) else ''})"
    if "mujoco" in sys.modules and os.environ.get("MUJOCO_GL") not in _LIBRARIES:
        return UserError(f"{what}: {_MUJOCO_FIX}")
    return UserError(f'{what}: let env_ctor build it so that it gives pictures (render_mode="rgb_array"), {NO_VIDEO}')


def frames_per_second(layers: list[Any]) -> float:
    """Frames per second: the environment's metadata, else its time step `dt`, else 30.

    Args:
      layers: The environment and those it wraps, outermost first.
    """
    for layer in layers:
        metadata = getattr(layer, "metadata", None)
        if isinstance(metadata, dict):
            for key in ("render_fps", "video.frames_per_second"):
                if _is_rate(metadata.get(key)):
                    return min(float(metadata[key]), _MAX_FPS)
    dt = getattr(layers[-1], "dt", 0)
    return min(1.0 / dt, _MAX_FPS) if _is_rate(dt) else _DEFAULT_FPS


def _is_rate(value: Any) -> bool:
    return isinstance(value, (int, float)) and value > 0
