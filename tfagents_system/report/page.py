"""report.html: a run as one file for a browser.

    sac report logs/pendulum [--out report.html]

Only reads files, also of a run that is under way. The file needs no network; it holds no variable in which people put
keys or paths (`SAC_JOB_PRELUDE` and its like), but it does hold all settings of the environment.
"""

from __future__ import annotations

import base64
import datetime
import gzip
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.errors import EXIT_DONE, OptionParser, UserError
from tfagents_system.hyperparameters import Hyperparameters, described_by
from tfagents_system.machine.files import replacing
from tfagents_system.policies.names import checkpoint_name
from tfagents_system.report.long_work import LongWork, followed
from tfagents_system.report.status import (
    RETURN,
    TRAIN_RETURN,
    RunModel,
    fault_lines,
    format_number,
    format_return,
    format_secs,
    problems,
    time_shares,
)
from tfagents_system.run_files.run_paths import TRAINER
from tfagents_system.settings.values import leaves_of
from tfagents_system.settings.variables import VARIABLES

_FOLDER = Path(__file__).resolve().parent
_MOST_POINTS, _MOST_EPISODES = 1200, 4000  # Of a curve, and of single episodes.
MOST_BYTES = 4_500_000  # Of all videos, before they become text (4/3 of it).
_USUAL = re.compile(  # Metrics that are shown at once; others when they are asked for.
    r"(critic|actor|alpha)_loss|alpha|q_mean|train/episode_length|(eval|train)_success|(curriculum|schedule)/.*"
    r"|(updates|env_steps)_per_s|policy_age_updates"
)
_NO_METRICS = ("env_steps", "train_step", "wall_time_s", "iteration")
_SHOWN_ELSEWHERE = ("env_config", "compute_config")  # Attributes of TrainParams: the JSON's keys, and variables.
_TRAINED, _EVALUATED = "#0072B2", "#D55E00"  # Of Okabe and Ito.


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the report and prints where it is."""
    parser = OptionParser()
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    words = "HTML file to write (default: report.html in the run directory)"
    parser.add_argument("--out", type=Path, metavar="FILE", help=words)
    args = parser.parse_args(argv)
    model = RunModel(args.run)
    output = args.out or model.paths.report
    findings = []
    if not model.is_ours:
        findings.append(f"{args.run} has no run.json and no metrics.csv: give the directory of a run")
    if output.suffix.lower() not in (".html", ".htm"):
        findings.append(f"--out must be an .html file, found {output}")
    if not output.absolute().parent.is_dir():
        findings.append(f"--out: there is no directory {output.absolute().parent}: make it first")
    if findings:
        raise UserError(*findings)
    with LongWork("report"):
        text = page(model)
    try:
        with replacing(output) as file:
            file.write(text.encode())
    except OSError as error:
        raise UserError(f"{output} can't be written ({error.strerror or error}): give another --out") from None
    print(f"report: {output} ({output.stat().st_size / 1e6:.1f} MB)")
    return EXIT_DONE


# The page.


def page(model: RunModel) -> str:
    """The file's text. Its Content-Security-Policy lets it run its own scripts alone, and load nothing.

    Raises:
      UserError: plotly is not installed.
    """
    names = sorted({name for row in model.rows for name in row if name not in _NO_METRICS})
    figures = [learning_figure(model)]
    plots = dict[str, str]()
    for name in followed(names, "report", "metrics", len(names)):
        if (figure := metric_figure(model, name)) is not None:
            plots[name] = f'<div class="plot" data-figure="{len(figures)}" data-text="{_escaped(name.lower())}"></div>'
            figures.append(figure)
    sections = {
        "overview": _overview(model),
        "learning": '<div class="plot" data-figure="0"></div>',
        "metrics": _metrics(plots),
        "videos": _videos(model),
        "settings": _run(model),
    }
    return _whole_page(model.name, {name: content for name, content in sections.items() if content}, figures)


def _whole_page(name: str, sections: Mapping[str, str], figures: Sequence[Any]) -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UserError("a report needs the package plotly, which is not installed here: pip install plotly") from None
    plotly, script = get_plotlyjs(), (_FOLDER / "page.js").read_text(encoding="utf-8")
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in (plotly, script)
    )
    policy = (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; media-src data:"
    )
    # No text in it can end the element that it is in: `<` is written as an escape.
    json_of_figures = f"[{','.join(figure.to_json() for figure in figures)}]".replace("<", "\\u003c")
    now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    links = "".join(f'<a href="#{part}">{part}</a>' for part in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{_escaped(name)} - report</title>
<style>{(_FOLDER / "page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<nav><b class="name">{_escaped(name)}</b>{links}<span class="right">as of {now}</span></nav>
<main>
<noscript>This report draws its curves with JavaScript, which is switched off here.</noscript>
{"".join(f'<section id="{part}"><h2>{part}</h2>{content}</section>' for part, content in sections.items())}
</main>
<script type="application/json" id="figures">{json_of_figures}</script>
<script type="text/plain" id="plotly">{base64.b64encode(gzip.compress(plotly.encode(), 9, mtime=0)).decode()}</script>
<script>{script}</script>
</body>
</html>
"""


