"""The checks of a start where all is imported already, with the trial in a fork."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import psutil

from tests.support.prepared_runs import prepare_run
from tests.support.warm_starts import WarmPopen
from tfagents_system.envs import env_process
from tfagents_system.errors import UserError
from tfagents_system.launch import environment_checks, prepare
from tfagents_system.launch.vars_file import ROOT
from tfagents_system.report import long_work


@dataclasses.dataclass
class Outcome:
    """What became of it.

    Attributes:
      code: Of a check; of a preparation 0, 2 with findings.
      left: How many processes it has left.
      threads: Of the process that forked, at its end.
      is_untouched: Whether TensorFlow has run no operation there.
    """

    code: int
    findings: list[str]
    out: str
    err: str
    pid: int
    left: int
    threads: int
    is_untouched: bool


def start_in_fork(environ: Mapping[str, str], *, check: bool = False, **limits: float) -> Outcome:
    """Prepares, or checks, the run that the variables describe.

    Args:
      **limits: `build_secs`, after which what is no step hangs; `tell_secs`, after which lines tell how far it is.
    """
    command = [sys.executable, "-m", "tests.support.start_in_fork", json.dumps([dict(environ), check, limits])]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with WarmPopen(command, cwd=ROOT, env=environ, **pipes) as process:
        out, err = process.communicate(timeout=300)
    *lines, last = out.splitlines()
    return Outcome(out="\n".join(lines), err=err, **json.loads(last))


def main() -> None:
    from tensorflow.python.eager import context

    environ, check, limits = json.loads(sys.argv[1])
    environment_checks._MEASURING_SECS = 0.05
    if "build_secs" in limits:
        env_process._BUILD_TIMES_STEP, env_process._MIN_BUILD_TIMEOUT_SECS = 1.0, limits["build_secs"]
    if "tell_secs" in limits:
        long_work.AFTER_SECS, long_work._LINE_SECS = 0.0, limits["tell_secs"]
    code, findings = 0, list[str]()
    try:
        if check:
            code = prepare.check(environ, None)
        else:
            assert prepare_run(environ)
    except UserError as error:
        code, findings = 2, list(error.findings)
    process = psutil.Process()
    told = {"code": code, "findings": findings, "pid": process.pid, "left": len(process.children(recursive=True))}
    print(json.dumps({**told, "threads": process.num_threads(), "is_untouched": context._context is None}))


if __name__ == "__main__":
    main()
