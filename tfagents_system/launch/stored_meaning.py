"""Whether what a run has stored still means the same with the user's files as they are now."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tree

from tfagents_system.envs.actions import in_words
from tfagents_system.envs.specs import load_actions
from tfagents_system.experience.ring_actions import mean_the_same
from tfagents_system.run_files.run_paths import RunPaths


def action_findings(paths: RunPaths, specs: bytes) -> list[str]:
    """How the actions of a run that has begun are others now: a ring has shares of bounds, or numbers of rows.

    Args:
      paths: Of the run, with the specs of its last start.
      specs: The content of its specs file from now on.
    """
    if not paths.specs.is_file():
        return []
    with _file(specs) as file:
        now, before = (tree.flatten(load_actions(path)) for path in (file, paths.specs))
    if [leaf.spec for leaf in now] != [leaf.spec for leaf in before]:
        return []  # Another layout, which is told with it.
    return [
        f"the agent and the experience in {paths.exp_dir} were made with other actions than there are now: "
        f"{own.spec.name} was {in_words(was)}, is {in_words(own)}, and not the same ones. Restore what it was "
        f"(action_table, or the bounds of the action space), or begin another run (SAC_EXP_NAME)"
        for own, was in zip(now, before, strict=True)
        if not mean_the_same(own, was)
    ]


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(suffix=".pbtxt") as file:
        file.write(content)
        file.flush()
        yield Path(file.name)
