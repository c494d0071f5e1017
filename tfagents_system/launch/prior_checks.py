"""Makes the ring of `prior_data` for a run that begins, and tells what is wrong with the data."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.checklist import Check
from tfagents_system.errors import UserError
from tfagents_system.train_params_base import TrainParamsBase


def make_prior_data(
    params: TrainParamsBase, specs: bytes, folder: Path, folders: Sequence[Path], check: Check
) -> Path | None:
    """Makes it in a folder below `folder`, which is returned; None if something is wrong.

    Args:
      params: Of the run.
      specs: The content of its specs file.
      folder: Exists.
      folders: Where relative paths are looked for, the first one first.
      check: Gets what was found.
    """
    import tree

    from tfagents_system.envs.specs import load_actions, load_specs
    from tfagents_system.experience.conversion import Conversion
    from tfagents_system.experience.prior_ring import PriorForm, build
    from tfagents_system.transport.run_layout import run_layout

    with tempfile.NamedTemporaryFile(suffix=".pbtxt") as file:
        file.write(specs)
        file.flush()
        layout, actions = run_layout(params, *load_specs(Path(file.name))), load_actions(Path(file.name))
    form = PriorForm(
        Conversion(layout, tree.flatten(actions), params.discount),
        params.sample_form_ctor().sequence_length,
        params.frame_stack,
        params.prior_rewards,
    )
    made = folder / "prior_data"
    with check.catching():
        try:
            check.facts.append(build(_found(params.prior_data, folders), made, form, check.notes.append))
            return made
        except OSError as error:
            raise UserError(f"the ring of prior_data can't be written to {folder} ({error.strerror})") from None
    return None


def _found(given: Any, folders: Sequence[Path]) -> list[str]:
    """The sources: names of Minari data sets as they are, paths as absolute ones.

    Raises:
      UserError: One is not there.
    """
    sources = [given] if isinstance(given, str | os.PathLike) else list(given)
    found, findings = [], []
    for source in map(str, sources):
        candidates = [(folder / Path(source).expanduser()).absolute() for folder in folders]
        there = [candidate for candidate in candidates if candidate.exists()]
        if source.startswith("minari:") or there:
            found.append(source if source.startswith("minari:") else str(there[0]))
        else:
            findings.append(
                f"TrainParams.prior_data: {source} does not exist (looked for {', '.join(map(str, candidates))}): give "
                "a run, a file, minari:NAME, or a path that is relative to the folder of SAC_PARAMS"
            )
    if findings:
        raise UserError(*findings)
    return found
