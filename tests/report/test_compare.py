"""Comparing runs: what is read, how runs are grouped, the numbers, and what can't be compared."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from tfagents_system.errors import UserError
from tfagents_system.report import compare
from tfagents_system.report.compare import (
    Group,
    Run,
    curve_of,
    group_runs,
    read_runs,
    table_of,
    with_interval,
)


def our_run(
    folder: Path, returns: Sequence[float], state: str = "done", params: dict[str, Any] | None = None, seed: int = 0
) -> Path:
    """A run evaluated every 100 steps."""
    folder.mkdir(parents=True)
    rows = [f"{100 * k},{100 * k},{value},\n{100 * k},{100 * k},,0.5" for k, value in enumerate(returns)]
    (folder / "metrics.csv").write_text("\n".join(["train_step,env_steps,eval_return,critic_loss", *rows]) + "\n")
    run = {"name": folder.name, "state": state, "updated_at": time.time()}
    status = {"run": run, "roles": {"trainer": {"state": state, "num_iter": 3}}}
    (folder / "status.json").write_text(json.dumps(status))
    overrides = {"params": params or {}, "variables": {"SAC_SEED": str(seed), "SAC_REPORT": str(seed % 2)}}
    (folder / "run.json").write_text(json.dumps({"attributes": {"num_iter": 3}, "overrides": overrides}))
    return folder


def evaluations(folder: Path, steps: Sequence[int], results: Any) -> Path:
    folder.mkdir(parents=True)
    np.savez(folder / "evaluations.npz", timesteps=np.array(steps), results=np.array(results), ep_lengths=results)
    return folder


def a_run(steps: Sequence[float], returns: Sequence[float], state: str = "done") -> Run:
    return Run(Path("x"), "x", {}, state, np.array(steps, float), np.array(returns, float), "metrics.csv", None)


# Reading.


def test_our_runs_are_read_with_their_settings_but_the_seed(tmp_path: Path) -> None:
    (run,) = read_runs([our_run(tmp_path / "exp_task_3", [1.0, 2.0, 4.0], params={"discount": 0.9}, seed=7)])
    assert run.steps.tolist() == [0.0, 100.0, 200.0] and run.values.tolist() == [1.0, 2.0, 4.0]
    assert (run.experiment, dict(run.settings), run.state) == ("exp", {"discount": 0.9}, "done")
    assert not run.is_unfinished


def test_a_run_without_evaluations_is_read_with_its_training_returns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = our_run(tmp_path / "exp", [])
    rows = ["train_step,env_steps,eval_return,train_return,critic_loss", "100,100,,3.0,0.5", "200,200,,5.0,0.4"]
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
    with pytest.raises(UserError, match="has no evaluation, although the run is done"):
        read_runs([folder])
    (folder / "run.json").write_text('{"attributes": {"num_eval_episodes": 0}}')
    (run,) = read_runs([folder])
    assert run.values.tolist() == [3.0, 5.0] and run.is_of_training
    compare.print_table(table_of(group_runs([run])), [run])
    assert f"returns of training episodes, not of evaluations: {folder}" in capsys.readouterr().out
    assert read_runs([folder], "critic_loss")[0].values.tolist() == [0.5, 0.4]
    with pytest.raises(UserError, match="has no eval_success: leave it out, or compare what it has"):
        read_runs([folder], "eval_success")


def test_peers_are_read(tmp_path: Path) -> None:
    evaluated = evaluations(tmp_path / "SAC_2", [2000, 1000], [[-1.0, -3.0], [-10.0, -20.0]])
    (run,) = read_runs([evaluated])
    assert run.steps.tolist() == [1000.0, 2000.0] and run.values.tolist() == [-15.0, -2.0]
    assert (run.experiment, run.state, run.is_unfinished) == ("SAC", "-", False)


def test_all_that_cant_be_read_is_named(tmp_path: Path) -> None:
    done = our_run(tmp_path / "a", [])
    gone = our_run(tmp_path / "b", [1.0])
    (gone / "metrics.csv").unlink()
    (tmp_path / "c").mkdir()
    torn = tmp_path / "d"
    torn.mkdir()
    (torn / "evaluations.npz").write_bytes(b"PK torn")
    empty = evaluations(tmp_path / "e", [], np.zeros((0, 5)))
    folders = [done, gone, tmp_path / "c", torn, empty, tmp_path / "none"]
    with pytest.raises(UserError) as raised:
        read_runs(folders)
    findings = raised.value.findings
    assert len(findings) == len(folders)
    parts = ["has no evaluation", "is missing, although", "has no metrics.csv", "evaluations.npz cannot be read"]
    parts += ["has no evaluation", "does not exist: give a run directory"]
    for folder, finding, part in zip(folders, findings, parts, strict=True):
        assert str(folder) in finding and part in finding


def test_success_rates_are_compared(tmp_path: Path, figures: list[Figure], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logs = tmp_path / "logs"
    folders = [our_run(logs / f"exp_task_{k}", [], state) for k, state in enumerate(("done", "done", "running"))]
    for k, folder in enumerate(folders[:2], 1):
        rows = ["train_step,env_steps,eval_return,eval_success", "0,0,1.5,0", "100,100,1.5,", f"200,200,1.5,{k / 4}"]
        (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
    assert compare.main([*map(str, folders), "--metric", "eval_success"]) == 0
    with (logs / "compare.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["runs"], row["unfinished"], row["final_iqm"], row["best"]) == ("3", "1", "0.375", "0.5")
    assert row["metric"] == "eval_success" and (logs / "compare.png").exists()
    assert not (tmp_path / "compare.png").exists()
    assert figures[0].axes[0].get_ylabel() == "success rate of an evaluation"
    thick_lines = [line for line in figures[0].axes[0].get_lines() if line.get_linewidth() == 2.0]
    assert np.asarray(thick_lines[-1].get_xdata()).tolist() == [0, 200]


# Grouping.


def test_runs_that_differ_in_the_seed_alone_are_one_group(tmp_path: Path) -> None:
    folders = [
        our_run(tmp_path / f"exp_task_{k}", [1.0], params={"discount": discount}, seed=seed)
        for k, (discount, seed) in enumerate([(0.9, 0), (0.9, 1), (0.99, 0), (0.99, 1)])
    ]
    groups = group_runs(read_runs(folders))
    assert [(group.name, len(group.runs)) for group in groups] == [("discount=0.9", 2), ("discount=0.99", 2)]
    peers = [evaluations(tmp_path / f"SAC_{k}", [1], [[1.0]]) for k in range(3)]
    groups = group_runs(read_runs([*folders[:2], *peers]))
    assert [(group.name, len(group.runs)) for group in groups] == [("exp", 2), ("SAC", 3)]
    groups = group_runs(read_runs([*folders, *peers[:1]]))
    assert [group.name for group in groups] == ["exp discount=0.9", "exp discount=0.99", "SAC"]


def test_lengths_and_environments_are_noted_and_make_no_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*folders: Path) -> list[str]:
        groups = group_runs(runs := read_runs(folders))
        assert [group.name for group in groups] == ["exp"]
        compare.print_table(table_of(groups), runs)
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]

    folders = [
        our_run(tmp_path / f"exp_task_{k}", [1.0] * (11 + k), params={"num_env_steps": 1000 + k, "max_hours": k})
        for k in range(3)  # Up to 1,000, 1,100 and 1,200 steps.
    ]
    assert printed(*folders[:2]) == []
    differ = "note: final values are after 1,000 to 1,200 env steps: compare them where all curves are"
    assert printed(*folders) == [differ]
    for folder, name in zip(folders, ("Pendulum-v1", "", "Reacher-v5"), strict=True):
        content = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**content, "environment": name or None}))
    assert printed(*folders[:2]) == []
    assert printed(*folders) == [
        "note: returns of different environments don't compare: Pendulum-v1, Reacher-v5",
        differ,
    ]


def test_patterns_decide_first(tmp_path: Path) -> None:
    runs = read_runs([our_run(tmp_path / name, [1.0]) for name in ("a_task_0", "a_task_1", "b_task_0", "c")])
    groups = group_runs(runs, ["mine=[ab]_task_0", "b_*", f"{tmp_path}/c"])
    assert [(group.name, len(group.runs)) for group in groups] == [("mine", 2), ("a", 1), (f"{tmp_path}/c", 1)]


# Numbers.


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    scores = np.array([[100.0, 0.0], [1.0, 1.0], [3.0, 2.0], [-50.0, 3.0]])
    assert with_interval(scores)[0].tolist() == [2.0, 1.5]
    assert with_interval(scores[:3])[0].tolist() == [pytest.approx(104 / 3), 1.0]


def test_intervals_hold_the_mean_and_are_the_same_at_every_call() -> None:
    scores = np.random.default_rng(0).normal(size=(8, 3)) + [0.0, 10.0, 20.0]
    iqm, low, high = with_interval(scores)
    assert np.all(low < iqm) and np.all(iqm < high) and np.allclose(iqm, [0.0, 10.0, 20.0], atol=1.0)
    # Of a mean of eight normal numbers: about 1.96 / sqrt(8) to each side; the middle half spreads a little more.
    assert np.all((high - low > 0.6) & (high - low < 2.6))
    assert np.array_equal(with_interval(scores)[1], low)
    assert [part.tolist() for part in with_interval(scores[:1])] == [scores[0].tolist()] * 3


def test_a_curve_counts_each_run_as_far_as_it_has_come() -> None:
    runs = (a_run([0, 100, 200, 300], [0, 1, 2, 3]), a_run([0, 100], [10, 11], "stopped"), a_run([], [], "running"))
    curve = curve_of(Group("g", runs))
    assert curve.steps.tolist() == [0.0, 100.0, 200.0, 300.0]
    assert curve.counts.tolist() == [2, 2, 1, 1]
    assert curve.iqm.tolist() == [5.0, 6.0, 2.0, 3.0]
    assert curve.low.tolist()[2:] == curve.high.tolist()[2:] == [2.0, 3.0]


def test_the_table(tmp_path: Path) -> None:
    done = [our_run(tmp_path / f"exp_task_{k}", [0.0, 50.0 + k, 10.0 * k]) for k in range(4)]
    late = our_run(tmp_path / "exp_task_4", [], "running")
    (row,) = table_of(group_runs(read_runs([*done, late])))
    assert (row["runs"], row["unfinished"], row["env_steps"]) == (5, 1, 200)
    assert row["final_iqm"] == 15.0 and row["best"] == 53.0
    assert 0.0 <= row["final_low"] < 15.0 < row["final_high"] <= 30.0
    (row,) = table_of(group_runs(read_runs([late])))
    assert row["final_iqm"] is None and row["best"] is None and row["unfinished"] == 1


def test_an_untrained_policy_is_never_the_best(tmp_path: Path) -> None:
    def best(*folders: Path) -> float | None:
        (row,) = table_of(group_runs(read_runs(folders)))
        return row["best"]

    worse, alone = (our_run(tmp_path / f"exp_task_{k}", [9.0, 1.0, 2.0][: 3 - 2 * k]) for k in range(2))
    assert best(worse) == best(worse, alone) == 2.0 and best(alone) is None
    (worse / "policies").mkdir()
    (worse / "policies" / "best.json").write_text('{"checkpoint": "c", "eval_return": 1.0}')  # Of the present stage.
    assert best(worse) == 1.0


# The command.


def test_bad_arguments_are_told_together(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        compare.main([str(tmp_path), "--out", "none/x.pdf"])
    findings = raised.value.findings
    assert len(findings) == 3 and ".png" in findings[0] and "has no metrics.csv" in findings[2]
    folder = our_run(tmp_path / "exp_task_0", [], "running")
    with pytest.raises(UserError, match="no run has an evaluation with eval_return yet"):
        compare.main([str(folder), "--out", str(tmp_path / "x.png")])
    assert not (tmp_path / "x.png").exists()
