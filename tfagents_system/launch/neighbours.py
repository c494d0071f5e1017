"""What environments share that should share nothing, in one process or beside each other in several.

Such as a simulator or a variable of a module that a process has once, or a port or a file that a machine has once.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import random
import sys
import types
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.actions import first_legal
from tfagents_system.envs.faults import (
    EnvironmentDiedError,
    EnvironmentFault,
    EnvironmentProcessError,
    cause_of,
    describe_error,
)
from tfagents_system.envs.gym_driver import gym_layers
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError

_CALL_SECS, _CLOSE_SECS = 60.0, 5.0
_MOST_OWNERS, _MOST_ITEMS, _DEPTH = 3000, 100, 3  # Of generators that are looked for.
_GENERATORS = np.random.Generator, np.random.RandomState, random.Random


class Neighbour(NamedTuple):
    """An environment that a run has beside its first one.

    Attributes:
      name: In messages.
      kind, env_id: See `loading.make_env`.
      is_here: It is in the same process.
    """

    name: str
    kind: str
    env_id: int
    is_here: bool


class OtherProcess:
    """A fork, as workers are: to be made before there is an environment.

    Args:
      function: Called in it; with "close" at last.

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
          UserError, EnvironmentProcessError: It raised, its process has died, or it does not return.
        """
        try:
            self._connection.send(arguments)
            if not self._connection.poll(_CALL_SECS):
                self._process.kill()
            error, content = self._connection.recv()
        except (EOFError, OSError):
            raise EnvironmentDiedError(f"it has ended another process, or took {_CALL_SECS:g} s there") from None
        if error is not None:
            raise error(*content)
        return content

    def __enter__(self) -> OtherProcess:
        return self

    def __exit__(self, *raised: object) -> None:
        with contextlib.suppress(UserError, EnvironmentProcessError):
            self.call("close")
        self._connection.close()
        self._process.join(_CLOSE_SECS)
        self._process.kill()
        self._process.join()


def _answer(function: Callable[..., Any], connection: Connection, theirs: Connection) -> None:
    theirs.close()
    np.random.seed()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Simulators that greet have done so.
    with contextlib.suppress(EOFError, OSError):
        while arguments := connection.recv():
            try:
                answer: tuple[type[Exception] | None, Any] = None, function(*arguments)
            except UserError as error:
                answer = UserError, error.findings
            except (Exception, SystemExit) as error:
                answer = EnvironmentProcessError, [describe_error(cause_of(error))]
            connection.send(answer)


def disturbed_step(
    env: TrainingEnvironment, disturb: Callable[[], Any], seed: int, actions: Sequence[Any], *, in_mid_episode: bool
) -> int | None:
    """The first step of an episode that another environment changes; None: none, or no two episodes are the same.

    Random numbers are no difference: generators that both use go on as if there were no other environment.

    Args:
      env: Plays the episode.
      disturb: Plays in the other environment: in the middle of the episode, or before it.
      seed, actions: Of the episode.
    """
    restore, half = _generators(env), 0

    def play(is_disturbed: bool) -> list[ts.TimeStep]:
        restore()
        env.reseed(seed)
        steps: list[ts.TimeStep] = []
        for number in range(len(actions) + 1):
            if is_disturbed and number == (half + 1 if in_mid_episode else 0):
                restore_now = _generators(env)
                disturb()
                restore_now()
            action = actions[number - 1] if number else None
            if action is not None and env.legal is not None:  # They were drawn before the masks are known.
                action = first_legal(np.atleast_1d(action), env.legal[:1])[0]
            steps.append(env.reset() if action is None else env.step(action))
            if steps[-1].is_last():
                break
        return steps

    alone = play(False)
    half = (len(alone) - 1) // 2
    step = None
    for times in (1, 2, 1):  # Once might be chance, and every other episode an alternation of the environment itself.
        try:
            step = first_difference(alone, play(True))
        except (EnvironmentFault, EnvironmentProcessError):
            step = half + 1
        if step is None or any(first_difference(alone, play(False)) is not None for _ in range(times)):
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
    owners = collections.deque((owner, 0) for owner in [random, np.random.mtrand, *layers, *classes, *modules])
    seen, held = set[int](), list[tuple[Any, Any, Any, Any]]()
    while owners and len(seen) < _MOST_OWNERS:
        owner, depth = owners.popleft()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        if isinstance(owner, list | tuple):
            items: list[tuple[Any, Any]] = list(enumerate(owner[:_MOST_ITEMS]))
        else:
            items = list((owner if isinstance(owner, dict) else getattr(owner, "__dict__", {})).items())
        for name, value in items:
            is_holder = isinstance(value, dict | list | tuple) or hasattr(value, "__dict__")
            if isinstance(value, _GENERATORS):
                held.append((owner, name, value, value.__getstate__()))
            elif is_holder and depth < _DEPTH and not isinstance(value, type | types.ModuleType):
                owners.append((value, depth + 1))

    torch = sys.modules.get("torch")
    torch_state = torch and torch.get_rng_state()

    def restore() -> None:
        if torch is not None:
            torch.set_rng_state(torch_state)
        for owner, name, generator, state in held:
            if isinstance(owner, dict):
                owner[name] = generator
            elif not isinstance(owner, list | tuple):
                setattr(owner, name, generator)
            generator.__setstate__(state)

    return restore
