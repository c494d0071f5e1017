"""Imports, exports and shows experience.

    sac experience import demos.npz --params my_params.py --config my.json --out demos
    sac experience import minari:mujoco/hopper/expert-v0 --exp-dir logs/hopper --out expert
    sac experience export logs/hopper --out hopper.npz
    sac experience show logs/hopper

`--from FOLDER --take replay` begins a run with what was imported, or with another run's experience.
"""

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
        lines = transfer.import_into(flags.source, out, flags.exp_dir, flags.params, flags.config, note)
    elif flags.command == "export":
        lines = transfer.export(flags.source, flags.out, note)
    else:
        lines = transfer.show(flags.source)
    print("\n".join(lines))
    return EXIT_DONE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OptionParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    take = commands.add_parser("import", help="a data set becomes a folder for `--from FOLDER --take replay`")
    take.add_argument(
        "source", help="file.npz, minari:NAME, or the folder of a Minari data set; of a run, `--from` takes it"
    )
    take.add_argument("--out", required=True, help="the folder to make")
    take.add_argument("--exp-dir", help="a run of the environment, whose observations and actions these are")
    take.add_argument("--params", help="without a run: Python file with TrainParams")
    take.add_argument("--config", help="without a run: JSON of the environment")
    give = commands.add_parser("export", help="the whole episodes of a run become a data set")
    give.add_argument("source", help="run directory, or an imported folder")
    give.add_argument("--out", required=True, help="file.npz, or minari:NAME such as minari:me/hopper-v0")
    show = commands.add_parser("show", help="what a run or an imported folder holds")
    show.add_argument("source", help="run directory, or an imported folder")
    return parser.parse_args(arguments)
