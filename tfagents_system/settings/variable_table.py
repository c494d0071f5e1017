"""The environment variables that describe a run: one table, of which docs/variables.md is made, too."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Variable:
    """One SAC_ variable.

    Attributes:
      meaning: For docs and messages, with its unit.
      default: As a user would write it; None: must be given.
      kind: How its text is read; see variable_values.py.
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
