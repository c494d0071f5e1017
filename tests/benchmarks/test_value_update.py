"""The arithmetic of the benchmark of learners of values."""

import pytest

from benchmarks import value_update


def test_without_heads_the_quantiles_are_one_layer_behind_psi_and_phi():
    """(28, 256, 256) for psi, (64, 256) and (256, 8) for each of 8 fractions; four passes but for what is observed."""
    psi_inputs, psi, phi, last = 28 * 256, 256 * 256, 8 * 64 * 256, 8 * 256 * 8
    expected = 2 * 256 * (4 * (psi + last) + 3 * (psi_inputs + phi))
    assert value_update.iqn_mflop(head_units=0) == pytest.approx(expected / 1e6)
    heads = 8 * 512 * (2 * 256 + 1 + 8)
    assert value_update.iqn_mflop() == pytest.approx((expected + 2 * 256 * 4 * (heads - last)) / 1e6)
    assert value_update.note_on_heads().startswith("0.92 of IQN's matrix products are in its two heads")


def test_what_the_target_asks_for_is_told_beside_what_is_reached():
    assert "is 0.80 of the limit of its matrix products; it reaches 0.70" in value_update.note_on_limit(350, 200, 500)
