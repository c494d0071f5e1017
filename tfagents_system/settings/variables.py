"""The SAC_ variables of a run: a table that describes each of them, and how they are read and checked together.

This module imports neither TensorFlow nor any user's file.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import inspect
import itertools
import os
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from tfagents_system.checks.rules import (
    Rule,
    integer_from,
    integer_in,
    is_kept,
    near_misses,
    number_above,
    one_of,
    or_none,
)
from tfagents_system.machine.claims import COLLECT, EVAL, EXPERT, KINDS, SlotCounts
from tfagents_system.machine.cpus import usable_cpus
from tfagents_system.settings.values import as_text

MOST = 4096  # CPUs of a role, workers, environments: the ring has room for as many workers.
_SHOWN_CHARS = 200


# What a run takes from another one, see `run_files/taken.py`.
TAKES = AGENT, NETWORKS, REPLAY, ALL = "agent", "networks", "replay", "all"


# How the text of a variable is read; a ValueError says what it must be.


class Kind(NamedTuple):
    """What the text of a variable may be.

    Attributes:
      read: Given the text and the folders in which files with relative paths are looked for: the value.
      is_for_others: Reports and trackers tell it. In others people put keys: SAC_JOB_PRELUDE='export HF_TOKEN=...'.
      is_path: It names a file or a folder.
    """

    read: Callable[[str, list[Path]], Any]
    is_for_others: bool = False
    is_path: bool = False


def shown_value(text: str) -> str:
    """As it is where it can be printed, and not longer than a message should be."""
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _find_program(text: str, folders: list[Path]) -> Path:
    """An executable file. Its links are not followed: a virtual environment's Python needs them to know where it is."""
    path = _find(text, folders, "file", Path.is_file)
    if not os.access(path, os.X_OK):
        raise ValueError(f"a program, {path} is not executable")
    return path


def _find_agent(text: str, folders: list[Path]) -> Path:
    """RUN or RUN@CHECKPOINT with an absolute path. A run that has begun needs it no more: it may be gone."""
    path, at, name = text.rpartition("@")
    if not path or "/" in name or any(_is_dir(folder / _path(text)) for folder in folders):
        path, at, name = text, "", ""
    candidates = [(folder / _path(path)).absolute() for folder in folders]
    return Path(
        f"{os.path.normpath(next((folder for folder in candidates if _is_dir(folder)), candidates[0]))}{at}{name}"
    )


def _is_dir(path: Path) -> bool:
    with contextlib.suppress(OSError):  # Too long, or below a folder that is not ours to look into.
        return path.is_dir()
    return False


def _find(text: str, folders: list[Path], what: str, is_one: Callable[[Path], bool]) -> Path:
    """`text` below the first folder that has it."""
    path = Path(_path(text))
    candidates = list(dict.fromkeys((folder / path).absolute() for folder in folders))
    for candidate in candidates:
        with contextlib.suppress(OSError):  # Too long, or below a folder that is not ours to look into.
            if is_one(candidate):
                return Path(os.path.normpath(candidate))
    files = {file.name: file for folder in folders for file in folder.glob("*") if file.suffix == path.suffix}
    meant = "".join(f"; {files[name]} is meant" for name in difflib.get_close_matches(path.name, files, 1, 0.7))
    words = ", ".join(shown_value(str(candidate)) for candidate in candidates)
    raise ValueError(f"an existing {what}, none of these is one: {words}{meant}")


def _path(text: str) -> str:
    """With the home directory in place of a leading `~`."""
    if not text.isprintable():
        raise ValueError("a path of printable characters")
    try:
        return str(Path(text).expanduser())
    except RuntimeError:
        raise ValueError("a path; there is no user of that name after ~") from None


def _is_address(text: str) -> bool:
    match = re.fullmatch(r"([^\s:/]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})", text)
    return match is not None and 1 <= int(match[2]) <= 65535


def _tracking_uri(text: str, _: list[Path]) -> str:
    """As it is. `sac track` reads it in another folder than the run, so a relative path would be another one there."""
    if re.match(r"file:(?!/)|sqlite[^:]*:///(?![/:?]|$)", text):
        raise ValueError("an address with an absolute path, such as sqlite:////home/me/mlflow.db")
    return text


def run_name(text: str) -> str:
    """The name of a run.

    Raises:
      ValueError: It can be none; says what it must be.
    """
    parts = Path(text).parts
    if not parts or Path(text).is_absolute() or ".." in parts or not text.isprintable():
        raise ValueError(
            "a name for the run directory below logs/, such as pendulum; SAC_LOGS_DIR names another folder than logs"
        )
    return text


