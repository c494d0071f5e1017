"""Episodes of all workers make one row of metrics."""

import msgspec
import pytest

from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.transport.episode_reports import (
    MOST_KEPT_BYTES,
    Episode,
    Evaluations,
    KeptEpisode,
    Report,
    summarize,
)


def share(version, worker_id, *returns):
    return Report("eval", 1, worker_id, version, 100 * version, version, [Episode(value, 10) for value in returns])


def test_means_are_over_episodes_and_the_spread_is_theirs():
    row = summarize("eval", [share(1, 0, -1.0, -3.0), share(1, 1, -5.0)])
    assert row["eval_return"] == pytest.approx(-3.0)
    assert row["eval_return_std"] == pytest.approx((8 / 3) ** 0.5)
    assert row["eval_episodes"] == 3
    assert row["eval/episode_length"] == 10
    assert "eval_success" not in row
    assert summarize("eval", []) == {}


def test_success_and_log_values_are_averaged_over_the_episodes_that_have_them():
    episodes = [
        Episode(0.0, 5, True, {"force": 2.0}),
        Episode(0.0, 5, False, {"force": 4.0, "slip": 1.0}),
        Episode(0.0, 5, False),
    ]
    row = summarize("train", [Report("train", 0, 0, 5, 400, 4, episodes, {"MaxReturn": 7.0})])
    assert row["train_success"] == pytest.approx(1 / 3)
    assert row["train/force"] == 3.0
    assert row["train/slip"] == 1.0
    assert row["train/MaxReturn"] == 7.0
    assert row["train/policy_lag"] == 1
    assert not {"train_return_std", "train_episodes"} & set(row)


def test_episodes_that_tell_nothing_are_no_successes_where_another_one_is():
    """Else one lucky episode of ten would be a success rate of 100 %, which stop_when and best_metric look at."""
    silent, lucky = [Episode(0.0, 5) for _ in range(9)], Episode(1.0, 5, True)
    both = [Report("eval", 1, worker, 3, 300, 3, told) for worker, told in enumerate((silent, [lucky]))]
    assert summarize("eval", both)["eval_success"] == pytest.approx(0.1)
    assert "eval_success" not in summarize("eval", both[:1])


def test_reports_survive_the_wire():
    report = Report("train", 0, 3, 9, 800, 8, [Episode(1.5, 7, None, {"x": 2.0})], {"y": 1.0}, {"mass": 0.5})
    assert Report.from_wire(report.to_wire()) == report


