"""A worker that is paused or cut off holds the others up no longer than SAC_STRAGGLER_SECS, and joins again."""

import os
import signal

import pytest

from tests.faults.campaign import ITERATION_SECS, Campaign, NumberedRun
from tests.faults.proxy import Proxy
from tests.support.ports import free_port
from tfagents_system.run_files.run_paths import TRAINER

pytestmark = pytest.mark.slow

STRAGGLER_SECS = 4.0
ITERATIONS = 15  # That are timed: with three evaluations in them.


def test_paused_and_partitioned_workers_are_left_out_and_join_again(tmp_path):
    port = free_port()
    proxy = Proxy(port)
    run = NumberedRun(
        tmp_path,
        iterations=400,
        eval_period=5,
        ways={0: proxy.port},
        straggler_secs=STRAGGLER_SECS,
        reverb_port=port,
    )
    campaign = Campaign(run, seed=0, say=print)

    def secs_for_iterations():
        iteration = campaign.iteration_of(TRAINER)
        secs = campaign.wait_until(lambda: campaign.iteration_of(TRAINER) >= iteration + ITERATIONS, 90.0)
        assert secs is not None, run.logs()
        return secs

    def is_left_out():
        """Others wait for it once for its experience and once for its share of an evaluation, and never again."""
        assert secs_for_iterations() < 2 * secs_undisturbed + 2 * STRAGGLER_SECS
        # Who waited again, were it in every evaluation alone, would lose three times STRAGGLER_SECS.
        assert secs_for_iterations() < 2 * secs_undisturbed + STRAGGLER_SECS

    def joins(worker, within_secs):
        iteration = campaign.iteration_of(TRAINER)
        assert campaign.wait_until(lambda: campaign.iteration_of(worker) > iteration, within_secs), run.logs()

    try:
        run.set_pace(ITERATION_SECS)
        campaign.start()
        secs_undisturbed = secs_for_iterations()
        pid = campaign.pid("worker_1")
        os.kill(pid, signal.SIGSTOP)
        is_left_out()
        os.kill(pid, signal.SIGCONT)
        joins("worker_1", 20.0)

        proxy.cut()
        is_left_out()
        proxy.heal()
        joins("worker_0", 45.0)

        secs = campaign.signal(signal.SIGUSR1)
        assert secs < 60.0, "SAC_SAVE_DEADLINE_SECS"
        balance = run.balance()
    finally:
        proxy.close()
        campaign.close()
    assert campaign.violations + balance.violations == []
    assert run.status()["roles"]["worker_1"]["restarts"] == 0
    assert not balance.lost, "a stop loses nothing"
