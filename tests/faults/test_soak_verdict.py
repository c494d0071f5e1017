"""What the soak calls flat, and what not."""

import numpy as np
import pytest

from tests.faults.soak import Sample, verdict

SECS = np.arange(0.0, 3600.0, 10.0)


def samples(role="trainer", pss_mb=None, threads=None, descriptors=None):
    flat = np.ones_like(SECS)
    columns = (SECS, pss_mb if pss_mb is not None else 400 * flat, threads if threads is not None else 20 * flat,
               descriptors if descriptors is not None else 30 * flat)  # fmt: skip
    return [Sample(secs, role, mb, int(t), int(d), int(100 * secs)) for secs, mb, t, d in zip(*columns, strict=True)]


def noise(scale):
    return np.random.default_rng(0).normal(scale=scale, size=len(SECS))


def test_noise_and_a_warm_up_are_flat():
    growing_first = 400 - 150 * np.exp(-SECS / 100) + noise(2.0)
    text, is_flat = verdict(samples(pss_mb=growing_first) + samples("replay"))
    assert is_flat and "NOT FLAT" not in text
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["trainer", "replay"]


@pytest.mark.parametrize(
    "grown",
    [
        {"pss_mb": 400 + SECS / 3600 * 60 + noise(2.0)},  # 15 % an hour
        {"threads": 20 + SECS // 360},
        {"descriptors": 30 + SECS // 360},
    ],
    ids=lambda grown: next(iter(grown)),
)
def test_what_grows_all_the_time_is_not(grown):
    text, is_flat = verdict(samples("replay") + samples("worker_0", **grown))
    assert not is_flat
    replay, worker = text.splitlines()[1:]
    assert "NOT FLAT" not in replay and worker.endswith("NOT FLAT")


def test_growth_is_told_in_what_an_hour_adds():
    text, _ = verdict(samples(pss_mb=400 + SECS / 3600 * 60))
    _, _, grown, an_hour, *_ = text.splitlines()[1].split()
    assert float(an_hour) == pytest.approx(60.0, rel=0.05)
    assert float(grown) == pytest.approx(60.0 * (1 - 1 / 3), rel=0.15)
