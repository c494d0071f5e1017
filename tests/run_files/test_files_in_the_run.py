"""A start that moves folders of its run away is refused where it needs something in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.starts_of_a_project import Starter, train, update, write
from tfagents_system.errors import UserError
from tfagents_system.run_files.agent_start import find_start
from tfagents_system.run_files.run_paths import RunPaths


@pytest.fixture
def run(environ: dict[str, str], project: Path) -> RunPaths:
    """One that has begun, with a saved policy, an exported one and a key."""
    paths = write(environ, folder=project)
    train(paths)
    update(paths, 5)
    variables = paths.policies / "greedy_policy/variables"
    variables.mkdir(parents=True)
    (variables / "variables.index").touch()
    for name in ("exported/policy.npz", "key", "drive.points"):
        (paths.exp_dir / name).parent.mkdir(exist_ok=True)
        (paths.exp_dir / name).touch()
    (paths.exp_dir / "key").chmod(0o600)
    return paths


@pytest.mark.parametrize(
    ("variable", "inside"),
    [
        ("SAC_AGENT_FROM", "policies/greedy_policy"),
        ("SAC_REPLAY_FROM", "replay"),
        ("SAC_EXPERT_POLICY", "policies/greedy_policy"),
        ("SAC_PASSWORD_FILE", "key"),
        ("SAC_CREDENTIALS_DIR", "key"),
    ],
)
def test_fresh_does_not_move_away_what_the_new_run_needs(
    run: RunPaths, start: Starter, variable: str, inside: str
) -> None:
    for folder in ("before_reset_1", "replay"):
        (run.exp_dir / folder).mkdir()
    before = sorted(run.exp_dir.parent.rglob("*"))
    refused = start("--fresh", **{variable: str(run.exp_dir / inside)})
    assert refused.code == 2 and sorted(run.exp_dir.parent.rglob("*")) == before
    assert (
        f"the run directory {run.exp_dir} has {run.exp_dir / inside} in it, so --fresh can't move it aside: choose "
        "another SAC_EXP_NAME for a new run, or name a copy elsewhere"
    ) in refused.told


@pytest.mark.parametrize("variable", ["SAC_AGENT_FROM", "SAC_REPLAY_FROM"])
def test_fresh_does_not_begin_with_the_run_itself(run: RunPaths, start: Starter, variable: str) -> None:
    if variable == "SAC_REPLAY_FROM":
        run.replay.mkdir()
        (run.replay / "layout.json").touch()
    refused = start("--fresh", **{variable: str(run.exp_dir)})
    assert refused.code == 2 and run.run_json.exists(), refused.told
    assert f"{variable}={run.exp_dir} is this run's own directory: give another one" in refused.told


def test_an_agent_whose_policy_has_gone_is_not_begun_with(run: RunPaths, tmp_path: Path) -> None:
    found = find_start(str(run.policies / "greedy_policy"))
    run.policies.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match="has nothing to begin with any more"):
        found.copy(tmp_path / "agent_from")
    assert not (tmp_path / "agent_from").exists()
    with pytest.raises(UserError, match="does not exist"):
        find_start(found.source)
