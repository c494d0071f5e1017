"""The site is built without a warning: every page is in its menu, every link and anchor leads somewhere."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.site import hooks
from tests.support.browser import Browser, chromium
from tests.support.documents import ROOT

_SEARCH = """(() => {
  document.querySelector('[data-md-toggle=search]').click();
  const box = document.querySelector('[data-md-component=search-query]');
  box.focus(); box.value = 'hindsight_share'; box.dispatchEvent(new Event('keyup'));
})()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    return folder


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server on loopback."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


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


def test_figures_are_small() -> None:
    figures = [path for path in ROOT.glob("docs/images/*") if path.stat().st_size > 100_000]
    assert not figures


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


@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_a_browser_finds_words_without_a_network(site: Path, tmp_path: Path) -> None:
    with served(site) as address, Browser(tmp_path / "profile") as browser:
        browser.open(f"{address}/index.html", "document.readyState === 'complete'")
        assert browser.value("document.title") == "tfagents_system"
        browser.value(_SEARCH)
        browser.wait("document.querySelectorAll('.md-search-result__item').length > 0")
        assert not browser.complaints
        assert not [url for url in browser.requests if not url.startswith((address, "blob:", "data:"))]
