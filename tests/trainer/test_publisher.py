"""Publishing beside the updates: in order, never late for an error, and never of what changes meanwhile."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from tfagents_system.policies import weights
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
    assert tables.Progress.from_wire(connection.put_items[2][1]) == progress(1)


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


def test_closing_waits_for_what_is_under_way(connection, publisher):
    publisher.publish([np.array([1])], None, progress(1))
    threading.Timer(0.2, connection.go.release, (2,)).start()
    publisher.close()
    assert len(connection.put_items) == 2


def test_what_is_handed_over_is_not_changed_by_the_next_update():
    variable = tf.Variable([1.0, 2.0], name="kernel")
    arrays = weights.to_arrays(weights.read_weights({"kernel": variable}))
    for _ in range(3):
        variable.assign_add([10.0, 10.0])
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=1.0, delta=[1.0, 1.0])
    np.testing.assert_array_equal(arrays[1], [1.0, 2.0])
    assert variable.numpy().tolist() == [28.0, 29.0]
