"""Prioritised experience replay (Schaul et al., arXiv 1511.05952): which steps of a ring are drawn how often.

Priorities are a column beside the ring's own, in memory: other columns never change once they are written, these change
with each update. Checkpoints have a copy; of steps that came after the newest one, a server that was killed knows none.
"""

from __future__ import annotations

import numpy as np

from tfagents_system.replay.ring import Ring, row_ranges

EPSILON = np.float32(2e-3)  # Linesight's; no step is never drawn again.
NO_ROW = -1  # In the place of a row's number: the priority of none.
_HEAD_BYTES = 8
GROUP = 16  # Leaves under one inner node.
_NEW = np.float32(-1)  # In the place of the weight of a leaf that was not measured.


class Priorities:
    """Priorities of the steps that are trained on, and draws in proportion to them. Its caller holds the ring's lock.

    Args:
      ring: Its rows. They may become more, as long as this is asked for draws between.
      exponent: alpha.
      saved: A snapshot of them at an earlier moment of the ring; rows that came later have not been measured.
    """

    def __init__(self, ring: Ring, exponent: float, saved: bytes = b"") -> None:
        self._ring = ring
        num_leaves = -(-ring.num_rows // GROUP) * GROUP
        self._column, known_rows = np.zeros(num_leaves, np.float32), 0
        if len(saved) == _HEAD_BYTES + self._column.nbytes:
            self._column[:] = np.frombuffer(saved, np.float32, offset=_HEAD_BYTES)
            known_rows = int.from_bytes(saved[:_HEAD_BYTES], "little")
        if known_rows > ring.total_rows:  # The ring was lost, and counts anew.
            known_rows = 0
        self._oldest, self._known_rows = ring.held
        is_start = np.zeros(num_leaves, bool)
        for part in row_ranges(self._oldest, self._known_rows, ring.num_rows):
            is_start[part] = ring.is_training_start(part)
        for part in row_ranges(max(known_rows, self._oldest), self._known_rows, ring.num_rows):
            self._column[part] = 0
        self._tree = SumTree(self._column, is_start, exponent)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws rows with replacement at which samples start, P(i) proportional to p_i^alpha; there is one.

        Args:
          rng: Decides what is drawn.
          count: n.

        Returns:
          Places `[n]`, and N P(i) `[n]` float64 of each.
        """
        self._follow()
        # Independent numbers in ascending order, which the tree finds fast, and then an order for what is found.
        steps = np.cumsum(rng.standard_exponential(count + 1))
        places, likelihood = self._tree.draw(steps[:-1] / steps[-1])
        order = rng.permutation(count)
        return places[order], likelihood[order]

    def numbers(self, places: np.ndarray) -> np.ndarray:
        """The rows at these places, int64, counted from the beginning of the run."""
        oldest, _ = self._ring.held
        return oldest + (places - self._ring.oldest_row) % self._ring.num_rows

    def measure(self, rows: np.ndarray, td_errors: np.ndarray) -> None:
        """Sets p = |TD error| + epsilon of rows `[n]`, by their numbers; what the ring has given up is passed over."""
        self._follow()
        oldest, end = self._ring.held
        is_held = (rows >= oldest) & (rows < end)
        self._tree.measure(rows[is_held] % self._ring.num_rows, td_errors[is_held] + EPSILON)

    def snapshot(self) -> bytes:
        """Up to which row they are known, and all of them."""
        self._follow()
        return self._known_rows.to_bytes(_HEAD_BYTES, "little") + self._column.tobytes()

    def _follow(self) -> None:
        """Rows that were given up since the last time are not drawn any more; those that came are new."""
        ring, known = self._ring, self._known_rows
        if known == ring.total_rows:
            return
        oldest, end = ring.held
        for part in row_ranges(max(self._oldest, oldest - ring.num_rows), oldest, ring.num_rows):
            self._tree.renew(part, False)
        for part in row_ranges(max(known, oldest), end, ring.num_rows):
            self._tree.renew(part, ring.is_training_start(part))
        self._oldest, self._known_rows = oldest, end


class SumTree:
    """Leaves with priorities. One that was not measured counts as one of twice the mean of those that were.

    The tree has two levels, which suits NumPy: a draw of thousands adds up the inner nodes, searches these running
    sums, and then the leaves of the nodes that it has found. Each inner node is computed from its leaves alone, never
    by adding a difference: a tree that is built anew from the same priorities is the same bit by bit.

    Args:
      priorities: `[n]` float32, n a multiple of `GROUP`: above 0, or 0 where a leaf was not measured. Changed in place.
      is_drawn: `[n]` bool: leaves that may be drawn.
      exponent: alpha; the weight of a leaf is its priority to the power of alpha.
    """

    def __init__(self, priorities: np.ndarray, is_drawn: np.ndarray, exponent: float) -> None:
        priorities[~(np.isfinite(priorities) & (priorities > 0) & is_drawn)] = 0
        self._exponent = np.float32(exponent)
        weights = np.where(priorities > 0, self._power(priorities), np.where(is_drawn, _NEW, np.float32(0)))
        # A row for the leaves under each inner node.
        self._priorities, self._weights = priorities.reshape(-1, GROUP), weights.reshape(-1, GROUP)
        self._nodes = _sums(self._weights, self._priorities)

    def measure(self, places: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities `[n]` of the leaves at these places; where one is twice there, the last one counts."""
        is_drawn = self._weights.reshape(-1)[places] != 0
        places, priorities = places[is_drawn], priorities[is_drawn].astype(np.float32)
        self._priorities.reshape(-1)[places] = priorities
        self._weights.reshape(-1)[places] = self._power(priorities)
        self._add_up(places // GROUP)

    def renew(self, part: slice, is_drawn: np.ndarray | bool) -> None:
        """Puts new leaves into these places."""
        self._priorities.reshape(-1)[part] = 0
        self._weights.reshape(-1)[part] = np.where(is_drawn, _NEW, np.float32(0))
        self._add_up(np.arange(part.start // GROUP, -(-part.stop // GROUP)))

    def draw(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws leaves, of which there is at least one to be drawn.

        Args:
          u: `[n]` in [0, 1), a leaf is found for each; several times faster in ascending order.

        Returns:
          Places `[n]`, and N P(i) of each, `[n]` float64: how many times as likely it is as if all N were alike.
        """
        _, count, num_new, priority = self._nodes.sum(axis=1)
        num_measured = count - num_new
        twice_the_mean = np.array(2 * priority / num_measured if num_measured else 1, np.float32)
        new_weight = float(self._power(twice_the_mean))
        weight = self._nodes[0] + new_weight * self._nodes[2]
        ends = np.cumsum(weight)
        wanted = np.minimum(u * ends[-1], np.nextafter(ends[-1], 0))
        nodes = np.searchsorted(ends, wanted, side="right")
        within = 1 - (ends[nodes] - wanted) / weight[nodes]
        leaves, weights = self._search(nodes, within, new_weight)
        return nodes * GROUP + leaves, weights * (count / ends[-1])

    def _search(self, nodes: np.ndarray, within: np.ndarray, new_weight: float) -> tuple[np.ndarray, np.ndarray]:
        """The leaf at a share `within` of each inner node's weight: its place under that node, and its weight."""
        weights = np.take(self._weights, nodes, axis=0)
        weights = np.where(weights < 0, np.float32(new_weight), weights)
        ends = np.cumsum(weights, axis=1)
        wanted = np.clip(within.astype(np.float32) * ends[:, -1], 0, np.nextafter(ends[:, -1], np.float32(0)))
        leaves = np.argmax(ends > wanted[:, None], axis=1)
        return leaves, weights[np.arange(len(nodes)), leaves].astype(np.float64)

    def _add_up(self, nodes: np.ndarray) -> None:
        """Computes these inner nodes from their leaves."""
        rows = np.take(self._weights, nodes, axis=0), np.take(self._priorities, nodes, axis=0)
        self._nodes[:, nodes] = _sums(*rows)

    def _power(self, priorities: np.ndarray) -> np.ndarray:
        # Never 0, which is a leaf that is not drawn.
        return np.maximum(np.power(priorities, self._exponent), np.finfo(np.float32).tiny)


def _sums(weights: np.ndarray, priorities: np.ndarray) -> np.ndarray:
    """Of leaves `[m, GROUP]`, as `[4, m]`: weights of measured ones, number of all drawn, of new ones, priorities.

    By einsum, which adds up short rows several times as fast as `sum`.
    """
    parts = np.maximum(weights, 0), (weights != 0).astype(np.float32), -np.minimum(weights, 0), priorities
    return np.stack([np.einsum("ij->i", part) for part in parts]).astype(np.float64)