def _number(text: str) -> int | float | str | None:
    """The number that a text is, or the text, which no rule for numbers lets pass; of `auto` None."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        return float(text)
    return None if text == "auto" else text


def _kind(rule: Rule, parse: Callable[[str], Any] = _number, made: Callable[[Any], Any] = lambda value: value) -> Kind:
    """Values that keep the same rules as attributes do; `made` then gives them their type."""

    def read(text: str, _: list[Path]) -> Any:
        if not is_kept(rule, value := parse(text)):
            raise ValueError(rule.words)
        return made(value)

    return Kind(read, is_for_others=True)


COUNT, COUNT_OR_AUTO = _kind(integer_in(1, MOST)), _kind(or_none(integer_in(1, MOST), "auto"))
FEW, WHOLE = _kind(integer_in(0, MOST)), _kind(integer_from(0))
SEED_NUMBER, MEGABYTES = _kind(integer_in(0, 2**31 - 1)), _kind(integer_from(1))
FLAG, SECONDS = _kind(one_of((0, 1)), made=bool), _kind(number_above(0), made=float)
PORT, GATEWAY_PORT = _kind(integer_in(1, 65535)), _kind(integer_in(0, 65535))
ROLE, TAKE = _kind(one_of(KINDS), str), _kind(one_of(TAKES), str)
WANDB_MODE = _kind(one_of(("online", "offline")), str)
ADDRESS = _kind(Rule("HOST:PORT, such as node7:8443", _is_address), str)._replace(is_for_others=False)
TEXT, NAME = Kind(lambda text, _: text), Kind(lambda text, _: run_name(text))
PATH = Kind(lambda text, _: _path(text), is_path=True)
FILE = Kind(lambda text, folders: _find(text, folders, "file", Path.is_file), is_path=True)
FILE_OR_FOLDER = Kind(lambda text, folders: _find(text, folders, "file or folder", Path.exists), is_path=True)
SAVED_AGENT, PROGRAM = Kind(_find_agent, is_path=True), Kind(_find_program, is_path=True)
TRACKING_URI = Kind(_tracking_uri)


@dataclasses.dataclass(frozen=True)
class Variable:
    """What is known about a variable beside its field.

    Attributes:
      kind: How its text is read.
      default: In words, if the field's own default does not say it; of VARIABLES None: must be given.
      example: What a message proposes where one must be given.
      is_early: Shell code reads it before --set and grids are looked at.
      is_internal: The toolkit's programs tell it to each other; users have no need of it.
      field: `train_cpus` of SAC_TRAIN_CPUS; filled in by VARIABLES.
    """

    kind: Kind
    default: str | None = None
    example: str = "1"
    is_early: bool = False
    is_internal: bool = False
    field: str = ""

    @property
    def name(self) -> str:
        return variable_name(self.field)

    @property
    def meaning(self) -> str:
        """The text behind the field."""
        return attribute_docs(RunVariables)[self.field]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunVariables:
    """The SAC_ variables of a run, each described by the text behind its field; those without a default must be given.

    Every path is absolute. `exp_dir` has `_task_<SLURM_ARRAY_TASK_ID>` at its end inside a job array.
    """

    reverb_cpus: Annotated[int, Variable(COUNT_OR_AUTO, default="auto")]
    """CPUs of the replay server; auto: 1"""
    train_cpus: Annotated[int, Variable(COUNT_OR_AUTO, default="auto")]
    """CPUs of the trainer; auto: 2 if the machine or job has at least 4, else 1"""
    train_gpus: Annotated[bool, Variable(FLAG)] = False
    """1: the trainer runs on a GPU, which no other program of the run sees"""
    num_collect_workers: Annotated[int, Variable(COUNT_OR_AUTO, default="auto")]
    """workers, which collect experience and, without SAC_EVAL_WORKERS, evaluate; auto: as many as the remaining CPUs
    allow, or 1 that shares CPUs; fixed once the run has begun; submit.sh needs a number"""
    local_workers: Annotated[int | None, Variable(FEW, default="all of them")] = None
    """planned workers that the run itself starts; the others join with sac join"""
    local_trainer: Annotated[bool, Variable(FLAG)] = True
    """0: the run waits for a trainer from elsewhere (SAC_TRAINER_SERVER), which joins through the gateway and keeps
    checkpoints, policies and metrics in its own run directory"""
    expert_workers: Annotated[int, Variable(FEW)] = 0
    """additional workers that collect with SAC_EXPERT_POLICY and ignore updates"""
    eval_workers: Annotated[int, Variable(FEW)] = 0
    """additional workers that do all evaluations; the others only collect"""
    max_workers: Annotated[
        int | None, Variable(COUNT, default="SAC_NUM_COLLECT_WORKERS + SAC_EXPERT_WORKERS + SAC_EVAL_WORKERS")
    ] = None
    """slots for workers, including those that join; with a gateway 64 more than the run's own"""
    envs_per_worker: Annotated[int, Variable(COUNT)] = 1
    """environments that each worker steps together, with one inference for all"""
    collect_worker_cpus: Annotated[int, Variable(COUNT_OR_AUTO, default="auto")]
    """CPUs of each worker; auto: 1"""
    server: Annotated[str | None, Variable(ADDRESS, default="as --to finds it")] = None
    """`host:port` of the run that sac join joins"""
    trainer_server: Annotated[str | None, Variable(ADDRESS, default="the run's own")] = None
    """`host:port` of another run's gateway: this start is only the trainer of that run"""
    worker_role: Annotated[str, Variable(ROLE)] = COLLECT
    """role of workers that join: `collect`, `eval` (only evaluate), `expert` (collect with SAC_EXPERT_POLICY), `test`
    (play the newest policy, store nothing)"""
    expert_policy: Annotated[Path | None, Variable(FILE_OR_FOLDER, default="TrainParams.expert_policy_ctor")] = None
    """SavedModel, policy checkpoint or exported file that experts act with"""
    params: Annotated[Path, Variable(FILE, example="my_params.py")]
    """Python file with `class TrainParams(TrainParamsBase)`"""
    config: Annotated[Path, Variable(FILE, example="my.json")]
    """JSON file with `horizon`, environment arguments and curriculum"""
    exp_name: Annotated[str, Variable(NAME, example="my_run")]
    """name of the run"""
    logs_dir: Annotated[Path | None, Variable(PATH, default="`logs` in the current folder")] = None
    """folder of run directories, which are `<SAC_LOGS_DIR>/<SAC_EXP_NAME>`"""
    exp_dir: Annotated[Path, Variable(PATH, default="<SAC_LOGS_DIR>/<SAC_EXP_NAME>", is_internal=True)]
    """run directory"""
    reverb_port: Annotated[int | None, Variable(PORT, default="the first free one from 8008 upwards")] = None
    """TCP port of the replay server"""
    seed: Annotated[int, Variable(SEED_NUMBER)] = 0
    """seed from which all others follow; tasks of a job array without a grid add their number"""
    grid: Annotated[Path | None, Variable(FILE, default="no grid")] = None
    """JSON file with the settings of each task of a job array (docs/how_to/many_runs.md)"""
    share_cpus: Annotated[bool, Variable(FLAG)] = False
    """1: roles share CPUs if there are too few; 0: such a start is refused"""
    save_deadline_secs: Annotated[float, Variable(SECONDS)] = 60.0
    """seconds that a stop may take, for all roles together"""
    checkpoint_minutes: Annotated[float, Variable(SECONDS)] = 10.0
    """longest time between checkpoints in minutes"""
    deterministic: Annotated[bool, Variable(FLAG)] = False
    """1: the same seed gives bit-identical weights, also after stops and crashes; slower"""
    max_restarts: Annotated[int, Variable(WHOLE)] = 10
    """consecutive restarts of a role before it is given up"""
    from_: Annotated[Path | None, Variable(SAVED_AGENT, default="nothing")] = None
    """run to begin from (`--from`): `RUN`, `RUN@best`, `RUN@CHECKPOINT`; with SAC_TAKE=replay also a folder made by
    `sac experience import`"""
    take: Annotated[str, Variable(TAKE)] = AGENT
    """what to take from SAC_FROM (`--take`): `agent` (networks, normalisation, alpha, optimizers), `networks` (with
    normalisation), `replay` (experience), or `all` (agent, experience and counters)"""
    replay_dir: Annotated[Path | None, Variable(PATH, default="<run directory>/replay")] = None
    """folder for the replay ring, such as node-local scratch"""
    straggler_secs: Annotated[float, Variable(SECONDS)] = 120.0
    """seconds that the others wait for a late worker"""
    step_timeout_secs: Annotated[float, Variable(SECONDS)] = 300.0
    """seconds for a step or reset before an environment counts as hung; building it may take four times as long, at
    least 600"""
    worker_memory_mb: Annotated[int | None, Variable(MEGABYTES, default="no limit")] = None
    """resident memory in MiB, with child processes, above which a worker restarts after its episode"""
    env_python: Annotated[Path | None, Variable(PROGRAM, default="the worker's own process")] = None
    """Python interpreter (3.9 or later, with NumPy) for environments, each in its own process"""
    job_prelude: Annotated[str | None, Variable(TEXT, is_early=True)] = None
    """shell code that runs first in a SLURM job, such as `module load python/3.11`"""
    exec_prefix: Annotated[str | None, Variable(TEXT, is_early=True)] = None
    """words before the run's command, to wrap all roles, such as `apptainer exec image.sif`"""
    python: Annotated[
        str | None,
        Variable(
            TEXT,
            default="the activated environment's, else that of setup.sh, else one on PATH",
            is_early=True,
        ),
    ] = None
    """Python 3.11 with the required packages for all programs of the run: absolute path, or name on PATH, of a
    container's image if there is one"""
    allow_strangers: Annotated[bool, Variable(FLAG)] = False
    """1: trains even if other users of the machine can reach the replay server, and so run programs as you"""
    allow_login: Annotated[bool, Variable(FLAG, is_early=True)] = False
    """1: runs, sweeps and studies train on a cluster's login node, too"""
    gateway_port: Annotated[int | None, Variable(GATEWAY_PORT, default="no gateway")] = None
    """TCP port at which workers join the run, encrypted and authenticated; 0: any free one, named by gateway.json in
    the run directory"""
    credentials_dir: Annotated[Path | None, Variable(PATH, default="<run directory>/credentials")] = None
    """folder with certificate.pem and key.pem, shared by a run and those who join it"""
    password_file: Annotated[Path | None, Variable(PATH, default="no password")] = None
    """file with a password of at least 12 characters that those who join need too; only you may read it"""
    wandb: Annotated[str | None, Variable(WANDB_MODE, default="off", example="offline")] = None
    """`online`: sends metrics to Weights & Biases; `offline`: writes files for `wandb sync` (docs/how_to/watch.md)"""
    mlflow_uri: Annotated[str | None, Variable(TRACKING_URI, default="off")] = None
    """MLflow server (http://host:5000), or `sqlite:///FILE` or `file:FOLDER` with an absolute path; without password or
    token"""
    report: Annotated[bool, Variable(FLAG)] = True
    """1: a finished run draws learning_curve.png, films an episode of its best policy and writes report.html; 0: none
    of these"""

    @property
    def kinds_beside(self) -> dict[int, str]:
        """Kinds of the workers that the run starts beside the planned ones, by number: experts, then evaluators."""
        kinds = [EXPERT] * self.expert_workers + [EVAL] * self.eval_workers
        return dict(enumerate(kinds, self.num_collect_workers))

    def kind_of(self, worker: int) -> str:
        """Of a worker by its number."""
        return self.kinds_beside.get(worker, self.worker_role)

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


