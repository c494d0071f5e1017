"""The SAC_ variables of a run, read as a start does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tfagents_system.errors import UserError
from tfagents_system.settings.variables import RunVariables, read_variables


def run_variables(environ: Mapping[str, str], *, vars_file: Path | None, root: Path) -> RunVariables:
    values, findings = read_variables(environ, vars_file=vars_file, root=root)
    if findings:
        raise UserError(*findings)
    return RunVariables(**values)
