"""A file of rows through a disk that fills up in the middle of a write."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tfagents_system.run_files.rows_file import RowsFile, read_rows

FIRST = [{"step": number, "value": 0.5} for number in range(20_000)]  # What pytest writes meanwhile is shorter.


@contextmanager
def room_for(path: Path, more_bytes: int) -> Iterator[None]:
    """As on a full disk: a file may grow by so much, and the rest of a write fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_rows_of_a_write_that_breaks_off_come_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.csv"
    file = RowsFile(path, ["step", "value"], "rows")
    file.add(FIRST)
    content = path.read_bytes()
    more = [{"step": number, "value": 1.5} for number in range(20_000, 20_008)]
    with room_for(path, 30):
        file.add(more[:4])
        assert file.rows() == FIRST + more[:4]
        assert path.read_bytes() == content, "nor is half a row in it"
        file.add(more[4:6])
    assert capfd.readouterr().err.count("rows can't be written") == 1
    file.add(more[6:])
    assert read_rows(path) == file.rows() == FIRST + more
