"""The environment variables that describe a run: one table, read and checked in one place.

This module imports neither TensorFlow nor any user's file. `python -m tfagents_system.settings.variables` prints
docs/variables.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.spelling import near_misses
from tfagents_system.errors import UserError
from tfagents_system.machine.slots import COLLECT, KINDS


@dataclasses.dataclass(frozen=True)
class Variable:
    """One SAC_ variable.

    Attributes:
      meaning: For docs and messages, with its unit.
      default: As a user would write it; None: must be given.
      kind: How its text is read; see `_PARSERS`.
      example: What a message proposes.
      is_early: Shell code reads it before --set and grids are looked at.
    """

    name: str
    meaning: str
    default: str | None
    kind: str
    example: str = "1"
    is_early: bool = False


VARIABLES: tuple[Variable, ...] = (
    Variable("SAC_REVERB_CPUS", "CPUs of the replay server", None, "count"),
    Variable("SAC_TRAIN_CPUS", "CPUs of the policy updates", None, "count"),
    Variable("SAC_TRAIN_GPUS", "1: the policy updates run on a GPU; no other program of the run sees one", "0", "flag"),
    Variable("SAC_NUM_COLLECT_WORKERS", "workers: programs that collect experience and evaluate", None, "count"),
    Variable(
        "SAC_LOCAL_WORKERS",
        "how many of these the run itself starts; the others are waited for and join with join_script.sh",
        "all of them",
        "few",
    ),
    Variable(
        "SAC_EXPERT_WORKERS",
        "workers beside these that the run starts as experts: they collect with SAC_EXPERT_POLICY and ignore updates",
        "0",
        "few",
    ),
    Variable(
        "SAC_MAX_WORKERS",
        "slots for workers, those that join included; 64 more than the run's own where there is a gateway",
        "SAC_NUM_COLLECT_WORKERS + SAC_EXPERT_WORKERS",
        "count",
    ),
    Variable(
        "SAC_ENVS_PER_WORKER", "environments that each worker steps together, with one inference for all", "1", "count"
    ),
    Variable("SAC_COLLECT_WORKER_CPUS", "CPUs of each worker", None, "count"),
    Variable(
        "SAC_SERVER", "`host:port` of the run that join_script.sh joins", "as --to finds it", "address", "node7:8443"
    ),
    Variable(
        "SAC_WORKER_ROLE",
        "what workers that join do: `collect`, `eval` (only evaluate), `expert` (collect with SAC_EXPERT_POLICY), "
        "`test` (play the newest policy, store nothing)",
        "collect",
        "role",
        "eval",
    ),
    Variable(
        "SAC_EXPERT_POLICY",
        "SavedModel, policy checkpoint or exported file that an expert acts with",
        "TrainParams.expert_policy_ctor",
        "file or folder",
        "logs/a/policies/greedy_policy",
    ),
    Variable("SAC_PARAMS", "Python file with `class TrainParams(TrainParamsBase)`", None, "file", "my_params.py"),
    Variable("SAC_CONFIG", "JSON file with `horizon`, environment arguments and curriculum", None, "file", "my.json"),
    Variable("SAC_EXP_NAME", "name of the run", None, "name", "my_run"),
    Variable(
        "SAC_LOGS_DIR",
        "folder of run directories, such as `runs` for one beside the vars file",
        "`logs` in the repository",
        "path",
        "runs",
    ),
    Variable("SAC_EXP_DIR", "run directory", "<SAC_LOGS_DIR>/<SAC_EXP_NAME>", "path"),
    Variable(
        "SAC_REVERB_PORT", "TCP port of the replay server", "the first free one from 8008 upwards", "port", "8008"
    ),
    Variable(
        "SAC_SEED",
        "seed that decides every other seed of the run; each task of a job array without a grid adds its number",
        "0",
        "seed",
    ),
    Variable(
        "SAC_GRID",
        "JSON file with the settings of each task of a job array (see clusters.md)",
        "no grid",
        "file",
        "my_grid.json",
    ),
    Variable("SAC_SHARE_CPUS", "1: roles share CPUs where there are too few; 0: such a start is refused", "0", "flag"),
    Variable("SAC_SAVE_DEADLINE_SECS", "seconds that a stop may take, for all roles together", "60", "seconds", "60"),
    Variable(
        "SAC_CHECKPOINT_MINUTES", "minutes after which a checkpoint is taken at the latest", "10", "minutes", "10"
    ),
    Variable(
        "SAC_DETERMINISTIC",
        "1: the same seed gives the same weights, bit by bit, also after stops and crashes; slower",
        "0",
        "flag",
    ),
    Variable("SAC_MAX_RESTARTS", "restarts in a row of one role before it is given up", "10", "whole", "10"),
    Variable(
        "SAC_REPLAY_DIR", "folder for the replay ring, such as node-local scratch", "<run directory>/replay", "path"
    ),
    Variable(
        "SAC_STRAGGLER_SECS", "seconds that the others wait for a worker late with its iteration", "120", "seconds"
    ),
    Variable(
        "SAC_STEP_TIMEOUT_SECS",
        "seconds that an environment may take for a step or reset before it is taken for hung; "
        "to be built it has four times as many, at least 600",
        "300",
        "seconds",
        "300",
    ),
    Variable(
        "SAC_WORKER_MEMORY_MB",
        "memory in MiB (resident, with child processes) above which a worker starts anew at the end of an episode; "
        "with SAC_ENV_PYTHON of each environment's process, which is then rebuilt",
        "no limit",
        "megabytes",
        "4000",
    ),
    Variable(
        "SAC_ENV_PYTHON",
        "Python interpreter (3.9 or later, with NumPy) in which environments run, each in a process of its own",
        "the worker's own process",
        "program",
        "/opt/sim/bin/python",
    ),
    Variable(
        "SAC_FORK_ROLES",
        "1: roles are forked from one process that has imported TensorFlow; 0: each is a program of its own",
        "1",
        "flag",
    ),
    Variable(
        "SAC_USE_HYPERTHREADS",
        "1: a CPU is a hardware thread; 0: a CPU is a whole core, whose other threads belong to the same role",
        "1",
        "flag",
    ),
    Variable(
        "SAC_JOB_PRELUDE",
        "shell code that runs first in a SLURM job, such as `module load python/3.11`",
        "none",
        "text",
        is_early=True,
    ),
    Variable(
        "SAC_EXEC_PREFIX",
        "words before the run's command, which so wraps all roles, such as `apptainer exec image.sif`",
        "none",
        "text",
        is_early=True,
    ),
    Variable(
        "SAC_PYTHON",
        "Python 3.11 with the pinned packages that all programs of the run use: absolute path, or name on PATH; in a "
        "container it is one of the image",
        "the activated environment's, else that of SAC_VENV, or one on PATH where that has not been made",
        "text",
        "/opt/sac/bin/python",
        is_early=True,
    ),
    Variable(
        "SAC_VENV",
        "absolute path of the environment that `setup.sh` makes and uses; set it for `./setup.sh` by hand, too",
        "`.venv` in the repository",
        "path",
        "/scratch/me/sac_env",
        is_early=True,
    ),
    Variable(
        "SAC_PACKED_ENV",
        "archive of a Python environment, which is unpacked into $SLURM_TMPDIR, $TMPDIR or /tmp and used",
        "none",
        "file",
        "env.tar.gz",
        is_early=True,
    ),
    Variable(
        "SAC_MEM_GB",
        "memory in GiB that `submit.sh` asks for",
        "estimated (see docs/clusters.md)",
        "count",
        "16",
        is_early=True,
    ),
    Variable(
        "SAC_KEEP_FOLDER",
        "1: a run keeps a copy of the folder of SAC_PARAMS and runs it; 0: of the file alone, what it imports and "
        "reads is taken from its place at each start",
        "1",
        "flag",
        "0",
    ),
    Variable(
        "SAC_SNAPSHOT_MB",
        "most MiB that a run and `submit.sh` copy from the folder of SAC_PARAMS",
        "100",
        "megabytes",
        "500",
        is_early=True,
    ),
    Variable(
        "SAC_ALLOW_STRANGERS",
        "1: trains also where other users of the machine can't be kept from the replay server, through which they can "
        "run programs as you",
        "0",
        "flag",
    ),
    Variable("SAC_ALLOW_LOGIN", "1: `run_script.sh` trains on a cluster's login node, too", "0", "flag", is_early=True),
    Variable(
        "SAC_GATEWAY_PORT",
        "TCP port at which workers on other machines reach the run, encrypted and authenticated; 0: any free one, "
        "which gateway.json in the run directory then names",
        "no gateway: nothing of the run is reached from other machines",
        "gateway port",
        "0",
    ),
    Variable(
        "SAC_CREDENTIALS_DIR",
        "folder with ca.pem and, for the run, server.pem and server.key; for those who join, client.pem and client.key",
        "<run directory>/credentials, made for the run",
        "path",
        "/home/me/credentials",
    ),
    Variable(
        "SAC_PASSWORD_FILE",
        "file with a password of at least 12 characters that those who join must have as well; yours alone to read",
        "no password: the certificates suffice",
        "path",
        "/home/me/password",
    ),
    Variable("SAC_VIDEO", "1: a finished run plays one episode of its best policy for a video", "1", "flag"),
    Variable("SAC_LOG_SECS", "seconds between two progress lines where there is no terminal", "5", "seconds", "5"),
)
# Tells joined workers the run directory, where it can be seen; no variable of a user.
JOINED_RUN = "TFAGENTS_JOINED_RUN"
_MOST = 4096  # CPUs of a role, workers, environments: the ring has room for as many workers.
_JOINED_SLOTS = 64  # For workers that join, where there is a gateway and nothing else is said.
_SHOWN_CHARS = 200
_NAMES = tuple(variable.name for variable in VARIABLES)


@dataclasses.dataclass(frozen=True)
class RunVariables:
    """The checked variables of one run; every path is absolute.

    Attributes:
      reverb_port: None: the supervisor looks for a free one.
      exp_dir: With `_task_<SLURM_ARRAY_TASK_ID>` at its end inside a job array.
    """

    reverb_cpus: int
    train_cpus: int
    num_collect_workers: int
    collect_worker_cpus: int
    params: Path
    config: Path
    exp_name: str
    exp_dir: Path
    logs_dir: Path | None = None
    local_workers: int | None = None
    expert_workers: int = 0
    max_workers: int | None = None
    server: str | None = None
    worker_role: str = COLLECT
    expert_policy: Path | None = None
    envs_per_worker: int = 1
    reverb_port: int | None = None
    seed: int = 0
    share_cpus: bool = False
    save_deadline_secs: float = 60.0
    checkpoint_minutes: float = 10.0
    deterministic: bool = False
    max_restarts: int = 10
    replay_dir: Path | None = None
    straggler_secs: float = 120.0
    step_timeout_secs: float = 300.0
    worker_memory_mb: int | None = None
    env_python: Path | None = None
    fork_roles: bool = True
    train_gpus: bool = False
    use_hyperthreads: bool = True
    job_prelude: str | None = None
    exec_prefix: str | None = None
    python: str | None = None
    venv: str | None = None
    packed_env: Path | None = None
    mem_gb: int | None = None
    keep_folder: bool = True
    snapshot_mb: int = 100
    allow_strangers: bool = False
    allow_login: bool = False
    gateway_port: int | None = None
    credentials_dir: Path | None = None
    password_file: Path | None = None
    video: bool = True
    log_secs: float = 5.0
    grid: Path | None = None

    @classmethod
    def from_environ(
        cls, environ: Mapping[str, str] = os.environ, *, vars_file: Path | None, root: Path
    ) -> RunVariables:
        """Reads every variable.

        Args:
          environ: Usually os.environ, after the vars file was sourced.
          vars_file: Its folder is one of those in which relative SAC_PARAMS and SAC_CONFIG are looked for.
          root: The repository root, where relative run directories lie.

        Raises:
          UserError: With all findings at once.
        """
        values, findings = read_variables(environ, vars_file=vars_file, root=root)
        if findings:
            raise UserError(*findings)
        return cls(**values)

    @property
    def expert_ids(self) -> range:
        """Numbers of the expert workers that the run starts: the first ones after the planned workers'."""
        return range(self.num_collect_workers, self.num_collect_workers + self.expert_workers)

    def to_environ(self) -> dict[str, str]:
        """All SAC_ variables of the roles, resolved; what has no value yet (an automatic port) is left out."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {variable_name(field): as_text(value) for field, value in values.items() if value is not None}


def variable_name(field: str) -> str:
    """`SAC_TRAIN_CPUS` for the field `train_cpus`."""
    return f"SAC_{field.upper()}"


def as_text(value: Any) -> str:
    """A field's value as a variable has it."""
    return f"{value:d}" if isinstance(value, bool) else str(value)


