"""Environments of a user's in a process of their own, and the folder that they lie in."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tfagents_system.envs import loading
from tfagents_system.envs.env_process import EnvProcess, ProcessSettings
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.settings.load_params import load_params

MY_ENVS = '''
import ctypes
import os
import random
import subprocess
import sys
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env):
    """Observes [step, mass, process, major version of NumPy]; does what `does` says in step 3.

    Players it starts in step 2.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 1.0]), dtype=np.float64)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 17}
    render_mode = "rgb_array"

    def __init__(self, does="", terminate_at=0, truncate_at=0):
        self.does, self.terminate_at, self.truncate_at = does, terminate_at, truncate_at
        self.mass, self.steps, self.actions = 1.0, 0, []
        self.kept = []

    def set_evaluation_episode(self, number):
        self.mass = 100.0 + number

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
        if self.steps == 2 and self.does.startswith("player"):
            self.start_players()
        if self.steps == 3:
            self.misbehave()
        info = {"log/first": self.first, "log/action": action[0], "other": object(), "is_success": np.True_}
        info |= {"record/zone": np.int64(self.steps), "record/at": np.array([0.1, np.nan]), "record/track": "a"}
        return self._observe(), self.steps * 0.5, self.steps == self.terminate_at, self.steps == self.truncate_at, info

    def start_players(self):
        """One in a session of its own, as Unity's is, and a daemon."""
        player = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        daemon = subprocess.check_output(["sh", "-c", "setsid sleep 1000 > /dev/null & echo $!"], text=True)
        print("players", player.pid, int(daemon), flush=True)
        self.does = self.does[len("player "):]

    def misbehave(self):
        if self.does == "raise":
            raise ZeroDivisionError("the motor is off")
        if self.does == "hang":
            while True:
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
    """Returns in step 3 what its space does not allow: something else in each episode."""

    VALUES = [np.zeros(3), np.full(4, np.nan), "abcd", None, np.zeros(4)]
    REWARDS = [1.0, 1.0, 1.0, 1.0, np.nan]

    def reset(self, **kwargs):
        self.episodes = getattr(self, "episodes", -1) + 1
        return super().reset(**kwargs)

    def step(self, action):
        if self.steps == 2:
            return self.VALUES[self.episodes], self.REWARDS[self.episodes], False, False, {}
        return super().step(action)


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


class Drawing(Counter):
    """Takes its random numbers from the generators of Python and NumPy themselves."""

    def __init__(self):
        super().__init__()
        self.built = random.random()

    def step(self, action):
        reward = random.random() + np.random.uniform()
        return self._observe(), reward, False, False, {"log/built": self.built, "log/first": self.first}


class Lane(Counter):
    """Draws numbers, and ends by them; tells words and numbers."""

    observation_space = spaces.Dict(
        drawn=spaces.Box(-np.inf, np.inf, (2,), np.float64),
        camera=spaces.Box(0, 255, (2, 3, 1), np.uint8),
        gear=spaces.Discrete(3, start=1),
        pair=spaces.Tuple((spaces.MultiBinary(2), spaces.Box(0.0, 9.0, (), np.float32))),
    )

    def _observe(self):
        drawn = np.array([self.np_random.uniform(), self.mass])
        pair = np.array([self.steps % 2, 1], np.int8), np.float32(self.steps)
        camera = np.full((2, 3, 1), 10 * self.steps, np.uint8)
        return {"drawn": drawn, "camera": camera, "gear": 1 + self.steps % 3, "pair": pair}

    def step(self, action):
        assert action.dtype == np.float64 and action.flags.writeable
        observation, _, _, _, info = super().step(action)
        drawn = observation["drawn"][0]
        terminated, truncated = bool(drawn < 0.2), self.steps == 5
        info |= {"record/track": "abc"[self.steps % 3], "log/word": "word"}
        info["is_success"] = bool(drawn < 0.1)
        if drawn > 0.5:
            info["log/large"] = drawn
        return observation, drawn + 0.5 * float(action[1]), terminated, truncated, info


def lanes(does="", mode="NextStep", is_async=False):
    from gymnasium import vector

    makes = [lambda: Lane("player " if does == "player" else ""), Lane, lambda: Lane(does)]
    if is_async:
        return vector.AsyncVectorEnv(makes, autoreset_mode=vector.AutoresetMode(mode))
    return vector.SyncVectorEnv(makes, autoreset_mode=vector.AutoresetMode(mode))


class Goals(Counter):
    def compute_reward(self, achieved_goal, desired_goal, info):
        assert info == {} and achieved_goal.flags.writeable
        if self.does == "raise in compute_reward":
            raise ZeroDivisionError("no goal")
        if self.does == "exit in compute_reward":
            os._exit(7)
        return -np.abs(achieved_goal - desired_goal).sum(axis=-1)
'''

PARAMS = """
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = 2
    batch_size = 8
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
