"""Which packages there are, without importing them."""

from __future__ import annotations

import importlib.util


def is_installed(package: str) -> bool:
    """Whether a package or module of this name can be imported.

    A mere folder is none, though Python imports it as a namespace package: W&B makes a `wandb/` where it runs.
    """
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None
