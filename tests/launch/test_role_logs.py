"""A log keeps its first and its last MiB while others append to it, and tells how much is left out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tfagents_system.launch.role_logs import KEPT_BYTES, bound
from tfagents_system.launch.role_process import RoleProcess

LINE = b"%07d" + b"x" * 92 + b"\n"  # 100 bytes
LEFT_OUT = re.compile(rb"^\.\.\. ([\d,]+) bytes left out here \.\.\.$", re.MULTILINE)


def append(log: Path, numbers: range, line: bytes = LINE) -> None:
    with open(log, "ab") as file:
        file.write(b"".join(line % number for number in numbers))


def test_a_log_keeps_its_first_and_last_mib_in_whole_lines_and_counts_what_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "worker_0.log"
    append(log, range(31_000))
    content = log.read_bytes()
    assert bound(log, 7) == 7 and log.read_bytes() == content  # Not above 3 MiB yet.
    for most in (60_000, 200_000, 300_000):
        append(log, range(log.read_bytes().count(b"x\n") and int(log.read_bytes()[-100:-93]) + 1, most))
        bound(log)
        content = log.read_bytes()
        (left_out,) = LEFT_OUT.findall(content)
        head, tail = LEFT_OUT.split(content)[::2]
        assert len(content) <= 2 * KEPT_BYTES + 100
        assert head == b"".join(LINE % number for number in range(KEPT_BYTES // 100))
        numbers = [int(line[:7]) for line in tail.strip().splitlines()]
        assert numbers == list(range(numbers[0], most)) and len(numbers) == KEPT_BYTES // 100
        assert int(left_out.replace(b",", b"")) == 100 * (numbers[0] - len(head) // 100)


def test_a_position_follows_its_text_or_is_at_the_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, range(60_000))
    before = log.read_bytes()
    late, left_out = 100 * 59_000, 100 * 30_000
    copy = tmp_path / "copy"
    copy.write_bytes(before)
    now = bound(log, late)
    assert log.read_bytes()[now:] == before[late:]
    cut = bound(copy, left_out)
    assert cut == LEFT_OUT.search(copy.read_bytes()).end() + 1  # type: ignore[union-attr]


def test_a_line_of_megabytes_does_not_take_what_is_before_or_behind_it_along(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n" + b"x" * 5 * KEPT_BYTES + b"\nlast\n")
    bound(log)
    assert [len(part) for part in LEFT_OUT.split(log.read_bytes())[::2]] == [KEPT_BYTES + 1, KEPT_BYTES + 1]


@pytest.mark.parametrize("text", [b"x" * 5 * KEPT_BYTES, "ä".encode() * 3 * KEPT_BYTES])
def test_output_without_a_newline_is_cut_as_well(tmp_path: Path, text: bytes) -> None:
    log = tmp_path / "log"
    log.write_bytes(text)
    bound(log)
    first = log.read_bytes()
    assert len(first) == 2 * KEPT_BYTES + 1 + len(LEFT_OUT.search(first)[0]) + 1  # type: ignore[index]
    log.write_bytes(first + text)
    bound(log)
    again = log.read_bytes()
    assert again.replace(LEFT_OUT.findall(again)[0], LEFT_OUT.findall(first)[0]) == first
    left_out = [int(LEFT_OUT.findall(content)[0].replace(b",", b"")) for content in (first, again)]
    assert left_out == [len(text) - 2 * KEPT_BYTES, 2 * len(text) - 2 * KEPT_BYTES]


def test_those_who_write_meanwhile_go_on_at_the_end(tmp_path: Path) -> None:
    """Bytes may be lost in the microseconds between the last copy and the cut, never the order or what comes later."""
    log = tmp_path / "log"
    code = "import os\nfor i in range(120_000): os.write(1, b'%07d' % i + b'x' * 92 + b'\\n')\nos.write(1, b'died\\n')"
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with subprocess.Popen([sys.executable, "-c", code], stdout=output) as process:
        os.close(output)
        while process.poll() is None:
            bound(log)
    bound(log)
    content = log.read_bytes()
    assert len(content) <= 3 * KEPT_BYTES and content.endswith(b"0119999" + b"x" * 92 + b"\ndied\n")
    numbers = [int(line[:7]) for line in LEFT_OUT.split(content)[2].strip().splitlines()[:-1]]
    assert numbers == sorted(numbers)


def test_a_log_that_can_not_be_cut_is_left_and_is_no_error(tmp_path: Path) -> None:
    assert bound(tmp_path / "missing", 3) == 3
    assert bound(tmp_path, 3) == 3


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
