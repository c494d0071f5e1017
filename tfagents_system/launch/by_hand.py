"""Options of the replay server's, the gateway's and the trainer's programs, for those who start them by hand.

    python -m tfagents_system.sac_replay_buffer --to logs/exp --server localhost:8008
    python -m tfagents_system.sac_gateway --to logs/exp --server localhost:8008
    python -m tfagents_system.sac_train --to logs/exp --server HOST:PORT [--credentials DIR]

The run directory must be prepared and visible to all of them. A supervisor uses none of this: it sets variables.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import NoReturn

from tfagents_system.errors import EXIT_BAD_INPUT, UserError, print_findings
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.run_paths import RunPaths


def run_by_hand(main: Callable[[], NoReturn], *, listens: bool) -> NoReturn:
    """Runs a role's `main`, with the options of the command line; see `take_options`."""
    try:
        take_options(sys.argv[1:], listens=listens)
    except UserError as error:
        print_findings(error.findings)
        sys.exit(EXIT_BAD_INPUT)
    main()


def take_options(arguments: Sequence[str], environ: MutableMapping[str, str] = os.environ, *, listens: bool) -> None:
    """Puts what the options say, and the settings that the run was prepared with, into the environment.

    Args:
      arguments: The program's; without any, nothing happens.
      listens: `--server` is the replay server's port on this machine, rather than what to connect to as one who joins.

    Raises:
      UserError: The run directory was not prepared.
    """
    if not arguments:
        return
    parser = argparse.ArgumentParser(description="One role of a run, without a supervisor.", allow_abbrev=False)
    parser.add_argument("--to", type=Path, required=True, help="run directory, prepared")
    parser.add_argument("--server", required=True, help="HOST:PORT of the replay server, or of the run's gateway")
    if not listens:
        parser.add_argument("--credentials", type=Path, help="folder with the run's certificates")
        parser.add_argument("--password_file", type=Path, help="file with the run's password")
    flags = parser.parse_args(arguments)
    paths = RunPaths(flags.to.absolute())
    if not paths.run_json.exists() or not paths.specs.exists():
        raise UserError(
            f"{paths.exp_dir} is no run directory that was prepared: do that first, with the variables of the vars "
            "file (python -m tfagents_system.launch.prepare --vars_file VARS.sh)"
        )
    environ.update(run_directory.environ_of_run(run_directory.read_run_json(paths)), SAC_EXP_DIR=str(paths.exp_dir))
    environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    if listens:
        environ["SAC_REVERB_PORT"] = flags.server.rpartition(":")[2]
        return
    environ["SAC_SERVER"] = flags.server
    for name, path in (("SAC_CREDENTIALS_DIR", flags.credentials), ("SAC_PASSWORD_FILE", flags.password_file)):
        if path is not None:
            environ[name] = str(path.absolute())
