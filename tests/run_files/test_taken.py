"""What SAC_FROM and SAC_TAKE name in another run."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from tfagents_system.errors import UserError
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.taken import find, taken_by


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A run with two checkpoints, and policies of which the best one has its agent."""
    paths = RunPaths(tmp_path / "run")
    paths.trainer_checkpoints.mkdir(parents=True)
    for train_step in (10, 20):
        partial = kept_checkpoints.begin(paths.trainer_checkpoints, train_step)
        (partial / "agent.index").write_bytes(b"index")
        kept_checkpoints.finish(partial, train_step, train_step // 5, {"env_steps": 100 * train_step})
    for name, has_agent in (("policy_checkpoint_0000000010", True), ("policy_checkpoint_0000000020", False)):
        folder = paths.policy_checkpoints / name
        folder.mkdir(parents=True)
        (folder / "moment.json").write_text('{"iteration": 2, "env_steps": 1000}')
        if has_agent:
            (folder / "agent.index").touch()
    paths.best_json.write_text('{"checkpoint": "policy_checkpoint_0000000010"}')
    return paths


def test_a_run_is_its_newest_checkpoint_and_best_is_the_agent_of_the_best_policy(run: RunPaths) -> None:
    newest, best = (find(f"{run.exp_dir}{which}", "agent") for which in ("", "@best"))
    assert newest.agent == run.trainer_checkpoints / "checkpoint_0000000020" / "agent"
    assert best.agent == run.policy_checkpoints / "policy_checkpoint_0000000010" / "agent"
    named = find(f"{run.exp_dir}@checkpoint_0000000010", "networks")
    assert named.agent == run.trainer_checkpoints / "checkpoint_0000000010" / "agent"
    assert not (newest.has_rows or newest.train_step or newest.env_steps), "it counts anew"


@pytest.mark.parametrize(("which", "counters"), [("", (20, 4, 2000)), ("@best", (10, 2, 1000))])
def test_all_counts_on_from_where_that_agent_was(run: RunPaths, which: str, counters: tuple[int, int, int]) -> None:
    taken = find(f"{run.exp_dir}{which}", "all")
    assert (taken.train_step, taken.iteration, taken.env_steps) == counters and taken.has_rows


def test_experience_alone_needs_no_agent(tmp_path: Path) -> None:
    taken = find(str(tmp_path), "replay")
    assert taken.agent is None and taken.has_rows and taken.mark > 1
    assert find(str(tmp_path), "replay").mark != taken.mark
    with pytest.raises(UserError, match="SAC_TAKE=replay takes none: leave out @best"):
        find(f"{tmp_path}@best", "replay")


@pytest.mark.parametrize(
    ("which", "told"),
    [
        ("@bset", "has no agent bset, best is meant: there are best, checkpoint_0000000010, checkpoint_0000000020, "),
        ("@policy_checkpoint_0000000020", "has no agent policy_checkpoint_0000000020"),
        ("/nosuch", "nosuch is no folder: give the directory of a run"),
        ("/policies", "has no checkpoint of an agent: give a run that has one, or take its experience alone"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(run: RunPaths, which: str, told: str) -> None:
    with pytest.raises(UserError, match=re.escape(told)):
        find(f"{run.exp_dir}{which}", "agent")


def test_a_damaged_checkpoint_is_refused_where_it_is_named_and_passed_over_where_not(run: RunPaths) -> None:
    (run.trainer_checkpoints / "checkpoint_0000000020" / "agent.index").write_bytes(b"damaged")
    with pytest.raises(UserError, match="is damaged"):
        find(f"{run.exp_dir}@checkpoint_0000000020", "agent")
    assert find(str(run.exp_dir), "agent").checkpoint == "checkpoints/checkpoint_0000000010"


def test_the_new_run_keeps_a_copy_and_says_where_it_is_from(run: RunPaths, tmp_path: Path) -> None:
    taken = find(f"{run.exp_dir}@checkpoint_0000000010", "agent")
    new = RunPaths(tmp_path / "new")
    new.exp_dir.mkdir()
    taken.copy_agent(new.taken)
    assert [path.name for path in new.taken.iterdir()] == ["agent.index"]
    assert taken_by(new) is None
    new.run_json.write_text(json.dumps({"from": dataclasses.asdict(taken)}))
    assert taken_by(new) == taken