def variable_name(field: str) -> str:
    """`SAC_TRAIN_CPUS` for the field `train_cpus`."""
    return f"SAC_{field.strip('_').upper()}"


def _variables() -> Iterator[Variable]:
    hints = typing.get_type_hints(RunVariables, include_extras=True)
    for field in dataclasses.fields(RunVariables):
        given: Variable = hints[field.name].__metadata__[0]
        if given.default is None and field.default is not dataclasses.MISSING:
            default = "none" if field.default is None else as_text(field.default).removesuffix(".0")
            given = dataclasses.replace(given, default=default)
        yield dataclasses.replace(given, field=field.name)


VARIABLES = tuple(_variables())
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


def read_variables(
    environ: Mapping[str, str], *, vars_file: Path | None, root: Path
) -> tuple[dict[str, Any], list[str]]:
    """Reads every variable.

    Args:
      environ: Usually os.environ, after the vars file was sourced.
      vars_file: Its folder is one of those in which relative SAC_PARAMS and SAC_CONFIG are looked for.
      root: The repository root: files that are neither beside the vars file nor in the current folder may be there.

    Returns:
      What could be read, by field, and all findings.
    """
    values: dict[str, Any] = {}
    findings = [
        f"{wrong} is not a known variable, {right} is: rename it, or unset {wrong}"
        for wrong, right in _misspelt(environ)
    ]
    folders = [*([vars_file.resolve().parent] if vars_file else []), Path.cwd(), root]
    for variable in VARIABLES:
        text = environ.get(variable.name, "").strip()
        if not text:
            if variable.default is None:
                findings.append(
                    f"{variable.name} is missing ({variable.meaning}): add {variable.name}={variable.example} "
                    f"to {vars_file or 'the environment'}"
                )
            continue
        try:
            values[variable.field] = variable.kind.read(text, folders)
        except ValueError as error:
            findings.append(f"{variable.name}={shown_value(text)} must be {error}")
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


