"""The documents of the repository: their pages, and the code in them."""

from __future__ import annotations

import dataclasses
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks/README.md"])


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
      language: The word behind the fence; empty if there is none.
      text: Without the indentation that its lines have in common.
    """

    path: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """Those of all pages in these languages; of no language given, all."""
    return [block for page in PAGES for block in blocks_of(page) if not languages or block.language in languages]


def blocks_of(page: Path) -> Iterator[Block]:
    """Those of one page, in their order."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page, line, found[2], textwrap.dedent(found[3]))


@dataclasses.dataclass(frozen=True)
class Line:
    """A command of a shell block.

    Attributes:
      block: Where it is.
      variables: What is assigned in front of it.
      words: Without redirections and what stands behind a `|`, `;` or `&&`, which is a line of its own.
    """

    block: Block
    variables: dict[str, str]
    words: list[str]

    def __str__(self) -> str:
        return f"{self.block}: {shlex.join(self.words)}"

    def options(self) -> list[str]:
        """Words such as `--checkpoint`, without values."""
        return [word.partition("=")[0].rstrip("],") for word in self.words if re.match(r"\[?--[a-z]", word)]


def command_lines() -> list[Line]:
    """Each command of each shell block."""
    return [line for block in blocks("bash") for text in _joined(block.text) for line in _lines(block, text)]


def _joined(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


def _lines(block: Block, text: str) -> Iterator[Line]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word and set(word) <= set(";&|<>()"):
            if line := _line(block, words):
                yield line
            words = []
        else:
            words.append(word)


def _line(block: Block, words: list[str]) -> Line | None:
    count = next((k for k, word in enumerate(words) if not re.match(r"[A-Z_]+=", word)), len(words))
    variables = dict(word.split("=", 1) for word in words[:count])
    return Line(block, variables, words[count:]) if words else None
