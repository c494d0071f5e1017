"""README's pictures: a bar chart of measured speeds, and an animation of a run.

python -m docs.site.pictures          # trains Pendulum and writes docs/images/live.gif: a minute and a half
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_OURS = "tfagents_system"
_CONTESTANTS = {
    _OURS: "this toolkit",
    "SBX, 50 updates after 50 steps": "SBX, 50 updates after 50 steps",
    "SBX": "SBX, an update after each step",
    "Stable-Baselines3": "Stable-Baselines3",
    "TF-Agents": "TF-Agents' own example",
}
_COLUMNS, _LINES, _FONT_PIXELS, _MS_PER_FRAME = 66, 19, 13, 100
_FRAMES_PER_STATUS = 4
_INK, _PAPER = (222, 226, 231), (22, 27, 34)  # Of a dark terminal.


def speed() -> str:
    """An SVG of the whole-system benchmark: environment steps per second of each program, legible on light and dark."""
    result = json.loads((ROOT / "benchmarks/results/whole_system.json").read_text(encoding="utf-8"))
    values = {row["name"].partition(", bare simulator")[0]: row["value"] for row in result["outcome"]["rows"]}
    bars = []
    for number, (name, label) in enumerate(_CONTESTANTS.items()):
        y, width = 34 + 30 * number, 400 * values[name] / values[_OURS]
        weight, color = ("bold", "#0072b2") if name == _OURS else ("normal", "#8a97a5")
        bars.append(
            f'  <text x="226" y="{y + 16}" text-anchor="end" font-weight="{weight}">{label}</text>\n'
            f'  <rect x="236" y="{y}" width="{width:.0f}" height="22" rx="3" fill="{color}"/>\n'
            f'  <text x="{242 + width:.0f}" y="{y + 16}" font-weight="{weight}">{values[name]:.0f}</text>\n'
        )
    caption = "Environment steps per second, HalfCheetah-v5, one update a step, the same two CPUs"
    alternative = ", ".join(f"{label} {values[name]:.0f}" for name, label in _CONTESTANTS.items())
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 690 190" role="img" font-family="sans-serif" '
        'font-size="13">\n'
        f"  <title>{caption}: {alternative}</title>\n"
        "  <style>text { fill: #1b2733 } @media (prefers-color-scheme: dark) { text { fill: #dee2e7 } }</style>\n"
        f'  <text x="10" y="20" font-size="14">{caption}</text>\n{"".join(bars)}</svg>\n'
    )


def live(output: Path) -> None:
    """Writes the animation: the live view of a real run, beside what its newest policy does."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        statuses, run = _train(Path(folder))
        films = _films(run)
    frames, first = [], statuses[0]["run"]["started_at"]
    for number in range(_FRAMES_PER_STATUS * len(statuses)):
        status = statuses[number // _FRAMES_PER_STATUS]
        updates = status["roles"].get("trainer", {}).get("train_step") or 0
        film = films[max((step for step in films if step <= updates), default=min(films))]
        terminal = _terminal(status)
        policy = Image.fromarray(film[number % len(film)]).resize((terminal.height, terminal.height))
        frame = Image.new("RGB", (terminal.width + policy.width, terminal.height))
        frame.paste(terminal, (0, 0))
        frame.paste(policy, (terminal.width, 0))
        frames.append(frame.quantize(64))
    print(f"{len(frames)} frames of {statuses[-1]['run']['updated_at'] - first:.0f} s")
    durations = [_MS_PER_FRAME] * (len(frames) - 1) + [3000]
    frames[0].save(output, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)


def _train(folder: Path) -> tuple[list[dict[str, Any]], Path]:
    """Trains the example; returns every status that it wrote, and the run directory."""
    variables = {"SAC_LOGS_DIR": folder, "checkpoint_period_iters": 2}
    settings = [word for name, value in variables.items() for word in ("--set", f"{name}={value}")]
    process = subprocess.Popen([ROOT / "run_script.sh", ROOT / "training_variables.sh", *settings], cwd=folder)
    path, statuses = folder / "pendulum" / "status.json", list[dict[str, Any]]()
    while process.poll() is None:
        time.sleep(0.2)
        if path.exists():
            status = json.loads(path.read_text(encoding="utf-8"))
            if not statuses or status["run"]["updated_at"] != statuses[-1]["run"]["updated_at"]:
                statuses.append(status)
    if process.returncode:
        raise RuntimeError(f"the run ended with {process.returncode}")
    return statuses, path.parent


def _films(run: Path) -> dict[int, Sequence[Any]]:
    """Of each stored policy, by its number of updates: pictures of one episode, [T] of [H, W, 3] uint8."""
    import gymnasium
    import numpy as np

    import tfagents_system

    films = dict[int, Sequence[Any]]()
    for checkpoint in (run / "policies" / "checkpoints").iterdir():
        policy = tfagents_system.load_run(run).policy(checkpoint.name)
        env = gymnasium.make("Pendulum-v1", render_mode="rgb_array")
        observation, _ = env.reset(seed=4)
        pictures = []
        for _ in range(200):
            pictures.append(env.render())
            observation, *_ = env.step(np.asarray(policy(observation)))
        films[int(checkpoint.name.rpartition("_")[2])] = pictures
    return films


def _terminal(status: dict[str, Any]) -> Any:
    """A picture of the live view of a status."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont
    from rich.console import Console
    from rich.terminal_theme import MONOKAI

    from tfagents_system.report.terminal import render

    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    font = ImageFont.truetype(str(fonts / "DejaVuSansMono.ttf"), _FONT_PIXELS)
    width, height = font.getlength("m"), _FONT_PIXELS + 5
    picture = Image.new("RGB", (round((_COLUMNS + 2) * width), (_LINES + 1) * height), _PAPER)
    draw = ImageDraw.Draw(picture)
    console = Console(width=_COLUMNS, force_terminal=True, color_system="truecolor", legacy_windows=False)
    for row, segments in enumerate(console.render_lines(render(status, _COLUMNS), pad=False)[:_LINES]):
        column = 1
        for segment in segments:
            style = segment.style
            color = _INK if style is None or style.color is None else style.color.get_truecolor(MONOKAI)
            faint = style is not None and style.dim
            fill = tuple((part + shade) // 2 for part, shade in zip(color, _PAPER, strict=True)) if faint else color
            draw.text((column * width, row * height + height // 2), segment.text, font=font, fill=tuple(fill))
            column += len(segment.text)
    return picture


if __name__ == "__main__":
    live(ROOT / "docs" / "images" / "live.gif")
