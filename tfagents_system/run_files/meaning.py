"""What a file says, whatever its comments and spaces."""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path


def meaning(content: bytes, suffix: str) -> bytes:
    """What files that mean the same have in common: of Python the code, of JSON the values.

    Args:
      content: Of a file.
      suffix: Of its name: `.py` or `.json`. The content itself is returned for another one, and where it is no such
        text.
    """
    try:
        if suffix == ".py":
            return ast.dump(ast.parse(content)).encode()
        return json.dumps(json.loads(content), sort_keys=True).encode() if suffix == ".json" else content
    except (SyntaxError, ValueError, RecursionError):
        return content


def digest_of_meaning(path: Path, suffix: str) -> str:
    """SHA-256 of what a file means; empty if there is none."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ""
    return hashlib.sha256(meaning(content, suffix)).hexdigest()