def read_variables(
    environ: Mapping[str, str], *, vars_file: Path | None, root: Path
) -> tuple[dict[str, Any], list[str]]:
    """Like RunVariables.from_environ, but gives what could be read (fields by name) beside the findings."""
    values: dict[str, Any] = {}
    findings = _near_misses(environ)
    folders = [*([vars_file.resolve().parent] if vars_file else []), Path.cwd(), root]
    for variable in VARIABLES:
        text = environ.get(variable.name, "").strip()
        field = variable.name.removeprefix("SAC_").lower()
        if not text:
            if variable.default is None:
                findings.append(
                    f"{variable.name} is missing ({variable.meaning}): add {variable.name}={variable.example} "
                    f"to {vars_file or 'the environment'}"
                )
            continue
        try:
            find = _FINDERS.get(variable.kind)
            values[field] = find(text, folders) if find else _PARSERS[variable.kind](text)
        except ValueError as error:
            findings.append(f"{variable.name}={_plain(text)} must be {error}")
    findings += _check_workers(values)
    _resolve_directories(values, environ, root, folders[0] if vars_file else root)
    return values, findings


def _check_workers(values: dict[str, Any]) -> list[str]:
    """Fills in how many slots for workers there are; findings where the numbers do not fit each other."""
    if "num_collect_workers" not in values:
        return []
    planned, is_deterministic = values["num_collect_workers"], values.get("deterministic", False)
    if "server" in values:
        values.pop("expert_workers", None)  # Of workers that join SAC_WORKER_ROLE says what they do.
    experts = values.get("expert_workers", 0)
    own = planned + experts
    if "gateway_port" in values:
        values.setdefault("max_workers", own if is_deterministic else min(_MOST, own + _JOINED_SLOTS))
    elif experts:
        values.setdefault("max_workers", own)
    findings = []
    local = values.get("local_workers", planned) if "server" not in values else planned
    if experts:
        findings += _check_experts(experts, planned, local, is_deterministic)
    if local > planned:
        findings.append(
            f"SAC_LOCAL_WORKERS={local} must be at most SAC_NUM_COLLECT_WORKERS={planned}: lower it, or raise that"
        )
    if local < planned and is_deterministic:
        findings.append(
            f"SAC_LOCAL_WORKERS={local} can't be had with SAC_DETERMINISTIC=1, where a run restarts all its workers "
            "with itself: unset it, or set SAC_DETERMINISTIC=0"
        )
    most = values.get("max_workers", own)
    if most < own <= _MOST:
        sizes = f"SAC_NUM_COLLECT_WORKERS={planned}" + (f" + SAC_EXPERT_WORKERS={experts}" if experts else "")
        findings.append(f"SAC_MAX_WORKERS={most} must be at least {sizes}: raise it, or lower that")
    if most > own and is_deterministic:
        findings.append(
            f"SAC_MAX_WORKERS={most} can't be had with SAC_DETERMINISTIC=1, where all workers are planned: unset it, "
            "or set SAC_DETERMINISTIC=0"
        )
    return findings


