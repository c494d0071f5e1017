"""Whether this machine has what a run needs: CPUs, ports, a GPU, packages, trackers, folders, disk and memory.

`sac doctor` says what it has for training of any kind. Nothing is written. `values` are the variables of a start that
could be read, by field.
"""

from __future__ import annotations

import contextlib
import netrc
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from tfagents_system.checks.findings import Findings, counted, is_installed
from tfagents_system.envs import faults
from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, OptionParser, exit_with
from tfagents_system.launch import required_packages
from tfagents_system.launch.cpus import CpuPlan, plan_for
from tfagents_system.launch.vars_file import run_python_path
from tfagents_system.machine import peers, processes
from tfagents_system.machine.claims import Claims, held_cpus
from tfagents_system.machine.cpus import FOUND_GPUS, allowed_cpus, described, format_cpu_list, usable_gpus
from tfagents_system.machine.files import existing_ancestor
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import COUNTS

# A password or a token before the host, or a key in the query. A database's user alone is no secret.
_KEY_IN_ADDRESS = re.compile(
    r"^((https?|ftp)://)?[^/]*@|://[^/]*:[^/]*@|[?&;][^=]*(pass|pwd|token|secret|key)[^=]*=", re.IGNORECASE
)
JOB_MB = "TFAGENTS_JOB_MB"  # MiB of the job that is being submitted; empty: as the cluster has it.
# Memory, measured with Pendulum: a worker has 63 MiB of its own, of which the check sees all but this.
_WORKER_BYTES = 10 * 2**20
_OTHERS_BYTES = 600 * 2**20  # Replay server, trainer and supervisor.
_REPLAY_THREADS, _THREADS, _DESCRIPTORS = 80, 24, 64  # Measured with 1 CPU a role and 1 to 8 workers, rounded up.
_TIGHT = 0.8
_BEYOND = 10**6 * 2**30
_IMPORTED_LATER = ("colorsys", "html", "plistlib", "pty", "sqlite3", "tty")  # By reports, trackers and simulators.
# Of a run: the last two checkpoints and one being written, the best agent and one that is being evaluated.
_AGENTS = 5
_MODEL_BYTES = 2 * 2**20  # Of the SavedModel, beside the weights.
_POLICY_CHECKPOINT_BYTES, _LOGS_BYTES = 50 * 2**10, 200 * 2**20
# Of `sac doctor`.
_DOCTOR_SECS = 60.0
_EXTRAS = {
    "onnx": ("onnxruntime", "tf2onnx"),
    "experience": ("minari",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "tuning": ("optuna",),
    "notebook": ("ipykernel",),
    "envpool": ("envpool",),
}
# A picture of each kind of simulator, drawn in a process of its own: drawing may end it.
_PICTURES = {"classic control": ("pygame", "Pendulum-v1"), "MuJoCo": ("mujoco", "Reacher-v5")}
_DRAW = (
    "from tfagents_system.envs.rendering import prepare_headless; prepare_headless(); import gymnasium; "
    "env = gymnasium.make('{name}', render_mode='rgb_array'); env.reset(); assert env.render().any()"
)
_SEES_A_GPU = "import tensorflow as tf; assert tf.config.list_physical_devices('GPU')"


def check_machine(values: Mapping[str, Any], environ: Mapping[str, str], findings: Findings) -> CpuPlan | None:
    """Checks all that programs of the run will need here; returns the CPU plan, None if there is none."""
    plan = None
    if values.keys() >= COUNTS.keys() and ("share_cpus" in values or not environ.get("SAC_SHARE_CPUS")):
        with findings.catching("CPUs"):
            plan = plan_for(values, environ, held=held_cpus())
            roles = ", ".join(f"{role} {format_cpu_list(ids) or 'any'}" for role, ids in plan.by_role.items())
            findings.fact("CPUs", f"{roles} ({'pinned' if plan.pinned else 'not pinned'})")
            findings.note("CPUs", *plan.notes)
    check_limits(values, findings)
    if not {"server", "trainer_server"} & values.keys():  # The replay server will run here.
        with findings.catching("port"):
            peers.require_owners(environ)
    if (port := values.get("reverb_port")) is not None:
        claims = Claims()
        with findings.catching("port"):
            claims.take_port(port)
            findings.fact("port", f"{port} is free")
        claims.release_all()
    if "gateway_port" in values:
        _check_gateway(values, findings)
    check_tracking(values, environ, findings)
    if values.get("train_gpus"):
        check_gpu(environ, findings)
    return plan


def has_trainer(values: Mapping[str, Any]) -> bool:
    """Whether the start has the trainer, here."""
    return "server" not in values and bool(values.get("local_trainer", True))


def check_limits(values: Mapping[str, Any], findings: Findings) -> None:
    """Compares how many files and threads this process and its user may have with what the planned roles need."""
    workers = workers_here(values)
    has_server = not {"server", "trainer_server"} & values.keys()
    files, limit = _DESCRIPTORS + 8 * workers, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= limit < files:  # -1: there is none.
        words = f"a process of the run opens up to {files} files, and {limit} are allowed"
        findings.error("limits", f"{words}: ulimit -n {files}, or as root where that is refused")
    threads = _REPLAY_THREADS * has_server + _THREADS * (has_trainer(values) + workers)
    for left, limit_words in _threads_left():
        if left < threads:
            words = f"the programs of the run have about {threads} threads and {max(0, left)} more are allowed"
            tell = findings.error if left < threads / 2 else findings.note
            remedy = "raise that limit, lower SAC_NUM_COLLECT_WORKERS, or end other programs"
            tell("limits", f"{words} ({limit_words}): {remedy}")


def _threads_left() -> Iterator[tuple[int, str]]:
    """How many threads may be started beside those that run, and by which limit; root's own has no effect."""
    import psutil  # `sac doctor` also says which packages are missing.

    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.getuid() != 0 and limit != resource.RLIM_INFINITY:
        infos = [process.info for process in psutil.process_iter(["uids", "num_threads"])]
        users = [info for info in infos if info["uids"] and info["uids"].real == os.getuid()]  # Others may be hidden.
        used = sum(info["num_threads"] or 0 for info in users)
        yield limit - used, f"ulimit -u is {limit}, and this user has {used} now"
    for _, folders in processes.cgroups("pids"):
        for folder in folders:
            with contextlib.suppress(OSError, ValueError):  # No such group, or `max`.
                most, used = (int((folder / name).read_text()) for name in ("pids.max", "pids.current"))
                yield most - used, f"pids.max of the cgroup is {most}, and {used} are there now"


def _check_gateway(values: Mapping[str, Any], findings: Findings) -> None:
    """Port, credentials and password for those who join."""
    from tfagents_system.transport import credentials

    port = values["gateway_port"]
    if port and peers.users_listening(port):
        findings.error("gateway", f"SAC_GATEWAY_PORT={port} is in use: choose another port, or 0 for any free one")
    folder = values.get("credentials_dir")
    if folder is None and "exp_dir" in values:
        folder = RunPaths(values["exp_dir"]).credentials
    if folder is not None and (folder.exists() or "credentials_dir" in values):
        wrong = credentials.check_credentials(folder)
        if wrong and "credentials_dir" not in values:
            wrong.append(f"{folder} is this run's own: or remove it, and the start makes another one")
        findings.error("gateway", *wrong)
    with findings.catching("gateway"):
        password = credentials.read_password(values.get("password_file"))
        asked = "and a password" if password else "without a password"
        findings.fact("gateway", f"port {port or 'any free one'}, credentials in {folder}, {asked}")


def check_gpu(environ: Mapping[str, str], findings: Findings) -> None:
    if gpus := usable_gpus(environ):
        findings.fact("GPU", f"the trainer's is {gpus[0]}")
        return
    findings.error(
        "GPU",
        "SAC_TRAIN_GPUS=1, but there is no GPU that may be used here (CUDA_VISIBLE_DEVICES: "
        f"{environ.get(FOUND_GPUS, 'not set')}): ask the cluster for one (--gpus-per-node=1), or unset it",
    )


def check_packages(findings: Findings, folder: Path | None) -> None:
    """Notes versions outside of the ranges in pyproject.toml; refuses absent packages, and others than are pinned there
    or in this folder.
    """
    here = f"Python {platform.python_version()} ({sys.executable})"
    for package, version in required_packages.missing(dev=False):
        if version is None or "==" in package or package.startswith("numpy"):  # TensorFlow 2.15 loads no NumPy 2.
            found = "not installed" if version is None else f"needed, and {version} is installed"
            remedy = f"run `{faults.pip_install()} '{package}'`"
            findings.error("packages", f"{package} is {found} in {here}: {remedy}")
        else:
            findings.note("packages", f"{package} is asked for, and {version} is installed, which was not tested")
    findings.fact("packages", f"{here}, {len(required_packages.required(dev=False))} required packages")
    for file, requirement, version in required_packages.violated_pins(folder) if folder is not None else ():
        findings.error(
            "packages",
            f"{file} pins {requirement}, and {version} is installed: run `{faults.pip_install()} '{requirement}'`, or "
            "change the pin",
        )


def check_names(findings: Findings, folder: Path) -> None:
    """Refuses files beside the params with the names of modules that the toolkit imports: code would get the one and
    mean the other.

    Call it after these were imported (forks.py), from folders that come before the user's.
    """
    names = {name.partition(".")[0] for name in sys.modules if not name.startswith("_")} - {"tfagents_system"}
    names |= {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in required_packages.required(dev=False)}
    names |= {*_IMPORTED_LATER, *(name for modules in _EXTRAS.values() for name in modules)}
    for name in sorted(names):
        spec = PathFinder.find_spec(name, [str(folder)])
        if spec is None or spec.origin is None:  # A folder without __init__.py hides nothing.
            continue
        ours = getattr(sys.modules.get(name), "__file__", None) or (PathFinder.find_spec(name) or spec).origin
        if ours is not None and not (os.path.exists(ours) and os.path.samefile(ours, spec.origin)):
            findings.error("packages", f"{spec.origin} hides {ours}, which the toolkit imports: rename it")


def check_tracking(values: Mapping[str, Any], environ: Mapping[str, str], findings: Findings) -> None:
    """What would keep metrics from being sent: packages, a key that lacks, one that logs would show."""
    wandb, uri = values.get("wandb"), values.get("mlflow_uri")
    wanted = {"wandb": wandb and f"SAC_WANDB={wandb}", "mlflow": uri and "SAC_MLFLOW_URI"}
    for package, variable in wanted.items():
        if variable and not is_installed(package):
            extra = f"install the extra (pip install '.[{package}]'), or unset it"
            findings.error("tracking", f"{variable} needs the package {package}, which is not installed: {extra}")
    if wandb == "online" and not _has_wandb_key(environ):
        findings.error(
            "tracking",
            "SAC_WANDB=online needs a key: set WANDB_API_KEY, or run `wandb login`; SAC_WANDB=offline needs none",
        )
    if uri and _KEY_IN_ADDRESS.search(uri):  # It is not shown: it would be in status files and logs.
        findings.error(
            "tracking",
            "SAC_MLFLOW_URI must not hold a user, password or token, logs would show it: set MLFLOW_TRACKING_USERNAME "
            "and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN; for a database its own file, such as ~/.pgpass",
        )


def _has_wandb_key(environ: Mapping[str, str]) -> bool:
    host = urllib.parse.urlsplit(environ.get("WANDB_BASE_URL", "")).hostname or "api.wandb.ai"
    try:
        return bool(environ.get("WANDB_API_KEY") or netrc.netrc(environ.get("NETRC")).authenticators(host))
    except (OSError, netrc.NetrcParseError):
        return False


def folder_fault(path: Path, variable: str) -> str | None:
    """Why a folder can't be made or written; None if it can."""
    ancestor, remedy = existing_ancestor(path), f"set {variable} to a folder that is yours"
    if max(map(len, map(os.fsencode, path.parts))) > 255:
        return f"{path} has a name of more than 255 bytes: shorten SAC_EXP_NAME or {variable}"
    if not ancestor.is_dir():
        return f"{path} can't be a folder, {ancestor} is none: {remedy}"
    if not os.access(ancestor, os.W_OK | os.X_OK):  # A disk that is mounted read-only is among these.
        return f"{ancestor} can't be written by this user: change its permissions, or {remedy}"
    return None


# Disk and memory.


def workers_here(values: Mapping[str, Any]) -> int:
    """How many workers a start has on this machine, of all kinds."""
    collectors = values.get("local_workers", values.get("num_collect_workers", 1))
    return int(collectors + values.get("expert_workers", 0) + values.get("eval_workers", 0))


def disk_of_run(agent_bytes: int, policy_bytes: int, checkpoints: int) -> int:
    """Bytes of checkpoints, policies, metrics and logs at the end of a run."""
    models = policy_bytes + _MODEL_BYTES
    return _AGENTS * agent_bytes + models + (checkpoints + 2) * (policy_bytes + _POLICY_CHECKPOINT_BYTES) + _LOGS_BYTES


def bytes_in(folder: Path) -> int:
    """Disk space that a folder's own files take; nothing without a folder."""
    try:
        return sum(entry.stat().st_blocks * 512 for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return 0


def check_disk(findings: Findings, needed: Mapping[Path, tuple[str, int]]) -> None:
    """Compares what will be written, in words and bytes by folder, with what is free, once for each file system."""
    by_device: dict[int, list[Path]] = {}
    for folder in needed:
        by_device.setdefault(os.stat(existing_ancestor(folder)).st_dev, []).append(folder)
    for folders in by_device.values():
        free = shutil.disk_usage(existing_ancestor(folders[0])).free
        total = sum(needed[folder][1] for folder in folders)
        parts = " + ".join(f"{in_words(needed[folder][1])} {needed[folder][0]}" for folder in folders)
        what = f"{in_words(total)} of disk ({parts} in {', '.join(map(str, folders))})"
        remedy = "lower buffer_size, free space, or set SAC_LOGS_DIR or SAC_REPLAY_DIR to a larger disk"
        _compare(findings, "disk", (total, what), (free, f"{in_words(free)} are free"), remedy)


def _compare(findings: Findings, where: str, needed: tuple[int, str], available: tuple[int, str], remedy: str) -> None:
    """An error where more bytes are needed than available, a note where nearly as many are; both are told in words."""
    if needed[0] > available[0]:
        findings.error(where, f"a run needs {needed[1]}, {available[1]}: {remedy}")
        return
    findings.fact(where, f"{needed[1]}; {available[1]}")
    if needed[0] > _TIGHT * available[0]:
        findings.note(where, f"{where} is tight: a run needs {needed[1]}, {available[1]}")


def available_memory() -> tuple[int, str]:
    """(bytes that this job's processes may still take, what limits them): the machine or the tightest cgroup."""
    import psutil  # `sac doctor` also says which packages are missing.

    limits = [(int(psutil.virtual_memory().available), "of this machine's memory")]
    for is_v2, folders in processes.cgroups("memory"):
        names = ("memory.max", "memory.current") if is_v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        # Cached files count as used, but can be reclaimed: those that were read again, too.
        cached = rf"^{'' if is_v2 else 'total_'}(?:in)?active_file (\d+)$"
        for folder in folders:
            with contextlib.suppress(OSError, ValueError):  # No such group, or `max`.
                most, used = (int((folder / name).read_text()) for name in names)
                reclaimed = re.findall(cached, (folder / "memory.stat").read_text(), re.MULTILINE)
                limits.append((max(0, most - used + sum(map(int, reclaimed))), "under the cgroup's limit"))
    return min(limits)


def check_memory(
    findings: Findings, workers: int, own_bytes: int, ring_bytes: int, server_bytes: int, available: tuple[int, str]
) -> None:
    """Compares the memory that the run's processes will take with what is available.

    Args:
      own_bytes: Memory of the user's own code in each of them, with one environment of a kind.
      ring_bytes: Of the replay buffer and of prior data, which are in files: they should fit, but need not.
      server_bytes: Of what the replay server has beside them.
      available: As `available_memory` returns it.
    """
    free, limit = available
    worker_bytes = _WORKER_BYTES + own_bytes
    # The trainer builds the user's networks, too.
    needed = workers * worker_bytes + _OTHERS_BYTES + own_bytes + server_bytes
    of_workers = f"{counted(workers, 'worker')} of {in_words(worker_bytes)}"
    what = f"about {in_words(needed)} for {of_workers} and the other programs"
    remedy = "lower SAC_NUM_COLLECT_WORKERS or SAC_ENVS_PER_WORKER, or give it more memory (a job: --mem)"
    _compare(findings, "memory", (needed, what), (free, f"{in_words(free)} {limit} are available"), remedy)
    if needed <= _TIGHT * free < free < needed + ring_bytes:
        findings.note(
            "memory",
            f"the replay buffer (with prior data) has {in_words(ring_bytes)}, {in_words(free - needed)} of memory are "
            "left: minibatches will be read from the disk, which is slower. A lower buffer_size helps",
        )


def in_words(num_bytes: int) -> str:
    """`1.5 GiB`, of integers of any size: a user's may have hundreds of digits."""
    if num_bytes >= _BEYOND:
        return "more than 1,000,000 GiB"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            tenths = num_bytes * 10 // size
            return f"{tenths // 10:,}.{tenths % 10} {unit}" if tenths < 1000 else f"{tenths // 10:,} {unit}"
    return f"{num_bytes} bytes"


# `sac doctor`.


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each thing; returns 1 if training lacks something."""
    OptionParser().parse_args(arguments)
    findings = Findings()
    with LongWork("looking at this machine and drawing pictures"):
        check_packages(findings, None)
        for extra, modules in _EXTRAS.items():
            lacking = ", ".join(name for name in modules if not is_installed(name))
            findings.fact("extras", f"[{extra}] lacks {lacking}" if lacking else f"[{extra}] is installed")
        cpus, gpus = described(allowed_cpus()), usable_gpus(os.environ)
        cores = {cpu.core for cpu in cpus.values()}
        findings.fact("CPUs", f"{len(cpus)} ({format_cpu_list(cpus)}) on {len(cores)} cores")
        findings.fact("SLURM", shutil.which("sbatch") or "no sbatch on PATH: runs train on this machine")
        for kind, (module, name) in _PICTURES.items():
            if not is_installed(module):
                findings.fact(kind, "not installed")
            elif fault := _fault_of(_DRAW.format(name=name), "-1"):
                findings.error(kind, f"draws nothing: {fault}")
            else:
                findings.fact(kind, "draws without a screen")
        if gpus and _fault_of(_SEES_A_GPU, gpus[0]):
            findings.note("GPU", f"{len(gpus)}, but TensorFlow can use none: install the extra [gpu] to train on one")
        else:
            findings.fact("GPU", f"{len(gpus)}: SAC_TRAIN_GPUS=1 uses one" if gpus else "none: trainers use CPUs")
    print(findings.report())
    return EXIT_FAILED if findings.errors or required_packages.missing(dev=False) else EXIT_DONE


def _fault_of(code: str, gpu: str) -> str:
    """The last line that a program says, if it fails; `gpu` is what it sees, as CUDA_VISIBLE_DEVICES names it."""
    environ = {**os.environ, "PYTHONPATH": run_python_path(os.environ), "CUDA_VISIBLE_DEVICES": gpu}
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_DOCTOR_SECS, check=False)
    except subprocess.TimeoutExpired:
        return f"no end within {_DOCTOR_SECS:.0f} s"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


if __name__ == "__main__":
    exit_with(main)
