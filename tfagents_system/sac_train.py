"""The policy-update program: load parameters, connect, train until done or told to stop, save.

python -m tfagents_system.sac_train            # with a supervisor's variables, else see launch/by_hand.py
"""

from __future__ import annotations

from typing import NoReturn

from tfagents_system.launch.by_hand import run_by_hand
from tfagents_system.role import run_role
from tfagents_system.run_files.run_paths import TRAINER
from tfagents_system.trainer.trainer import train


def main() -> NoReturn:
    run_role(TRAINER, train)


if __name__ == "__main__":
    run_by_hand(main, listens=False)
