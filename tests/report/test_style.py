"""style.css: every text has a contrast of at least 4.5:1 to each background that it may be on (WCAG 2.2, 1.4.3)."""

import re

import pytest

from tests.support.documents import ROOT

_COLOR = r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);"


def colors_of(path):
    """(light, dark) by name."""
    return {name: pair for name, *pair in re.findall(_COLOR, (ROOT / path).read_text())}


COLORS = colors_of("tfagents_system/report/style.css") | colors_of("docs/site/site.css")


def luminance(color):
    """Relative luminance (WCAG 2.2)."""
    parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrasts_are_those_of_the_standard():
    assert contrast("#ffffff", "#000000") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01), "just too little, as the standard says"


@pytest.mark.parametrize(
    ("background", "ratios"),
    [
        # Light and dark: of ink, soft and link.
        ("page", [(13.9, 14.8), (5.9, 8.4), (5.9, 8.5)]),
        ("card", [(15.2, 13.2), (6.5, 7.4), (6.4, 7.6)]),
        ("warning", [(13.7, 11.7), (5.8, 6.6), (5.8, 6.7)]),
    ],
)
def test_texts(background, ratios):
    found = [
        tuple(contrast(*pair) for pair in zip(COLORS[text], COLORS[background], strict=True))
        for text in ("ink", "soft", "link")
    ]
    assert min(map(min, found)) >= 4.5
    assert [pytest.approx(pair, abs=0.06) for pair in ratios] == found


def test_titles_of_the_site_and_lines_of_figures():
    assert [contrast("#ffffff", color) for color in COLORS["md-primary-fg-color"]] == pytest.approx(
        [7.8, 10.9], abs=0.06
    )
    for name in ("trained", "evaluated", "edge"):  # 3:1 for what is no text (1.4.11).
        assert min(contrast(*pair) for pair in zip(COLORS[name], COLORS["card"], strict=True)) >= 3.0, name
