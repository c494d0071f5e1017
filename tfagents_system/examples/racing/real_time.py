"""RacingDevice: the car as a device, in a process of its own and in wall time, with random delays both ways.

The example of an interface for RealTimeEnvironment, see docs/tutorials/real_robot.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np

import tfagents_system
from tfagents_system.checks.rules import NOT_NEGATIVE, Rule, is_number
from tfagents_system.envs.real_time import Clock, RealTimeEnvironment
from tfagents_system.errors import UserError
from tfagents_system.examples.racing.car_process import BRAKE
from tfagents_system.examples.racing.environment import RacingEnvironment, RacingSettings
from tfagents_system.examples.racing.track import HELD_OUT, TRAIN
from tfagents_system.hyperparameters import Positive, read_section

KEY = "real_time"
_ANSWER_SECS = 30.0  # Building and drawing tracks included.
_CLOSE_SECS = 5.0


def _is_delay(value: Any) -> bool:
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_number, value))
    return is_pair and 0 <= value[0] <= value[1]


Delay = Annotated[tuple[float, float], Rule("two numbers from 0 on, the least and the most", _is_delay), "seconds"]


@dataclasses.dataclass(frozen=True)
class RealTimeSettings:
    """The key `real_time` of the JSON. The first four are arguments of RealTimeEnvironment.

    Attributes:
      command_delay: From a command to the car, drawn for each.
      observation_delay: From the car to what is observed.
    """

    time_step_duration: Annotated[Positive, "seconds"] = 0.05
    start_obs_capture: Annotated[float, NOT_NEGATIVE, "seconds"] = 0.045
    time_step_timeout_factor: Annotated[float, NOT_NEGATIVE, "time steps"] = 1.0
    wait_on_done: bool = True
    command_delay: Delay = (0.01, 0.04)
    observation_delay: Delay = (0.005, 0.03)


class RacingDevice:
    """rtgym's interface to a car that drives on whether or not anybody commands it.

    Args:
      racing: The race.
      settings: The delays.
      seed: Draws them.
      **options: Further arguments of RacingEnvironment.

    Attributes:
      pid: Of the process.
      track_names: All tracks that it may drive on: evaluations take the held-out ones, whatever its split is.
    """

    def __init__(self, racing: RacingSettings, settings: RealTimeSettings, seed: int | None, **options: Any) -> None:
        twin = RacingEnvironment(racing, **options)  # For its spaces.
        self._spaces = twin.observation_space, twin.action_space
        self.track_names = racing.track_names(TRAIN, HELD_OUT)
        package = Path(tfagents_system.__file__).resolve().parents[1]
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("car_process.py")), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is meant for the worker, which tells it to wait.
            )
        self.pid = self._process.pid
        self._connection = Connection(ours.detach())
        self._connection.send((racing, options, settings.command_delay, settings.observation_delay, seed))

    # What RealTimeEnvironment asks of a device.

    def send_control(self, control: Any) -> None:
        self._connection.send(("control", np.asarray(control, np.float64).tolist()))

    def get_obs_rew_terminated_info(self) -> tuple[Any, float, bool, dict[str, Any]]:
        observation, reward, terminated, info = self._ask("observe")
        return observation, reward, terminated, info

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self._ask("reset", seed, options)
        return observation, info

    def get_observation_space(self) -> gymnasium.Space:
        return self._spaces[0]

    def get_action_space(self) -> gymnasium.Space:
        return self._spaces[1]

    def get_default_action(self) -> np.ndarray:
        return np.array(BRAKE, np.float32)

    # What it may have.

    def wait(self) -> None:
        self._ask("rest")

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._ask("set_state", dict(state))

    def render(self) -> np.ndarray:
        picture: np.ndarray = self._ask("render")
        return picture

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError, RuntimeError, UserError):
            self._ask("close", secs=_CLOSE_SECS)
        self._connection.close()
        try:
            self._process.wait(_CLOSE_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, name: str, *arguments: Any, secs: float = _ANSWER_SECS) -> Any:
        self._connection.send((name, *arguments))
        if not self._connection.poll(secs):
            raise RuntimeError(f"the car has not answered {name} for {secs:g} s")
        kind, value = self._connection.recv()
        if kind == "ok":
            return value
        text = str(value)
        raise UserError(text.partition(": ")[2]) if text.startswith("UserError: ") else RuntimeError(text)


def make_real_time_race(
    env_config: Mapping[str, Any], seed: int | None, clock: Clock | None = None, **options: Any
) -> RealTimeEnvironment:
    """The race of a JSON, its keys `racing` and `real_time`, in real time.

    Args:
      seed: Draws the delays.
      clock: Of RealTimeEnvironment.
      **options: Further arguments of RacingEnvironment.

    Raises:
      UserError: Values are impossible.
    """
    settings = read_section(RealTimeSettings, env_config.get(KEY, {}), KEY)
    device = RacingDevice(RacingSettings.of(env_config), settings, seed, **options)
    try:
        return RealTimeEnvironment(
            device,
            settings.time_step_duration,
            settings.start_obs_capture,
            settings.time_step_timeout_factor,
            settings.wait_on_done,
            clock,
        )
    except UserError:
        device.close()
        raise
