"""The environment variables that describe a run, read and checked in one place.

This module imports neither TensorFlow nor any user's file. `python -m tfagents_system.settings.variables` prints
docs/reference/variables.md.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tfagents_system.checks.spelling import near_misses
from tfagents_system.errors import UserError
from tfagents_system.machine.cpus import usable_cpus
from tfagents_system.machine.worker_slots import EVAL, EXPERT, SlotCounts
from tfagents_system.settings.variable_table import VARIABLES, VariableFields, as_text, documentation, variable_name
from tfagents_system.settings.variable_values import MOST, absolute_uri, shown_value, value_of

WORKERS, _SHARE = "SAC_NUM_COLLECT_WORKERS", {"share_cpus": "SAC_SHARE_CPUS"}
COUNTS = {
    name: variable_name(name) for name in ("reverb_cpus", "train_cpus", "num_collect_workers", "collect_worker_cpus")
}
# From these a task of a job array has its run directory, its settings and its seed.
GRID, SEED, TASK = "SAC_GRID", "SAC_SEED", "SLURM_ARRAY_TASK_ID"
_NO_TASK = "TFAGENTS_NO_TASK"  # Set where it has none of them from there, see `without_task`.
_JOINED_SLOTS = 64  # For workers that join, where there is a gateway and nothing else is said.
_NAMES = tuple(variable.name for variable in VARIABLES)
# Workers that the run itself starts beside the planned ones, and what is possible instead.
_BESIDE = {"expert_workers": "SAC_EXPERT_WORKERS", "eval_workers": "SAC_EVAL_WORKERS"}
_JOINING = {
    "SAC_EXPERT_WORKERS": "experts join with sac join --role expert",
    "SAC_EVAL_WORKERS": "workers join with sac join --role eval, which add to each evaluation",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunVariables(VariableFields):
    """The checked variables of one run; every path is absolute.

    Attributes:
      reverb_port: None: the supervisor looks for a free one.
      exp_dir: With `_task_<SLURM_ARRAY_TASK_ID>` at its end inside a job array.
    """

    @classmethod
    def from_environ(
        cls, environ: Mapping[str, str] = os.environ, *, vars_file: Path | None, root: Path
    ) -> RunVariables:
        """Reads every variable.

        Args:
          environ: Usually os.environ, after the vars file was sourced.
          vars_file: Its folder is one of those in which relative SAC_PARAMS and SAC_CONFIG are looked for.
          root: The repository root: files that are neither beside the vars file nor in the current folder may be there.

        Raises:
          UserError: With all findings at once.
        """
        values, findings = read_variables(environ, vars_file=vars_file, root=root)
        if findings:
            raise UserError(*findings)
        return cls(**values)

    @property
    def kinds_beside(self) -> dict[int, str]:
        """Kinds of the workers that the run starts beside the planned ones, by number: experts, then evaluators."""
        kinds = [EXPERT] * self.expert_workers + [EVAL] * self.eval_workers
        return dict(enumerate(kinds, self.num_collect_workers))

    @property
    def slots(self) -> SlotCounts:
        """Of the run, for its workers."""
        planned = self.num_collect_workers
        most = self.max_workers or planned + self.expert_workers + self.eval_workers
        local = planned if self.local_workers is None else self.local_workers
        return SlotCounts(local, planned, most, self.expert_workers, self.eval_workers)

    def to_environ(self) -> dict[str, str]:
        """SAC_ variables for users' code; what has no value yet (an automatic port) is left out."""
        return {variable_name(name): as_text(value) for name, value in vars(self).items() if value is not None}


def read_variables(
    environ: Mapping[str, str], *, vars_file: Path | None, root: Path
) -> tuple[dict[str, Any], list[str]]:
    """Like RunVariables.from_environ, but gives what could be read (fields by name) beside the findings."""
    values: dict[str, Any] = {}
    findings = [
        f"{wrong} is not a known variable, {right} is: rename it, or unset {wrong}"
        for wrong, right in _misspelt(environ)
    ]
    folders = _folders(vars_file, root)
    for variable in VARIABLES:
        text = environ.get(variable.name, "").strip()
        if not text:
            if variable.default is None:
                findings.append(
                    f"{variable.name} is missing ({variable.meaning}): add {variable.name}={variable.example} "
                    f"to {vars_file or 'the environment'}"
                )
            continue
        findings += _read(variable, text, folders, values)
    _fill_in_counts(values, environ)
    findings += _check_workers(values) + _check_trainer(values)
    findings += _resolve_directories(values, environ, Path.cwd())
    return values, findings


