"""Whether what a run has stored still means the same with the user's files as they are now."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import tree

from tfagents_system.checks.checklist import Check
from tfagents_system.checks.hyperparameters import described_by
from tfagents_system.checks.schedules import Schedule, is_schedule
from tfagents_system.envs.actions import in_words
from tfagents_system.envs.specs import load_actions
from tfagents_system.errors import UserError
from tfagents_system.experience.conversion import conversion_for
from tfagents_system.experience.ring_actions import mean_the_same
from tfagents_system.launch.run_settings import RESET
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.run_files.resets import AGENT
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase, has_potential

_ANOTHER_RUN = (
    "begin another run with its whole episodes: `python -m tfagents_system.experience import` this run's directory "
    "with the new params, and name the folder in SAC_REPLAY_FROM"
)
_LOOKED_AT = 200  # Of the newest observations.


def check_stored(
    environ: Mapping[str, str],
    params: TrainParamsBase,
    specs: bytes | None,
    paths: RunPaths,
    folders: Iterable[Path],
    check: Check,
) -> None:
    """Compares what a run has that has begun.

    Args:
      environ: Of the start, which may reset the run.
      params, specs, paths, folders: As of the functions below; without specs there is nothing to compare with.
      check: Gets what was found; has what is wrong with the layout already.
    """
    if not check.errors and specs is not None:
        check.errors += action_findings(paths, specs)
        check.notes += [] if check.errors else potential_notes(params, specs, folders)
    if environ.get(RESET) == AGENT:
        check.notes += schedule_notes(params, paths)


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
        f"(action_table, or the bounds of the action space), or {_ANOTHER_RUN}"
        for own, was in zip(now, before, strict=True)
        if not mean_the_same(own, was)
    ]


def potential_notes(params: TrainParamsBase, specs: bytes, folders: Iterable[Path]) -> list[str]:
    """Whether `TrainParams.potential` gives other numbers than those that were stored with the newest observations.

    Args:
      params: Of the run, as they are now.
      specs: As of `action_findings`.
      folders: Those that may have its ring.
    """
    if not has_potential(params):
        return []
    with _file(specs) as file:
        conversion = conversion_for(params, file)
    for folder in folders:
        with contextlib.suppress(UserError):  # No ring, or a potential that raises: others tell it.
            stored = StoredRing(folder)
            if stored.layout.potential is None or stored.layout.observation != conversion.layout.observation:
                continue
            looked_at = other = 0
            for segment in stored.segments(_LOOKED_AT):
                here = slice(-_LOOKED_AT, None)
                found = conversion.potentials([leaf[here] for leaf in segment.observation], str(folder))
                assert segment.potential is not None, "the layout has potentials"
                is_same = np.isclose(found, segment.potential[here], rtol=1e-4, atol=1e-6)
                looked_at, other = looked_at + len(is_same), other + int((~is_same).sum())
            if other:
                return [
                    f"TrainParams.potential gives other numbers than those that are stored, with {other} of "
                    f"{looked_at} observations: steps that were collected before keep theirs, and the agent learns "
                    "from two shapings of the reward until these are overwritten. Restore what it was, or "
                    f"{_ANOTHER_RUN}"
                ]
    return []


def schedule_notes(params: TrainParamsBase, paths: RunPaths) -> list[str]:
    """Schedules that are over for a new agent of a run, whose environment steps go on counting."""
    steps = _steps_so_far(paths)
    known = [name for name, each in described_by(TrainParamsBase).items() if each.takes_schedule]
    given = {name: getattr(params, name) for name in known}
    schedules = {name: Schedule.of(value) for name, value in given.items() if is_schedule(value)}
    over = {
        name: schedule.points[-1]
        for name, schedule in schedules.items()
        if schedule.by == "env_steps" and 0 < schedule.points[-1][0] <= steps
    }
    if not over:
        return []
    words = ", ".join(f"{name} is {value:g} from step {position:,.0f} on" for name, (position, value) in over.items())
    return [
        f"--reset_training: schedules by env_steps count the steps of the whole run, {steps:,.0f}, and are over for "
        f'the new agent: {words}. Move their points with --set, or count by "train_steps" or "iterations", which begin '
        "anew"
    ]


def _steps_so_far(paths: RunPaths) -> float:
    return max((row.get("env_steps") or 0 for row in read_metrics(paths.metrics_csv)), default=0)


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(suffix=".pbtxt") as file:
        file.write(content)
        file.flush()
        yield Path(file.name)
