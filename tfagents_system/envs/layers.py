"""Wrappers around gym and Gymnasium environments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def gym_layers(env: Any) -> Iterator[Any]:
    """The environment and those it wraps, outermost first."""
    while env is not None:
        yield env
        # Not getattr: gym's wrappers forward attributes that they lack.
        inner = getattr(env, "__dict__", {}).get("env")
        env = inner if hasattr(inner, "step") and hasattr(inner, "reset") else None
