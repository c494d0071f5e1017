"""Imports, exports and shows experience: `sac experience`."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tfagents_system.errors import EXIT_DONE, OptionParser, UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    flags = _parse(arguments)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    from absl import logging

    from tfagents_system.experience import transfer

    logging.set_verbosity(logging.ERROR)
    note = functools.partial(print, "note:", file=sys.stderr)
    if flags.command == "import":
        out = Path(flags.out).expanduser().absolute()
        if out.exists():
            raise UserError(f"--out={flags.out} exists: give a new folder, or remove it")
        lines = transfer.import_into(flags.source, out, flags.run, flags.params, flags.config, note)
    elif flags.command == "export":
        lines = transfer.export(flags.source, flags.out, note)
    else:
        lines = transfer.show(flags.source)
    print("\n".join(lines))
    return EXIT_DONE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OptionParser(
        description="A run begins with imported experience, or with another run's: `--from FOLDER --take replay`."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    take = commands.add_parser("import", help="write a data set to a folder")
    take.add_argument("source", metavar="DATA", help="file.npz, minari:NAME, or the folder of a Minari data set")
    take.add_argument("--out", required=True, metavar="FOLDER", help="folder to make")
    take.add_argument("--run", help="run of the environment, whose observations and actions these are")
    take.add_argument("--params", metavar="PARAMS.py", help="file with TrainParams, where there is no run")
    take.add_argument("--config", metavar="JSON", help="JSON of the environment, where there is no run")
    give = commands.add_parser("export", help="write the whole episodes of a run to a data set")
    give.add_argument("--out", required=True, metavar="DATA", help="file.npz, or a name such as minari:me/hopper-v0")
    show = commands.add_parser("show", help="show what a run or an imported folder holds")
    for parser_of_run in (give, show):
        parser_of_run.add_argument("source", metavar="RUN", help="run directory, or an imported folder")
    return parser.parse_args(arguments)
