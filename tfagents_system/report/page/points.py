"""Curves and clouds of points with few enough of them to draw, and none of their extremes missing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def thinned(values: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most `most` values that look like all of them.

    The curve is parted into stretches of equally many values; of each the smallest and the largest one stay, as do the
    first and the last value of all. So no peak is lost, which a mean or every n-th value would do.

    Args:
      values: [n] finite float64, in the order in which they are drawn.
      most: At least 4.

    Returns:
      Ascending int64.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    stretches = (most - 2) // 2
    edges = np.linspace(0, count, stretches + 1).astype(np.int64)
    kept = [0, count - 1]
    for start, end in zip(edges[:-1], edges[1:], strict=True):
        kept += [start + int(values[start:end].argmin()), start + int(values[start:end].argmax())]
    return np.unique(kept)


def short(values: Iterable[float]) -> list[float]:
    """With six significant digits, whole numbers as such: a page is text."""
    rounded = (float(f"{value:.6g}") if abs(value) < 1e5 else float(f"{value:.9g}") for value in values)
    return [int(value) if value.is_integer() and abs(value) < 1e15 else value for value in rounded]
