"""Tables on a terminal, fitted to its width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfagents_system.report.status import LEFT_ALIGNED, SETTINGS

_SETTINGS_WIDTH = 30  # They get more where there is room.


class SurvivingConsole(Console):
    """A console that stops writing when its pipe closes, instead of ending the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def table(
    rows: Sequence[Mapping[str, str]],
    columns: Sequence[str],
    width: int,
    *,
    spared_first: Sequence[str],
    state_styles: Sequence[str],
) -> Table:
    """Rows as a table, without the least important columns if the terminal is too narrow.

    Args:
      spared_first: Columns that a narrow terminal omits.
      state_styles: Of the column `state`, for each row.
    """
    natural = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in columns}
    widths = _fitting(natural, width, spared_first)
    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name, longest in widths.items():
        drawn.add_column(name, justify="left" if name in LEFT_ALIGNED else "right", no_wrap=True, width=longest)
    for row, style in zip(rows, state_styles, strict=True):
        drawn.add_row(*(Text(row[name], style=style if name == "state" else "") for name in widths))
    return drawn


def _fitting(natural: Mapping[str, int], width: int, spared_first: Sequence[str]) -> dict[str, int]:
    """Widths of the columns that fit, two characters apart; settings are cut if necessary."""
    widths = dict(natural)
    longest = widths.get(SETTINGS, 0)
    if longest:
        widths[SETTINGS] = min(longest, _SETTINGS_WIDTH)
    for name in spared_first:
        if sum(widths.values()) + 2 * len(widths) > width:
            widths.pop(name, None)
    if longest:
        rest = sum(widths.values()) + 2 * len(widths) - widths[SETTINGS]
        widths[SETTINGS] = min(longest, max(1, width - rest))
    return widths