def _check_workers(values: dict[str, Any]) -> list[str]:
    """Fills in how many slots for workers there are; returns findings if the numbers do not fit each other."""
    if "num_collect_workers" not in values:
        return []
    planned, joins = values["num_collect_workers"], "server" in values
    if joins:
        for name in _BESIDE:  # For workers that join, SAC_WORKER_ROLE says what they do.
            values.pop(name, None)
    beside = {variable: count for name, variable in _BESIDE.items() if (count := values.get(name, 0))}
    own = planned + sum(beside.values())
    if "gateway_port" in values:
        values.setdefault("max_workers", own if values.get("deterministic") else min(MOST, own + _JOINED_SLOTS))
    elif beside:
        values.setdefault("max_workers", own)
    local, most = planned if joins else values.get("local_workers", planned), values.get("max_workers", own)
    findings = []
    if local > planned:
        findings.append(
            f"SAC_LOCAL_WORKERS={local} must be at most SAC_NUM_COLLECT_WORKERS={planned}: lower it, or raise that"
        )
    if local < planned:
        findings += [
            f"{name}={count} does not work with SAC_LOCAL_WORKERS={local} below SAC_NUM_COLLECT_WORKERS={planned}, as "
            f"with --nodes: unset it, and let {_JOINING[name]}"
            for name, count in beside.items()
        ]
    if own > MOST:
        findings.append(f"{own_workers(planned, beside)} must be at most {MOST}: lower one")
    elif most < own:
        findings.append(
            f"SAC_MAX_WORKERS={most} must be at least {own_workers(planned, beside)}: raise it, or lower that"
        )
    elsewhere = {
        "local_workers": local < planned,
        "max_workers": most > own,
        "expert_workers": "SAC_EXPERT_WORKERS" in beside,
        "local_trainer": not values.get("local_trainer", True),
        "trainer_server": "trainer_server" in values,
    }
    return findings + [
        f"{variable_name(name)}={as_text(values[name])} does not work with SAC_DETERMINISTIC=1, where a run plans all "
        "of its roles and restarts them together: unset it, or set SAC_DETERMINISTIC=0"
        for name, is_meant in elsewhere.items()
        if is_meant and values.get("deterministic")
    ]