def _check_experts(experts: int, planned: int, local: int, is_deterministic: bool) -> list[str]:
    findings = []
    if is_deterministic:
        findings.append(
            f"SAC_EXPERT_WORKERS={experts} can't be had with SAC_DETERMINISTIC=1, where all workers are planned: unset "
            "it, or set SAC_DETERMINISTIC=0"
        )
    if local < planned:
        findings.append(
            f"SAC_EXPERT_WORKERS={experts} can't be had with SAC_LOCAL_WORKERS={local} below "
            f"SAC_NUM_COLLECT_WORKERS={planned}, as with --nodes: unset it, and let experts join with join_script.sh "
            "--role expert"
        )
    if planned + experts > _MOST:
        findings.append(
            f"SAC_NUM_COLLECT_WORKERS={planned} + SAC_EXPERT_WORKERS={experts} must be at most {_MOST}: lower one"
        )
    return findings


def _resolve_directories(values: dict[str, Any], environ: Mapping[str, str], root: Path, beside: Path) -> None:
    """Makes folders absolute, `exp_dir` and `replay_dir` one for each task of a job array and for each run.

    Args:
      beside: The vars file's folder.
    """
    if "logs_dir" in values:
        values["logs_dir"] = Path(os.path.normpath(beside / values["logs_dir"]))
    if "exp_dir" in values or "exp_name" in values:
        exp_dir = str(root / (values.get("exp_dir") or values.get("logs_dir", Path("logs")) / values["exp_name"]))
        task = environ.get("SLURM_ARRAY_TASK_ID", "")
        if task and not exp_dir.endswith(f"_task_{task}"):
            exp_dir += f"_task_{task}"
        values["exp_dir"] = Path(os.path.normpath(exp_dir))
    values.update({name: root / values[name] for name in ("credentials_dir", "password_file") if name in values})
    if "replay_dir" in values:
        replay_dir = root / values["replay_dir"]
        # Runs that were given the same scratch folder, such as two of one name, must not share a ring.
        own = hashlib.sha256(str(values.get("exp_dir")).encode(errors="surrogatepass")).hexdigest()[:8]
        values["replay_dir"] = replay_dir if replay_dir.name == own else replay_dir / own


