"""report.html: a run, or several ones, as one file for a browser.

    sac report logs/pendulum [logs/...] [--out report.html] [--group NAME=PATTERN]...

Only reads files, also of runs that are under way. The file needs no network; it holds no variable in which people put
keys or paths (`SAC_JOB_PRELUDE` and its like), but it does hold all settings of the environment.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from tfagents_system.checks.called_as import called_as
from tfagents_system.errors import EXIT_DONE, UserError, exit_with
from tfagents_system.machine.files import replacing
from tfagents_system.report.long_work import LongWork
from tfagents_system.report.page.assembly import page, page_data
from tfagents_system.report.statuses_of_runs import runs_among
from tfagents_system.run_files.run_paths import RunPaths

_FILE = "report.html"


def write_report(folders: Sequence[Path], output: Path, groups: Sequence[str] = ()) -> None:
    """Replaces the file.

    Raises:
      UserError: A folder is no run directory, or plotly is not installed.
      OSError: The file can't be written.
    """
    with LongWork("report") as work:
        work.doing = "reading runs and videos"
        data = page_data(folders, groups)
        work.doing = "writing the page"
        text = page(data)
    with replacing(output) as file:
        file.write(text.encode())


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the report and prints where it is.

    Raises:
      UserError: With all findings.
    """
    parser = argparse.ArgumentParser(
        prog=called_as("python -m tfagents_system.report page"),
        description="A run, or several ones together, as one HTML file: curves, settings, videos.",
    )
    parser.add_argument("run", nargs="+", type=Path, help="run directories, such as logs/exp_task_*")
    parser.add_argument("--out", "--output", type=Path, help=f"default: {_FILE} in the run directory; of several here")
    parser.add_argument(
        "--group", action="append", default=[], metavar="NAME=PATTERN", help="runs whose directories fit are one group"
    )
    args = parser.parse_args(argv)
    folders = runs_among(args.run)
    if findings := _findings(args, folders):
        raise UserError(*findings)
    output = args.out or _default_output(folders)
    try:
        write_report(folders, output, args.group)
    except OSError as error:
        raise UserError(f"{output} can't be written ({error.strerror or error}): give another --out") from None
    print(f"report: {output} ({output.stat().st_size / 1e6:.1f} MB)")
    return EXIT_DONE


def _findings(args: argparse.Namespace, folders: Sequence[Path]) -> list[str]:
    found = [f"{folder} is no directory: give run directories" for folder in folders if not folder.is_dir()]
    if args.out and args.out.suffix.lower() not in (".html", ".htm"):
        found.append(f"--out must be an .html file, found {args.out}")
    if args.out and not args.out.absolute().parent.is_dir():
        found.append(f"--out: there is no directory {args.out.absolute().parent}: make it first")
    return found


def _default_output(folders: Sequence[Path]) -> Path:
    is_own = len(folders) == 1 and os.access(folders[0], os.W_OK)
    return RunPaths(folders[0]).report if is_own else Path(_FILE)


if __name__ == "__main__":
    exit_with(main)
