"""What environments share that should share nothing, in one process or beside each other in several.

Such as a simulator or a variable of a module that a process has once, or a port or a file that a machine has once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.faults import (
    EnvironmentDiedError,
    EnvironmentFault,
    EnvironmentProcessError,
    cause_of,
    describe_error,
)
from tfagents_system.errors import UserError

_CALL_SECS = 60.0


class OtherProcess(contextlib.AbstractContextManager["OtherProcess"]):
    """A fork, as workers are, in which a function is called: to be made before there is an environment."""

    def __init__(self, function: Callable[..., Any]) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, connection = context.Pipe()
        self._process = context.Process(target=_answer, args=(function, connection, self._connection))
        self._process.start()
        connection.close()
        self.pid = self._process.pid or 0

    def call(self, *arguments: Any) -> Any:
        """What the function returns.

        Raises:
          EnvironmentProcessError: It raised.
          EnvironmentDiedError: Its process has ended, or it takes too long.
        """
        try:
            self._connection.send(arguments)
            if not self._connection.poll(_CALL_SECS):
                self._process.kill()
                raise EOFError
            error, content = self._connection.recv()
        except (EOFError, OSError):
            raise EnvironmentDiedError(f"it has ended another process, or took {_CALL_SECS:g} s there") from None
        if error:
            raise EnvironmentProcessError(error)
        return content

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.join()


def _answer(function: Callable[..., Any], connection: Connection, parents: Connection) -> None:
    parents.close()  # Else this end would never see that the parent is gone.
    np.random.seed()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Simulators that greet have done so.
    while True:
        try:
            arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = "", function(*arguments)
        except (Exception, SystemExit) as error:
            answer = in_words(error), None
        connection.send(answer)


def in_words(error: BaseException) -> str:
    return "; ".join(error.findings) if isinstance(error, UserError) else describe_error(cause_of(error))


def disturbed_step(play: Callable[[int], Sequence[ts.TimeStep]]) -> int | None:
    """The first step of an episode that the actions of another environment change; None without one.

    Random numbers and time are no difference: the other one draws and takes as much with other actions.

    Args:
      play: Plays an episode, always with the same seed and actions. The other environment acts meanwhile, with the same
        seed and with the actions of the number that it is called with.
    """
    try:
        first, second = play(1), play(2)
        step = first_difference(first, second)
        # In this order: an environment of its own may alternate.
        again = ((1, first), (1, first), (2, second), (1, first)) if step is not None else ()
        return None if any(first_difference(steps, play(number)) is not None for number, steps in again) else step
    except EnvironmentProcessError:  # The other one can't act as often.
        return None
    except EnvironmentFault:
        return 1 if all(_is_fault(lambda: play(1)) for _ in range(2)) else None


def _is_fault(function: Callable[[], object]) -> bool:
    try:
        function()
    except EnvironmentFault:
        return True
    return False


def works(function: Callable[[], object]) -> bool:
    try:
        function()
    except (Exception, SystemExit):
        return False
    return True


def first_difference(ours: Sequence[ts.TimeStep], others: Sequence[ts.TimeStep]) -> int | None:
    """The first step with another observation or reward; None without one."""
    for step, pair in enumerate(zip(ours, others, strict=False)):
        one, other = (tree.flatten((time_step.observation, time_step.reward)) for time_step in pair)
        if not all(map(np.array_equal, one, other)):
            return step
    return None