def _near_misses(environ: Mapping[str, str]) -> list[str]:
    """SAC_ names that are probably a known one misspelt. Compared without the prefix, which all of them share."""
    found = [name[4:] for name in sorted(environ) if name.upper().startswith("SAC_") and name not in _NAMES]
    by_tail = {name[4:]: name for name in environ if name.upper().startswith("SAC_")}
    known = [name.removeprefix("SAC_") for name in _NAMES]
    return [
        f"{by_tail[wrong]} is not a known variable, SAC_{right} is: rename it, or unset {by_tail[wrong]}"
        for wrong, right in near_misses(found, known)
    ]


def _find_program(text: str, folders: list[Path]) -> Path:
    """An executable file. Its links are not followed: by them a virtual environment's Python knows where it is."""
    path = _find_file(text, folders)
    if not os.access(path, os.X_OK):
        raise ValueError(f"a program, {path} is not executable")
    return path


def _find_file(text: str, folders: list[Path]) -> Path:
    return _find(text, folders, "file", Path.is_file)


def _find_either(text: str, folders: list[Path]) -> Path:
    return _find(text, folders, "file or folder", Path.exists)


def _find(text: str, folders: list[Path], what: str, is_one: Callable[[Path], bool]) -> Path:
    """`text` below the first folder that has it; the last folder, the repository, is only a fallback.

    Raises:
      ValueError: None has it; or two before the last have different ones, so that where the command was given would
        decide what is trained.
    """
    path = Path(_path(text))
    candidates = list(dict.fromkeys((folder / path).absolute() for folder in folders))
    found = []
    for candidate in candidates:
        with contextlib.suppress(OSError):  # Too long, or below a folder that is not ours to look into.
            if is_one(candidate):
                found.append(candidate)
    if not found:
        raise ValueError(f"an existing {what}, none of these is one: {', '.join(_plain(str(c)) for c in candidates)}")
    fallback = (folders[-1] / path).absolute()
    others = [other for other in found[1:] if other != fallback and not other.samefile(found[0])]
    if others:
        raise ValueError(
            f"one {what}, there is one beside the vars file and another one in the current folder: {found[0]} and "
            f"{others[0]}: give the absolute path of the one that is meant"
        )
    return Path(os.path.normpath(found[0]))