def _check_trainer(values: dict[str, Any]) -> list[str]:
    """Findings about a trainer that is elsewhere than its replay server; removes what is the other one's."""
    server = values.get("trainer_server")
    if server is None:
        if values.get("local_trainer", True) or "gateway_port" in values:
            return []
        return ["SAC_LOCAL_TRAINER=0 needs SAC_GATEWAY_PORT, at which the trainer joins: set it, 0 is any free port"]
    for name in ("gateway_port", "reverb_port", *_BESIDE):
        values.pop(name, None)
    values |= {"local_workers": 0, "local_trainer": True}
    if "credentials_dir" in values:
        return []
    return [
        f"SAC_TRAINER_SERVER={server} needs SAC_CREDENTIALS_DIR: copy the folder credentials of the run directory "
        "there, and set it to the copy"
    ]


def own_workers(planned: int, beside: Mapping[str, int]) -> str:
    """`SAC_NUM_COLLECT_WORKERS=3 + SAC_EXPERT_WORKERS=2`: the workers that a run starts, of those kinds that it has."""
    counts = {"SAC_NUM_COLLECT_WORKERS": planned} | {name: count for name, count in beside.items() if count}
    return " + ".join(f"{name}={count}" for name, count in counts.items())


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
        values["exp_dir"] = Path(os.path.normpath(exp_dir))
        with contextlib.suppress(OSError):  # A link that is not ours to read: folders are checked later.
            values["exp_dir"] = Path(os.path.realpath(exp_dir))  # By whatever links and `..`, it is one run.
    values.update({name: here / values[name] for name in ("credentials_dir", "password_file") if name in values})
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


@functools.cache
def attribute_docs(described: type) -> Mapping[str, str]:
    """The docstring of each annotated attribute by name, on one line."""
    definition = ast.parse(inspect.getsource(described)).body[0]
    assert isinstance(definition, ast.ClassDef)
    return {
        ast.unparse(node.target): " ".join(ast.literal_eval(text.value).split())
        for node, text in itertools.pairwise(definition.body)
        if isinstance(node, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
