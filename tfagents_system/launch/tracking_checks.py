"""Checks whether a run's metrics can be sent: packages, keys, addresses. Nobody is connected to."""

from __future__ import annotations

import netrc
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

from tfagents_system.checks.checklist import Check
from tfagents_system.machine.installed import is_installed
from tfagents_system.report.tracking.settings import TrackingSettings, mlflow_experiment, wandb_project

_SCHEMES = ("http", "https", "file", "sqlite", "mysql", "postgresql", "databricks")
_DATABASES = ("mysql", "postgresql")
_KEY_IN_QUERY = re.compile(r"(^|[&;])[^=]*(pass|pwd|token|secret|key)[^=]*=", re.IGNORECASE)
_WANDB_HOST = "api.wandb.ai"


def check_tracking(values: Mapping[str, Any], environ: Mapping[str, str], check: Check) -> None:
    """Reports what would keep metrics from being sent.

    Args:
      values: The variables that could be read, by field.
      environ: Usually os.environ.
      check: Gets what was found.
    """
    settings = TrackingSettings.of(values)
    if settings.wandb is not None:
        _check_package("wandb", f"SAC_WANDB={settings.wandb}", check)
        if settings.wandb == "online" and not _has_key(environ):
            check.errors.append(
                "SAC_WANDB=online needs a key: set WANDB_API_KEY, or run `wandb login`; SAC_WANDB=offline needs none"
            )
        check.facts.append(f"Weights & Biases, {settings.wandb}, project {wandb_project()}")
    if settings.mlflow_uri is not None:
        _check_package("mlflow", "SAC_MLFLOW_URI", check)
        _check_uri(settings.mlflow_uri, check)
        check.facts.append(f"MLflow, experiment {mlflow_experiment()}")


def _check_package(name: str, wanted_by: str, check: Check) -> None:
    if not is_installed(name):
        check.errors.append(
            f"{wanted_by} needs the package {name}, which is not installed: install the extra (pip install "
            f"'.[{name}]'), or unset it"
        )


def _has_key(environ: Mapping[str, str]) -> bool:
    if environ.get("WANDB_API_KEY"):
        return True
    host = urllib.parse.urlsplit(environ.get("WANDB_BASE_URL", f"https://{_WANDB_HOST}")).hostname or _WANDB_HOST
    try:
        return netrc.netrc(environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _check_uri(uri: str, check: Check) -> None:
    """An address with a key in it is not shown: it would be in status files and logs."""
    try:
        parts = urllib.parse.urlsplit(uri)
        scheme, host = parts.scheme.partition("+")[0], parts.hostname
    except ValueError:
        check.errors.append("SAC_MLFLOW_URI must be an address such as http://host:5000: what follows // is no host")
        return
    is_database = scheme in _DATABASES
    # A database's user name is none: its password is.
    has_key = parts.password is not None if is_database else "@" in parts.netloc or "@" in uri.partition("/")[0]
    if has_key or _KEY_IN_QUERY.search(parts.query):
        check.errors.append(
            "SAC_MLFLOW_URI must not hold a user, password or token, logs would show it: set MLFLOW_TRACKING_USERNAME "
            "and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN; for a database its own file (~/.pgpass, ~/.my.cnf)"
        )
    elif scheme not in _SCHEMES or (scheme in ("http", "https") and not host):
        check.errors.append(
            f"SAC_MLFLOW_URI={uri} must be an address such as http://host:5000, sqlite:///FILE or file:FOLDER"
        )
    elif scheme in ("file", "sqlite") and (host or parts.path.strip("/") in ("", ":memory:")):
        check.errors.append(f"SAC_MLFLOW_URI={uri} must name a file or folder, as in sqlite:///FILE or file:FOLDER")
