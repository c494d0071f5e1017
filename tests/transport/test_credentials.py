"""Credentials and passwords: made whole, yours alone, and told in words where they can't be used."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from tfagents_system.errors import UserError
from tfagents_system.transport import credentials


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    credentials.make_credentials(tmp_path / "credentials", "test")
    return tmp_path / "credentials"


def test_they_are_a_folder_of_ours_alone_whatever_the_umask_is(tmp_path: Path) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir(0o700)  # As --install of TMRL's commands makes it.
    before = os.umask(0)
    try:
        credentials.make_credentials(folder, "test")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert files == {"certificate.pem": 0o600, "key.pem": 0o600}
    assert credentials.check_credentials(folder) == []
    assert b"PRIVATE" not in (folder / "certificate.pem").read_bytes()


def test_they_are_made_once_and_whole_or_not_at_all(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / "key.pem").read_bytes()
    credentials.make_credentials(folder, "test")
    assert (folder / "key.pem").read_bytes() == before

    def fail(*_: object) -> None:
        raise OSError(28, "No space left")

    monkeypatch.setattr(credentials, "write_atomically", fail)
    with pytest.raises(UserError, match="can't be made: No space left"):
        credentials.make_credentials(tmp_path / "other", "test")
    assert [path.name for path in tmp_path.iterdir()] == ["credentials"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("missing", "lacks key.pem: copy the folder credentials of the run"),
        ("readable key", r"key.pem can be read by others \(mode 640\): chmod 600"),
        ("writable folder", r"can be changed by others \(mode 777\): chmod 700"),
        ("key of another", "certificate.pem and key.pem in .* do not fit .TLS: key values mismatch.: copy both anew"),
        ("garbage", "do not fit"),
        ("no folder", "is no folder: give the one with certificate.pem and key.pem"),
    ],
)
def test_what_can_not_be_used_is_refused_in_words(folder: Path, fault: str, words: str) -> None:
    other = folder.with_name("other")
    credentials.make_credentials(other, "other")
    faults = {
        "missing": lambda: (folder / "key.pem").unlink(),
        "readable key": lambda: (folder / "key.pem").chmod(0o640),
        "writable folder": lambda: folder.chmod(0o777),
        "key of another": lambda: (folder / "key.pem").write_bytes((other / "key.pem").read_bytes()),
        "garbage": lambda: (folder / "certificate.pem").write_text("nonsense"),
        "no folder": lambda: folder.rename(folder.with_name("moved")),
    }
    faults[fault]()
    (finding,) = credentials.check_credentials(folder)
    assert re.search(words, finding)


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("short", 0o600, "must hold 12 to 1000 characters, 5 found"),
        ("long enough to be one", 0o644, r"can be read by others \(mode 644\): chmod 600"),
        (None, 0o600, "can't be read"),
    ],
)
def test_a_password_that_is_no_secret_is_refused_without_being_told(
    tmp_path: Path, content: str | None, mode: int, words: str
) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(UserError, match=words) as error:
        credentials.read_password(path)
    assert content is None or content not in str(error.value)


def test_the_lines_end_is_no_part_of_a_password(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("long enough to be one\n")
    path.chmod(0o600)
    assert credentials.read_password(path) == "long enough to be one"
    assert credentials.read_password(None) == ""
