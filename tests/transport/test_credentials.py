"""Certificates and passwords: made whole, yours alone, and told in words where they can't be used."""

import datetime
import os
import re
import shutil
import stat

import pytest

from tfagents_system.errors import UserError
from tfagents_system.transport import credentials


@pytest.fixture
def folder(tmp_path):
    """All in one folder, as those of the user's own may be."""
    credentials.make_credentials(tmp_path / "credentials", "test")
    return with_client(tmp_path / "credentials")


def with_client(folder):
    for path in (folder / "client").glob("client.*"):
        path.rename(folder / path.name)
    shutil.rmtree(folder / "client")
    return folder


def test_those_of_who_joins_are_a_folder_to_copy(tmp_path):
    credentials.make_credentials(tmp_path / "credentials", "test")
    client = credentials.folder_of_client(tmp_path / "credentials")
    assert client == tmp_path / "credentials" / "client" == credentials.folder_of_client(client)
    assert sorted(path.name for path in client.iterdir()) == ["ca.pem", "client.key", "client.pem"]
    assert stat.S_IMODE(client.stat().st_mode) == 0o700 and credentials.check_credentials(client, "client") == []


def test_what_is_made_is_ours_alone_and_can_be_used_by_both_sides(folder):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(path.name for path in folder.iterdir()) == [
        "ca.pem",
        "client.key",
        "client.pem",
        "server.key",
        "server.pem",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    for side in (credentials.SERVER, credentials.CLIENT):
        assert credentials.check_credentials(folder, side) == []
    assert b"PRIVATE" not in (folder / "ca.pem").read_bytes()


def test_a_umask_makes_no_difference(tmp_path):
    before = os.umask(0)
    try:
        credentials.make_credentials(tmp_path / "credentials", "test")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "credentials").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "credentials" / "server.key").stat().st_mode) == 0o600


def test_they_are_made_once_and_whole_or_not_at_all(tmp_path, folder, monkeypatch):
    before = (folder / "ca.pem").read_bytes()
    credentials.ensure_credentials(folder, "test")
    assert (folder / "ca.pem").read_bytes() == before
    monkeypatch.setattr(
        credentials, "_write", lambda path, content: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    with pytest.raises(UserError, match="can't be made: No space left"):
        credentials.ensure_credentials(tmp_path / "other", "test")
    assert [path.name for path in tmp_path.iterdir()] == ["credentials"]


def break_it(folder, fault):
    other = folder.with_name("other")
    credentials.make_credentials(other, "other")
    with_client(other)
    match fault:
        case "missing":
            (folder / "client.key").unlink()
        case "readable key":
            (folder / "client.key").chmod(0o640)
        case "writable folder":
            folder.chmod(0o777)
        case "key of another":
            (folder / "client.key").write_bytes((other / "client.key").read_bytes())
        case "garbage":
            (folder / "client.pem").write_text("nonsense")
        case "no folder":
            folder.rename(folder.with_name("moved"))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("missing", "lacks client.key: copy the folder credentials/client of the run"),
        ("readable key", r"client.key can be read by others \(mode 640\): chmod 600"),
        ("writable folder", r"can be changed by others \(mode 777\): chmod 700"),
        (
            "key of another",
            "ca.pem, client.pem and client.key in .* do not fit .TLS: key values mismatch.: copy all anew",
        ),
        ("garbage", "do not fit"),
        ("no folder", "is no folder: give the one with ca.pem, client.pem and client.key"),
    ],
)
def test_what_can_not_be_used_is_refused_in_words(folder, fault, words):
    break_it(folder, fault)
    (finding,) = credentials.check_credentials(folder, credentials.CLIENT)
    assert re.search(words, finding)


@pytest.mark.parametrize(
    ("days", "words"), [(731, "expired on .*move the run's folder"), (-2, "is valid from .*clock")]
)
def test_certificates_out_of_their_time_are_refused(folder, monkeypatch, days, words):
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    monkeypatch.setattr(credentials, "_now", lambda: now)
    with pytest.raises(UserError, match=words):
        credentials.server_context(folder)


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("short", 0o600, "must hold 12 to 1000 characters, 5 found"),
        ("long enough to be one", 0o644, r"can be read by others \(mode 644\): chmod 600"),
        (None, 0o600, "can't be read"),
    ],
)
def test_a_password_that_is_no_secret_is_refused_without_being_told(tmp_path, content, mode, words):
    path = tmp_path / "password"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(UserError, match=words) as error:
        credentials.read_password(path)
    assert content is None or content not in str(error.value)


def test_the_lines_end_is_no_part_of_a_password(tmp_path):
    path = tmp_path / "password"
    path.write_text("long enough to be one\n")
    path.chmod(0o600)
    assert credentials.read_password(path) == "long enough to be one"
    assert credentials.read_password(None) == ""


def test_certificates_of_the_users_own_must_bear_the_hosts_name(folder, monkeypatch):
    assert credentials.server_name(folder, "node7") == "gateway.tfagents-system.invalid"
    monkeypatch.setattr(credentials, "_OURS", "somebody else")
    assert credentials.server_name(folder, "node7") == "node7"
