"""`python -m tfagents_system` is `sac`."""

from tfagents_system.command import run

run()