def _escaped(text: object) -> str:
    """For HTML, and for Plotly, which reads some HTML in texts."""
    return html.escape(str(text))


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows, which the page's filter finds by the texts of their first two cells."""
    lines = [
        f'<tr data-text="{_escaped(f"{row[0]} {row[1]}".lower())}">'
        f"{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>"
        for row in rows
    ]
    head = "".join(f"<th>{_escaped(name)}</th>" for name in header)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


# Sections.


def _overview(model: RunModel) -> str:
    """Problems, and the numbers of the run."""
    texts = problems(model.status, model.read_at) if model.status is not None else []
    facts = [f"<div><b>{_escaped(text)}</b><span>{name}</span></div>" for name, text in facts_of(model).items()]
    parts = [f'<div class="problem">{_escaped(text)}</div>' for text in texts]
    return "".join([*parts, f'<div class="facts">{"".join(facts)}</div>'])


def facts_of(model: RunModel) -> dict[str, str]:
    """The numbers at the top of the page."""
    rows, status = model.rows, model.status or {"run": {}, "roles": {}}
    last = {name: value for row in rows for name, value in row.items() if value is not None}

    def most(column: str) -> float:  # Not the last value: the row of an evaluation comes after rows of more steps.
        return max((value for row in rows if (value := row.get(column)) is not None), default=0.0)

    def median(column: str) -> str:
        values = [value for row in rows if (value := row.get(column))]
        return format_number(round(float(np.median(values)), 1)) if values else "-"

    facts = {
        "state": model.state,
        "best evaluation": format_number(model.best()),
        "last evaluation": format_return(last),
        "success": f"{last['eval_success']:.0%}" if "eval_success" in last else "-",
        "environment steps": format_number(int(most("env_steps"))),
        "updates": format_number(int(most("train_step"))),
        "trained for": format_secs(most("wall_time_s")),
        "steps/s (median)": median("env_steps_per_s"),
        "updates/s (median)": median("updates_per_s"),
        "restarts of roles": str(sum(beat.get("restarts", 0) for beat in status["roles"].values())),
        "simulator faults": "; ".join(fault_lines(status)) or "-",
        "ended because": str(status["roles"].get(TRAINER, {}).get("ended_early") or "-"),
    }
    return {name: text for name, text in facts.items() if text != "-"}


def _metrics(plots: Mapping[str, str]) -> str:
    if not plots:
        return ""
    usual = [plot for name, plot in plots.items() if _USUAL.fullmatch(name)]
    others = [plot for name, plot in plots.items() if not _USUAL.fullmatch(name)]
    controls = (
        '<div class="controls"><input type="search" placeholder="filter: loss speed curriculum">'
        '<label>smoothing <input type="range" id="smoothing" min="0" max="0.98" step="0.02" value="0"></label>'
        '<label><input type="checkbox" id="log"> log scale</label></div>'
    )
    return (
        f'{controls}<div class="grid">{"".join(usual)}</div><details><summary>{len(others)} others</summary>'
        f'<div class="grid">{"".join(others)}</div></details>'
    )


