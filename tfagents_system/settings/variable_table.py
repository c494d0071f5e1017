"""The environment variables that describe a run, one field each. docs/reference/variables.md is made from them, too."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from tfagents_system.machine.worker_slots import COLLECT
from tfagents_system.settings.attribute_docs import attribute_docs, linked
from tfagents_system.settings.variable_values import AGENT

# The others are paths, addresses and texts, in which people put keys: SAC_JOB_PRELUDE='export HF_TOKEN=...'.
_KINDS_FOR_OTHERS = (
    *("count", "count or auto", "few", "flag", "minutes", "seconds", "seed", "whole", "megabytes"),
    *("take", "role"),
)


@dataclasses.dataclass(frozen=True)
class Variable:
    """What is known about a variable beside its field.

    Attributes:
      kind: How its text is read; see variable_values.py.
      default: In words, if the field's own default does not say it; of VARIABLES None: must be given.
      example: What a message proposes where one must be given.
      is_early: Shell code reads it before --set and grids are looked at.
      is_internal: The toolkit's programs tell it to each other; users have no need of it.
      field: `train_cpus` of SAC_TRAIN_CPUS; filled in by VARIABLES.
    """

    kind: str
    default: str | None = None
    example: str = "1"
    is_early: bool = False
    is_internal: bool = False
    field: str = ""

    @property
    def name(self) -> str:
        return variable_name(self.field)

    @property
    def is_for_others(self) -> bool:
        """Whether reports and trackers tell its value."""
        return self.kind in _KINDS_FOR_OTHERS

    @property
    def meaning(self) -> str:
        """The text behind the field."""
        return attribute_docs(VariableFields)[self.field]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariableFields:
    """The SAC_ variables, each described by the text behind its field; those without a default must be given."""

    reverb_cpus: Annotated[int, Variable("count or auto", default="auto")]
    """CPUs of the replay server; auto: 1"""
    train_cpus: Annotated[int, Variable("count or auto", default="auto")]
    """CPUs of the policy updates; auto: 2 where the machine or job has at least 4, else 1"""
    train_gpus: Annotated[bool, Variable("flag")] = False
    """1: the policy updates run on a GPU; no other program of the run sees one"""
    num_collect_workers: Annotated[int, Variable("count or auto", default="auto")]
    """workers: programs that collect experience and, without SAC_EVAL_WORKERS, evaluate; auto: as many as the CPUs left
    by the others allow, at least 1, and then roles share CPUs where there are too few; a run keeps the number that it
    began with; submit.sh, which knows no node, needs a number"""
    local_workers: Annotated[int | None, Variable("few", default="all of them")] = None
    """how many of these the run itself starts; the others are waited for and join with sac join"""
    local_trainer: Annotated[bool, Variable("flag")] = True
    """1: the run starts its trainer; 0: it waits for one from elsewhere (SAC_TRAINER_SERVER), which joins through the
    gateway and keeps checkpoints, policies and metrics in a run directory of its own"""
    expert_workers: Annotated[int, Variable("few")] = 0
    """workers beside these that the run starts as experts: they collect with SAC_EXPERT_POLICY and ignore updates"""
    eval_workers: Annotated[int, Variable("few")] = 0
    """workers beside these that the run starts to evaluate: they do all evaluations, the others collect only"""
    max_workers: Annotated[
        int | None, Variable("count", default="SAC_NUM_COLLECT_WORKERS + SAC_EXPERT_WORKERS + SAC_EVAL_WORKERS")
    ] = None
    """slots for workers, those that join included; 64 more than the run's own where there is a gateway"""
    envs_per_worker: Annotated[int, Variable("count")] = 1
    """environments that each worker steps together, with one inference for all"""
    collect_worker_cpus: Annotated[int, Variable("count or auto", default="auto")]
    """CPUs of each worker; auto: 1"""
    server: Annotated[str | None, Variable("address", default="as --to finds it")] = None
    """`host:port` of the run that sac join joins"""
    trainer_server: Annotated[str | None, Variable("address", default="the run's own")] = None
    """`host:port` of the gateway of a run elsewhere, whose trainer this start runs, and nothing else"""
    worker_role: Annotated[str, Variable("role")] = COLLECT
    """what workers that join do: `collect`, `eval` (only evaluate), `expert` (collect with SAC_EXPERT_POLICY), `test`
    (play the newest policy, store nothing)"""
    expert_policy: Annotated[Path | None, Variable("file or folder", default="TrainParams.expert_policy_ctor")] = None
    """SavedModel, policy checkpoint or exported file that an expert acts with"""
    params: Annotated[Path, Variable("file", example="my_params.py")]
    """Python file with `class TrainParams(TrainParamsBase)`"""
    config: Annotated[Path, Variable("file", example="my.json")]
    """JSON file with `horizon`, environment arguments and curriculum"""
    exp_name: Annotated[str, Variable("name", example="my_run")]
    """name of the run"""
    logs_dir: Annotated[Path | None, Variable("path", default="`logs` in the current folder")] = None
    """folder of run directories, which are `<SAC_LOGS_DIR>/<SAC_EXP_NAME>`"""
    exp_dir: Annotated[Path, Variable("path", default="<SAC_LOGS_DIR>/<SAC_EXP_NAME>", is_internal=True)]
    """run directory"""
    joined_run: Annotated[Path | None, Variable("path", is_internal=True)] = None
    """of workers that join a run: its directory, where it can be seen"""
    reverb_port: Annotated[int | None, Variable("port", default="the first free one from 8008 upwards")] = None
    """TCP port of the replay server"""
    seed: Annotated[int, Variable("seed")] = 0
    """seed that decides every other seed of the run; each task of a job array without a grid adds its number"""
    grid: Annotated[Path | None, Variable("file", default="no grid")] = None
    """JSON file with the settings of each task of a job array (see docs/how_to/many_runs.md)"""
    share_cpus: Annotated[bool, Variable("flag")] = False
    """1: roles share CPUs where there are too few; 0: such a start is refused"""
    save_deadline_secs: Annotated[float, Variable("seconds")] = 60.0
    """seconds that a stop may take, for all roles together"""
    checkpoint_minutes: Annotated[float, Variable("minutes")] = 10.0
    """minutes after which a checkpoint is taken at the latest"""
    deterministic: Annotated[bool, Variable("flag")] = False
    """1: the same seed gives the same weights, bit by bit, also after stops and crashes; slower"""
    max_restarts: Annotated[int, Variable("whole")] = 10
    """restarts in a row of one role before it is given up"""
    from_: Annotated[Path | None, Variable("agent", default="nothing")] = None
    """another run, which a new one begins with (`--from`): `RUN`, `RUN@best`, `RUN@CHECKPOINT`; with SAC_TAKE=replay
    also a folder made by `sac experience import`"""
    take: Annotated[str, Variable("take")] = AGENT
    """what of SAC_FROM is taken (`--take`): `agent` (networks, normalisation, alpha, optimizers), `networks` (the first
    two), `replay` (experience), or `all` (agent, experience, and the counters of iterations, updates and steps)"""
    replay_dir: Annotated[Path | None, Variable("path", default="<run directory>/replay")] = None
    """folder for the replay ring, such as node-local scratch"""
    straggler_secs: Annotated[float, Variable("seconds")] = 120.0
    """seconds that the others wait for a worker late with its iteration"""
    step_timeout_secs: Annotated[float, Variable("seconds")] = 300.0
    """seconds that an environment may take for a step or reset before it is taken for hung; building it may take four
    times as long, at least 600"""
    worker_memory_mb: Annotated[int | None, Variable("megabytes", default="no limit")] = None
    """memory in MiB (resident, with child processes) above which a worker restarts at the end of an episode; with
    SAC_ENV_PYTHON of each environment's process, which is then rebuilt"""
    env_python: Annotated[Path | None, Variable("program", default="the worker's own process")] = None
    """Python interpreter (3.9 or later, with NumPy) in which environments run, each in a process of its own"""
    job_prelude: Annotated[str | None, Variable("text", is_early=True)] = None
    """shell code that runs first in a SLURM job, such as `module load python/3.11`"""
    exec_prefix: Annotated[str | None, Variable("text", is_early=True)] = None
    """words before the run's command, to wrap all roles, such as `apptainer exec image.sif`"""
    python: Annotated[
        str | None,
        Variable(
            "text",
            default="the activated environment's, else that of setup.sh, or one on PATH where that has not been made",
            is_early=True,
        ),
    ] = None
    """Python 3.11 with the required packages that all programs of the run use: absolute path, or name on PATH; in a
    container it is one of the image"""
    allow_strangers: Annotated[bool, Variable("flag")] = False
    """1: trains also where other users of the machine can't be kept from the replay server, through which they can run
    programs as you"""
    allow_login: Annotated[bool, Variable("flag", is_early=True)] = False
    """1: runs, sweeps and studies train on a cluster's login node, too"""
    gateway_port: Annotated[
        int | None, Variable("gateway port", default="no gateway: nothing of the run is reached from other machines")
    ] = None
    """TCP port at which workers on other machines reach the run, encrypted and authenticated; 0: any free one, which
    gateway.json in the run directory then names"""
    credentials_dir: Annotated[Path | None, Variable("path", default="<run directory>/credentials, made for it")] = None
    """folder with ca.pem and, for the run, server.pem and server.key; for those who join, client.pem and client.key"""
    password_file: Annotated[Path | None, Variable("path", default="no password: the certificates suffice")] = None
    """file with a password of at least 12 characters that those who join must have as well; yours alone to read"""
    wandb: Annotated[
        str | None, Variable("wandb mode", default="nothing is sent to Weights & Biases", example="offline")
    ] = None
    """`online`: metrics go to Weights & Biases; `offline`: into files that `wandb sync` sends later
    (docs/how_to/watch.md)"""
    mlflow_uri: Annotated[str | None, Variable("text", default="nothing is sent to MLflow")] = None
    """MLflow's server (http://host:5000), or `sqlite:///FILE` or `file:FOLDER`, relative to the current folder;
    without a password or token"""
    report: Annotated[bool, Variable("flag")] = True
    """1: a finished run draws learning_curve.png, plays one episode of its best policy for a video and writes
    report.html (curves, settings and videos in one file); 0: none of them"""


