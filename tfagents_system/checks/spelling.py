"""Names that were probably meant to be other names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SIMILARITY = 0.85
SIMILARITY_OF_KEYS = 0.6  # Where every key must be known, the nearest one is worth naming.


def near_misses(names: Iterable[str], known: Iterable[str], similarity: float = _SIMILARITY) -> list[tuple[str, str]]:
    """Pairs (wrong name, known name) of names that are not known but look like one that is.

    Names that resemble no known one are the user's own and pass.

    Args:
      names: What was found; names with a leading underscore are private and pass.
      known: The right names.
      similarity: Ratio of difflib.SequenceMatcher, over names without case and underscores.
    """
    known = list(known)
    plain = {_plain(name): name for name in known}
    pairs = []
    for name in names:
        if not isinstance(name, str) or name in known or name.startswith("_"):
            continue
        match = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=similarity)
        if match and not _extends(name, plain[match[0]]):
            pairs.append((name, plain[match[0]]))
    return pairs


def is_meant(name: str, known: Iterable[str], similarity: float = 0.6) -> str:
    """`, best is meant`: the known name that looks like one that is refused; empty without any."""
    return "".join(f", {right} is meant" for _, right in near_misses([name], known, similarity))


def _extends(name: str, known: str) -> bool:
    """Whether `name` is `known` plus further words, such as actor_learning_rate_decay: plainly a different thing."""
    words, known_words = set(name.split("_")) - {""}, set(known.split("_"))
    return known_words < words


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