def automatic_counts(given: Mapping[str, Any], cpus: int) -> dict[str, Any]:
    """Numbers for what is `auto` (or not given) of CPUs and workers.

    Args:
      given: Values of variables, by field.
      cpus: How many CPUs the run may keep busy.

    Returns:
      The four numbers, and `share_cpus` where the number of workers is automatic and nothing else is said.
    """
    reverb, worker = given.get("reverb_cpus") or 1, given.get("collect_worker_cpus") or 1
    train = given.get("train_cpus") or (2 if cpus >= 4 else 1)
    beside = sum(given.get(name, 0) for name in _BESIDE)
    fitting = (cpus - reverb - train) // worker - beside
    counts = {"reverb_cpus": reverb, "train_cpus": train, "collect_worker_cpus": worker}
    if workers := given.get("num_collect_workers"):
        return {**counts, "num_collect_workers": workers}
    workers = min(MOST, max(1, fitting, given.get("local_workers", 0)))
    return {**counts, "num_collect_workers": workers, "share_cpus": given.get("share_cpus", fitting < 1)}


def _fill_in_counts(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Nothing is filled in beside a number that is wrong: there is no plan then."""
    if any(environ.get(name, "").strip() and field not in values for field, name in {**COUNTS, **_SHARE}.items()):
        for field in COUNTS:
            if values.get(field, 0) is None:
                del values[field]
    elif not all(values.get(field) for field in COUNTS):
        values.update(automatic_counts(values, usable_cpus(environ)))


def counts_of_start(values: Mapping[str, Any]) -> dict[str, str]:
    """The variables with the numbers of CPUs and workers that `auto` stood for, for all that reads them later."""
    return {name: as_text(values[field]) for field, name in {**COUNTS, **_SHARE}.items() if field in values}


def has_automatic_workers(environ: Mapping[str, str]) -> bool:
    """Whether the number of workers follows from the CPUs."""
    return environ.get(WORKERS, "").strip() in ("", "auto")


def _folders(vars_file: Path | None, root: Path) -> list[Path]:
    """Where files with relative paths are looked for."""
    return [*([vars_file.resolve().parent] if vars_file else []), Path.cwd(), root]


def _read(variable: Any, text: str, folders: list[Path], values: dict[str, Any]) -> list[str]:
    """Puts a variable's value into `values`; returns a finding where there is none."""
    try:
        values[variable.field] = value_of(variable.kind, text, folders)
    except ValueError as error:
        return [f"{variable.name}={shown_value(text)} must be {error}"]
    return []


def _check_workers(values: dict[str, Any]) -> list[str]:
    """Fills in how many slots for workers there are; returns findings if the numbers do not fit each other."""
    if "num_collect_workers" not in values:
        return []
    planned, is_deterministic = values["num_collect_workers"], values.get("deterministic", False)
    if "server" in values:
        for name in _BESIDE:  # For workers that join, SAC_WORKER_ROLE says what they do.
            values.pop(name, None)
    beside = {variable: count for name, variable in _BESIDE.items() if (count := values.get(name, 0))}
    own = planned + sum(beside.values())
    if "gateway_port" in values:
        values.setdefault("max_workers", own if is_deterministic else min(MOST, own + _JOINED_SLOTS))
    elif beside:
        values.setdefault("max_workers", own)
    findings = []
    local = values.get("local_workers", planned) if "server" not in values else planned
    if beside:
        findings += _check_beside(beside, planned, local, is_deterministic)
    if local > planned:
        findings.append(
            f"SAC_LOCAL_WORKERS={local} must be at most SAC_NUM_COLLECT_WORKERS={planned}: lower it, or raise that"
        )
    if local < planned and is_deterministic:
        findings.append(
            f"SAC_LOCAL_WORKERS={local} does not work with SAC_DETERMINISTIC=1, where a run restarts all its workers "
            "with itself: unset it, or set SAC_DETERMINISTIC=0"
        )
    most = values.get("max_workers", own)
    if most < own <= MOST:
        findings.append(
            f"SAC_MAX_WORKERS={most} must be at least {own_workers(planned, beside)}: raise it, or lower that"
        )
    if most > own and is_deterministic:
        findings.append(
            f"SAC_MAX_WORKERS={most} does not work with SAC_DETERMINISTIC=1, where all workers are planned: unset it, "
            "or set SAC_DETERMINISTIC=0"
        )
    return findings


def _check_trainer(values: dict[str, Any]) -> list[str]:
    """Findings about a trainer that is elsewhere than its replay server; removes what is the other one's."""
    server, is_here = values.get("trainer_server"), values.get("local_trainer", True)
    findings = []
    if not is_here and "gateway_port" not in values and server is None:
        findings.append(
            "SAC_LOCAL_TRAINER=0 needs SAC_GATEWAY_PORT, at which the trainer joins: set it, 0 is any free port"
        )
    if server is not None and "credentials_dir" not in values:
        findings.append(
            f"SAC_TRAINER_SERVER={server} needs SAC_CREDENTIALS_DIR: copy the folder credentials/client of the run "
            "directory there, and set it to the copy"
        )
    if (server is not None or not is_here) and values.get("deterministic"):
        what = "SAC_LOCAL_TRAINER=0" if server is None else f"SAC_TRAINER_SERVER={server}"
        findings.append(
            f"{what} does not work with SAC_DETERMINISTIC=1, where a run restarts its replay server and its trainer "
            "together: unset one of them"
        )
    if server is not None:
        for name in ("gateway_port", "reverb_port", *_BESIDE):
            values.pop(name, None)
        values |= {"local_workers": 0, "local_trainer": True}
    return findings


def own_workers(planned: int, beside: Mapping[str, int]) -> str:
    """`SAC_NUM_COLLECT_WORKERS=3 + SAC_EXPERT_WORKERS=2`: the workers that a run starts, of those kinds that it has."""
    counts = {"SAC_NUM_COLLECT_WORKERS": planned} | {name: count for name, count in beside.items() if count}
    return " + ".join(f"{name}={count}" for name, count in counts.items())


def _check_beside(beside: Mapping[str, int], planned: int, local: int, is_deterministic: bool) -> list[str]:
    findings = []
    if is_deterministic and (experts := beside.get("SAC_EXPERT_WORKERS")):
        findings.append(
            f"SAC_EXPERT_WORKERS={experts} does not work with SAC_DETERMINISTIC=1, where all workers are planned: "
            "unset it, or set SAC_DETERMINISTIC=0"
        )
    if local < planned:
        findings += [
            f"{name}={count} does not work with SAC_LOCAL_WORKERS={local} below SAC_NUM_COLLECT_WORKERS={planned}, as "
            f"with --nodes: unset it, and let {_JOINING[name]}"
            for name, count in beside.items()
        ]
    if planned + sum(beside.values()) > MOST:
        findings.append(f"{own_workers(planned, beside)} must be at most {MOST}: lower one")
    return findings


def _resolve_directories(values: dict[str, Any], environ: Mapping[str, str], here: Path) -> list[str]:
    """Makes folders absolute, `exp_dir` and `replay_dir` one for each task of a job array and for each run; returns
    findings.
    """
    findings: list[str] = []
    if "logs_dir" in values:
        values["logs_dir"] = Path(os.path.normpath(here / values["logs_dir"]))
    if "exp_dir" in values or "exp_name" in values:
        given = "exp_dir" if "exp_dir" in values else "exp_name"
        exp_dir = str(here / (values.get("exp_dir") or values.get("logs_dir", Path("logs")) / values["exp_name"]))
        task = task_of(environ)
        if task and not exp_dir.endswith(f"_task_{task}"):  # As that of the roles of such a task does.
            of_another = re.search(r"_task_([0-9]+)$", exp_dir)
            if of_another:
                findings.append(
                    f"{variable_name(given)}={values[given]} must not end in {of_another[0]} in a sweep or a job "
                    f"array, where that is the run directory of task {of_another[1]}: choose another name"
                )
            exp_dir += f"_task_{task}"
        values["exp_dir"] = Path(os.path.realpath(exp_dir))  # By whatever links and `..`, it is one run.
    values.update({name: here / values[name] for name in ("credentials_dir", "password_file") if name in values})
    if "mlflow_uri" in values:
        values["mlflow_uri"] = absolute_uri(values["mlflow_uri"], here)
    if "replay_dir" in values:
        replay_dir = here / values["replay_dir"]
        # Runs that were given the same scratch folder, such as two of one name, must not share a ring.
        own = hashlib.sha256(str(values.get("exp_dir")).encode(errors="surrogatepass")).hexdigest()[:8]
        values["replay_dir"] = replay_dir if replay_dir.name == own else replay_dir / own
    return findings


def task_of(environ: Mapping[str, str]) -> str:
    """The number of the job array's task that a run is; empty where it is none."""
    return "" if environ.get(_NO_TASK) else environ.get(TASK, "").strip()


def without_task(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for a run that was named itself, where the task of a job array would mean another one.

    The task's number stays in it: the user's params may read it.
    """
    return {name: value for name, value in environ.items() if name != GRID} | {_NO_TASK: "1"}


def unknown_names(names: Iterable[str]) -> list[str]:
    """Those that are no variables of the toolkit, nor probably a misspelt one, which is refused."""
    others = [name for name in names if name not in _NAMES]
    return sorted(set(others) - {wrong for wrong, _ in _misspelt(others)})


def _misspelt(names: Iterable[str]) -> list[tuple[str, str]]:
    """SAC_ names that are probably a known one misspelt, each with that one. Compared without their common prefix."""
    found = {name[4:]: name for name in sorted(names) if name.upper().startswith("SAC_") and name not in _NAMES}
    pairs = near_misses(found, [name.removeprefix("SAC_") for name in _NAMES])
    return [(found[wrong], f"SAC_{right}") for wrong, right in pairs]


if __name__ == "__main__":
    print(documentation(), end="")
