"""Makes the ring of `prior_data` for a run that begins, and tells what is wrong with the data."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfagents_system.agents.iteration_counts import has_prior_data
from tfagents_system.checks.checklist import Check, Checklist
from tfagents_system.envs.reward_places import named_in
from tfagents_system.errors import UserError
from tfagents_system.launch.worker_kind_checks import check_prior_experts
from tfagents_system.machine.scratch import DESCRIPTION
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.agent_start import AgentStart
from tfagents_system.run_files.heartbeat import read_json, write_json
from tfagents_system.run_files.run_inputs import Inputs
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.overrides import Overrides
from tfagents_system.train_params_base import TrainParamsBase

if TYPE_CHECKING:
    from tfagents_system.experience.prior_ring import PriorForm

_GIVEN = "given.json"  # In the ring's folder: what `prior_data` was, and how many experts' episodes it was made for.
_ROOM = "n_expert_episodes_in_prior_data"
_ROWS = "rows_of_files"  # The first of the ring.
_ELSEWHERE = {"server", "trainer_server"}  # Variables of programs whose replay server another start makes.
_DIGESTS = "params_files.json"  # Beside the ring that is made.


def pass_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Tells the process that makes the ring in `folder` what the params' folder has, see `Inputs`."""
    write_json(folder / _DIGESTS, dict(digests))


@dataclasses.dataclass(frozen=True)
class PriorStart:
    """A start, as far as prior data depend on it.

    Attributes:
      params: Of the run.
      values: The variables that could be read, by field.
      run: The run to continue; None for a new one.
      begins: An agent begins; one that goes on has its prior data.
      folder: Where the ring is made, with what `pass_digests` has told; None: it is not made.
      overrides, seed: Those of the start.
      agent: What an agent begins with; None: random weights.
    """

    params: TrainParamsBase
    values: Mapping[str, Any]
    run: RunPaths | None
    begins: bool
    folder: str | None
    overrides: Overrides
    seed: int
    agent: AgentStart | None

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
        return make_prior_data(self.params, specs, Path(self.folder), folders, check, self._before)

    def check_experts(self, made: Path | None, check: Check) -> None:
        """Whether somebody brings what experts are to bring; of an agent that goes on they may have brought some.

        Args:
          made: The ring that was made; None: none, or not yet.
          check: Gets what was found.
        """
        if self.begins and not _has_rows_of_experts(made or self._before):
            check_prior_experts(self.params, self.values, check)

    def _folders(self, origin: Path) -> tuple[Path, ...]:
        """Where relative paths are looked for."""
        return origin, self.values["params"].parent

    @property
    def _before(self) -> Path | None:
        """Prior data of which an agent that begins keeps what experts have brought: of its task."""
        if self.run is None or self.params.n_expert_episodes_in_prior_data is None:
            return None
        digests = read_json(Path(self.folder) / _DIGESTS) if self.folder is not None else None
        params, config = self.values["params"], self.values["config"]
        reward = named_in(self.params.env_config, params.parent)
        inputs = Inputs(params, config, digests=digests or {}, agent=self.agent, reward=reward)
        start = inputs, self.overrides, self.seed, self.values.get("replay_from", ())
        if not run_directory.has_begun(self.run) and not run_directory.keeps_experience(self.run, *start):
            return None
        return self.run.prior_data


def _has_rows_of_experts(folder: Path | None) -> bool:
    """Whether experts have brought any of the prior data in a folder; False where there are none."""
    if folder is None or (rows := (read_json(folder / _GIVEN) or {}).get(_ROWS)) is None:
        return False
    from tfagents_system.replay.stored_ring import StoredRing

    with contextlib.suppress(UserError):  # Which is reported where they are read.
        return StoredRing(folder).rows > rows
    return False


