"""Publishing beside the updates: in order, never late for an error, and never of what changes meanwhile."""

import dataclasses
import threading

import numpy as np
import pytest
import tensorflow as tf

from tfagents_system.policies import weights
from tfagents_system.policies.weights import NOWHERE, open_shared
from tfagents_system.trainer import publisher as module
from tfagents_system.trainer.publisher import Publisher
from tfagents_system.transport import tables

DEADLINE_SECS = 20.0


class Connection:
    """Puts wait for `go`, and one may fail."""

    def __init__(self):
        self.put_items, self.go, self.error = [], threading.Semaphore(0), None

    def put(self, table, arrays):
        assert self.go.acquire(timeout=DEADLINE_SECS)
        if self.error is not None:
            raise self.error
        self.put_items.append((table, [array.copy() for array in arrays]))


@pytest.fixture
def connection():
    return Connection()


@pytest.fixture
def publisher(connection):
    return Publisher(connection, 2)


def progress(version):
    return tables.Progress(session=1, iteration=version, train_step=10 * version, eval_iteration=-1)


def names(connection):
    return [table for table, _ in connection.put_items]


def test_the_trainer_goes_on_while_policies_and_then_the_word_of_them_are_put(connection, publisher):
    publisher.publish([np.array([1])], [np.array([2])], progress(1))
    assert connection.put_items == [], "it has returned before anything was put"
    connection.go.release(3)
    publisher.wait()
    word = [tables.PROGRESS, tables.news(0), tables.news(1)]
    assert names(connection) == [tables.WEIGHTS, tables.EVAL_WEIGHTS, word]
    assert [int(arrays[0][0]) for _, arrays in connection.put_items[:2]] == [1, 2]
    told = tables.Progress.from_wire(connection.put_items[2][1])
    assert dataclasses.replace(told, memory=NOWHERE) == progress(1)


def test_no_publication_is_left_out_or_overtaken(connection, publisher):
    published = threading.Event()

    def publish_two():
        for version in (1, 2):
            publisher.publish([np.array([version])], None, progress(version))
        published.set()

    threading.Thread(target=publish_two, daemon=True).start()
    connection.go.release()
    assert not published.wait(0.3), "the first one is not told yet"
    connection.go.release(3)
    assert published.wait(DEADLINE_SECS)
    publisher.wait()
    told = [int(arrays[0][0]) for table, arrays in connection.put_items if table == tables.WEIGHTS]
    versions = [tables.Progress.from_wire(a).iteration for table, a in connection.put_items if table != tables.WEIGHTS]
    assert (told, versions) == ([1, 2], [1, 2])


@pytest.mark.parametrize("call", ["publish", "wait", "check"])
def test_what_ends_a_publication_reaches_the_trainer(connection, publisher, call):
    connection.error = RuntimeError("the server has gone")
    publisher.publish([np.array([1])], None, progress(1))
    connection.go.release()
    assert publisher._is_idle.wait(DEADLINE_SECS)
    arguments = ([np.array([2])], None, progress(2)) if call == "publish" else ()
    with pytest.raises(RuntimeError, match="the server has gone"):
        getattr(publisher, call)(*arguments)
    publisher.close()
    assert connection.put_items == []


def test_what_is_handed_over_is_not_changed_by_the_next_update():
    variable = tf.Variable([1.0, 2.0], name="kernel")
    arrays = weights.to_arrays(weights.read_weights({"kernel": variable}))
    for _ in range(3):
        variable.assign_add([10.0, 10.0])
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=1.0, delta=[1.0, 1.0])
    np.testing.assert_array_equal(arrays[1], [1.0, 2.0])
    assert variable.numpy().tolist() == [28.0, 29.0]


def newest(connection):
    """The policy in the memory that the last word tells of."""
    told = tables.Progress.from_wire(connection.put_items[-1][1])
    return int(open_shared(told.memory).read()[1][0][0])


def test_without_memory_the_word_says_so(connection, publisher, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "share", asked.append)
    connection.go.release(4)
    for version in (1, 2):
        publisher.publish([np.array([version])], None, progress(version))
    publisher.wait()
    assert len(asked) == 1, "it does not come later"
    assert [tables.Progress.from_wire(item[1]) for item in connection.put_items[1::2]] == [progress(1), progress(2)]


def test_within_an_iteration_each_policy_is_in_memory_and_few_on_the_server(connection, publisher, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    publisher.publish([np.array([0])], None, progress(0))
    publisher.publish([np.array([1])], None, progress(0), is_within=True)
    assert connection.put_items == [], "it does not wait for the publication under way, nor is it lined up"
    connection.go.release(100)
    publisher.wait()
    for number in range(2, 32):
        publisher.publish([np.array([number])], None, progress(0), is_within=True)
        publisher.wait()
        assert newest(connection) == number
        now[0] += 0.125
    on_server = [int(arrays[0][0]) for table, arrays in connection.put_items if table == tables.WEIGHTS]
    assert on_server == [0, 10, 18, 26], "one a second"


def test_a_restarted_server_gets_the_newest_policy_of_mid_iteration(connection, publisher):
    connection.go.release(100)
    publisher.publish([np.array([0])], None, progress(0))
    publisher.wait()
    publisher.publish([np.array([1])], None, progress(0), is_within=True)
    servers = iter([1, 2])
    status = [np.zeros(4, np.int64), np.zeros((0, 5), np.int64)]

    class Status:
        def get(self, timeout_secs):
            status[0][0] = next(servers)
            return status

    publisher.watch(Status())
    publisher.repeat_if_restarted([])
    publisher.wait()
    assert [int(arrays[0][0]) for table, arrays in connection.put_items if table == tables.WEIGHTS] == [0, 1]
