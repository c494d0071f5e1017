"""Every kind of process is killed: the run continues, ends as asked for, and keeps its promises.

Roles are killed in pairs; abilities/test_survival.py kills each of the three roles alone, and `python -m tests.faults`
does everything in any order.
"""

import numpy as np
import pytest

from tests.faults.campaign import HORIZON, ITERATION_SECS, UPDATES, Campaign, NumberedRun

pytestmark = pytest.mark.slow

ALONE = ("supervisor",)
PAIRS = ("trainer+replay", "replay+worker_1")
WHOLE_RUN = ("everything", "interrupt")


@pytest.mark.timeout(600)
def test_whatever_is_killed_nothing_that_was_promised_is_lost(tmp_path):
    run = NumberedRun(tmp_path, iterations=250)
    campaign = Campaign(run, seed=3, say=print)
    kinds = (*ALONE, *PAIRS, *WHOLE_RUN)
    try:
        run.set_pace(ITERATION_SECS)
        campaign.start()
        campaign.cause_each(kinds)
        assert campaign.finish() == 0, run.output.read_text()
        balance = run.balance()
    finally:
        campaign.close()
    assert campaign.violations + balance.violations == []
    assert tuple(fault.kind for fault in campaign.faults) == kinds
    assert [fault.roles for fault in campaign.faults if "+" in fault.kind] == [tuple(pair.split("+")) for pair in PAIRS]
    assert balance.duplicated == 0
    assert balance.stored == balance.collected - sum(balance.lost.values())
    assert balance.stored > run.iterations * 3 * (HORIZON - 4) * 0.9
    # A killed worker's own: the episode that it was in, and the one before it where the server was killed as well.
    assert max(balance.tails, default=0) <= 3 * HORIZON
    assert run.trainer()["train_step"] == run.iterations * UPDATES
    # Minibatches were drawn by priorities. A server that is killed forgets those since the newest checkpoint: after all
    # of it more than a third of the steps have one that was measured.
    priorities = run.priorities()
    assert np.all(np.isfinite(priorities)) and np.all(priorities >= 0.0)
    assert balance.stored <= len(priorities) <= balance.stored + balance.collected
    assert len(np.unique(priorities[priorities > 0.0])) > len(priorities) / 3
