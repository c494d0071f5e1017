"""Names of the leaves of a nest that files and signatures accept.

Keys of observations may be any text (`bottom burner`, `größe`). SavedModels, TFLite and ONNX files and file systems
accept few characters, and some of them ignore case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence


def _alike(name: str) -> str:
    """Equal for all names that some format can't distinguish."""
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def fit_names(
    names: Sequence[str],
    also_allowed: str = "",
    is_taken: Callable[[str], bool] = lambda name: False,
    alike: Callable[[str], str] = _alike,
) -> list[str]:
    """The same names in ASCII letters, digits and `_`, each of them once.

    A valid name stays unchanged. Others get `_` for each forbidden character, and a trailing `_` if that name is taken:
    `a b` beside `a_b` becomes `a_b_`.

    Args:
      names: Of all leaves.
      also_allowed: Further characters.
      is_taken: Whether a name belongs to something else.
      alike: Equal for names that can't be distinguished, of which only one is used.
    """
    fit = [re.sub(rf"[^A-Za-z0-9_{re.escape(also_allowed)}]", "_", name) for name in names]
    fit = [f"{name}_" if name.endswith("/") else name for name in fit]  # TensorFlow interprets `a/` as a scope.
    given: set[str] = set()
    found = {}
    for k in sorted(range(len(names)), key=lambda k: fit[k] != names[k]):
        name = fit[k]
        while alike(name) in given or is_taken(name):
            name += "_"
        given.add(alike(name))
        found[k] = name
    return [found[k] for k in range(len(names))]
