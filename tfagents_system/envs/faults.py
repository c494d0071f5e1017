"""Exceptions of a user's environment, told with the place they come from."""

from __future__ import annotations

import traceback
from pathlib import Path

_OWN_DIR = str(Path(__file__).resolve().parent)


class EnvironmentFault(Exception):
    """The environment raised, or returned what its spaces do not allow.

    Args:
      worker_id: The worker that runs it.
      step: Steps taken in the episode, the failing one included; 0 is the reset.
      episode: Episodes begun by this environment, from 1.
      error: What was raised.
    """

    def __init__(self, worker_id: int, step: int, episode: int, error: BaseException) -> None:
        self.worker_id, self.step, self.episode = worker_id, step, episode
        where = f"step {step} of episode {episode}" if step else f"the reset before episode {episode}"
        super().__init__(f"worker {worker_id}: the environment failed in {where}: {describe_error(error)}")


def describe_error(error: BaseException) -> str:
    """`ValueError: text (my_env.py, line 12)`: the last line that is neither ours nor an installed package's."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(_OWN_DIR)]
    users = [frame for frame in outside if "site-packages" not in frame.filename]
    frame = (users or outside or [None])[-1]  # type: ignore[list-item]
    where = f" ({Path(frame.filename).name}, line {frame.lineno})" if frame else ""
    return f"{type(error).__name__}: {error}{where}"
