"""The record of learning curves: what is in it, and what a run of it is asked for. No run is trained here."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from benchmarks import minutes
from benchmarks.learning import algorithms, experts
from benchmarks.learning.algorithms import Evaluated, Evaluation, append, attributes_of, read_record, runs_of
from benchmarks.learning.tasks import OURS, PEERS, TASKS, Task, Variant
from benchmarks.outcome import Outcome
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.params_check import check_params
from tfagents_system.train_params_base import TrainParamsBase


class Params(TrainParamsBase):
    def env_ctor(self, *args, seed=None, **kwargs):
        raise AssertionError("not built here")


def lines(variant: str, seed: int, *returns: float) -> list[Evaluation]:
    return [Evaluation("pendulum", variant, seed, 1000 * k, value, 12.0) for k, value in enumerate(returns)]


def test_what_is_added_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "algorithms.csv"
    assert read_record(path) == []
    append(path, lines("sac", 0, -1200.0, -150.25))
    append(path, lines("SB3 SAC", 1, -1100.0))
    assert read_record(path) == [*lines("sac", 0, -1200.0, -150.25), *lines("SB3 SAC", 1, -1100.0)]
    assert path.read_text().count("task,variant") == 1


def test_runs_come_by_variant_and_seed() -> None:
    record = [*lines("SB3 SAC", 0, -9.0), *lines("sac", 1, -3.0, -2.0), *lines("sac", 0, -5.0)]
    runs = runs_of("pendulum", record)
    assert [(run.experiment, len(run.steps)) for run in runs] == [("sac", 1), ("sac", 2), ("SB3 SAC", 1)]
    np.testing.assert_array_equal(runs[1].steps, [0.0, 1000.0])
    assert runs_of("hopper", record) == []


def test_only_what_the_record_lacks_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[Task, Variant, int]] = []

    def train(task: Task, variant: Variant, seed: int, peers_python: str, env_python: Any) -> list[Evaluated]:
        trained.append((task, variant, seed))
        return [Evaluated(0, -1200.0, 10.0), Evaluated(10_000, -150.0, 70.0)]

    monkeypatch.setattr(algorithms, "train", train)
    append(tmp_path / "algorithms.csv", lines("sac", 0, -1200.0, -150.0))
    command = ["--task", "pendulum", "--variant", "sac", "tqc", "--seeds", "0", "1", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["algorithms", *command])
    algorithms.main()
    pendulum = TASKS["pendulum"]
    assert trained == [(pendulum, OURS["tqc"], 0), (pendulum, OURS["sac"], 1), (pendulum, OURS["tqc"], 1)]
    assert (tmp_path / "algorithms_pendulum.png").stat().st_size > 10_000
    algorithms.main()
    assert len(trained) == 3
    monkeypatch.setattr(sys, "argv", ["algorithms", *command[:-3], "2", *command[-2:], "--steps", "400"])
    algorithms.main()
    assert [(task.steps, seed) for task, _, seed in trained[3:]] == [(400, 2)] * 2


@pytest.mark.parametrize(
    ("task", "variant"), [(t, v) for t in TASKS for v in OURS if OURS[v].fits(TASKS[t])], ids=" ".join
)
def test_every_variant_of_ours_has_attributes_that_the_checks_accept(task: str, variant: str) -> None:
    params = Params({"horizon": TASKS[task].horizon})
    attributes = attributes_of(TASKS[task], OURS[variant])
    known = set(dir(TrainParamsBase))
    for name, value in attributes.items():
        assert name in known, f"{name} is no attribute of TrainParams"
        setattr(params, name, value)
    assert check_params(params) == []


def test_value_learners_have_discrete_actions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    discrete = {"dqn", "iqn", "sac_discrete", "sac_discrete, target entropy 0.35"}
    assert {variant for variant in OURS if OURS[variant].fits(TASKS["cartpole"])} == discrete
    monkeypatch.setattr(sys, "argv", ["algorithms", "--task", "cartpole", "--variant", "sac"])
    with pytest.raises(SystemExit) as ended:
        algorithms.main()
    assert ended.value.code == 2


def test_peers_are_asked_for_what_their_script_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.peers import learning

    for variant in PEERS.values():
        command = ["--library", variant.library, "--algorithm", variant.algorithm, "--environment", "Pendulum-v1"]
        monkeypatch.setattr(sys, "argv", ["learning", *command, "--steps", "10", "--eval_steps", "5"])
        assert learning.parse_arguments().updates_per_step == variant.updates_per_step


def test_minutes_are_the_records_steps_at_the_pace_of_short_runs(capsys: pytest.CaptureFixture[str]) -> None:
    random = [Evaluated(0, -1200.0, 12.0), Evaluated(1000, -1200.0, 14.0)]
    fast = minutes.Pace.of([*random, Evaluated(2000, -1200.0, 40.0), Evaluated(4000, -200.0, 60.0)])
    assert fast == minutes.Pace(start_secs=20.0, step_secs=0.01)
    paces = {"sac, 50 steps": fast, "SBX SAC": minutes.Pace(2.0, 0.05), "SB3 SAC": minutes.Pace(2.0, 0.1)}
    record = [
        e for seed, last in enumerate((-150.0, -199.0, -300.0)) for e in lines("SBX SAC", seed, -900.0, -300.0, last)
    ]
    record += [*lines("sac, 50 steps", 0, -900.0, -150.0, -300.0), *lines("SB3 SAC", 0, -900.0)]
    outcome = Outcome("a claim")
    minutes.report(outcome, "pendulum", paces, record)
    outcome.print()
    printed = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["value"] for row in printed["rows"]} == {
        "sac, 50 steps, Pendulum-v1 to -200: 1,000 steps (runs: 1)": 0.5,
        "SBX SAC, Pendulum-v1 to -200: 2,000 steps (runs: 3)": 1.7,
    }
    ratios = [(ratio["value"], ratio["target"]) for ratio in printed["ratios"]]
    assert ratios == [(pytest.approx(3.4), 2.0), (pytest.approx(3.4), 3.0)]
    assert printed["notes"] == ["SB3 SAC, Pendulum-v1 to -200: not within 10,000 steps in half of its runs (1)"]


class FakeRun:
    """In the place of a real run: at its last evaluation as soon as it is asked."""

    started: ClassVar[list[tuple[dict[str, Any], dict[str, Any]]]] = []

    def __init__(self, params: Path, config: dict[str, Any], variables: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.paths = RunPaths(Path(self._folder.name))
        (self.paths.exp_dir / "policies").mkdir()
        self.started.append((config, variables))

    def __enter__(self) -> "FakeRun":
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def wait_until(self, *_: Any, **__: Any) -> None: ...

    def stop(self) -> None:
        (self.paths.exp_dir / "saved").touch()


def test_experts_are_trained_once_demonstrate_and_are_fine_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, tuned = OURS["sac, 50 steps, layer norm, 20 demonstrations"], OURS["sac, 50 steps, fine-tuned"]
    assert [name for name in TASKS if shown.fits(TASKS[name])] == [
        "double_pendulum_demos",
        "reach_demos",
        "hopper_demos",
    ]
    assert [name for name in TASKS if tuned.fits(TASKS[name])] == ["heavy_pendulum", "heavy_hopper"]
    played: list[list[str]] = []

    def run_json(command: list[str], secs: float) -> dict[str, float]:
        played.append(command)
        Path(command[-1]).touch()
        return {"mean": 0.0}

    FakeRun.started.clear()
    monkeypatch.setattr(algorithms, "RealRun", FakeRun)
    monkeypatch.setattr(algorithms, "read_rows", lambda path: [])
    monkeypatch.setattr(experts, "run_json", run_json)
    monkeypatch.setattr(experts.expert_of, "__defaults__", (tmp_path,))
    for seed in (0, 1):
        algorithms.train(TASKS["double_pendulum_demos"], shown, seed, "python")
    demos = tmp_path / "double_pendulum_20_demonstrations.npz"
    assert [config["attributes"].get("prior_data") for config, _ in FakeRun.started] == [None, str(demos), str(demos)]
    assert [variables["SAC_SEED"] for _, variables in FakeRun.started] == [1000, 0, 1]
    assert (tmp_path / "double_pendulum" / "saved").exists(), "it was stopped before it was kept, and so has saved"
    (command,) = played
    assert command[3:] == [str(tmp_path / "double_pendulum"), "--episodes", "20", "--out", str(demos)]
    algorithms.train(TASKS["heavy_pendulum"], tuned, 0, "python")
    (expert, own), (config, variables) = FakeRun.started[-2:]
    assert (expert["environment"], own["SAC_SEED"]) == ("Pendulum-v1", 1000)
    assert variables["SAC_FROM"] == tmp_path / "pendulum" and "HeavyPendulum" in config["environment"]


def test_a_demonstration_has_what_was_seen_done_and_earned() -> None:
    class Env:
        def __init__(self) -> None:
            self.steps = 0

        def reset(self) -> ts.TimeStep:
            return ts.restart(np.zeros(1, np.float32))

        def step_in_environment_units(self, action: np.ndarray) -> ts.TimeStep:
            self.steps += 1
            seen = np.full(1, self.steps, np.float32)
            return ts.termination(seen, 2.0 * self.steps) if self.steps == 3 else ts.transition(seen, 2.0 * self.steps)

    class Policy:
        def get_initial_state(self, batch_size: int) -> tuple[()]:
            return ()

        def action(self, time_step: ts.TimeStep, state: Any) -> policy_step.PolicyStep:
            return policy_step.PolicyStep(time_step.observation + 0.5)

    episode = experts._episode(Env(), Policy())
    assert episode.observations[""].tolist() == [[0.0], [1.0], [2.0], [3.0]]
    assert episode.actions[""].tolist() == [[0.5], [1.5], [2.5]] and episode.rewards.tolist() == [2.0, 4.0, 6.0]
    assert episode.is_terminated
    assert experts._by_name({"seen": 1}) == {"seen": 1} and experts._by_name(2) == {"": 2}


@pytest.mark.parametrize(
    ("name", "plain", "body"), [("HeavyPendulum-v0", "Pendulum-v1", 2.0), ("HeavyHopper-v0", "Hopper-v5", 1.5)]
)
def test_bodies_are_heavier(name: str, plain: str, body: float) -> None:
    def mass(which: str) -> float:
        found: Any = gymnasium.make(which).unwrapped
        return float(found.m if hasattr(found, "m") else found.model.body_mass.sum())

    assert mass(f"benchmarks.learning.changed_mass:{name}") == pytest.approx(body * mass(plain))
