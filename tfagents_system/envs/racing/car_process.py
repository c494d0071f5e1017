"""The process in which a car drives in wall time: it does not wait for commands.

Messages are tuples; the first part says what is meant:

    ("control", action)        drives like this, when the command has arrived
    ("observe",)               answered with what has arrived of what the car saw: Seen
    ("reset", seed, options)   begins an episode; answered with its first observation
    ("rest",)                  brakes until the next command, and once it stands no time passes; answered
    ("set_state", state), ("render",), ("close",)   answered

An answer is ("ok", value) or ("error", text).

Runs under SAC_ENV_PYTHON as well: NumPy and Gymnasium are needed, Python 3.9.
"""

from __future__ import annotations

import collections
import signal
import socket
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from tfagents_system.envs.racing.car import STEP_SECS
from tfagents_system.envs.racing.environment import RacingEnvironment

BRAKE = (0.0, 1.0, 0.0)


class Seen(NamedTuple):
    """What has arrived since the last one.

    Attributes:
      observation, terminated: Of the newest; where nothing has arrived, of the last one again.
      reward: The sum of it.
      info: Of the newest, with the `path` of all; where nothing has arrived, the last one's, with its position as path.
    """

    observation: dict[str, np.ndarray]
    reward: float
    terminated: bool
    info: dict[str, Any]


class Line:
    """Delivers things in order, each after a random delay.

    Args:
      delay: Seconds, the least and the most.
      rng: Draws the delays.
    """

    def __init__(self, delay: tuple[float, float], rng: np.random.Generator) -> None:
        self._delay = delay
        self._rng = rng
        self._under_way: collections.deque[tuple[float, Any]] = collections.deque()

    def send(self, now: float, thing: Any) -> None:
        """It is under way from now on."""
        self._under_way.append((now + self._rng.uniform(*self._delay), thing))

    def arrived(self, now: float) -> list[Any]:
        """What has arrived since the last call, oldest first; nothing overtakes what was sent before it."""
        things = []
        while self._under_way and self._under_way[0][0] <= now:
            things.append(self._under_way.popleft()[1])
        return things

    def clear(self) -> None:
        """What is under way is lost."""
        self._under_way.clear()


class Car:
    """A race in which a step begins every STEP_SECS, with the command that has arrived last.

    Args:
      environment: The race.
      command_delay, observation_delay: Seconds, the least and the most.
      rng: Draws the delays.
    """

    def __init__(
        self,
        environment: RacingEnvironment,
        command_delay: tuple[float, float],
        observation_delay: tuple[float, float],
        rng: np.random.Generator,
    ) -> None:
        self.environment = environment
        self._commands, self._views = Line(command_delay, rng), Line(observation_delay, rng)
        self._command: Any = BRAKE
        self._last: Seen | None = None
        self._is_driving = self._is_resting = False
        self.step_at = 0.0

    def reset(
        self, now: float, seed: int | None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Begins an episode; the car stands until the first command."""
        observation, info = self.environment.reset(seed=seed, options=dict(options or {}))
        self._commands.clear()
        self._views.clear()
        self._command, self._is_driving, self._is_resting = BRAKE, True, False
        self._last = Seen(observation, 0.0, False, info)
        self.step_at = now + STEP_SECS
        return observation, info

    def control(self, now: float, action: Any) -> None:
        """A command is sent."""
        self._commands.send(now, action)

    def rest(self) -> None:
        """Brakes at once, whatever is under way, and until the next command arrives.

        The race stops where the car stands: a pause does not end an episode, however long it is.
        """
        self._commands.clear()
        self._command, self._is_resting = BRAKE, True

    def advance(self, now: float) -> None:
        """Does the steps that are due; none after the episode's end."""
        while self._is_driving and now >= self.step_at:
            for command in self._commands.arrived(self.step_at):
                self._command, self._is_resting = command, False
            if self._is_resting and self.environment.car.speed == 0.0:
                self.step_at += STEP_SECS
                continue
            observation, reward, terminated, _, info = self.environment.step(self._command)
            self._views.send(self.step_at, Seen(observation, reward, terminated, info))
            self._is_driving = not terminated
            self.step_at += STEP_SECS

    def observe(self, now: float) -> Seen:
        """What has arrived; the last one again where nothing has."""
        assert self._last is not None
        arrived = self._views.arrived(now)
        self._last = arrived[-1] if arrived else self._last
        observation, _, terminated, info = self._last
        path = [place for each in arrived for place in each.info["path"]] or [info["position"]]
        return Seen(observation, sum(each.reward for each in arrived), terminated, {**info, "path": path})


def serve(connection: Connection, car: Car, now: Callable[[], float] = time.monotonic) -> None:
    """Answers messages and lets time pass, until the other side is gone or closes it."""
    while True:
        secs = max(0.0, car.step_at - now()) if car._is_driving else None
        if connection.poll(secs):
            try:
                name, *arguments = connection.recv()
            except (EOFError, ConnectionError):
                return
            if name == "control":
                car.control(now(), *arguments)
                continue
            car.advance(now())
            try:
                answer = ("ok", _answer(car, now(), name, arguments))
            except Exception as error:
                answer = ("error", f"{type(error).__name__}: {error}")
            connection.send(answer)
            if name == "close":
                return
        car.advance(now())


def _answer(car: Car, now: float, name: str, arguments: list[Any]) -> Any:
    if name == "observe":
        return car.observe(now)
    if name == "reset":
        return car.reset(now, *arguments)
    if name == "rest":
        return car.rest()
    if name == "set_state":
        return car.environment.set_state(*arguments)
    return car.environment.render() if name == "render" else None


def main(descriptor: int) -> None:
    """The program: the first message says what to build. It ends with the worker, which lets it rest before.

    SLURM signals all processes of a job.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sock = socket.socket(fileno=descriptor)
    connection = Connection(sock.detach())
    racing, options, command_delay, observation_delay, seed = connection.recv()
    environment = RacingEnvironment(racing, **options)
    serve(connection, Car(environment, command_delay, observation_delay, np.random.default_rng(seed)))