def _run(model: RunModel) -> str:
    """Where the time of the last start went, all settings, versions."""
    parts = []
    if shares := time_shares(model.status) if model.status is not None else {}:
        rows = [[owner, ", ".join(f"{name} {share}" for name, share in of.items())] for owner, of in shares.items()]
        parts.append(_table(["whose time", "where it went in the last start"], rows))
    if settings := settings_of(model):
        search = '<input type="search" placeholder="filter of settings">'
        parts.append(f'<h3>settings</h3><div class="controls">{search}</div>')
        header = ["setting", "value", "default"]
        parts.append(_table(header, [row for row in settings if row[1] != row[2]]))
        usual = [row for row in settings if row[1] == row[2]]
        words = f"<summary>{len(usual)} with their default values</summary>{_table(header, usual)}"
        parts.append(f"<details>{words}</details>")
    if versions := model.run_json.get("start", {}).get("versions", {}):
        words = ", ".join(f"{name} {version}" for name, version in versions.items())
        parts.append(f"<h3>versions</h3><p>{_escaped(words)}</p>")
    return "".join(parts)


def settings_of(model: RunModel) -> list[tuple[str, str, str]]:
    """Hyperparameters, configuration and variables of the last start: name, value, default."""
    described = described_by(Hyperparameters)
    defaults = {name: json.loads(json.dumps(known.default, default=str)) for name, known in described.items()}
    attributes = {k: v for k, v in model.settings.get("params", {}).items() if k not in _SHOWN_ELSEWHERE}
    rows = [(name, _text(value), _text(defaults.get(name, ""))) for name, value in attributes.items()]
    for path, value in leaves_of(model.settings.get("config", {}), ("config",)):
        rows.append((".".join(path), _text(value), ""))
    usual = {variable.name: variable.default or "" for variable in VARIABLES}
    texts = model.settings.get("variables", {})
    return [*rows, *((name, text.removesuffix(".0"), usual[name]) for name, text in texts.items())]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "None" if value is None else json.dumps(value)


def _videos(model: RunModel, most_bytes: int = MOST_BYTES) -> str:
    """Videos as far as there is room: the montage first, then the newest."""
    shown, left = [], most_bytes
    videos = model.paths.videos.glob("*.mp4")
    for path in sorted(videos, key=lambda path: (path.name != "montage.mp4", -path.stat().st_mtime)):
        caption = _escaped(path.stem)
        if (size := path.stat().st_size) > left:
            shown.append(f"<figure><figcaption>{caption} is too large for this file</figcaption></figure>")
            continue
        left -= size
        source = f"data:video/mp4;base64,{base64.b64encode(path.read_bytes()).decode()}"
        video = f'<video src="{source}" controls loop muted preload="metadata"></video>'
        shown.append(f"<figure>{video}<figcaption>{caption}</figcaption></figure>")
    return f'<div class="videos">{"".join(shown)}</div>' if shown else ""


# Figures.


def learning_figure(model: RunModel) -> Any:
    """The returns of episodes and evaluations."""
    from plotly.graph_objects import Figure

    figure = Figure([*_returns(model)])
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
    figure.update_layout(height=470, legend=legend, margin={"l": 76, "r": 16, "b": 46})
    return _styled(figure.update_xaxes(title_text="environment steps").update_yaxes(title_text="return"))


