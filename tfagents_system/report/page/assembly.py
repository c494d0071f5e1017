"""Puts a page together: data, the script that draws them, and plotly.js, in one file that needs no network."""

from __future__ import annotations

import base64
import datetime
import gzip
import hashlib
import html
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.report.curves import read_runs
from tfagents_system.report.long_work import followed
from tfagents_system.report.page.comparison import comparison_of
from tfagents_system.report.page.media import MOST_BYTES, videos_of
from tfagents_system.report.page.run_data import Budget, run_data
from tfagents_system.run_files.run_paths import RunPaths

_PARTS = Path(__file__).resolve().parent
_SCRIPTS = ("drawing.js", "sections.js", "page.js")
_ALL_POINTS, _ALL_EPISODES, _LIKELY_METRICS = 90_000, 8_000, 40  # Of a page, over all of its runs.


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