@pytest.mark.parametrize(
    "change",
    [
        {"worker_id": -1},
        {"worker_id": 2**16},
        {"iteration": 2**63 - 1},
        {"train_step": -3},
        {"episodes": [Episode(1e308, 7)]},  # The sum of two would be none.
        {"episodes": [Episode(1.0, -7)]},
        {"observed": {str(k): 0.0 for k in range(1001)}},
        {"kept": [KeptEpisode(1.0, 0, 0, bytes(MOST_KEPT_BYTES + 1))]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_numbers_that_would_end_the_trainer_are_no_report(change: dict[str, object]) -> None:
    report = msgspec.structs.replace(Report("train", 0, 3, 9, 800, 8, [Episode(1.5, 7)]), **change)
    with pytest.raises(msgspec.DecodeError):
        Report.from_wire(report.to_wire())


def versions(ready):
    return [version for version, _ in ready]


def test_an_evaluation_is_ready_when_all_its_episodes_are_there():
    evaluations = Evaluations(num_episodes=3, sharing=range(2))
    evaluations.add(share(2, 0, 1.0, 2.0))
    assert evaluations.pop_ready() == []
    assert evaluations.missing(2) == [1]
    evaluations.add(share(2, 1, 3.0))
    [(version, reports)] = evaluations.pop_ready()
    assert version == 2
    assert summarize("eval", reports)["eval_return"] == 2.0
    assert evaluations.pop_ready() == []


def test_a_restarted_worker_counts_once_and_a_share_that_comes_too_late_not_at_all():
    evaluations = Evaluations(num_episodes=2, sharing=range(2))
    for told in (1.0, 5.0):
        evaluations.add(share(2, 0, told))
    assert evaluations.pop_ready() == []
    for worker in range(2):
        evaluations.add(share(4, worker, 1.0))
    assert versions(evaluations.pop_ready()) == [4], "a complete newer one ends the older, which nobody sees"
    evaluations.add(share(2, 1, 1.0))
    assert evaluations.pop_ready() == []


def test_a_part_of_a_share_never_counts():
    """A worker that dies has told its short episodes; those that it was in may be the long ones."""
    evaluations = Evaluations(num_episodes=10, sharing=range(2))
    evaluations.add(share(8, 0, 1.0))
    evaluations.leave_out([0, 1])
    assert evaluations.missing(8) == [] and evaluations.pop_ready() == []
    evaluations.add(share(8, 1, 1.0, 2.0, 3.0, 4.0, 5.0))
    [(version, reports)] = evaluations.pop_ready()
    assert (version, [report.worker_id for report in reports]) == (8, [1]), "without the half share of who is gone"
    evaluations.add(share(9, 0, 1.0, 2.0, 3.0, 4.0, 5.0))
    assert evaluations.pop_ready() == [], "it is back, and the other is waited for"


def test_a_worker_that_is_gone_is_not_waited_for_until_it_is_heard_of_again():
    evaluations = Evaluations(num_episodes=3, sharing=range(2))
    evaluations.leave_out([1])
    for version in (2, 4):
        evaluations.add(share(version, 0, 1.0))
        assert evaluations.pop_ready() == [], "the others' shares are whole"
        evaluations.add(share(version, 0, 1.0, 2.0))
        assert versions(evaluations.pop_ready()) == [version], "complete without it"
    evaluations.add(share(6, 1, 3.0))
    evaluations.add(share(8, 0, 1.0, 2.0))
    assert evaluations.pop_ready() == [] and evaluations.missing(8) == [1], "it is back"


def test_time_is_counted_from_the_first_update_on_and_once():
    now = 0.0
    shares = TimeShares(clock=lambda: now)
    with shares.spend("waiting"):
        now = 100.0
    assert shares.shares() == {}
    with shares.spend("updates"):
        now = 110.0
    with shares.spend("updates"):
        now = 119.0
    with shares.spend("waiting"), shares.spend("logging"):
        now = 120.0
    assert shares.shares() == {"updates": pytest.approx(0.9), "waiting": pytest.approx(0.1)}


def test_a_worker_that_only_evaluates_adds_a_share_and_is_waited_for():
    evaluations = Evaluations(num_episodes=3, sharing=range(2))
    evaluations.add(share(-1, 7))
    assert evaluations.missing(4) == [0, 1, 7]
    evaluations.add(share(4, 0, 1.0, 2.0))
    evaluations.add(share(4, 1, 3.0))
    evaluations.add(share(4, 7, 4.0))
    assert evaluations.missing(4) == [7], "its share is as large as the largest planned one"
    evaluations.add(share(4, 7, 4.0, 5.0))
    ((version, reports),) = evaluations.pop_ready()
    assert version == 4
    assert sorted(e.episode_return for r in reports for e in r.episodes) == [1.0, 2.0, 3.0, 4.0, 5.0]
    evaluations.leave_out([7])
    assert evaluations.missing(5) == [0, 1]


def test_what_devices_say_is_summed_or_the_largest_and_needs_no_episode():
    said = [
        {"late_steps": 2.0, "step_ms_p99": 51.0},
        {"late_steps": 1.0, "step_ms_p99": 60.0, "dropped_steps": 9.0},
        {},
    ]
    reports = [Report("train", 0, worker, 4, 40, 4, [], device=device) for worker, device in enumerate(said)]
    expected = {"train/late_steps": 3.0, "train/step_ms_p99": 60.0, "train/dropped_steps": 9.0}
    assert summarize("train", reports) == expected
    assert Report.from_wire(reports[1].to_wire()).device == said[1]
    reports.append(Report("train", 0, 3, 4, 40, 4, [Episode(1.0, 10)]))
    assert summarize("train", reports).items() > expected.items()
