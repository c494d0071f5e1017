"""report.html: a run, or several ones, as one file for a browser.

    sac report logs/pendulum [logs/...] [--out report.html] [--group NAME=PATTERN]...

Only reads files, also of runs that are under way. The file needs no network; it holds no variable in which people put
keys or paths (`SAC_JOB_PRELUDE` and its like), but it does hold all settings of the environment.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import gzip
import hashlib
import html
import importlib.util
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.called_as import called_as
from tfagents_system.errors import EXIT_DONE, UserError, exit_with
from tfagents_system.machine.files import replacing
from tfagents_system.report.compare import curve_of, group_runs, table_of
from tfagents_system.report.curves import RETURN, read_runs
from tfagents_system.report.long_work import LongWork, followed
from tfagents_system.report.page.run_data import Budget, run_data, short
from tfagents_system.report.statuses_of_runs import runs_among
from tfagents_system.run_files.run_paths import RunPaths

_FILE = "report.html"
_PARTS = Path(__file__).resolve().parent
_SCRIPTS = ("drawing.js", "sections.js", "page.js")
_ALL_POINTS, _ALL_EPISODES, _LIKELY_METRICS = 90_000, 8_000, 40  # Of a page, over all of its runs.
MOST_BYTES = 4_500_000  # Of all videos of a page, before they become text (4/3 of it).
_MONTAGE = "montage.mp4"


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


def page_data(folders: Sequence[Path], groups: Sequence[str] = ()) -> Any:
    """What a page shows, as plain data.

    Args:
      groups: `NAME=PATTERN` as of `sac compare`.

    Raises:
      UserError: A folder is no run directory; with all findings.
    """
    ours = [RunPaths(folder) for folder in folders]
    strangers = [paths.exp_dir for paths in ours if not (paths.run_json.exists() or paths.metrics_csv.exists())]
    if strangers:
        read_runs(strangers)  # Raises what is wrong with them, unless they are runs of another library.
    if strangers and len(folders) == len(strangers) == 1:
        raise UserError(f"{strangers[0]} is no run of this toolkit: compare it with runs that are")
    count = len(folders)
    budget = Budget(
        points=min(1200, max(60, _ALL_POINTS // (count * _LIKELY_METRICS))) if count > 1 else 1200,
        episodes=max(200, _ALL_EPISODES // count) if count > 1 else 4000,
    )
    runs = [run_data(paths, budget) for paths in followed(ours, "reading", "runs", count)]
    for run, videos in zip(runs, videos_of(ours, MOST_BYTES), strict=True):
        run["videos"] = videos
    now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return {"made": now, "runs": runs, "comparison": comparison_of(folders, groups) if count > 1 else None}


def page(data: Any) -> str:
    """The file's text; its Content-Security-Policy lets it run its own scripts alone, and load nothing."""
    plotly = plotly_js()
    script = "\n".join((_PARTS / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    names = ", ".join(run["name"] for run in data["runs"][:3]) + (", ..." if len(data["runs"]) > 3 else "")
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in (plotly, script))
    parts = {
        "TITLE": html.escape(f"{names} - report"),
        "SCRIPT_SOURCES": hashes,
        "STYLE": (_PARTS / "page.css").read_text(encoding="utf-8"),
        "DATA": json_in_html(data),
        "PLOTLY": base64.b64encode(gzip.compress(plotly.encode(), 9, mtime=0)).decode(),
        "SCRIPT": script,
    }
    text = (_PARTS / "page.html").read_text(encoding="utf-8")
    pieces = text.split("@@")  # Every second one is a name: what is filled in is not looked at again.
    return "".join(parts[piece] if k % 2 else piece for k, piece in enumerate(pieces))


def json_in_html(data: Any) -> str:
    """JSON that no text in it can end the element that it is in: `<` is written as an escape."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def plotly_js() -> str:
    """The script of the installed plotly package; importing the package itself takes a second.

    Raises:
      UserError: It is not installed.
    """
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        raise UserError("a report needs the package plotly, which is not installed here: pip install plotly==7.1.0")
    path = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return path.read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def comparison_of(folders: Sequence[Path], patterns: Sequence[str]) -> dict[str, Any]:
    """Groups with curve and table as `sac compare` has them; `problems` where there are none.

    Returns:
      `groups`: name, members (places in `folders`) and the curve of each; `table`: a row each.
    """
    try:
        runs = read_runs(folders, RETURN)
    except UserError as error:
        return {"problems": error.findings, "groups": [], "table": [], "metric": RETURN}
    groups = group_runs(runs, patterns)
    places = {id(run): k for k, run in enumerate(runs)}
    told = []
    for group in groups:
        curve: dict[str, Any] = {}
        if group.begun:
            found = curve_of(group)
            curve = {name: short(getattr(found, name)) for name in ("steps", "iqm", "low", "high", "counts")}
        told.append({"name": group.name, "runs": [places[id(run)] for run in group.runs], "curve": curve})
    return {"problems": [], "groups": told, "table": table_of(groups, RETURN), "metric": RETURN}


def videos_of(runs: Sequence[RunPaths], most_bytes: int = MOST_BYTES) -> list[list[dict[str, Any]]]:
    """The videos of each run: the montage first, then the newest; `data` is None where there was no room.

    Runs take turns, so that each shows its first before any shows its second.
    """
    files = [_ordered(paths.videos) for paths in runs]
    told: list[list[dict[str, Any]]] = [[] for _ in runs]
    left = most_bytes
    for turn in range(max(map(len, files), default=0)):
        for k, of_run in enumerate(files):
            if turn < len(of_run):
                content = _read(of_run[turn], left)
                left -= len(content or b"")
                told[k].append(_video(of_run[turn], content))
    return told


def _ordered(folder: Path) -> list[Path]:
    found = []
    for path in folder.glob("*.mp4") if folder.is_dir() else ():
        try:
            found.append((path.name != _MONTAGE, -path.stat().st_mtime, path))
        except OSError:
            continue
    return [path for _, _, path in sorted(found)]


def _read(path: Path, most_bytes: int) -> bytes | None:
    try:
        return path.read_bytes() if path.stat().st_size <= most_bytes else None
    except OSError:
        return None


def _video(path: Path, content: bytes | None) -> dict[str, Any]:
    data = None if content is None else f"data:video/mp4;base64,{base64.b64encode(content).decode()}"
    return {"name": path.stem, "path": str(path), "data": data}


if __name__ == "__main__":
    exit_with(main)
