"""report.html: a run as one file for a browser, made by `sac report`.

Only reads files, also of a run that is under way. The file needs no network; it holds no variable in which people put
keys or paths (`SAC_JOB_PRELUDE` and its like), but it does hold all settings of the environment.
"""

from __future__ import annotations

import base64
import dataclasses
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

from tfagents_system.agents.algorithms import PARTS, optimizer_settings, value
from tfagents_system.checks.findings import counted
from tfagents_system.checks.schedules import Schedule, is_schedule
from tfagents_system.errors import EXIT_DONE, OptionParser, UserError
from tfagents_system.hyperparameters import Hyperparameters, described_by
from tfagents_system.machine.files import replacing
from tfagents_system.policies.names import checkpoint_name
from tfagents_system.report.long_work import LongWork, followed
from tfagents_system.report.status import (
    RETURN,
    SUCCESS,
    TRAIN_RETURN,
    RunModel,
    fault_lines,
    format_number,
    format_return,
    problems,
    time_shares,
)
from tfagents_system.run_files.metrics import FURTHER_COLUMNS
from tfagents_system.run_files.run_paths import TRAINER
from tfagents_system.settings.values import by_name, leaves_of
from tfagents_system.settings.variables import VARIABLES

_FOLDER = Path(__file__).resolve().parent
_MOST_POINTS, _MOST_EPISODES = 1200, 4000  # Of a curve, and of single episodes.
MOST_BYTES = 4_500_000  # Of all videos, before they become text (4/3 of it).
_USUAL = re.compile(  # Metrics that are shown at once; others when they are asked for.
    r"(critic|actor|alpha)_loss|alpha|q_mean|train/episode_length|(eval|train)_success|(curriculum|schedule)/.*"
    r"|(updates|env_steps)_per_s|policy_age_updates"
)
_UNITS = {  # Of the vertical axis, by how the metric's name ends; else it is the last part of the name.
    **{"_per_s": "per second", "_ms_p99": "milliseconds", "_loss": "loss", "return_std": "return", "return": "return"},
    **{"policy_lag": "iterations", "policy_age_updates": "updates", "clipped_mass": "share of probability"},
    **{"success": "share of episodes", "eval_episodes": "episodes", "eval_faults": "episodes"},
    **dict.fromkeys(("episode_length", "late_steps", "dropped_steps"), "environment steps"),
}
_NO_METRICS = ("env_steps", "train_step", "wall_time_s", "iteration")
DEFAULT = "default"
_SHOWN_ELSEWHERE = ("env_config", "compute_config")  # Attributes of TrainParams: the JSON's keys, and variables.


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
    if args.out and not output.absolute().parent.is_dir():
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
            figures.append(figure)
            text, drawn = _escaped(name), _drawn(figure, len(figures) - 1)
            plots[name] = f'<figure data-text="{text.lower()}"><figcaption>{text}</figcaption>{drawn}</figure>'
    sections = {
        "overview": _overview(model),
        "learning": _drawn(figures[0], 0),
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
    json_of_figures = json.dumps(figures).replace("<", "\\u003c")
    now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    links = "".join(f'<a href="#{part}">{part}</a>' for part in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{_escaped(name)} - report</title>
<style>{"".join((_FOLDER / sheet).read_text(encoding="utf-8") for sheet in ("style.css", "page.css"))}</style>
</head>
<body>
<header><h1>{_escaped(name)}</h1><nav>{links}</nav></header>
<main>
<noscript>This report draws its curves with JavaScript, which is switched off here.</noscript>
{"".join(f'<section id="{part}"><h2>{part}</h2>{content}</section>' for part, content in sections.items())}
<p class="note">Written at {now}.</p>
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
    """What the run is, problems, its numbers, and where its time went."""
    texts = problems(model.status, model.read_at) if model.status is not None else []
    parts = [_facts("origin", origin_of(model)), *(f'<div class="problem">{_escaped(text)}</div>' for text in texts)]
    parts.append(_facts("facts", facts_of(model)))
    if shares := time_shares(model.status) if model.status is not None else {}:
        rows = [[owner, ", ".join(f"{name} {share}" for name, share in of.items())] for owner, of in shares.items()]
        parts.append(_table(["whose time", "where it went in the last start"], rows))
    return "".join(parts)


def _facts(kind: str, facts: Mapping[str, tuple[str, str]]) -> str:
    cells = [(name, *map(_escaped, texts)) for name, texts in facts.items()]
    rows = [f'<div><dt>{name}</dt><dd>{text}</dd><dd class="note">{note}</dd></div>' for name, text, note in cells]
    return f'<dl class="{kind}">{"".join(rows)}</dl>'


def origin_of(model: RunModel) -> dict[str, tuple[str, str]]:
    """What was trained, where and with what, as text and note by name; without what an older run does not say."""
    run, start = model.run_json, model.run_json.get("start", {})
    machine, commit = start.get("machine", {}), start.get("commit")
    cpus = f"{counted(machine['cpus'], 'CPU')}, {machine['cpu']}" if machine else ""
    facts = {
        "algorithm": (run.get("attributes", {}).get("algorithm"), ""),
        "environment": (run.get("environment"), ""),
        "seed": (run.get("seed"), ""),
        "machine of the last start": (machine.get("host"), cpus),
        "tfagents_system": (start.get("versions", {}).get("tfagents_system"), f"commit {commit}" if commit else ""),
    }
    return {name: (str(text), note) for name, (text, note) in facts.items() if text not in (None, "")}


def facts_of(model: RunModel) -> dict[str, tuple[str, str]]:
    """The numbers at the top of the page, as text and note by name."""
    rows, status = model.rows, model.status or {"run": {}, "roles": {}}
    evaluations = [row for row in rows if row.get(RETURN) is not None]
    last, best = evaluations[-1] if evaluations else {}, best_row(model)
    ended = str(status["roles"].get(TRAINER, {}).get("ended_early") or "")
    # A short run's hours are thousandths.
    ended = re.sub(r"max_hours=(\d[\d.e-]*)", lambda hours: f"max_hours = {duration(3600 * float(hours[1]))}", ended)

    def of_evaluation(row: Mapping[str, Any], word: str) -> str:
        words = [f"{word} step {int(row.get('env_steps') or 0):,}"] if row else []
        words += [f"mean of {counted(int(count), 'episode')}"] if (count := row.get("eval_episodes")) else []
        return ", ".join(words)

    def most(column: str) -> float:  # Not the last value: the row of an evaluation comes after rows of more steps.
        return max((value for row in rows if (value := row.get(column)) is not None), default=0.0)

    def median(column: str) -> str:
        values = [value for row in rows if (value := row.get(column))]
        return format_number(round(float(np.median(values)), 1)) if values else "-"

    facts = {
        "state": (model.state, ended),
        "best evaluation": (format_return({**best, RETURN: model.best()}), of_evaluation(best, "since")),
        "last evaluation": (format_return(last), of_evaluation(last, "at")),
        "success": ("-" if last.get(SUCCESS) is None else f"{last[SUCCESS]:.0%}", "of the last evaluation"),
        "environment steps": (format_number(int(most("env_steps"))), f"{median('env_steps_per_s')} per second, median"),
        "updates": (format_number(int(most("train_step"))), f"{median('updates_per_s')} per second, median"),
        "trained for": (duration(most("wall_time_s")), "over all starts"),
        "restarts of roles": (str(sum(beat.get("restarts", 0) for beat in status["roles"].values())), ""),
        "simulator faults": ("; ".join(fault_lines(status)) or "-", ""),
    }
    return {name: (text, note) for name, (text, note) in facts.items() if text != "-"}


def best_row(model: RunModel) -> dict[str, float | None]:
    """The row of the evaluation by which the best policy was kept; empty where there is none."""
    kept = model.best_json.get("checkpoint")
    rows = [row for row in model.rows if row.get(RETURN) is not None and row.get("train_step") is not None]
    return next((row for row in reversed(rows) if checkpoint_name(int(row["train_step"] or 0)) == kept), {})


def duration(secs: float) -> str:
    """`18 s`, `1 min 20 s`, `2 h 5 min`."""
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours:,} h" * (hours > 0), f"{minutes} min" * (minutes > 0), f"{seconds} s" * (seconds > 0)]
    return " ".join([*filter(None, parts)][:2]) or "0 s"


def _metrics(plots: Mapping[str, str]) -> str:
    if not plots:
        return ""
    usual = [plot for name, plot in plots.items() if is_usual(name)]
    others = [plot for name, plot in plots.items() if not is_usual(name)]
    controls = (
        '<div class="controls">'
        '<input type="search" aria-label="filter of metrics" placeholder="filter: loss speed curriculum">'
        '<label>smoothing <input type="range" id="smoothing" min="0" max="0.98" step="0.02" value="0"></label>'
        '<label><input type="checkbox" id="log"> log scale</label></div>'
    )
    return (
        f'{controls}<div class="grid">{"".join(usual)}</div><details><summary>{len(others)} others</summary>'
        f'<div class="grid">{"".join(others)}</div></details>'
    )


def is_usual(name: str) -> bool:
    """Whether a metric is shown at once: the most important ones, and those of the user's own environment."""
    side, _, rest = name.partition("/")
    is_own = side in ("train", "eval") and not {f"train/{rest}", f"eval/{rest}"} & FURTHER_COLUMNS.keys()
    return is_own or _USUAL.fullmatch(name) is not None


def _run(model: RunModel) -> str:
    """All settings, versions."""
    parts = []
    if settings := settings_of(model):
        parts.append('<input type="search" aria-label="filter of settings" placeholder="filter: learning_rate SAC_">')
        header, usual = ["setting", "value", "given by", "default"], [row[:2] for row in settings if row[2] == DEFAULT]
        parts.append(_table(header, [row for row in settings if row[2] != DEFAULT]))
        parts.append(f"<details><summary>{len(usual)} others</summary>{_table(header[:2], usual)}</details>")
    if versions := model.run_json.get("start", {}).get("versions", {}):
        words = ", ".join(f"{name} {version}" for name, version in versions.items())
        parts.append(f"<h3>versions</h3><p>{_escaped(words)}</p>")
    return "".join(parts)


def settings_of(model: RunModel) -> list[tuple[str, str, str, str]]:
    """Hyperparameters that have an effect, configuration and variables of the last start: name, value, what gave it
    (`--set`, `params`, `JSON`, `variable` or DEFAULT), and the default of a run of this algorithm and length.

    Variables whose default is `auto` have what it came to, which run.json does not distinguish from a given value.
    """
    settings, parts = model.settings, model.run_json.get("overrides", {})
    if not settings:
        return []
    overridden = by_name(*(parts.get(kind, {}) for kind in ("params", "config", "variables")))
    rows = [row for name in settings["params"] if name not in _SHOWN_ELSEWHERE for row in _rows_of(model, name)]
    for path, leaf in leaves_of(settings["config"], ("config",)):
        is_default = path[1:] == ("horizon",) and "horizon" in parts.get("defaults", {})
        rows.append((".".join(path), _text(leaf), DEFAULT if is_default else "JSON", ""))
    usual = {variable.name: variable.default or "" for variable in VARIABLES}
    for name, text in settings["variables"].items():
        text = text.removesuffix(".0")
        is_open = usual[name] == "auto" or " " in usual[name]  # Nobody knows afterwards who has decided.
        source = DEFAULT if text == usual[name] else "variable or default" if is_open else "variable"
        rows.append((name, text, source, usual[name]))
    given = "--set or grid" if model.run_json["start"]["variables"].get("grid") else "--set"
    return [(name, text, given if name in overridden else source, usual) for name, text, source, usual in rows]


def _rows_of(model: RunModel, name: str) -> Iterable[tuple[str, str, str, str]]:
    """Of one attribute, or of each key of a dictionary; of one without an effect only what was set."""
    values, described = model.run_json["attributes"], described_by(Hyperparameters).get(name)
    if described is None:
        yield name, _text(values[name]), "params", ""
        return
    of_run = type("OfRun", (Hyperparameters,), {"horizon": model.run_json["config"].get("horizon", 1), **values})
    is_used = all(when.holds(value(of_run, when.attribute)) for when in described.acts)
    setattr(of_run, name, model.run_json.get("overrides", {}).get("defaults", {}).get(name, described.default))
    part, usual = name.removesuffix("_optimizer"), value(of_run, name)
    if name == "num_iter" and values.get("num_env_steps") is not None:
        usual = values["num_env_steps"]  # A bound that is never reached, see `load_params`.
    elif part in PARTS:
        usual = optimizer_settings(of_run, part)
    elif described.takes_schedule and is_schedule(usual):
        usual = dataclasses.asdict(Schedule.of(usual))
    defaults = dict(leaves_of({name: json.loads(json.dumps(usual, default=str))}))
    for path, own in leaves_of({name: values[name]}):
        texts = [_text(leaf, described.unit) for leaf in (own, defaults.get(path))]
        if own != defaults.get(path):
            yield ".".join(path), texts[0], "params" if is_used else "params, without effect", texts[1]
        elif is_used:
            yield ".".join(path), texts[0], DEFAULT, texts[1]


def _text(value: Any, unit: str = "") -> str:
    if unit == "hours" and value is not None:
        return duration(3600 * value)
    text = value if isinstance(value, str) else "None" if value is None else json.dumps(value)
    return f"{value:,} {unit}" if unit and isinstance(value, (int, float)) else text


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
        label = f'aria-label="video of the environment: {caption}"'
        video = f'<video src="{source}" {label} controls loop muted preload="metadata"></video>'
        shown.append(f"<figure>{video}<figcaption>{caption}</figcaption></figure>")
    return f'<div class="grid videos">{"".join(shown)}</div>' if shown else ""


# Figures: their data. page.js says how each `look` is drawn.


def _drawn(figure: Mapping[str, Any], number: int) -> str:
    """The place of a figure, with a text for those who do not see it."""
    texts = []
    for curve in figure["curves"]:
        x, y = curve["x"], curve["y"]
        first, last = (f"{format_number(y[k])} at step {x[k]:,}" for k in (0, -1))
        extremes = f"from {format_number(min(y))} to {format_number(max(y))}"
        texts += [f"{curve['name']}: first {first}, last {last}, {extremes}"] if curve["name"] else []
    label = _escaped(f"Over environment steps. {'. '.join(texts)}.")
    return f'<div class="plot" role="img" aria-label="{label}" data-figure="{number}"></div>'


def learning_figure(model: RunModel) -> dict[str, Any]:
    """Single training episodes, their means, evaluations with the spread of their episodes, the best policy."""
    kept = [model.episodes[k] for k in thinned([row["return"] for row in model.episodes], _MOST_EPISODES)]
    where = [row.get("env_steps") or 0.0 for row in kept]
    about = [[int(row["length"]), int(row["worker"])] for row in kept]
    steps, means, stds = model.series(RETURN, "eval_return_std")
    low, high = ([mean + sign * std for mean, std in zip(means, stds, strict=True)] for sign in (-1, 1))
    best = [[row.get(name) or 0.0] if (row := best_row(model)) else [] for name in ("env_steps", RETURN)]
    curves = [
        _curve("training episodes", "episodes", where, [row["return"] for row in kept], about),
        _curve("training, mean", "training", *thinned_series(model, TRAIN_RETURN)),
        _curve("", "edge", steps, low),
        _curve("", "spread", steps, high),
        _curve("evaluations, mean ± deviation", "evaluations", steps, means, short(stds)),
        _curve("best policy", "best", *best),
    ]
    return {"unit": "return of an episode", "curves": [curve for curve in curves if curve["y"]]}


def metric_figure(model: RunModel, name: str) -> dict[str, Any] | None:
    """One metric over environment steps; None where it has no value."""
    steps, values = thinned_series(model, name)
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), name.rpartition("/")[2])
    return {"unit": _escaped(unit), "curves": [_curve(name, "metric", steps, values)]} if values else None


def _curve(name: str, look: str, steps: Iterable[float], values: Iterable[float], more: Any = None) -> dict[str, Any]:
    return {"name": name, "look": look, "x": short(steps), "y": short(values), "customdata": more}


def thinned_series(model: RunModel, name: str, most: int = _MOST_POINTS) -> list[list[float]]:
    """Environment steps and values of a metric."""
    series = model.series(name)
    kept = thinned(series[1], most)
    return [[numbers[k] for k in kept] for numbers in series]


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
