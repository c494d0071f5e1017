"""The replay server of the benchmarks: on its CPU, and missed when it has died."""

import os
import time

import pytest

from benchmarks.replay import replay_server
from tfagents_system.machine.cpus import allowed_cpus


def test_a_server_that_dies_is_not_waited_for():
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="ended before it served"), replay_server(1000, cpu=100_000):
        pass
    assert time.monotonic() - started < 60.0


def test_the_server_is_on_its_cpu():
    cpu = allowed_cpus()[-1]
    with replay_server(1000, cpu) as (_, told):
        assert os.sched_getaffinity(told["pid"]) == {cpu}
