"""Checks whether this machine has what a run needs: CPUs, a GPU, ports, open files, packages."""

from __future__ import annotations

import shutil
import sys
import types
from collections.abc import Mapping
from typing import Any

from tfagents_system.checks.checklist import Check, Checklist
from tfagents_system.launch import required_packages, resources
from tfagents_system.launch.cpus import CpuPlan, plan_for
from tfagents_system.launch.tracking_checks import check_tracking
from tfagents_system.machine import peers
from tfagents_system.machine.claims import Claims, held_cpus
from tfagents_system.machine.cpus import format_cpu_list
from tfagents_system.machine.gpus import FOUND, gpu_of_trainer
from tfagents_system.report.tracking.settings import TrackingSettings
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import COUNTS


def check_machine(values: Mapping[str, Any], environ: Mapping[str, str], checks: Checklist) -> CpuPlan | None:
    """Checks all that programs of the run will need here; returns the CPU plan, None if there is none.

    Args:
      values: The variables that could be read, by field.
      environ: Usually os.environ, after the vars file was sourced.
      checks: Gets what was found.
    """
    plan = _check_cpus(values, environ, checks)
    if not {"server", "trainer_server"} & values.keys():  # The replay server will run here.
        with checks["port"].catching():
            peers.require_owners(environ)
    if "reverb_port" in values:
        with checks["port"].catching():
            claims = Claims()
            try:
                claims.take_port(values["reverb_port"])
            finally:
                claims.release_all()
            checks["port"].facts.append(f"{values['reverb_port']} is free")
    if "gateway_port" in values:
        _check_gateway(values, checks["gateway"])
    if TrackingSettings.of(values).is_wanted:
        check_tracking(values, environ, checks["tracking"])
    if "num_collect_workers" in values:
        workers = values.get("max_workers", values["num_collect_workers"])
        resources.check_open_files(checks["open files"], workers)
    if values.get("train_gpus"):
        check_gpu(environ, checks["GPU"])
    return plan


def _check_cpus(values: Mapping[str, Any], environ: Mapping[str, str], checks: Checklist) -> CpuPlan | None:
    knows_share = "share_cpus" in values or not environ.get("SAC_SHARE_CPUS")
    if not (values.keys() >= COUNTS.keys() and knows_share):
        return None
    check, plan = checks["CPUs"], None
    with check.catching():
        plan = plan_for(plan_counts(values), environ, held=held_cpus(), trainers=held_cpus("trainer"))
        roles = ", ".join(f"{role} {format_cpu_list(ids) or 'any'}" for role, ids in plan.by_role.items())
        check.facts.append(f"{roles} ({'pinned' if plan.pinned else 'not pinned'})")
        check.notes += plan.notes
    if plan is not None and plan.pinned:
        if (taskset := shutil.which("taskset")) is None:
            checks["taskset"].errors.append("taskset is not installed: install util-linux (apt-get install util-linux)")
        else:
            checks["taskset"].facts.append(taskset)
    return plan


def plan_counts(values: Mapping[str, Any]) -> types.SimpleNamespace:
    """What `plan_for` needs of the variables, as far as they could be read."""
    return types.SimpleNamespace(**({"share_cpus": False} | dict(values)))


def _check_gateway(values: Mapping[str, Any], check: Check) -> None:
    """Port, certificates and password for those who join from other machines."""
    from tfagents_system.transport.remote import credentials

    port = values["gateway_port"]
    if port and peers.users_listening(port):
        check.errors.append(f"SAC_GATEWAY_PORT={port} is in use: choose another port, or 0 for any free one")
    folder = values.get("credentials_dir")
    if folder is None and "exp_dir" in values:
        folder = RunPaths(values["exp_dir"]).credentials
    if folder is not None and (folder.exists() or "credentials_dir" in values):
        check.errors += credentials.check_credentials(folder, credentials.SERVER)
    with check.catching():
        password = credentials.read_password(values.get("password_file"))
        asked = "and a password" if password else "without a password"
        check.facts.append(f"port {port or 'any free one'}, certificates in {folder}, {asked}")


def check_gpu(environ: Mapping[str, str], check: Check) -> None:
    if (gpu := gpu_of_trainer(environ)) is not None:
        check.facts.append(f"the trainer's is {gpu}")
        return
    check.errors.append(
        "SAC_TRAIN_GPUS=1, but there is no GPU that may be used here (CUDA_VISIBLE_DEVICES: "
        f"{environ.get(FOUND, 'not set')}): ask the cluster for one (--gpus-per-node=1), or unset it"
    )


def check_packages(check: Check) -> None:
    """Reports versions outside of the ranges in pyproject.toml: nobody has tested them."""
    check.notes += [f"{package}: this version was not tested" for package in required_packages.missing(dev=False)]
    check.facts.append(
        f"Python {sys.version.split()[0]}, {len(required_packages.required(dev=False))} required packages"
    )