def make_prior_data(
    params: TrainParamsBase,
    specs: bytes,
    folder: Path,
    folders: Sequence[Path],
    check: Check,
    before: Path | None = None,
) -> Path | None:
    """Makes it in a folder below `folder`, which is returned; None if something is wrong.

    Args:
      params: Of the run.
      specs: The content of its specs file.
      folder: Exists.
      folders: Where relative paths are looked for, the first one first.
      check: Gets what was found.
      before: The ring of an agent before, perhaps: what experts have brought stays.
    """
    from tfagents_system.experience.prior_ring import build
    from tfagents_system.replay.stored_ring import StoredRing

    made = folder / "prior_data"
    with check.catching():
        form = _form(params, specs, before, check)
        try:
            check.facts.append(build(_found(params.prior_data, folders), made, form, check.notes.append))
            rows = StoredRing(made).rows - sum(form.kept.rows)
            room = params.n_expert_episodes_in_prior_data
            write_json(made / _GIVEN, {"prior_data": _texts(params.prior_data), _ROOM: room, _ROWS: rows})
            return made
        except OSError as error:
            raise UserError(f"the ring of prior_data can't be written to {folder} ({error.strerror})") from None
    return None


def _form(params: TrainParamsBase, specs: bytes, before: Path | None, check: Check) -> PriorForm:
    """How it is stored; arguments as of `make_prior_data`."""
    from tfagents_system.experience.conversion import conversion_for
    from tfagents_system.experience.prior_ring import Brought, PriorForm, brought_by_experts
    from tfagents_system.replay import ring_sizes

    with tempfile.NamedTemporaryFile(suffix=".pbtxt") as file:
        file.write(specs)
        file.flush()
        conversion = conversion_for(params, Path(file.name))
    layout = conversion.layout
    kept = Brought()
    room = ring_sizes.expert_rows(params, layout)
    rows = (read_json(before / _GIVEN) or {}).get(_ROWS) if before is not None else None
    if room and before is not None and rows is not None:
        kept = brought_by_experts(before, rows, layout, room, check.notes.append)
    return PriorForm(
        conversion,
        params.sample_form_ctor().sequence_length,
        params.frame_stack,
        params.prior_rewards,
        room,
        ring_sizes.segment_rows(params, layout),
        kept,
    )


def check_kept(params: TrainParamsBase, paths: RunPaths, check: Check) -> None:
    """Whether an agent that goes on began with the prior data that its parameters name now."""
    given, room = _texts(params.prior_data), params.n_expert_episodes_in_prior_data
    is_there = (paths.prior_data / DESCRIPTION).is_file()
    began = (read_json(paths.prior_data / _GIVEN) or {}) if is_there else {}
    asked = [f"prior_data={', '.join(given)}"] * bool(given and not is_there)
    asked += [f"{_ROOM}={room}"] * (room is not None and began.get(_ROOM) is None)
    if asked:
        check.errors.append(
            f"TrainParams.{' and '.join(asked)}: the agent of this run began without it. Let another one begin "
            "(--reset_training), choose another SAC_EXP_NAME, or set it to None"
        )
    elif not given and room is None:
        check.notes += ["nothing is drawn from prior data any more: prior_data=None"] * is_there
    elif (before := began.get("prior_data", given)) != given:
        check.notes.append(
            f"TrainParams.prior_data={', '.join(given) or None} is for an agent that begins (--reset_training): this "
            f"one keeps what it began with, {', '.join(before) or None}"
        )
    if room is None and began.get(_ROOM) is not None:
        check.notes.append(
            f"TrainParams.{_ROOM}=None: what experts bring from now on comes into the run's own ring. This agent began "
            f"with {_ROOM}={began[_ROOM]}"
        )
    elif began.get(_ROOM) not in (None, room):
        check.notes.append(
            f"TrainParams.{_ROOM}={room} is for an agent that begins (--reset_training): the ring of this one has room "
            f"for {began[_ROOM]}"
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
            tried, other = " and ".join(map(str, candidates)), minari_sets.meant(source)
            remedy = "give a run, a file, minari:NAME, or a path that is relative to the folder of SAC_PARAMS"
            findings.append(
                f"TrainParams.prior_data: {source} does not exist"
                + (f": {other} is meant" if other else f" (looked for {tried}): {remedy}")
            )
    if findings:
        raise UserError(*findings)
    return found
