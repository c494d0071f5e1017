"""sac report --serve: on loopback, for those who have the token, in the name of this machine."""

import gzip
import http.client
import io
import socket
import struct
import sys
import threading

import pytest

from tests.support.run_to_report import make_run
from tests.support.waiting import until
from tfagents_system.errors import UserError
from tfagents_system.report import long_work
from tfagents_system.report.page import serve as serve_module
from tfagents_system.report.page.assembly import page_data
from tfagents_system.report.page.serve import ReportServer, serve


@pytest.fixture
def server(tmp_path):
    run = make_run(tmp_path / "run", rows=20)
    made = ReportServer(0, lambda: page_data([run.exp_dir]))
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join(10)


def get(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection(*server.server_address, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def test_page_and_data_are_told_to_those_who_have_the_token(server):
    status, headers, content = get(server, f"/{server.token}/", **{"Accept-Encoding": "gzip"})
    assert status == 200 and headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
    assert b"connect-src 'self'" in gzip.decompress(content)
    status, _, content = get(server, f"/{server.token}/data.json")
    assert status == 200 and content.startswith(b'{"made"')


def test_nobody_else_is_told_anything(server):
    assert server.server_address[0] == "127.0.0.1" and len(server.token) >= 40
    for path in ("/", "//", f"/{server.token[:-1]}/", f"/{server.token}", f"/{server.token}/../etc/passwd", "/%ff/x"):
        assert get(server, path)[0] == 404, path
    assert get(server, f"/{server.token}/", Host=f"evil.example:{server.server_address[1]}")[0] == 404
    assert get(server, f"/{server.token}/", "POST")[0] == 501


def test_a_browser_that_is_closed_before_its_answer_is_no_error(server, monkeypatch, capsys):
    is_closed, has_failed, read, handle_error = threading.Event(), threading.Event(), server._read, server.handle_error

    def note(*arguments):
        handle_error(*arguments)
        has_failed.set()

    monkeypatch.setattr(server, "_read", lambda: is_closed.wait(30) and read())
    monkeypatch.setattr(server, "handle_error", note)
    with socket.create_connection(server.server_address) as closed:
        closed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # Its end is a reset.
        host = f"127.0.0.1:{server.server_address[1]}"
        closed.sendall(f"GET /{server.token}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    is_closed.set()
    assert has_failed.wait(30)
    assert capsys.readouterr().err == "" and get(server, f"/{server.token}/data.json")[0] == 200


def test_a_fault_of_the_page_itself_is_told(server, monkeypatch, capsys):
    monkeypatch.setattr(server, "_read", lambda: 1 / 0)
    with pytest.raises(http.client.HTTPException):
        get(server, f"/{server.token}/data.json")
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_run_that_was_removed_is_told_and_the_server_goes_on(server, monkeypatch):
    def gone():
        raise UserError("gone")

    monkeypatch.setattr(server, "_read", gone)
    assert get(server, f"/{server.token}/data.json")[0] == 503
    assert get(server, "/")[0] == 404


def test_only_the_first_reading_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(long_work, "AFTER_SECS", 0.0)
    told, tells = io.StringIO(), []
    monkeypatch.setattr(sys, "stderr", told)

    def slow(*args, **more):
        with long_work.LongWork("reading runs") as work:
            tells.append(work._thread is not None)
            until(lambda: "reading runs" in told.getvalue(), 30.0, "the first reading is told")

    def refresh(server, poll_interval):
        for _ in range(2):
            server._kept = None
            server.data()

    monkeypatch.setattr(serve_module, "page_data", slow)
    monkeypatch.setattr(ReportServer, "serve_forever", refresh)
    assert serve([tmp_path], [], 0) == 0 and tells == [True, False, False]
    assert told.getvalue().count("reading runs") == 1
    with long_work.LongWork("something else"):
        until(lambda: "something else" in told.getvalue(), 30.0, "other work is told again")


def test_a_port_in_use_is_refused(server, tmp_path):
    with pytest.raises(UserError, match="can't be used"):
        serve([tmp_path], [], server.server_address[1])
