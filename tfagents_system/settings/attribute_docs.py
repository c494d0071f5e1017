"""The texts behind the attributes of a class, for messages and for the reference pages in docs/."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
from collections.abc import Mapping


def linked(text: str, here: str = "reference") -> str:
    """The text for a page in a folder of docs/: `docs/how_to/watch.md` becomes a link to that page."""

    def link(found: re.Match[str]) -> str:
        folder, name = found.groups()
        return f"[{name.replace('_', ' ')}]({f'../{folder}/' if folder != here else ''}{name}.md)"

    return re.sub(r"\bdocs/(\w+)/(\w+)\.md", link, text)


@functools.cache
def attribute_docs(described: type) -> Mapping[str, str]:
    """The docstring of each annotated attribute by name, on one line."""
    definition = ast.parse(inspect.getsource(described)).body[0]
    assert isinstance(definition, ast.ClassDef)
    return {
        ast.unparse(node.target): " ".join(ast.literal_eval(text.value).split())
        for node, text in itertools.pairwise(definition.body)
        if isinstance(node, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
