"""The replay server program: load parameters, open the ring, serve until told to stop, save.

SAC_EXP_DIR=RUN python -m tfagents_system.sac_replay_buffer
"""

from __future__ import annotations

from typing import NoReturn

from tfagents_system.replay.server import serve
from tfagents_system.role import run_role
from tfagents_system.run_files.run_paths import REPLAY


def main() -> NoReturn:
    run_role(REPLAY, serve)


if __name__ == "__main__":
    main()
