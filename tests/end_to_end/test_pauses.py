"""A worker that is paused or cut off holds the others up no longer than SAC_STRAGGLER_SECS, and joins again."""

import os
import re
import signal

import pytest

from tests.faults.campaign import ITERATION_SECS, Campaign, NumberedRun
from tests.faults.proxy import Proxy
from tests.support.ports import free_port
from tfagents_system.run_files.run_paths import REPLAY, TRAINER

pytestmark = pytest.mark.slow

STRAGGLER_SECS = 4.0
ITERATIONS = 15  # With three evaluations in them.


def test_paused_and_partitioned_workers_are_left_out_and_join_again(tmp_path):
    port = free_port()
    proxy = Proxy(port)
    run = NumberedRun(
        tmp_path,
        iterations=400,
        eval_period=5,
        num_collect_workers=2,
        ways={0: proxy.port},
        straggler_secs=STRAGGLER_SECS,
        reverb_port=port,
    )
    campaign = Campaign(run, seed=0, say=print)

    def times_left_out(number):
        """By the replay server, whose experience is late, and by the trainer, whose share of an evaluation is."""
        lists = [
            re.findall(r"continu(?:ing|es) without workers \[(.*?)\]", run.log(role)) for role in (REPLAY, TRAINER)
        ]
        return [sum(str(number) in each.split(", ") for each in of_role) for of_role in lists]

    def is_left_out(number):
        """Others wait for it once for its experience and once for its share of an evaluation, and never again."""
        before, iteration = times_left_out(number), campaign.iteration_of(TRAINER)
        assert campaign.wait_until(lambda: campaign.iteration_of(TRAINER) >= iteration + ITERATIONS), run.logs()
        assert times_left_out(number) == [count + 1 for count in before], run.logs()

    def joins(worker):
        iteration = campaign.iteration_of(TRAINER)
        assert campaign.wait_until(lambda: campaign.iteration_of(worker) > iteration), run.logs()

    try:
        run.set_pace(ITERATION_SECS)
        campaign.start()
        pid = campaign.pid("worker_1")
        os.kill(pid, signal.SIGSTOP)
        is_left_out(1)
        os.kill(pid, signal.SIGCONT)
        joins("worker_1")

        proxy.cut()
        is_left_out(0)
        proxy.heal()
        joins("worker_0")

        secs = campaign.signal(signal.SIGUSR1)
        assert secs < 60.0, "SAC_SAVE_DEADLINE_SECS"
        balance = run.balance()
    finally:
        proxy.close()
        campaign.close()
    assert campaign.violations + balance.violations == []
    assert run.status()["roles"]["worker_1"]["restarts"] == 0
    assert not balance.lost, "a stop loses nothing"
