"""Roles are killed at random moments: the run goes on, ends as asked for, and nothing that was promised is lost."""

import pytest

from tests.faults.campaign import HORIZON, ITERATION_SECS, UPDATES, Campaign, NumberedRun

pytestmark = pytest.mark.slow

KINDS = ("everything", "two", "replay", "fork_server", "trainer", "worker")


def test_random_kills_lose_nothing_that_was_promised(tmp_path):
    run = NumberedRun(tmp_path, iterations=80)
    campaign = Campaign(run, seed=3, say=print)
    try:
        run.set_pace(ITERATION_SECS)
        campaign.start()
        campaign.cause_many(KINDS, secs=120.0, count=4)
        assert campaign.finish() == 0, run.output.read_text()
        balance = run.balance()
    finally:
        campaign.close()
    assert campaign.violations + balance.violations == []
    assert len(campaign.faults) == 4
    assert max(fault.recovery_secs for fault in campaign.faults if fault.kind != "everything") < 30.0
    assert balance.duplicated == 0
    assert balance.stored == balance.collected - sum(balance.lost.values())
    assert balance.stored > run.iterations * 3 * (HORIZON - 4) * 0.9
    # A killed worker's own: the episode that it was in, and the one before it where the server was killed as well.
    assert max(balance.tails, default=0) <= 3 * HORIZON
    assert run.trainer()["train_step"] == run.iterations * UPDATES
