"""The texts behind the attributes of a class, for messages and for the reference pages in docs/."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
from collections.abc import Mapping


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
