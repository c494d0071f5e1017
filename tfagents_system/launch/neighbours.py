"""What environments share that should share nothing, in one process or beside each other in several.

Such as a simulator or a variable of a module that a process has once, or a port or a file that a machine has once.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import types
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.faults import EnvironmentFault, EnvironmentProcessError, cause_of, describe_error
from tfagents_system.envs.gym_driver import gym_layers
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError

_TIMES = 2
_MOST_HOLDERS, _MOST_ITEMS, _DEPTH = 3000, 100, 3  # Of generators that are looked for.
_GENERATORS = np.random.Generator, np.random.RandomState, random.Random


class OtherProcess:
    """A fork, as workers are, in which functions are called: to be made before there is an environment.

    Args:
      function: What `call` calls there.

    Attributes:
      pid: Its process id.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_answer, args=(function, theirs, self._connection))
        self._process.start()
        theirs.close()
        self.pid = self._process.pid or 0

    def call(self, *arguments: Any) -> Any:
        """What the function returns.

        Raises:
          EnvironmentProcessError: It raised, or its process has ended.
        """
        try:
            self._connection.send(arguments)
            error, content = self._connection.recv()
        except (EOFError, OSError):
            error = "it has ended the process that it was built in"
        if error:
            raise EnvironmentProcessError(error)
        return content

    def __enter__(self) -> OtherProcess:
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.join()


def _answer(function: Callable[..., Any], connection: Connection, theirs: Connection) -> None:
    theirs.close()  # Else this end would never see that the other one is gone.
    np.random.seed()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Simulators that greet have done so.
    while True:
        try:
            arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = "", function(*arguments)
        except UserError as error:
            answer = "; ".join(error.findings), None
        except (Exception, SystemExit) as error:
            answer = describe_error(cause_of(error)), None
        connection.send(answer)


def disturbed_step(
    env: TrainingEnvironment,
    play: Callable[[Callable[[], Any]], Sequence[ts.TimeStep]],
    disturb: Callable[[], Any],
) -> int | None:
    """The first step of an episode that another environment always changes; None: none, or the episode never repeats.

    Random numbers are no difference: generators that both use go on as if there were no other environment.

    Args:
      play: Plays the same episode of `env`; it calls its argument when the other environment may act.
      disturb: Lets the other environment act.
    """
    restore = _generators(env)

    def step_after(act: Callable[[], Any]) -> int | None:
        restore()
        return first_difference(alone, play(act))

    def act() -> None:
        restore_now = _generators(env)
        disturb()
        restore_now()

    alone = play(lambda: None)
    step = None
    for _ in range(_TIMES):
        try:
            step = step_after(act)
        except EnvironmentFault:
            step = len(alone) - 1
        except EnvironmentProcessError:  # Of the other one, which could not act.
            return None
        # Twice: an environment of its own may alternate.
        if step is None or any(step_after(lambda: None) is not None for _ in range(2)):
            return None
    return step


def first_difference(ours: Sequence[ts.TimeStep], theirs: Sequence[ts.TimeStep]) -> int | None:
    """The first step with another observation or reward; None without one."""
    for step, pair in enumerate(zip(ours, theirs, strict=False)):
        one, other = (tree.flatten((time_step.observation, time_step.reward)) for time_step in pair)
        if not all(map(np.array_equal, one, other)):
            return step
    return None


def _generators(env: TrainingEnvironment) -> Callable[[], None]:
    """Gives generators of random numbers the states that they have now: Python's and NumPy's own, and those that an
    environment's layers, their classes and the modules of these hold, such as in a space or a dictionary.
    """
    layers = list(gym_layers(env.user_env))
    classes = [cls for layer in layers for cls in type(layer).__mro__[:-1]]
    modules = [sys.modules.get(cls.__module__) for cls in classes]
    holders = [(holder, 0) for holder in [random, np.random.mtrand, *layers, *classes, *modules]]
    seen, held = set[int](), list[tuple[Any, Any, Any, Any]]()
    for holder, depth in holders:  # Which grows.
        if id(holder) in seen or len(seen) == _MOST_HOLDERS:
            continue
        seen.add(id(holder))
        if isinstance(holder, list | tuple):
            items: list[tuple[Any, Any]] = list(enumerate(holder[:_MOST_ITEMS]))
        else:
            items = list((holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})).items())
        for name, value in items:
            if isinstance(value, _GENERATORS):
                held.append((holder, name, value, value.__getstate__()))
            elif depth < _DEPTH and not isinstance(value, type | types.ModuleType | str | int | float | np.ndarray):
                holders.append((value, depth + 1))

    def restore() -> None:
        for holder, name, generator, state in held:
            if isinstance(holder, dict):
                holder[name] = generator
            elif not isinstance(holder, list | tuple):
                setattr(holder, name, generator)
            generator.__setstate__(state)

    return restore