def variable_name(field: str) -> str:
    """`SAC_TRAIN_CPUS` for the field `train_cpus`."""
    return f"SAC_{field.strip('_').upper()}"


def as_text(value: Any) -> str:
    """A field's value as a variable has it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:d}" if isinstance(value, bool) else str(value)


def _variables() -> Iterator[Variable]:
    hints = typing.get_type_hints(VariableFields, include_extras=True)
    for field in dataclasses.fields(VariableFields):
        own = {None: "none", dataclasses.MISSING: None}.get(field.default, as_text(field.default).removesuffix(".0"))
        given: Variable = hints[field.name].__metadata__[0]
        yield dataclasses.replace(given, field=field.name, default=given.default or own)


VARIABLES = tuple(_variables())


def documentation() -> str:
    """docs/reference/variables.md."""
    lines = [
        "# Variables of a run",
        "",
        "Assigned in the vars file that `run_script.sh` gets, or in the environment. Relative SAC_PARAMS,",
        "SAC_CONFIG, SAC_GRID, SAC_EXPERT_POLICY, SAC_FROM and SAC_ENV_PYTHON",
        "are looked for beside the vars file, then in the current folder, then in the repository. SAC_LOGS_DIR,",
        "SAC_REPLAY_DIR, SAC_CREDENTIALS_DIR and SAC_PASSWORD_FILE are relative to the current folder, with `sac` and",
        "scripts alike.",
        "The ring is in a folder of the run's own below SAC_REPLAY_DIR.",
        "",
        ", ".join(v.name for v in VARIABLES if v.is_early),
        "are read before `--set` and grids, which can't change them.",
        "",
        "| variable | meaning | default |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| `{v.name}` | {linked(v.meaning)} | {linked(v.default or 'must be given')} |"
        for v in VARIABLES
        if not v.is_internal
    ]
    return "\n".join(lines) + "\n"
