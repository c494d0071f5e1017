"""One run of a user's own project that asks for most of what can be asked for, and what is seen of each."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import psutil
import pytest

import tfagents_system
from tests.abilities.support import SMALL, Project, column, rows, sac, sets, status

pytestmark = pytest.mark.slow

HORIZON, EPISODES, CASES, LAST = 8, 2, 4, 6

ENVIRONMENT = """
import gymnasium
import numpy as np


class Arm(gymnasium.Env):
    '''The module beside the params.'''

    observation_space = gymnasium.spaces.Dict(
        camera=gymnasium.spaces.Box(0, 255, (16, 16, 1), np.uint8),
        gear=gymnasium.spaces.Discrete(3),
        pair=gymnasium.spaces.Tuple((gymnasium.spaces.Box(-1.0, 1.0, (1,)), gymnasium.spaces.Discrete(2))),
        secret=gymnasium.spaces.Box(-1.0, 1.0, (2,)),
    )
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, gain, render_mode=None):
        self.gain, self.render_mode = gain, render_mode
        self.state, self.case, self.states = {}, -1.0, []

    def set_state(self, state):
        self.state = {**self.state, **state}

    def set_evaluation_episode(self, number):
        self.case = float(number)

    def render(self):
        return np.full((32, 32, 3), self.steps, np.uint8)

    def observe(self):
        return dict(
            camera=np.full((16, 16, 1), self.steps, np.uint8),
            gear=self.steps % 3,
            pair=(np.full(1, 0.5, np.float32), self.steps % 2),
            secret=np.zeros(2, np.float32),
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        info = {f"log/{name}": value for name, value in self.state.items()}
        info.update({"log/case": self.case, "record/step": self.steps, "is_success": self.case != 1.0})
        return self.observe(), self.gain * float(action[0]), False, False, info
"""

PARAMS = f"""
import json
import os
import re
from pathlib import Path

from arm import Arm
from tfagents_system.train_params_base import TrainParamsBase

HERE = Path("FOLDER")


def write(name, **content):
    with (HERE / name).open("a") as file:
        file.write(json.dumps(content) + "\\n")


class Steps:
    name = "steps_seen"

    def __init__(self):
        self.steps = self.episodes = 0

    def __call__(self, trajectory):
        self.steps += 1

    def take_episode(self, episode):
        self.episodes += 1
        write("taken.txt", actions=len(episode.lists["actions"]), steps=episode.lists["record/step"].tolist())

    def result(self):
        return float(self.steps)


class TrainParams(TrainParamsBase):
    {SMALL}
    num_iter = 100
    num_train_episodes_per_iter = {EPISODES}
    num_eval_episodes = {CASES}
    eval_period_iters = 2
    frame_stack = {{"camera": 2}}
    action_history = 2
    actor_observations = ("camera", "gear", "pair")
    image_encoder_features = 6
    keep_best_episodes = 3
    greedy_episode_share = 0.5
    priority_exponent = 0.6
    priority_beta = {{"points": [[0, 0.4], [5, 1.0]], "by": "iterations"}}
    best_metric = "success"
    my_own = 3

    def __init__(self, env_config, compute_config=None):
        super().__init__(env_config, compute_config)
        self.seen_workers = self.compute_config.get("num_collect_workers")

    def env_ctor(self, worker, kind, render_mode=None, seed=None):
        write("built.txt", worker=worker, kind=kind, seed=seed, pid=os.getpid(), workers=self.seen_workers)
        return Arm(self.env_config["gain"], render_mode)

    def collect_env_args_kwargs(self, id):
        return (id,), {{"kind": "collect"}}

    def eval_env_args_kwargs(self, id, collect_env):
        return (id,), {{"kind": f"beside {{collect_env.gain}}"}}

    def callbacks_ctor(self):
        write("trainer.txt", rate=self.critic_learning_rate, own=self.my_own, optimizer=self.critic_optimizer)
        return [lambda logged: "it is enough" if logged.row["iteration"] >= {LAST} else None]

    def train_observers_ctor(self):
        return [Steps()]

    def eval_observers_ctor(self):
        return [Steps()]
"""
MASS = {"iters": [0, 2, 4], "range": [1.0, 2.0], "apply_to_eval": True}
WIND = {"iters": [0, 3], "range": [0.0, 1.0]}
CONFIG = {"horizon": 50, "gain": 1.0, "unused": 1, "curriculum": {"mass": MASS, "wind": WIND}}
SETTINGS = ("critic_learning_rate=0.002", "critic_optimizer.name=adamw", f"config.horizon={HORIZON}", "SAC_SEED=5")


class Finished:
    """The run, and the CPUs that its processes had."""

    def __init__(self, folder: Path) -> None:
        (folder / "arm.py").write_text(ENVIRONMENT)
        self.project = Project(folder, PARAMS, CONFIG, EVAL_WORKERS=1)
        process = self.project.start(*sets(*SETTINGS, "my_own=4", "config.unused=null"))
        self.project.wait_until(process, self._all_live)
        self.cpus = {name: psutil.Process(pid).cpu_affinity() for name, pid in self._pids().items()}
        self.output = self.project.finish(process)
        self.run = self.project.run

    def _pids(self) -> dict[str, int]:
        return {
            name: role["pid"] for name, role in status(self.project.run).get("roles", {}).items() if role.get("pid")
        }

    def _all_live(self) -> bool:
        return {"replay", "trainer", "worker_0", "worker_1"} <= self._pids().keys()

    def written(self, name: str) -> list[dict]:
        return [json.loads(line) for line in (self.project.folder / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return Finished(tmp_path_factory.mktemp("everything"))


def test_roles_are_pinned_to_the_cpus_that_are_planned(finished: Finished) -> None:
    plan, allowed = status(finished.run)["plan"], sorted(os.sched_getaffinity(0))
    # Beside runs of other tests that leave it too few CPUs it is not pinned, and says so.
    expected = {name: sorted(cpus) or allowed for name, cpus in plan.items()}
    assert {name: sorted(cpus) for name, cpus in finished.cpus.items()} == expected
    assert all(len(cpus) <= 1 and set(cpus) <= set(allowed) for cpus in plan.values())
    assert len({bool(cpus) for cpus in plan.values()}) == 1


def test_settings_reach_attributes_dictionaries_configuration_and_variables(finished: Finished) -> None:
    agent = finished.written("trainer.txt")[-1]
    assert (agent["rate"], agent["own"], agent["optimizer"]) == (0.002, 4, {"name": "adamw"})
    run = json.loads((finished.run / "run.json").read_text())
    assert run["config"]["horizon"] == HORIZON and "unused" not in run["config"]
    assert run["seed"] == 5


def test_hooks_get_id_collect_env_seed_and_configuration(finished: Finished) -> None:
    built = finished.written("built.txt")
    kinds = {(line["worker"], line["kind"]) for line in built}
    assert {(0, "collect"), (1, "beside 1.0")} <= kinds, kinds
    seeds = [line["seed"] for line in built if line["seed"] is not None]
    assert len(set(seeds)) > 2 and {line["workers"] for line in built} == {1}


def test_the_curriculum_reaches_environments_and_metrics(finished: Finished) -> None:
    trained = {row["iteration"]: row for row in rows(finished.run) if "critic_loss" in row}

    def due(iteration: float) -> float:
        return 1.0 + 0.5 * ((iteration >= 2) + (iteration >= 4))

    # A row is written when an iteration is over, and collecting may be one ahead.
    for iteration, row in trained.items():
        assert row["curriculum/mass"] in {due(iteration - 1), due(iteration), due(iteration + 1)}
    # What the last iteration's episodes were like may be told after its row.
    told = [row for row in trained.values() if "train/mass" in row]
    assert told[-1]["train/mass"] == 2.0 and told[-1]["train/wind"] == 1.0, "in the environments themselves"
    assert LAST - told[-1]["iteration"] <= 1
    evaluated = [row for row in rows(finished.run) if "eval_return" in row]
    assert evaluated[0]["eval/mass"] == 1.0 and evaluated[-1]["eval/mass"] == 2.0
    assert not column(finished.run, "eval/wind"), "without apply_to_eval it never reaches evaluations"


def test_the_agent_sees_dictionaries_tuples_and_one_hot_numbers(finished: Finished, tmp_path: Path) -> None:
    sac("experience", "export", finished.run, "--out", tmp_path / "all.npz")
    with np.load(tmp_path / "all.npz") as data:
        shapes = {name.removeprefix("observations/"): data[name].shape[1:] for name in data.files}
        gear, camera = data["observations/gear"], data["observations/camera"]
    assert shapes["pair/0"] == (1,) and shapes["pair/1"] == (2,) and shapes["action_history"] == (2,)
    assert camera.dtype == np.uint8 and camera.shape[1:] == (16, 16, 1), "each frame once"
    np.testing.assert_array_equal(gear, np.eye(3)[camera[:, 0, 0, 0] % 3])


def test_pictures_are_encoded_and_the_actor_sees_its_parts_alone(finished: Finished) -> None:
    observation = {
        "camera": np.zeros((16, 16, 1), np.uint8),
        "gear": np.eye(3, dtype=np.float32)[0],
        "pair": (np.full(1, 0.5, np.float32), np.eye(2, dtype=np.float32)[0]),
        "action_history": np.zeros(2, np.float32),
    }
    policy = tfagents_system.load_run(finished.run).policy("latest")

    def action(**changed: np.ndarray) -> float:
        policy.reset()
        return float(policy({**observation, **changed})[0])

    assert action(camera=np.random.default_rng(0).integers(0, 255, (16, 16, 1), np.uint8)) != action()
    assert action(secret=np.ones(2, np.float32)) == action(), "a part that only critics see"


def test_what_an_environment_tells_is_in_metrics_and_episodes(finished: Finished) -> None:
    assert column(finished.run, "train_success") and set(column(finished.run, "eval_success")) == {0.75}
    paths = sorted((finished.run / "episodes").glob("*.npz"))
    assert len(paths) == 3
    for path in paths:
        with np.load(path) as episode:
            np.testing.assert_array_equal(episode["record/step"], range(1, HORIZON + 1))
            assert episode["rewards"].shape == (HORIZON,) and episode["action_was_greedy"].dtype == bool
            named = float(re.findall(r"return_(-?[\d.]+)_train_step", path.name)[0])
            assert named == pytest.approx(float(episode["rewards"].sum()), abs=0.1)
    told = sac("play", finished.run, "--replay_actions", paths[0], "--no_video")
    recorded, replayed = (line.split(": ")[1].split(" of ")[0] for line in told.splitlines())
    assert recorded == replayed and f"{HORIZON} steps" in replayed


def test_observers_see_steps_and_episodes(finished: Finished) -> None:
    assert max(column(finished.run, "train/steps_seen")) >= (LAST - 1) * EPISODES * HORIZON
    assert max(column(finished.run, "eval/steps_seen")) >= 3 * CASES * HORIZON
    taken = finished.written("taken.txt")
    assert all(line["actions"] == HORIZON and line["steps"] == list(range(1, HORIZON + 1)) for line in taken)


def test_each_evaluation_has_its_numbered_cases(finished: Finished) -> None:
    evaluated = [row for row in rows(finished.run) if "eval_return" in row]
    assert [row["iteration"] for row in evaluated][:2] == [0, 2] and evaluated[-1]["iteration"] >= LAST
    assert {(row["eval_episodes"], row["eval/case"]) for row in evaluated} == {(CASES, (0 + 1 + 2 + 3) / CASES)}
    assert "evaluating" not in status(finished.run)["roles"]["worker_0"]["time_shares"], "SAC_EVAL_WORKERS does it"
    best = json.loads((finished.run / "policies" / "best.json").read_text())
    assert best["curriculum"]["mass"] == 2.0, "of the newest stage"


def test_priorities_have_a_schedule_and_a_callback_ends_the_run(finished: Finished) -> None:
    assert column(finished.run, "schedule/priority_beta")[-1] == 1.0
    trainer = status(finished.run)["roles"]["trainer"]
    assert LAST <= trainer["iteration"] <= LAST + 1 < 100 and "it is enough" in finished.output