def _returns(model: RunModel) -> Iterable[Any]:
    """Single training episodes, their means, evaluations with the spread of their episodes, the best policy."""
    from plotly.graph_objects import Scatter

    if model.episodes:
        kept = [model.episodes[k] for k in thinned([row["return"] for row in model.episodes], _MOST_EPISODES)]
        yield Scatter(
            x=short(row.get("env_steps") or 0.0 for row in kept),
            y=short(row["return"] for row in kept),
            customdata=[[int(row["length"]), int(row["worker"])] for row in kept],
            name="training episodes",
            mode="markers",
            marker={"size": 4.5, "color": "#56B4E9", "opacity": 0.6},
            hovertemplate="return %{y}<br>%{customdata[0]} steps, worker %{customdata[1]}<extra></extra>",
        )
    steps, y = thinned_series(model, TRAIN_RETURN)
    yield Scatter(x=steps, y=y, name="training, mean", line={"color": _TRAINED, "width": 1.6})
    steps, y, stds, updates = map(short, model.series(RETURN, "eval_return_std", "train_step"))
    low, high = (short(mean + sign * std for mean, std in zip(y, stds, strict=True)) for sign in (-1, 1))
    hidden = {"x": steps, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    hidden |= {"legendgroup": "evaluations"}
    yield Scatter(y=low, **hidden)
    yield Scatter(y=high, **hidden, fill="tonexty", fillcolor="rgba(213,94,0,0.17)")
    yield Scatter(
        x=steps,
        y=y,
        name="evaluations, mean and spread",
        customdata=stds,
        mode="lines+markers",
        legendgroup="evaluations",
        line={"color": _EVALUATED, "width": 2.4},
        hovertemplate="evaluation %{y} ± %{customdata:.4g}<extra></extra>",
    )
    best = [k for k, step in enumerate(updates) if checkpoint_name(int(step)) == model.best_json.get("checkpoint")]
    star = {"symbol": "star", "size": 15, "color": "#E69F00", "line": {"color": "#1b2733", "width": 1}}
    if best:
        yield Scatter(x=[steps[best[-1]]], y=[y[best[-1]]], name="best policy", mode="markers", marker=star)


def metric_figure(model: RunModel, name: str) -> Any | None:
    """One metric over environment steps; None where it has no value."""
    from plotly.graph_objects import Figure, Scatter

    steps, y = thinned_series(model, name)
    if not y:
        return None
    mode = "lines+markers" if len(y) <= 60 else "lines"
    figure = Figure(Scatter(x=steps, y=y, mode=mode, line={"color": _TRAINED, "width": 1.6}))
    figure.update_layout(title={"text": _escaped(name), "font": {"size": 13}}, height=250, showlegend=False)
    figure.update_layout(margin={"l": 50, "r": 10, "t": 32, "b": 30})
    return _styled(figure)


def _styled(figure: Any) -> Any:
    figure.update_layout(template="plotly_white", font={"family": "system-ui, sans-serif", "size": 12})
    as_in_png = {"separatethousands": True, "minexponent": 9}  # `2,000`, as in learning_curve.png.
    return figure.update_xaxes(as_in_png).update_yaxes(as_in_png)


def thinned_series(model: RunModel, name: str, most: int = _MOST_POINTS) -> tuple[list[float], list[float]]:
    """Environment steps and values of a metric."""
    steps, values = model.series(name)
    kept = thinned(values, most)
    return short(steps[k] for k in kept), short(values[k] for k in kept)


def thinned(values: Sequence[float], most: int) -> Sequence[int]:
    """Indices of at most `most` values that look like all of them.

    The curve is parted into stretches of equally many values; of each the smallest and the largest one stay, as do the
    first and the last value of all. So no peak is lost, which a mean or every n-th value would do.

    Args:
      values: [n] finite, in the order in which they are drawn.
      most: At least 4, or n.

    Returns:
      Ascending.
    """
    count = len(values)
    if count <= most:
        return range(count)
    kept = {0, count - 1}
    for stretch in np.array_split(np.arange(count), (most - 2) // 2):
        kept |= {int(extreme(stretch, key=values.__getitem__)) for extreme in (min, max)}
    return sorted(kept)


def short(values: Iterable[float]) -> list[float]:
    """With six significant digits, whole numbers as such: a page is text."""
    rounded = (float(f"{value:.6g}") if abs(value) < 1e5 else float(f"{value:.9g}") for value in values)
    return [int(value) if value.is_integer() and abs(value) < 1e15 else value for value in rounded]
