"""Makes the ring of `prior_data` for a run that begins, and tells what is wrong with the data."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.checklist import Check
from tfagents_system.errors import UserError
from tfagents_system.machine.scratch import DESCRIPTION
from tfagents_system.run_files.heartbeat import read_json, write_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase

_GIVEN = "given.json"  # In the ring's folder: what `prior_data` was.


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
    from tfagents_system.experience.conversion import conversion_for
    from tfagents_system.experience.prior_ring import PriorForm, build

    with tempfile.NamedTemporaryFile(suffix=".pbtxt") as file:
        file.write(specs)
        file.flush()
        conversion = conversion_for(params, Path(file.name))
    form = PriorForm(
        conversion,
        params.sample_form_ctor().sequence_length,
        params.frame_stack,
        params.prior_rewards,
    )
    made = folder / "prior_data"
    with check.catching():
        try:
            check.facts.append(build(_found(params.prior_data, folders), made, form, check.notes.append))
            write_json(made / _GIVEN, {"prior_data": _texts(params.prior_data)})
            return made
        except OSError as error:
            raise UserError(f"the ring of prior_data can't be written to {folder} ({error.strerror})") from None
    return None


def check_kept(params: TrainParamsBase, paths: RunPaths, check: Check) -> None:
    """Whether an agent that goes on began with the prior data that its parameters name now."""
    given = _texts(params.prior_data)
    if not (paths.prior_data / DESCRIPTION).is_file():
        check.errors.append(
            f"TrainParams.prior_data={', '.join(given)}: the agent of this run began without it. Let another one begin "
            "(--reset_training), choose another SAC_EXP_NAME, or set it to None"
        )
    elif (before := (read_json(paths.prior_data / _GIVEN) or {}).get("prior_data", given)) != given:
        check.notes.append(
            f"TrainParams.prior_data={', '.join(given)} is for an agent that begins (--reset_training): this one keeps "
            f"what it began with, {', '.join(before)}"
        )


def _texts(given: Any) -> list[str]:
    """`prior_data`, as it was given."""
    return [str(each) for each in ([given] if isinstance(given, str | os.PathLike) else given)]


def _found(given: Any, folders: Sequence[Path]) -> list[str]:
    """The sources: names of Minari data sets as they are, paths as absolute ones.

    Raises:
      UserError: One is not there.
    """
    found, findings = [], []
    for source in _texts(given):
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
