"""The policy-update program: load parameters, connect, train until done or told to stop, save.

SAC_EXP_DIR=RUN python -m tfagents_system.sac_train
"""

from __future__ import annotations

from typing import NoReturn

from tfagents_system.agents.block_update import DivergedError
from tfagents_system.errors import EXIT_DONE, EXIT_HOPELESS, EXIT_RESUMABLE, print_findings
from tfagents_system.role import Role, run_role
from tfagents_system.run_files.run_paths import TRAINER
from tfagents_system.trainer.trainer import Trainer
from tfagents_system.trainer.trainer_checkpoints import SaveError
from tfagents_system.trainer.training_log import CallbackError
from tfagents_system.transport.connection import StoppedError


def main() -> NoReturn:
    run_role(TRAINER, train)


def train(role: Role) -> int:
    """Trains a run; returns the exit code: done, or saved and to be resumed."""
    trainer = Trainer(role)
    try:
        trainer.run()
        return EXIT_DONE
    except StoppedError:
        code = _save(trainer)
        if role.joined is not None:
            role.joined.check()
        return code
    except CallbackError:
        _save(trainer)  # Training resumes from here when the callback is corrected.
        raise
    except (DivergedError, SaveError) as error:
        print_findings([str(error)])
        return EXIT_HOPELESS
    finally:
        trainer.close()
        if role.is_far:
            assert role.joined is not None
            role.joined.leave()


def _save(trainer: Trainer) -> int:
    try:
        trainer.stop()
        return EXIT_RESUMABLE
    except SaveError as error:
        print_findings([str(error)])
        return EXIT_HOPELESS


if __name__ == "__main__":
    main()
