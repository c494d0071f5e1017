"""Environments of Gymnasium whose bodies have another mass: what an agent for the plain ones is fine-tuned for."""

from __future__ import annotations

from typing import Any

import gymnasium

_PENDULUM_MASS = 2.0  # Times that of Pendulum-v1.
_HOPPER_MASS = 1.5


def _heavy_pendulum(**kwargs: Any) -> gymnasium.Env:
    env = gymnasium.make("Pendulum-v1", **kwargs)
    env.unwrapped.m *= _PENDULUM_MASS  # type: ignore[attr-defined]
    return env


def _heavy_hopper(**kwargs: Any) -> gymnasium.Env:
    """Every body; the motors are those of Hopper-v5."""
    env = gymnasium.make("Hopper-v5", **kwargs)
    model = env.unwrapped.model  # type: ignore[attr-defined]
    model.body_mass[:] *= _HOPPER_MASS
    model.body_inertia[:] *= _HOPPER_MASS
    return env


gymnasium.register("HeavyPendulum-v0", _heavy_pendulum)
gymnasium.register("HeavyHopper-v0", _heavy_hopper)
