"""One cluster for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import SlurmCluster, why_not


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster
