"""Makes the ring of `prior_data` for a run that begins, and tells what is wrong with the data."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfagents_system.agents.iteration_counts import has_prior_data
from tfagents_system.checks.checklist import Check, Checklist
from tfagents_system.errors import UserError
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.replay.ring_files import DESCRIPTION
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase

if TYPE_CHECKING:
    from tfagents_system.experience.prior_ring import PriorForm

_GIVEN = "given.json"  # In the ring's folder: what `prior_data` was.
_ELSEWHERE = {"server", "trainer_server"}  # Variables of programs whose replay server another start makes.


@dataclasses.dataclass(frozen=True)
class PriorStart:
    """A start, as far as prior data depend on it.

    Attributes:
      params: Of the run.
      values: The variables that could be read, by field.
      run: The run to continue; None for a new one.
      begins: An agent begins; one that goes on has its prior data.
      folder: Where the ring is made; None: it is not made.
    """

    params: TrainParamsBase
    values: Mapping[str, Any]
    run: RunPaths | None
    begins: bool
    folder: str | None

    def check_files(self, origin: Path, check: Check) -> None:
        """Whether the files of an agent that begins are there, which takes neither TensorFlow nor an environment.

        Args:
          origin: As of `make`.
          check: Gets what was found.
        """
        if self.begins and not _ELSEWHERE & self.values.keys():
            with check.catching():
                _found(self.params.prior_data, self._folders(origin))

    def make(self, specs: bytes, origin: Path, checks: Checklist, enter: Callable[[str], None]) -> Path | None:
        """Makes the ring of an agent that begins, which is returned, or compares that of one that goes on.

        Args:
          specs: The content of the run's specs file.
          origin: The folder that the params run in.
          checks: Get what was found.
          enter: Told what may take long.
        """
        if _ELSEWHERE & self.values.keys():
            return None
        if not self.begins:
            assert self.run is not None
            check_kept(self.params, self.run, checks["prior data"])
            return None
        if self.folder is None or not has_prior_data(self.params):
            return None
        enter("reading prior_data")
        folders, check = self._folders(origin), checks["prior data"]
        return make_prior_data(self.params, specs, Path(self.folder), folders, check)

    def _folders(self, origin: Path) -> tuple[Path, ...]:
        """Where relative paths are looked for."""
        return origin, self.values["params"].parent


def make_prior_data(
    params: TrainParamsBase,
    specs: bytes,
    folder: Path,
    folders: Sequence[Path],
    check: Check,
) -> Path | None:
    """Makes it in a folder below `folder`, which is returned; None if something is wrong.

    Args:
      params: Of the run.
      specs: The content of its specs file.
      folder: Exists.
      folders: Where relative paths are looked for, the first one first.
      check: Gets what was found.
    """
    from tfagents_system.experience.prior_ring import build

    made = folder / "prior_data"
    with check.catching():
        form = _form(params, specs)
        try:
            check.facts.append(build(_found(params.prior_data, folders), made, form, check.notes.append))
            write_json(made / _GIVEN, {"prior_data": _texts(params.prior_data)})
            return made
        except OSError as error:
            raise UserError(f"the ring of prior_data can't be written to {folder} ({error.strerror})") from None
    return None


def _form(params: TrainParamsBase, specs: bytes) -> PriorForm:
    """How it is stored; arguments as of `make_prior_data`."""
    from tfagents_system.experience.conversion import conversion_for
    from tfagents_system.experience.prior_ring import PriorForm

    with tempfile.NamedTemporaryFile(suffix=".pbtxt") as file:
        file.write(specs)
        file.flush()
        conversion = conversion_for(params, Path(file.name))
    return PriorForm(conversion, params.sample_form_ctor().sequence_length, params.frame_stack)


def check_kept(params: TrainParamsBase, paths: RunPaths, check: Check) -> None:
    """Whether an agent that goes on began with the prior data that its parameters name now."""
    given = _texts(params.prior_data)
    is_there = (paths.prior_data / DESCRIPTION).is_file()
    if given and not is_there:
        check.errors.append(
            f"TrainParams.prior_data={', '.join(given)}: the agent of this run began without it. Choose "
            "another SAC_EXP_NAME, or set it to None"
        )
    elif is_there and not given:
        check.notes.append("nothing is drawn from prior data any more: prior_data=None")
    elif is_there and (before := (read_json(paths.prior_data / _GIVEN) or {}).get("prior_data", given)) != given:
        check.notes.append(
            f"TrainParams.prior_data={', '.join(given)} is for a run that begins: this one "
            f"keeps what it began with, {', '.join(before)}"
        )


def _texts(given: Any) -> list[str]:
    """`prior_data`, as it was given; none for None."""
    if given is None:
        return []
    return [str(each) for each in ([given] if isinstance(given, str | os.PathLike) else given)]


def _found(given: Any, folders: Sequence[Path]) -> list[str]:
    """The sources: names of Minari data sets as they are, paths as absolute ones.

    Raises:
      UserError: One is not there.
    """
    from tfagents_system.experience import minari_sets

    found, findings = [], []
    for source in _texts(given):
        candidates = list(dict.fromkeys((folder / Path(source).expanduser()).absolute() for folder in folders))
        there = [candidate for candidate in candidates if candidate.exists()]
        if source.startswith(minari_sets.PREFIX):
            try:
                minari_sets.check_is_here(source)
                found.append(source)
            except UserError as error:
                findings.append(f"TrainParams.prior_data: {error}")
        elif there:
            found.append(str(there[0]))
        else:
            tried = " and ".join(map(str, candidates))
            remedy = "give a run, a file, minari:NAME, or a path that is relative to the folder of SAC_PARAMS"
            findings.append(f"TrainParams.prior_data: {source} does not exist (looked for {tried}): {remedy}")
    if findings:
        raise UserError(*findings)
    return found
