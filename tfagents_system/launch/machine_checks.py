"""Whether this machine has what a run needs: CPUs, ports, a GPU, packages, trackers, folders. Nothing is written.

Memory and disk follow from what the trial measures: see costs.py.
"""

from __future__ import annotations

import netrc
import os
import re
import sys
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.checks.findings import Findings, is_installed
from tfagents_system.launch import required_packages
from tfagents_system.launch.cpus import CpuPlan, plan_for
from tfagents_system.machine import peers
from tfagents_system.machine.claims import Claims, held_cpus
from tfagents_system.machine.cpus import FOUND_GPUS, format_cpu_list, usable_gpus
from tfagents_system.machine.files import existing_ancestor
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import COUNTS

# A password or a token before the host, or a key in the query. A database's user alone is no secret.
_KEY_IN_ADDRESS = re.compile(
    r"^((https?|ftp)://)?[^/]*@|://[^/]*:[^/]*@|[?&;][^=]*(pass|pwd|token|secret|key)[^=]*=", re.IGNORECASE
)


def check_machine(values: Mapping[str, Any], environ: Mapping[str, str], findings: Findings) -> CpuPlan | None:
    """Checks all that programs of the run will need here; returns the CPU plan, None if there is none.

    Args:
      values: The variables that could be read, by field.
      environ: Usually os.environ, after the vars file was sourced.
    """
    plan = _check_cpus(values, environ, findings)
    if not {"server", "trainer_server"} & values.keys():  # The replay server will run here.
        with findings.catching("port"):
            peers.require_owners(environ)
    if (port := values.get("reverb_port")) is not None:
        claims = Claims()
        with findings.catching("port"):
            try:
                claims.take_port(port)
                findings.fact("port", f"{port} is free")
            finally:
                claims.release_all()
    if "gateway_port" in values:
        _check_gateway(values, findings)
    check_tracking(values, environ, findings)
    if values.get("train_gpus"):
        check_gpu(environ, findings)
    return plan


def _check_cpus(values: Mapping[str, Any], environ: Mapping[str, str], findings: Findings) -> CpuPlan | None:
    knows_share = "share_cpus" in values or not environ.get("SAC_SHARE_CPUS")
    if not (values.keys() >= COUNTS.keys() and knows_share):
        return None
    with findings.catching("CPUs"):
        plan = plan_for(values, environ, held=held_cpus())
        roles = ", ".join(f"{role} {format_cpu_list(ids) or 'any'}" for role, ids in plan.by_role.items())
        findings.fact("CPUs", f"{roles} ({'pinned' if plan.pinned else 'not pinned'})")
        findings.note("CPUs", *plan.notes)
        return plan
    return None


def _check_gateway(values: Mapping[str, Any], findings: Findings) -> None:
    """Port, certificates and password for those who join from other machines."""
    from tfagents_system.transport import credentials

    port = values["gateway_port"]
    if port and peers.users_listening(port):
        findings.error("gateway", f"SAC_GATEWAY_PORT={port} is in use: choose another port, or 0 for any free one")
    folder = values.get("credentials_dir")
    if folder is None and "exp_dir" in values:
        folder = RunPaths(values["exp_dir"]).credentials
    if folder is not None and (folder.exists() or "credentials_dir" in values):
        findings.error("gateway", *credentials.check_credentials(folder, credentials.SERVER))
    with findings.catching("gateway"):
        password = credentials.read_password(values.get("password_file"))
        asked = "and a password" if password else "without a password"
        findings.fact("gateway", f"port {port or 'any free one'}, certificates in {folder}, {asked}")


def check_gpu(environ: Mapping[str, str], findings: Findings) -> None:
    if gpus := usable_gpus(environ):
        findings.fact("GPU", f"the trainer's is {gpus[0]}")
        return
    findings.error(
        "GPU",
        "SAC_TRAIN_GPUS=1, but there is no GPU that may be used here (CUDA_VISIBLE_DEVICES: "
        f"{environ.get(FOUND_GPUS, 'not set')}): ask the cluster for one (--gpus-per-node=1), or unset it",
    )


def check_packages(findings: Findings) -> None:
    """Notes versions outside of the ranges in pyproject.toml: nobody has tested them."""
    for package in required_packages.missing(dev=False):
        findings.note("packages", f"{package}: this version was not tested")
    count = len(required_packages.required(dev=False))
    findings.fact("packages", f"Python {sys.version.split()[0]}, {count} required packages")


def check_pins(folder: Path, findings: Findings) -> None:
    """Whether packages have the versions that files beside the params pin with `==`."""
    for file, requirement, version in required_packages.violated_pins(folder):
        findings.error(
            "packages",
            f"{file} pins {requirement}, and {version} is installed: run `{sys.executable} -m pip install "
            f"'{requirement}'`, or change the pin",
        )


def check_tracking(values: Mapping[str, Any], environ: Mapping[str, str], findings: Findings) -> None:
    """What would keep metrics from being sent: packages, a key that lacks, one that logs would show."""
    wandb, uri, errors = values.get("wandb"), values.get("mlflow_uri"), list[str]()
    wanted = {"wandb": wandb and f"SAC_WANDB={wandb}", "mlflow": uri and "SAC_MLFLOW_URI"}
    for package, variable in wanted.items():
        if variable and not is_installed(package):
            words = f"{variable} needs the package {package}, which is not installed"
            errors.append(f"{words}: install the extra (pip install '.[{package}]'), or unset it")
    if wandb == "online" and not _has_wandb_key(environ):
        errors.append(
            "SAC_WANDB=online needs a key: set WANDB_API_KEY, or run `wandb login`; SAC_WANDB=offline needs none"
        )
    if uri and _KEY_IN_ADDRESS.search(uri):  # It is not shown: it would be in status files and logs.
        errors.append(
            "SAC_MLFLOW_URI must not hold a user, password or token, logs would show it: set MLFLOW_TRACKING_USERNAME "
            "and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN; for a database its own file, such as ~/.pgpass"
        )
    findings.error("tracking", *errors)


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
