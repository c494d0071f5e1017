"""Workers join a run, are killed, leave and come again: they have the same slots, and no step is lost or doubled."""

import os
import signal
import time

import pytest

from tests.faults.campaign import HORIZON, UPDATES, NumberedRun
from tests.support.launching import finish

pytestmark = pytest.mark.slow

JOINED = ("worker_1", "worker_2")
WAIT_SECS, STRAGGLER_SECS = 300.0, 360.0  # No wait ends because the run has given a worker up.


class JoinedRun(NumberedRun):
    """Planned are worker 0, which the run starts, and worker 1, which it leaves to those who join."""

    def __init__(self, folder, iterations):
        super().__init__(
            folder,
            iterations,
            num_collect_workers=2,
            local_workers=1,
            max_workers=4,
            gateway_port=0,
            eval_period=1000,
            straggler_secs=STRAGGLER_SECS,
        )
        self.joins = []

    def join_two(self):
        with (self.folder / "join.txt").open("a") as output:
            self.joins.append(self.join("--workers", "2", stdout=output))
        return self.joins[-1]

    def wait(self, what, condition):
        deadline = time.monotonic() + WAIT_SECS
        while not condition():
            words = [self.output.read_text()[-1500:], (self.folder / "join.txt").read_text(), self.logs()]
            assert time.monotonic() < deadline, "\n".join([f"not in time: {what}", *words])
            time.sleep(0.1)

    def wait_until_all_collect(self, earlier=()):
        """Until the joined workers have collected, in processes that are not among the earlier ones."""

        def is_collecting(role):
            beat = self.beat(role)
            return beat.get("pid") not in earlier and beat.get("episodes", 0) > 1

        self.wait("joined workers collect", lambda: all(map(is_collecting, JOINED)))

    def pids(self):
        return [self.beat(role)["pid"] for role in JOINED]

    def iteration(self):
        return self.trainer().get("iteration", 0)


@pytest.fixture
def start(tmp_path):
    started = []

    def start_run(*args, **kwargs):
        run = JoinedRun(tmp_path, *args, **kwargs)
        run.set_pace(0.5)
        started.append((run, run.start()))
        return started[-1]

    yield start_run
    for run, process in started:
        for one in (*run.joins, process):
            if one.poll() is None:
                one.terminate()
            finish(one, 60.0)


def test_in_lockstep_they_come_and_go_as_they_like(start):
    run, process = start(200)
    join = run.join_two()
    run.wait_until_all_collect()
    assert "continuing without" not in run.log("replay"), "it waits for worker 1, which is planned"
    assert "worker 2 has joined" in run.log("replay")

    killed = run.beat("worker_2")["pid"]
    os.kill(killed, signal.SIGKILL)
    run.wait("worker 2 is back", lambda: run.beat("worker_2")["pid"] != killed and run.beat("worker_2").get("episodes"))

    earlier, iteration = run.pids(), run.iteration()
    join.terminate()
    assert finish(join, 60.0)[0] == 75
    run.wait("the run continues without those who have said goodbye", lambda: run.iteration() > iteration + 5)
    assert "have left" in run.log("replay")

    run.set_pace(2.0)  # It does not end before they are there.
    join = run.join_two()
    run.wait_until_all_collect(earlier)
    run.set_pace(0.0)
    assert finish(process)[0] == 0, run.output.read_text()
    assert finish(join, 60.0)[0] == 0, (run.folder / "join.txt").read_text()
    balance = run.balance()
    assert balance.violations == []
    assert balance.stored == balance.collected - sum(balance.lost.values())
    assert max(balance.tails, default=0) <= 2 * HORIZON
    assert run.trainer()["train_step"] == run.iterations * UPDATES
    starts = {name: len(list(run.journal.glob(f"{name}_start_*.steps"))) for name in ("worker_0", *JOINED, "worker_3")}
    assert starts == {"worker_0": 1, "worker_1": 2, "worker_2": 3, "worker_3": 0}, "each came again as what it was"