def _path(text: str) -> str:
    """With the home directory in place of a leading `~`."""
    if not text.isprintable():
        raise ValueError("a path of printable characters")
    try:
        return str(Path(text).expanduser())
    except RuntimeError:
        raise ValueError("a path; there is no user of that name after ~") from None


def _plain(text: str) -> str:
    """As it is where it can be printed, and not longer than a message should be."""
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _integer(text: str, low: int, high: int, rule: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(rule) from None
    if not low <= value <= high:
        raise ValueError(f"{rule} and at most {high}" if value > high and str(high) not in rule else rule)
    return value


def _positive(text: str, rule: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(rule) from None
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(rule)
    return value


def _address(text: str) -> str:
    match = re.fullmatch(r"([^\s:/]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})", text)
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise ValueError("HOST:PORT, such as node7:8443")
    return text


def _one_of(text: str, names: Sequence[str]) -> str:
    if text not in names:
        raise ValueError(f"one of {', '.join(names)}")
    return text


def _name(text: str) -> str:
    parts = Path(text).parts
    if not parts or Path(text).is_absolute() or ".." in parts or not text.isprintable():
        raise ValueError("a name for the run directory below logs/, such as pendulum; SAC_EXP_DIR takes any path")
    return text


_PARSERS: dict[str, Callable[[str], Any]] = {
    "count": lambda text: _integer(text, 1, _MOST, "a whole number of at least 1"),
    "few": lambda text: _integer(text, 0, _MOST, "a whole number of at least 0"),
    "whole": lambda text: _integer(text, 0, 10**9, "a whole number of at least 0"),
    "seed": lambda text: _integer(text, 0, 2**31 - 1, "a whole number from 0 to 2147483647"),
    "megabytes": lambda text: _integer(text, 1, 10**9, "a whole number of MiB of at least 1"),
    "port": lambda text: _integer(text, 1, 65535, "a TCP port from 1 to 65535"),
    "gateway port": lambda text: _integer(text, 0, 65535, "a TCP port from 1 to 65535, or 0 for any free one"),
    "flag": lambda text: bool(_integer(text, 0, 1, "0 or 1")),
    "seconds": lambda text: _positive(text, "a number of seconds above 0, such as 60"),
    "minutes": lambda text: _positive(text, "a number of minutes above 0, such as 10"),
    "address": lambda text: _address(text),
    "role": lambda text: _one_of(text, KINDS),
    "name": _name,
    "path": _path,
    "text": lambda text: text,
}
_FINDERS: dict[str, Callable[[str, list[Path]], Any]] = {
    "file": _find_file,
    "file or folder": _find_either,
    "program": _find_program,
}


def documentation() -> str:
    """docs/variables.md."""
    lines = [
        "# Variables of a run",
        "",
        "Assigned in the vars file that `run_script.sh` gets, or in the environment. Relative SAC_PARAMS,",
        "SAC_CONFIG, SAC_GRID, SAC_EXPERT_POLICY, SAC_ENV_PYTHON and SAC_PACKED_ENV are looked for beside the vars",
        "file, then in the current folder, then in the repository; where the first two have different files of",
        "that name, the start is refused. SAC_LOGS_DIR is relative to the vars file's folder; SAC_EXP_DIR, which wins",
        "over it, SAC_REPLAY_DIR, SAC_CREDENTIALS_DIR and SAC_PASSWORD_FILE are relative to the repository.",
        "The ring lies in a folder of the run's own below SAC_REPLAY_DIR.",
        "",
        ", ".join(v.name for v in VARIABLES if v.is_early),
        "are read before `--set` and grids, which can't change them.",
        "",
        "| variable | meaning | default |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{v.name}` | {v.meaning} | {v.default or 'must be given'} |" for v in VARIABLES]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(documentation(), end="")
