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
# A password before the host (also where the scheme is left out), a user of a web server, or a key in the query.
_KEY = re.compile(
    r"^((https?|ftp)://)?[^/]*@|://[^/]*:[^/]*@|[?&;][^=]*(pass|pwd|token|secret|key)[^=]*=", re.IGNORECASE
)
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
    scheme, slashes, rest = uri.partition("://")
    scheme = scheme.partition(":")[0].partition("+")[0]
    if _KEY.search(uri):
        check.errors.append(
            "SAC_MLFLOW_URI must not hold a user, password or token, logs would show it: set MLFLOW_TRACKING_USERNAME "
            "and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN; for a database its own file (~/.pgpass, ~/.my.cnf)"
        )
    elif scheme not in _SCHEMES or (slashes and not rest.strip("/")):
        check.errors.append(
            f"SAC_MLFLOW_URI={uri} must be an address such as http://host:5000, sqlite:///FILE or file:FOLDER"
        )
