"""What mkdocs needs beside its plugins: files outside of docs/ that pages link to are in the site, too.

On the forge these links lead to the repository. In the site CHANGELOG.md, CONTRIBUTING.md and benchmarks/README.md are
pages, and all other files are copies. mkdocs.yml names this file.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
_AS_THEY_ARE = (".png", ".md", ".ipynb")
_LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")


def in_site(path: str) -> str:
    """Where a file of the repository is in the site; both relative."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return _PAGES.get(path) or f"repository/{path}{'' if path.endswith(_AS_THEY_ARE) else '.txt'}"


def links(text: str) -> Iterator[re.Match[str]]:
    """Links to files, outside of code blocks; a link to a place in the same page is none."""
    for part in re.split(r"(^ *```.*?^ *```)", text, flags=re.MULTILINE | re.DOTALL)[::2]:
        yield from _LINK.finditer(part)


def relinked(text: str, path: str) -> str:
    """The text of a Markdown file of the repository, with its links to other files as they are in the site."""

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), found[0]))
        return posixpath.relpath(in_site(target), posixpath.dirname(in_site(path)) or ".")

    parts = re.split(r"(^ *```.*?^ *```)", text, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts)


def outside(pages: dict[str, str]) -> list[str]:
    """Files of the repository outside of docs/ that pages link to, and those that these link to.

    Args:
      pages: Texts by path.
    """
    found: dict[str, None] = dict.fromkeys(["CHANGELOG.md", "CONTRIBUTING.md"])
    texts = {**pages, **{path: (ROOT / path).read_text(encoding="utf-8") for path in found}}
    while texts:
        path, text = texts.popitem()
        for link in links(text):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[0]))
            new = not target.startswith("docs/") and target != "README.md" and target not in found
            if new and (ROOT / target).is_file():
                found[target] = None
                if target.endswith(".md"):
                    texts[target] = (ROOT / target).read_text(encoding="utf-8")
    return list(found)


def on_files(files: Files, config: Any) -> Files:
    """Adds the files outside of docs/, and the style sheets."""
    for sheet in (ROOT / "tfagents_system/report/style.css", ROOT / "docs/site/site.css"):
        files.append(File.generated(config, sheet.name, abs_src_path=str(sheet)))
    pages = {f"docs/{page.src_uri}": page.content_string for page in files.documentation_pages()}
    for path in outside(pages):
        content = (ROOT / path).read_bytes()
        if path.endswith(".md"):
            content = relinked(content.decode(), path).encode()
        files.append(File.generated(config, in_site(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links of a page to files outside of docs/."""
    path = f"docs/{page.file.src_uri}"
    return relinked(markdown, path) if os.path.exists(ROOT / path) else markdown
