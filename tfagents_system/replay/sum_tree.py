"""A sum tree: draws leaves in proportion to their weights (Schaul et al., arXiv 1511.05952, appendix B.2.1)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

GROUP = 16  # Leaves under one inner node.
_NEW = np.float32(-1)  # In the place of the weight of a leaf that was not measured.


class SumTree:
    """Leaves with priorities. One that was not measured counts as one of twice the mean of those that were.

    The tree has two levels, which suits NumPy: a draw of thousands adds up the inner nodes, searches these running
    sums, and then the leaves of the nodes that it has found. Each inner node is computed from its leaves alone, never by
    adding a difference: a tree that is built anew from the same priorities is the same bit by bit.

    Args:
      priorities: `[n]` float32, n a multiple of `GROUP`: above 0, or 0 where a leaf was not measured. Changed in place.
      is_drawn: `[n]` bool: leaves that may be drawn.
      exponent: alpha; the weight of a leaf is its priority to the power of alpha.
    """

    def __init__(self, priorities: np.ndarray, is_drawn: np.ndarray, exponent: float) -> None:
        self._priorities, self._exponent = priorities, np.float32(exponent)
        priorities[~(np.isfinite(priorities) & (priorities > 0))] = 0
        self._weights = np.where(priorities > 0, self._power(priorities), _NEW)
        self._weights[~is_drawn] = 0
        # Of each inner node: sum of the weights of measured leaves, their number, that of new ones, sum of priorities.
        self._nodes = np.zeros((4, len(priorities) // GROUP))
        self._add_up(np.arange(self._nodes.shape[1]))

    def measure(self, places: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities `[n]` of the leaves at these places; where one is twice there, the last one counts."""
        is_drawn = self._weights[places] != 0
        places, priorities = places[is_drawn], priorities[is_drawn].astype(np.float32)
        self._priorities[places] = priorities
        self._weights[places] = self._power(priorities)
        self._add_up(places // GROUP)

    def renew(self, part: slice, is_drawn: np.ndarray) -> None:
        """Puts new leaves into these places."""
        self._priorities[part] = 0
        self._weights[part] = np.where(is_drawn, _NEW, np.float32(0))
        self._add_up(np.arange(part.start // GROUP, -(-part.stop // GROUP)))

    def draw(self, u: np.ndarray, parts: Sequence[slice]) -> tuple[np.ndarray, np.ndarray]:
        """Draws leaves from one or two parts that do not overlap.

        Args:
          u: `[n]` uniform in [0, 1).
          parts: Of the leaves, none of them empty.

        Returns:
          Places `[n]`, and N P(i) of each, `[n]` float64: how many times as likely it is as if all N were alike. Empty
          where there is no leaf to be drawn.
        """
        with self._only(parts) as inner:
            weight, measured, new, priority = np.concatenate([self._nodes[:, each] for each in inner], axis=1)
            num_measured = measured.sum()
            new_weight = self._power(np.float32(2 * priority.sum() / num_measured)) if num_measured else 1.0
            weight += new_weight * new
            ends = np.cumsum(weight)
            if not ends[-1] > 0:
                return np.zeros(0, np.int64), np.zeros(0)
            wanted = np.minimum(u * ends[-1], np.nextafter(ends[-1], 0))
            found = np.searchsorted(ends, wanted, side="right")
            within = 1 - (ends[found] - wanted) / weight[found]
            nodes = np.concatenate([np.arange(each.start, each.stop) for each in inner])[found]
            leaves, weights = self._search(nodes, within, new_weight)
        return nodes * GROUP + leaves, weights * ((num_measured + new.sum()) / ends[-1])

    def _search(self, nodes: np.ndarray, within: np.ndarray, new_weight: float) -> tuple[np.ndarray, np.ndarray]:
        """The leaf at a share `within` of each inner node's weight: its place under that node, and its weight."""
        weights = self._weights.reshape(-1, GROUP)[nodes]
        weights[weights == _NEW] = new_weight
        ends = np.cumsum(weights, axis=1, dtype=np.float64)
        wanted = np.clip(within * ends[:, -1], 0, np.nextafter(ends[:, -1], 0))
        leaves = np.count_nonzero(ends <= wanted[:, None], axis=1)
        return leaves, weights[np.arange(len(nodes)), leaves].astype(np.float64)

    @contextlib.contextmanager
    def _only(self, parts: Sequence[slice]) -> Iterator[list[slice]]:
        """The inner nodes of these parts; leaves beside them, under the same nodes, have no weight meanwhile."""
        edges = np.unique([edge // GROUP for part in parts for edge in (part.start, part.stop - 1)])
        places = edges[:, None] * GROUP + np.arange(GROUP)
        is_inside = np.any([(part.start <= places) & (places < part.stop) for part in parts], axis=0)
        weights, nodes = self._weights.reshape(-1, GROUP), self._nodes[:, edges]
        kept = weights[edges]
        weights[edges] = np.where(is_inside, kept, np.float32(0))
        self._add_up(edges)
        inner, end = list[slice](), 0
        for part in sorted(parts, key=lambda each: each.start):
            inner.append(slice(max(end, part.start // GROUP), -(-part.stop // GROUP)))
            end = inner[-1].stop
        try:
            yield inner
        finally:
            weights[edges], self._nodes[:, edges] = kept, nodes

    def _add_up(self, nodes: np.ndarray) -> None:
        """Computes these inner nodes from their leaves."""
        weights, priorities = (each.reshape(-1, GROUP)[nodes] for each in (self._weights, self._priorities))
        is_measured = weights > 0
        self._nodes[0, nodes] = np.where(is_measured, weights, np.float32(0)).sum(axis=1)
        self._nodes[1, nodes] = np.count_nonzero(is_measured, axis=1)
        self._nodes[2, nodes] = np.count_nonzero(weights == _NEW, axis=1)
        self._nodes[3, nodes] = np.where(is_measured, priorities, np.float32(0)).sum(axis=1)

    def _power(self, priorities: np.ndarray) -> np.ndarray:
        # Never 0, which is a leaf that is not drawn.
        return np.maximum(np.power(priorities, self._exponent), np.finfo(np.float32).tiny)
