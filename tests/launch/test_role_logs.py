"""A log keeps its first and its last MiB while others append to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfagents_system.launch.role_process import KEPT_BYTES, LEFT_OUT, RoleProcess, bound_log

LINE = b"%07d" + b"x" * 92 + b"\n"  # 100 bytes


def append(log: Path, numbers: range, line: bytes = LINE) -> None:
    with open(log, "ab") as file:
        file.write(b"".join(line % number for number in numbers))


def test_a_log_keeps_its_first_and_last_mib_and_a_position_follows_its_text(tmp_path: Path) -> None:
    log, lines = tmp_path / "worker_0.log", b"".join(LINE % number for number in range(300_000))
    log.write_bytes(lines[: 3 * KEPT_BYTES])
    assert bound_log(log, 7) == 7 and log.stat().st_size == 3 * KEPT_BYTES
    log.write_bytes(b"")
    for begin, end in ((0, 6_000_000), (6_000_000, 20_000_000), (20_000_000, 30_000_000)):
        with open(log, "ab") as file:
            position = file.tell() + end - begin - 1000
            file.write(lines[begin:end])
        now = bound_log(log, position)
        assert log.read_bytes() == lines[:KEPT_BYTES] + LEFT_OUT + lines[end - KEPT_BYTES : end]
        assert log.read_bytes()[now:] == lines[end - 1000 : end]
    append(log, range(60_000))
    assert bound_log(log, 2_500_000) == KEPT_BYTES + len(LEFT_OUT), "it is left out"


def test_those_who_write_meanwhile_go_on_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import os\nfor i in range(120_000): os.write(1, b'%07d' % i + b'x' * 92 + b'\\n')\nos.write(1, b'died\\n')"
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with subprocess.Popen([sys.executable, "-c", code], stdout=output) as process:
        os.close(output)
        while process.poll() is None:
            bound_log(log)
    bound_log(log)
    content = log.read_bytes()
    assert len(content) <= 3 * KEPT_BYTES and content.endswith(b"0119999" + b"x" * 92 + b"\ndied\n")
    numbers = [int(line[:7]) for line in content.split(LEFT_OUT)[1].split(b"\n")[1:-2]]
    assert numbers == sorted(numbers)


def test_a_log_that_can_not_be_cut_is_left_and_is_no_error(tmp_path: Path) -> None:
    assert bound_log(tmp_path / "missing", 3) == 3
    assert bound_log(tmp_path, 3) == 3


def test_the_last_words_of_a_role_are_found_in_a_log_that_was_cut_and_are_short(tmp_path: Path) -> None:
    log = tmp_path / "log"
    role = RoleProcess("worker_0", lambda environ, path: pytest.fail("not started"), {}, log, 1)
    append(log, range(60_000))
    role._log_start = log.stat().st_size
    append(log, range(60_000, 110_000))
    append(log, range(1), b"y" * 5000 + b"%d\n")
    role.bound_log()
    append(log, range(1), b"ValueError: no luck %d\n")
    assert role.last_lines()[-2:] == ["y" * 2000 + "...", "ValueError: no luck 0"]
    assert role._log_start < log.stat().st_size < 3 * KEPT_BYTES
