"""The site is built without a warning: every page is in its menu, every link and anchor leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.site import hooks
from tests.support.documents import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    return folder


def test_pages_have_what_the_code_says(site: Path) -> None:
    python = (site / "reference/python.html").read_text()
    assert "RunFailedError" in python and "collect_env_args_kwargs" in python and "assert_environment" in python
    assert 'id="sac-train"' in (site / "reference/commands.html").read_text()
    assert "Changelog" in (site / "changelog.html").read_text()
    assert (site / "repository/tfagents_system/hyperparameters.py.txt").is_file()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.glob("**/*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?(https?:[^\" >]+)", page.read_text())
        assert not [url for url in loaded if "canonical" not in url], page


def test_links_out_of_the_documents_lead_to_copies() -> None:
    text = "[a](../../tfagents_system/x.py#L3) [b](../reference/y.md) [c](#here) [d](https://e.org/f)\n"
    fence = "```text\n[a](../x.py)\n```\n"
    relinked = hooks.relinked(text + fence, "docs/how_to/z.md")
    assert relinked == (
        "[a](../repository/tfagents_system/x.py.txt#L3) [b](../reference/y.md) [c](#here) [d](https://e.org/f)\n"
        + fence
    )
    assert hooks.relinked("[a](docs/how_to/z.md#b) [c](LICENSE)", "CHANGELOG.md") == (
        "[a](how_to/z.md#b) [c](repository/LICENSE.txt)"
    )
