"""The process in which a car drives in wall time: it does not wait for commands.

Messages are tuples of a name and arguments:

    ("control", action)        drives like this, when the command has arrived; not answered
    ("observe",)               answered with what has arrived of what the car saw, see `Car.observe`
    ("reset", seed, options)   begins an episode; answered with its first observation and info
    ("rest",)                  brakes until the next command, and once it stands no time passes
    ("set_state", state), ("render",), ("close",)

An answer is ("ok", value) or ("error", text).
"""

from __future__ import annotations

import collections
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from tfagents_system.examples.racing.car import STEP_SECS
from tfagents_system.examples.racing.environment import RacingEnvironment

BRAKE = (0.0, 1.0, 0.0)


class Seen(NamedTuple):
    """What has arrived since the last look: the newest observation, the sum of rewards, the info with all positions."""

    observation: dict[str, np.ndarray]
    reward: float
    terminated: bool
    info: dict[str, Any]


class Line:
    """Delivers items in order, each after a random delay.

    Args:
      delay: Seconds, the least and the most.
      rng: Draws the delays.
    """

    def __init__(self, delay: tuple[float, float], rng: np.random.Generator) -> None:
        self._delay, self._rng = delay, rng
        self._under_way: collections.deque[tuple[float, Any]] = collections.deque()

    def send(self, now: float, item: Any) -> None:
        self._under_way.append((now + self._rng.uniform(*self._delay), item))

    def arrived(self, now: float) -> list[Any]:
        """What has arrived since the last call, oldest first; nothing overtakes what was sent before it."""
        items = []
        while self._under_way and self._under_way[0][0] <= now:
            items.append(self._under_way.popleft()[1])
        return items

    def clear(self) -> None:
        """What is under way is lost."""
        self._under_way.clear()


class Car:
    """A race in which a step begins every STEP_SECS, with the command that has arrived last.

    Args:
      environment: The race.
      command_delay, observation_delay: Seconds, the least and the most.
      rng: Draws the delays.

    Attributes:
      is_driving: An episode is under way.
      step_at: When the next step is due.
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
        self.is_driving = self._is_resting = False
        self.step_at = 0.0

    def reset(self, now: float, seed: int | None, options: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
        """Begins an episode; the car stands until the first command."""
        observation, info = self.environment.reset(seed=seed, options=dict(options or {}))
        self._commands.clear()
        self._views.clear()
        self._command, self.is_driving, self._is_resting = BRAKE, True, False
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
        while self.is_driving and now >= self.step_at:
            for command in self._commands.arrived(self.step_at):
                self._command, self._is_resting = command, False
            if not (self._is_resting and self.environment.car.speed == 0.0):
                observation, reward, terminated, _, info = self.environment.step(self._command)
                self._views.send(self.step_at, Seen(observation, reward, terminated, info))
                self.is_driving = not terminated
            self.step_at += STEP_SECS

    def observe(self, now: float) -> Seen:
        """What has arrived; where nothing has, the last observation again, and its position as `path`."""
        assert self._last is not None
        arrived = self._views.arrived(now)
        self._last = arrived[-1] if arrived else self._last
        observation, _, terminated, info = self._last
        path = [position for seen in arrived for position in seen.info["path"]] or [info["position"]]
        return Seen(observation, sum(seen.reward for seen in arrived), terminated, {**info, "path": path})


def serve(connection: Connection, car: Car, now: Callable[[], float] = time.monotonic) -> None:
    """Answers messages and lets time pass, until the other side is gone or closes it."""
    answers: dict[str, Callable[..., Any]] = {
        "observe": lambda: tuple(car.observe(now())),
        "reset": lambda seed, options=None: car.reset(now(), seed, options),
        "rest": car.rest,
        "set_state": car.environment.set_state,
        "render": car.environment.render,
        "close": lambda: None,
    }
    while True:
        if connection.poll(max(0.0, car.step_at - now()) if car.is_driving else None):
            try:
                name, *arguments = connection.recv()
            except (EOFError, ConnectionError):
                return
            if name == "control":
                car.control(now(), *arguments)
                continue
            car.advance(now())
            try:
                answer = ("ok", answers[name](*arguments))
            except Exception as error:
                answer = ("error", f"{type(error).__name__}: {error}")
            connection.send(answer)
            if name == "close":
                return
        car.advance(now())


def main(descriptor: int) -> None:
    """The program: the first message says what to build. It ends with the worker, which lets it rest before.

    SLURM signals all processes of a job.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection = Connection(socket.socket(fileno=descriptor).detach())
    racing, options, command_delay, observation_delay, seed = connection.recv()
    environment = RacingEnvironment(racing, **options)
    serve(connection, Car(environment, command_delay, observation_delay, np.random.default_rng(seed)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
