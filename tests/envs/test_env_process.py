"""Environments under another Python and another NumPy: the same numbers, and every way in which a process can go."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.support import second_python
from tests.support.waiting import gone
from tfagents_system.checks.checklist import Checklist
from tfagents_system.envs import env_process, loading, package_import
from tfagents_system.envs.env_process import EnvProcess, ProcessSettings
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.launch.environment_checks import check_environment
from tfagents_system.launch.role_process import MARK_VARIABLE
from tfagents_system.machine import processes
from tfagents_system.machine.processes import is_alive
from tfagents_system.settings.load_params import load_params

MY_ENVS = '''
import ctypes
import os
import subprocess
import sys
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env):
    """Observes [step, mass, process, major version of NumPy]; does what `does` says in step 3."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 1.0]), dtype=np.float64)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 17}
    render_mode = "rgb_array"

    def __init__(self, does="", terminate_at=0, truncate_at=0):
        self.does, self.terminate_at, self.truncate_at = does, terminate_at, truncate_at
        self.mass, self.steps, self.actions = 1.0, 0, []
        self.kept = []

    def _observe(self):
        return np.array([self.steps, self.mass, os.getpid(), int(np.__version__.split(".")[0])], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.first = self.np_random.uniform()
        if self.does == "hang in reset":
            time.sleep(1000)
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        self.actions.append(action)
        if self.steps == 3:
            self.misbehave()
        info = {"log/first": self.first, "log/action": action[0], "other": object(), "is_success": np.True_}
        info |= {"record/zone": np.int64(self.steps), "record/at": np.array([0.1, np.nan]), "record/track": "a"}
        return self._observe(), self.steps * 0.5, self.steps == self.terminate_at, self.steps == self.truncate_at, info

    def misbehave(self):
        if self.does.startswith("player"):  # One in a session of its own, as Unity's is, and a daemon.
            player = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            daemon = subprocess.check_output(["sh", "-c", "setsid sleep 1000 > /dev/null & echo $!"], text=True)
            print("players", player.pid, int(daemon), flush=True)
            self.does = self.does[len("player "):]
        if self.does == "raise":
            raise ZeroDivisionError("the motor is off")
        if self.does == "hang":
            self.child = subprocess.Popen(["sleep", "1000"])
            print("child", self.child.pid, flush=True)
            while True:  # the line where it hangs
                pass
        if self.does == "crash":
            ctypes.string_at(0)  # the line where it crashes
        if self.does == "exit":
            os._exit(7)
        if self.does == "leak":
            self.kept.append(bytearray(os.urandom(1 << 20)) * 200)
        if self.does == "stop":
            os.kill(os.getpid(), 19)

    def set_state(self, state):
        if "mass" not in state:
            raise KeyError("no parameter but mass")
        self.mass = state["mass"]

    def render(self):
        return np.full((6, 8, 3), self.steps, np.uint8)


class Nested(gymnasium.Env):
    observation_space = spaces.Dict(
        joints=spaces.Box(-1.0, 1.0, (3,), np.float32),
        camera=spaces.Box(0, 255, (4, 5, 1), np.uint8),
        parts=spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
    )
    action_space = spaces.Box(-3.0, 1.0, (), np.float32)

    def __init__(self):
        self.count = 0

    def _observe(self):
        return {
            "joints": np.full(3, 0.25),
            "camera": np.full((4, 5, 1), self.count, np.uint8),
            "parts": (1 + self.count % 3, np.array([0, 1], np.int8), np.array([1, 2])),
        }

    def reset(self, *, seed=None, options=None):
        return self._observe(), {}

    def step(self, action):
        self.count += 1
        assert action.shape == () and action.dtype == np.float32
        return self._observe(), float(action), False, False, {}


class Old:
    """As of gym 0.21: 4-tuples, an observation alone from reset, seeded by seed()."""

    class Box:
        def __init__(self, low, high, shape):
            self.low, self.high = np.full(shape, low), np.full(shape, high)
            self.shape, self.dtype = shape, np.dtype(np.float64)

    observation_space = Box(-5.0, 5.0, (1,))
    action_space = Box(-1.0, 1.0, (1,))

    def __init__(self, terminate_at=0, truncate_at=0):
        self.terminate_at, self.truncate_at, self.seeded = terminate_at, truncate_at, 0.0

    def seed(self, seed=None):
        self.seeded = seed % 5

    def reset(self):
        self.steps = 0
        return np.full(1, self.seeded)

    def step(self, action):
        self.steps += 1
        done = self.steps in (self.terminate_at, self.truncate_at)
        return np.full(1, self.seeded), 1.0, done, {"TimeLimit.truncated": self.steps == self.truncate_at}


class Wrong(Counter):
    """Returns in step 3 what its space does not allow."""

    VALUES = {
        "shape": np.zeros(3), "scalar": 0.0, "nan": np.full(4, np.nan), "inf": np.full(4, np.inf), "text": "abcd",
        "ragged": [[1], [2, 3]], "none": None, "reward": np.zeros(4),
    }

    def step(self, action):
        if self.steps == 2:
            return self.VALUES[self.does], {"reward": np.nan}.get(self.does, 1.0), False, False, {}
        return super().step(action)


class Integers(Counter):
    observation_space = spaces.Box(0, 255, (2,), np.uint8)

    def reset(self, **kwargs):
        return {"floats": np.array([0.5, 0.5]), "large": np.array([1, 300])}[self.does], {}


class Text(Counter):
    observation_space = spaces.Text(5)


class Discrete(Counter):
    action_space = spaces.Dict(
        gear=spaces.Discrete(3, start=4), keys=spaces.MultiDiscrete([[2], [3]]), lamps=spaces.MultiBinary(2)
    )

    def step(self, action):
        assert self.action_space.contains(action), action
        told = {"log/gear": int(action["gear"]), "log/key": int(action["keys"][1, 0])}
        return (*super().step(np.zeros(2))[:4], told)
'''

PARAMS = """
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = 2
    train_batch_size = 8
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, name, seed=None, **kwargs):
        import my_envs

        return getattr(my_envs, name)(**kwargs)

    def collect_env_args_kwargs(self, id=0):
        return (self.env_config["name"],), self.env_config.get("kwargs", {})

    def eval_env_args_kwargs(self, id=0, collect_env=None):
        return ("Counter",), {"terminate_at": 100 + collect_env.terminate_at}
"""


class Folder:
    """A user's folder, and the environments made from it; all are closed in the end."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder = folder
        self.settings = ProcessSettings(python, step_timeout_secs=30.0)
        self._stack = contextlib.ExitStack()
        (folder / "my_envs.py").write_text(MY_ENVS)
        (folder / "my_params.py").write_text(PARAMS)

    def params(self, name: str = "Counter", **kwargs: Any) -> Any:
        return load_params(self.folder / "my_params.py", {"horizon": 10, "name": name, "kwargs": kwargs})

    def make(self, name: str = "Counter", timeout_secs: float = 30.0, **kwargs: Any) -> TrainingEnvironment:
        settings = ProcessSettings(self.settings.python, timeout_secs)
        env = loading.make_collect_env(self.params(name, **kwargs), 3, 11, name="environment 1", process=settings)
        self._stack.callback(env.close)
        return env

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def user(tmp_path: Path, env_python: Path) -> Iterator[Folder]:
    """With the newest Python that there is."""
    with folder_for(tmp_path, env_python) as folder:
        yield folder


@pytest.fixture
def each_user(tmp_path: Path, each_python: Path) -> Iterator[Folder]:
    """With every Python."""
    with folder_for(tmp_path, each_python) as folder:
        yield folder


@contextlib.contextmanager
def folder_for(tmp_path: Path, python: Path) -> Iterator[Folder]:
    sys_path, before = list(sys.path), {child.pid for child in psutil.Process().children(recursive=True)}
    folder = Folder(tmp_path, python)
    yield folder
    folder.close()
    sys.path[:] = sys_path
    left = {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert not left, "no process is left"


def zeros(env: TrainingEnvironment) -> np.ndarray:
    return np.zeros(env.action_spec().shape, np.float32)


def steps(env: TrainingEnvironment, count: int) -> list[Any]:
    return [env.reset(), *(env.step(zeros(env)) for _ in range(count))]


def pid_of(env: TrainingEnvironment) -> int:
    assert isinstance(env.user_env, EnvProcess)
    return env.user_env.pid


# The same as in the worker's own process.


def test_observations_rewards_actions_and_ends_pass_unchanged(each_user: Folder) -> None:
    env = each_user.make(terminate_at=4)
    first, *later = steps(env, 4)
    assert [time_step.observation[0] for time_step in (first, *later)] == [0, 1, 2, 3, 4]
    assert first.observation.dtype == np.float32
    assert [float(time_step.reward) for time_step in later] == [0.5, 1.0, 1.5, 2.0]
    assert [float(time_step.discount) for time_step in later] == [1.0, 1.0, 1.0, 0.0]
    assert [int(time_step.step_type) for time_step in later] == [1, 1, 1, 2]
    assert {time_step.observation[2] for time_step in later} == {pid_of(env)}, "another process"
    assert first.observation[3] == 2 and np.__version__.startswith("1."), "another NumPy"
    truncated = each_user.make(truncate_at=2)
    assert [float(time_step.discount) for time_step in steps(truncated, 2)] == [1.0, 1.0, 1.0]
    assert truncated.step(zeros(truncated)).is_first()


def test_actions_arrive_scaled_and_are_the_environments_to_keep(user: Folder) -> None:
    env = user.make()
    env.reset()
    seen = []
    for action in ([-1.0, -1.0], [1.0, 1.0], [0.5, 0.0]):
        env.step(np.array(action, np.float32))
        seen.append(env.info["log/action"])
    assert seen == [-2.0, 2.0, 1.0]


def test_of_the_info_only_what_training_looks_at_passes(user: Folder) -> None:
    env = user.make()
    steps(env, 2)
    assert set(env.info) == {"log/first", "log/action", "is_success"} and env.info["is_success"] is True


def test_what_is_recorded_of_a_step_passes_where_somebody_asks_for_it(user: Folder) -> None:
    config = {"horizon": 10, "name": "Counter", "kwargs": {}}
    params = load_params(user.folder / "my_params.py", config, attributes={"keep_best_episodes": 1})
    env = loading.make_collect_env(params, 3, 11, process=user.settings)
    try:
        steps(env, 2)
        assert env.info["record/zone"] == 2 and env.info["record/track"] == "a"
        np.testing.assert_array_equal(env.info["record/at"], [0.1, np.nan])
    finally:
        env.close()


def test_the_seed_arrives_once(user: Folder) -> None:
    firsts = []
    for seed in (1, 1, 2):
        env = loading.make_collect_env(user.params(), 0, seed, process=user.settings)
        steps(env, 1)
        firsts.append(env.info["log/first"])
        env.step(zeros(env))
        assert env.info["log/first"] == firsts[-1]
        steps(env, 1)
        assert env.info["log/first"] != firsts[-1], "the second episode is another one"
        env.close()
    assert firsts[0] == firsts[1] != firsts[2]


def test_nests_of_every_kind_of_space(each_user: Folder) -> None:
    env = each_user.make("Nested")
    env.reset()
    time_step = env.step(np.array([0.0], np.float32))
    observation = time_step.observation
    assert observation["joints"].tolist() == [0.25] * 3 and observation["joints"].dtype == np.float32
    assert observation["camera"].dtype == np.uint8 and (observation["camera"] == 1).all()
    assert observation["parts"][0].tolist() == [0.0, 1.0, 0.0]
    assert observation["parts"][1].tolist() == [0.0, 1.0]
    assert observation["parts"][2].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0]
    assert float(time_step.reward) == -1.0, "the middle of [-3, 1]"


def test_old_gym_environments(each_user: Folder) -> None:
    env = each_user.make("Old", terminate_at=3)
    first, *later = steps(env, 3)
    assert first.observation.tolist() == [11 % 5] and [float(s.discount) for s in later] == [1.0, 1.0, 0.0]
    limited = each_user.make("Old", truncate_at=2)
    assert [float(time_step.discount) for time_step in steps(limited, 2)] == [1.0, 1.0, 1.0]


def test_set_state_and_its_errors(each_user: Folder) -> None:
    env = each_user.make()
    env.set_state({"mass": np.float64(2.5)})
    assert env.step(zeros(env)).observation.tolist()[:2] == [0.0, 2.5]
    with pytest.raises(Exception, match=r"KeyError: 'no parameter but mass' \(my_envs.py, line \d+\)"):
        env.set_state({"friction": 1.0})
    other = each_user.make("Old")
    with pytest.raises(UserError, match="Old has no parameter 'mas' that can be set: it knows .*terminate_at"):
        other.set_state({"mas": 1.0})
    other.set_state({"terminate_at": 1})
    assert [time_step.is_last() for time_step in steps(other, 1)] == [False, True]


def test_pictures(each_user: Folder) -> None:
    env = each_user.make()
    steps(env, 2)
    frame = env.render_frame()
    assert frame.shape == (6, 8, 3) and frame.dtype == np.uint8 and (frame == 2).all()
    assert env.frames_per_second == 17.0
    old = each_user.make("Old")
    steps(old, 1)
    with pytest.raises(UserError, match="Old can't be drawn"):
        old.render_frame()


def test_an_installed_package_brings_no_other_packages_along(
    user: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside it are all packages of its own Python: a NumPy that another Python can't import."""
    site = tmp_path / "site-packages"
    shutil.copytree(package_import.ROOT / "tfagents_system", site / "tfagents_system")
    (site / "numpy.py").write_text("raise ImportError('compiled for another Python')")
    monkeypatch.setattr(package_import, "ROOT", site)
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{tmp_path}")
    assert user.make().reset().observation[0] == 0.0


def test_an_evaluation_environment_gets_a_collect_environment_of_its_own_process(user: Folder) -> None:
    params = user.params(terminate_at=5)
    collect_env = loading.make_collect_env(params, 0, 1, process=user.settings)
    eval_env = loading.make_eval_env(params, 0, collect_env, 2, process=user.settings)
    with collect_env, eval_env:
        eval_env.set_state({"mass": 3.0})
        assert pid_of(eval_env) != pid_of(collect_env)
        assert collect_env.reset().observation[1] == 1.0 and eval_env.reset().observation[1] == 3.0


def test_the_check_and_playing_work_through_it(user: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAC_ENV_PYTHON", str(user.settings.python))
    params = user.params(terminate_at=3)
    params.env_config["curriculum"] = {"mass": {"iters": [0, 2], "range": [1.0, 2.0], "apply_to_eval": True}}
    checks = Checklist()
    trial = check_environment(params, 0, checks)
    assert checks.errors == [] and trial is not None and trial.specs[0].shape == (4,)
    params.env_config["curriculum"] = {"friction": {"iters": [0, 2], "range": [1.0, 2.0]}}
    checks = Checklist()
    check_environment(params, 0, checks)
    assert checks.errors and all("KeyError: 'no parameter but mass' (my_envs.py, line" in e for e in checks.errors)
    with loading.make_play_env(params, 3, render=True) as env:
        env.reset()
        assert env.render_frame().shape == (6, 8, 3)


# Faults.


def fault_of(env: TrainingEnvironment, count: int = 3) -> EnvironmentFault:
    with pytest.raises(EnvironmentFault) as caught:
        steps(env, count)
    return caught.value


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(MY_ENVS.splitlines(), 1) if text in line)


def test_an_exception_names_the_users_line_and_the_process_goes_on(each_user: Folder) -> None:
    env = each_user.make(does="raise")
    line = line_of('raise ZeroDivisionError("the motor is off")')
    assert str(fault_of(env)) == (
        "worker 3: environment 1 failed in step 3 of episode 1: "
        f"ZeroDivisionError: the motor is off (my_envs.py, line {line})"
    )
    assert env.reset().observation[2] == pid_of(env)


@pytest.mark.parametrize(
    ("does", "text"),
    [
        ("shape", r"expected shape \(4,\) but found \(3,\)"),
        ("scalar", r"expected shape \(4,\) but found \(\)"),
        ("nan", "observation is not finite"),
        ("inf", "observation is not finite"),
        ("text", r"expected shape \(4,\) but found \(\)"),
        ("ragged", "ValueError"),
        ("none", r"expected shape \(4,\) but found \(\)"),
        ("reward", "the reward is nan"),
    ],
)
def test_what_the_space_does_not_allow_is_a_fault(user: Folder, does: str, text: str) -> None:
    fault = fault_of(user.make("Wrong", does=does))
    assert fault.step == 3
    with pytest.raises(EnvironmentFault, match=text):
        raise fault


@pytest.mark.parametrize(("does", "text"), [("floats", "the space says uint8"), ("large", "300, which uint8 can't")])
def test_integers_are_not_cast_silently(user: Folder, does: str, text: str) -> None:
    with pytest.raises(EnvironmentFault, match=text):
        user.make("Integers", does=does).reset()


def test_a_hang_is_killed_with_its_children_and_told_with_its_line(
    user: Folder, capfd: pytest.CaptureFixture[str]
) -> None:
    env = user.make(does="hang", timeout_secs=2.0)
    began = time.monotonic()
    fault = fault_of(env)
    assert 2.0 <= time.monotonic() - began < 10.0
    told = str(fault)
    assert "step() has not returned for 2 s (SAC_STEP_TIMEOUT_SECS)" in told
    line = line_of("while True:  # the line where it hangs")
    assert any(f"(my_envs.py, line {line + k}): its process was killed" in told for k in (0, 1)), told
    out, err = capfd.readouterr()
    assert 'my_envs.py"' in err and "in misbehave" in err, "the whole trace is in the log"
    assert gone(int(out.split("child ")[1].split()[0]), 10.0), "what it had started"
    assert gone(pid_of(env), 10.0)
    with pytest.raises(EnvironmentFault, match="has not returned for 2 s"):
        env.reset()


@pytest.mark.parametrize("ends_by", ["", "exit", "crash", "hang"])
def test_players_in_sessions_of_their_own_end_with_their_environment_and_others_go_on(
    user: Folder, capfd: pytest.CaptureFixture[str], ends_by: str
) -> None:
    """Whether it is closed, dies or hangs: what comes next is another environment in the same worker."""
    other, env = user.make(does="player "), user.make(does=f"player {ends_by}", timeout_secs=1.0)
    steps(other, 3)
    theirs = players_of(capfd)
    if ends_by:
        fault_of(env)
    else:
        steps(env, 3)
    own = players_of(capfd)
    assert len(set(own + theirs)) == 4
    if not ends_by:
        assert all(is_alive(pid) for pid in own + theirs)
    env.close()
    assert all(gone(pid, 1.0) for pid in own) and all(is_alive(pid) for pid in theirs)
    other.close()
    assert all(gone(pid, 1.0) for pid in theirs)


def test_when_the_worker_is_killed_its_supervisor_finds_the_players_by_its_mark(
    user: Folder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"worker_0.{os.getpid()}"
    monkeypatch.setenv(MARK_VARIABLE, mark)
    env = user.make(does="player ")
    steps(env, 3)
    assert processes.end_marked([f"{MARK_VARIABLE}={mark}"]) == []
    assert all(gone(pid, 1.0) for pid in [pid_of(env), *players_of(capfd)])


def players_of(capfd: pytest.CaptureFixture[str]) -> list[int]:
    told = capfd.readouterr().out.split("players ")[1].split("\n")[0]
    return [int(pid) for pid in told.split()]


@pytest.mark.parametrize("shows_environment", [True, False])  # One that is stuck while it ends shows none.
def test_a_process_that_the_kernel_does_not_let_go_is_told_and_not_waited_for(
    user: Folder, monkeypatch: pytest.MonkeyPatch, shows_environment: bool
) -> None:
    env = user.make(does="hang", timeout_secs=1.0)
    pid = pid_of(env)
    with monkeypatch.context() as patch:
        told: list[str] = []
        patch.setattr(processes, "KILL_SECS", 0.3)
        patch.setattr(os, "killpg", lambda *_: None)
        patch.setattr(processes, "kill_all", lambda *_: None)
        if not shows_environment:
            patch.setattr(processes, "environment_of", lambda pid: set())
        patch.setattr(env_process.logging, "warning", lambda text, *more: told.append(text % more))
        began = time.monotonic()
        fault_of(env)
        assert time.monotonic() - began < 8.0
    assert len(told) == 1 and f"has not ended 0.3 s after SIGKILL: the kernel holds on to pid {pid}" in told[0]
    assert isinstance(env.user_env, EnvProcess) and env.user_env._process is not None
    os.killpg(pid, signal.SIGKILL)
    assert env.user_env._process.wait(5.0) == -signal.SIGKILL


def test_a_hang_in_reset_and_a_stopped_process(user: Folder) -> None:
    with pytest.raises(EnvironmentFault, match=r"reset\(\) has not returned for 1 s .*my_envs.py, line"):
        user.make(does="hang in reset", timeout_secs=1.0).reset()
    assert "step() has not returned for 1 s" in str(fault_of(user.make(does="stop", timeout_secs=1.0)))


@pytest.mark.parametrize(
    ("does", "text"), [("crash", "its process ended with SIGSEGV in step()"), ("exit", "ended with exit code 7")]
)
def test_a_process_that_dies_is_a_fault(user: Folder, does: str, text: str) -> None:
    fault = fault_of(user.make(does=does))
    assert text in str(fault) and fault.step == 3
    if does == "crash":
        assert f"(my_envs.py, line {line_of('# the line where it crashes')})" in str(fault)


def test_a_killed_process_is_a_fault_at_the_next_call(user: Folder) -> None:
    env = user.make()
    steps(env, 1)
    os.kill(pid_of(env), signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match="its process ended with SIGKILL"):
        env.step(zeros(env))


def test_who_waits_can_give_up(user: Folder) -> None:
    asked: list[int] = []

    def is_to_stop() -> bool:
        asked.append(1)
        return len(asked) > 1

    settings = ProcessSettings(user.settings.python, 60.0, on_wait=is_to_stop)
    env = loading.make_collect_env(user.params(does="hang in reset"), 0, 1, process=settings)
    asked.clear()
    with pytest.raises(EnvironmentFault, match="when the worker was told to stop"):
        env.reset()
    assert len(asked) == 2


def test_it_dies_with_its_parent_however_that_dies_and_whatever_it_does(user: Folder) -> None:
    program = (
        "import sys, os, signal, time\n"
        "from pathlib import Path\n"
        "from tfagents_system.envs import wire\n"
        "from tfagents_system.envs.env_process import EnvProcess, ProcessSettings\n"
        "from tfagents_system.settings.load_params import load_params\n"
        "config = {'horizon': 5, 'name': 'Counter', 'kwargs': {'does': 'hang in reset'}}\n"
        "params = load_params(Path('my_params.py'), config)\n"
        "env = EnvProcess(ProcessSettings(Path(sys.argv[1])), params, {'kind': 'collect', 'env_id': 0, 'seed': 0})\n"
        "env._send(wire.RESET, {'seed': None})\n"
        "time.sleep(0.5)\n"
        "print(env.pid, sorted(os.sched_getaffinity(env.pid)), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    cpu = min(os.sched_getaffinity(0))
    done = subprocess.run(
        ["taskset", "-c", str(cpu), sys.executable, "-c", program, str(user.settings.python)],
        cwd=user.folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    pid, _, cpus = done.stdout.strip().partition(" ")
    assert cpus == f"[{cpu}]", "on the worker's CPUs"
    assert gone(int(pid), 10.0)


def test_discrete_actions_arrive_as_the_space_has_them(user: Folder) -> None:
    env = user.make("Discrete")
    env.reset()
    env.step({"gear": np.int32(2), "keys": np.int32(5), "lamps": np.int32(1)})
    assert env.info["log/gear"] == 6 and env.info["log/key"] == 2


# What can't be used, told at the start.


@pytest.mark.parametrize(
    ("name", "text"),
    [("Text", "observation has the space Text.*which has no fixed shape")],
)
def test_spaces_that_can_not_be_used(user: Folder, name: str, text: str) -> None:
    with pytest.raises(UserError, match=text):
        user.make(name)


def test_a_params_file_that_needs_tensorflow(user: Folder) -> None:
    (user.folder / "my_params.py").write_text("import tensorflow\n" + PARAMS)
    with pytest.raises(UserError, match="No module named 'tensorflow'.*inside the hooks.*SAC_ENV_PYTHON="):
        user.make()


def test_a_py_environment_is_refused_with_the_remedy(user: Folder) -> None:
    package = user.folder / "tf_agents" / "environments"
    package.mkdir(parents=True)
    (package / "py_environment.py").write_text("class PyEnvironment:\n    pass\n")
    (user.folder / "my_envs.py").write_text(
        "from tf_agents.environments.py_environment import PyEnvironment\n\n\nclass Counter(PyEnvironment):\n    pass\n"
    )
    with pytest.raises(
        UserError, match="the TF-Agents PyEnvironment .* return the Gymnasium or gym environment itself"
    ):
        user.make()


def test_a_constructor_that_raises(user: Folder) -> None:
    with pytest.raises(Exception, match=r"TypeError: .*colour.*\(my_params.py, line 14\)"):
        user.make(colour=3)


def test_overridden_attributes_are_overridden_there_too(user: Folder) -> None:
    source = PARAMS.replace("num_iter = 2", 'kind = "Nothing"').replace("my_envs, name)", "my_envs, self.kind)")
    (user.folder / "my_params.py").write_text(source)
    config = {"horizon": 10, "name": "Nothing", "kwargs": {}}
    params = load_params(user.folder / "my_params.py", config, attributes={"kind": "Counter"})
    with contextlib.closing(loading.make_collect_env(params, 3, 11, process=user.settings)) as env:
        assert tuple(env.observation_spec().shape) == (4,)


def test_interpreters_that_can_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "my_params.py").write_text(PARAMS)
    params = load_params(tmp_path / "my_params.py", {"horizon": 10, "name": "Counter"})

    def fails(python: Path) -> str:
        with pytest.raises(UserError) as caught:
            loading.make_collect_env(params, 0, 1, process=ProcessSettings(python))
        return str(caught.value)

    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=60)
    assert f"has no NumPy: {bare}/bin/python -m pip install numpy" in fails(bare / "bin" / "python")
    assert "can't be started (No such file or directory): give the path of a Python" in fails(tmp_path / "python")
    old = tmp_path / "old_python"
    old.write_text("#!/bin/sh\nexit 97\n")
    old.chmod(0o755)
    assert "is older than Python 3.9" in fails(old)


def test_without_memfd_as_on_macos_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_params.py").write_text(PARAMS)
    params = load_params(tmp_path / "my_params.py", {"horizon": 10, "name": "Counter"})
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setenv("SAC_ENV_PYTHON", "/opt/sim/bin/python")
    with pytest.raises(
        UserError, match="SAC_ENV_PYTHON=/opt/sim/bin/python needs Linux: .*`SAC_ENV_PYTHON= python tfa"
    ):
        loading.make_play_env(params, 1, render=False)


def test_the_modules_of_the_other_side_are_python_3_9_and_need_numpy_only(each_python: Path) -> None:
    program = (
        "import sys; import tfagents_system.envs.env_server; "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & "
        "{'tensorflow', 'tf_agents', 'absl', 'gym', 'gymnasium', 'tree', 'msgspec', 'psutil'}))"
    )
    root = Path(env_process.__file__).resolve().parents[2]
    done = subprocess.run(
        [str(each_python), "-c", program], env={"PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=60
    )  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr
    python_version, numpy_version, _ = second_python.versions(each_python)
    assert numpy_version.startswith("2.") and python_version >= [3, 9]
