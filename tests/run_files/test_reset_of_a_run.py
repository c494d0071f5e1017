"""A reset sets aside what it replaces, whole or not at all; metrics tell agents apart."""

from __future__ import annotations

import json
import os

import pytest

from tfagents_system.run_files import install_inputs, resets
from tfagents_system.run_files.metrics import MetricsLog, of_agent, read_metrics
from tfagents_system.run_files.resets import Reset
from tfagents_system.run_files.run_directory import has_begun
from tfagents_system.run_files.run_paths import RunPaths

RESET = Reset("agent", "before_reset_1", 40, 900, False, "2026-01-01T00:00:00+00:00")


@pytest.fixture
def paths(tmp_path):
    paths = RunPaths(tmp_path / "run")
    (paths.trainer_checkpoints / "checkpoint_0000000040").mkdir(parents=True)
    (paths.policies / "checkpoints").mkdir(parents=True)
    paths.heartbeats.mkdir()
    for path, text in (
        (paths.params, "old params"),
        (paths.config, "{}"),
        (paths.run_json, '{"seed": 1}'),
        (paths.status_json, "{}"),
        (paths.heartbeat("trainer"), "{}"),
    ):
        path.write_text(text)
    return paths


def install(paths, kind="agent"):
    reset = Reset(kind, *list(RESET.__dict__.values())[1:])
    content = json.dumps({"seed": 1, "resets": [reset.__dict__]}).encode()
    install_inputs.install(paths, None, content, reset, b'{"params": {"algorithm": "redq"}}')


def state(paths):
    return {
        str(path.relative_to(paths.exp_dir)): path.read_text() if path.is_file() else None
        for path in sorted(paths.exp_dir.rglob("*"))
    }


def test_what_was_there_is_set_aside_and_the_next_agent_begins(paths):
    paths.episodes.mkdir()
    (paths.episodes / "return_5.npz").touch()
    install(paths)
    assert (paths.exp_dir / "before_reset_1/episodes/return_5.npz").exists() and not paths.episodes.exists()
    before = paths.exp_dir / "before_reset_1"
    assert (before / "checkpoints" / "checkpoint_0000000040").is_dir() and not paths.trainer_checkpoints.exists()
    assert (before / "params.py").read_text() == paths.params.read_text() == "old params"
    assert json.loads((before / "run.json").read_text()) == {"seed": 1}
    assert json.loads(paths.overrides.read_text()) == {"params": {"algorithm": "redq"}}
    assert not paths.status_json.exists() and has_begun(paths) and resets.agents_before(paths) == 1
    assert resets.earlier_checkpoints(paths) == (before / "checkpoints",)


def test_a_kill_at_any_moment_leaves_the_run_before_or_after(paths, monkeypatch):
    """Every call that changes names is once the last one; then the next start finishes."""
    plain, moment, outcomes = state(paths), 0, []
    functions = {name: getattr(os, name) for name in ("rename", "replace", "unlink", "rmdir", "mkdir")}
    wanted = None
    while True:
        calls = 0

        def dying(function, moment=moment):
            def call(*args, **kwargs):
                nonlocal calls
                calls += 1
                if calls > moment:
                    raise KeyboardInterrupt
                return function(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name, function in functions.items():
                patch.setattr(os, name, dying(function))
            try:
                install(paths)
                is_complete = True
            except KeyboardInterrupt:
                is_complete = False
        is_after = install_inputs.is_interrupted(paths) or is_complete or resets.agents_before(paths) == 1
        install_inputs.finish_install(paths)
        found = {name: text for name, text in state(paths).items() if not name.startswith(".inputs")}
        if is_after:
            wanted = wanted or found
            assert found == wanted, moment
        else:
            assert found == plain, moment
        outcomes.append(is_after)
        if is_complete:
            break
        _restore(paths, plain)
        moment += 1
    assert outcomes == sorted(outcomes) and outcomes.count(False) >= 2 and outcomes.count(True) >= 8


def _restore(paths, plain):
    import shutil

    shutil.rmtree(paths.exp_dir)
    for name, text in plain.items():
        path = paths.exp_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True) if text is None else path.write_text(text)


def test_rows_of_the_agent_before_stay_when_the_new_one_goes_back(paths):
    log = MetricsLog(paths, ())
    log.write({"train_step": 30, "eval_return": 1.0})
    log.close()
    install(paths)
    log = MetricsLog(paths, ())
    for train_step in (10, 20):
        log.write({"train_step": train_step})
    log.rewind(10, 0)
    log.close()
    rows = read_metrics(paths.metrics_csv)
    assert [(row["train_step"], row["reset"]) for row in rows] == [(30, None), (10, 1)]
    assert [row["train_step"] for row in of_agent(rows, 1)] == [10]
