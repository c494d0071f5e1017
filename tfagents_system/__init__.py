"""Soft Actor-Critic training with TF-Agents: a replay server, a trainer and N workers."""

import contextlib

__version__ = "0.1.0"

# gym 0.23, which TF-Agents imports, prints on every import that it is unmaintained.
with contextlib.suppress(ImportError):
    from gym_notices import notices

    notices.notices.clear()
