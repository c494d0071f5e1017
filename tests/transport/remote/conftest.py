"""A gateway that good traffic goes through while it is attacked."""

import threading
import time

import pytest

from tests.support.channel_for_tests import numbers_of, running_gateway, segment, wait_until
from tfagents_system.transport import tables


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One gateway, and a good client whose traffic goes on while others attack."""
    with running_gateway(tmp_path_factory.mktemp("gateway"), max_workers=20) as running:
        good = running.client()
        good.wait_until_up(10)
        yield running, good
        assert good.describe() == ""
        good.close()


@pytest.fixture(autouse=True)
def traffic(request):
    """The good client's segments go on in every test that attacks, and all of them arrive."""
    if "shared" not in request.fixturenames:
        yield
        return
    running, good = request.getfixturevalue("shared")
    first, stop = len(numbers_of(running.tables)), threading.Event()
    sent = []

    def send():
        while not stop.is_set():
            good.put(tables.SEGMENTS, segment(first + len(sent), good.slot).to_wire())
            sent.append(0)
            time.sleep(0.005)

    thread = threading.Thread(target=send)
    thread.start()
    yield
    stop.set()
    thread.join()
    wait_until(lambda: numbers_of(running.tables) == list(range(first + len(sent))))
    assert good.slot == 1
