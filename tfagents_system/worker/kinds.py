"""The kinds of workers: what SAC_WORKER_ROLE may be.

collect   collects experience with the newest policy; planned workers also evaluate (worker.py)
eval      evaluates only (eval_worker.py)
expert    collects experience with a policy that no update changes (expert_worker.py)
test      plays the newest policy, and stores nothing (testing_worker.py)
"""

from __future__ import annotations

from tfagents_system.machine.worker_slots import COLLECT, EVAL, EXPERT, TEST
from tfagents_system.role import Role
from tfagents_system.worker.eval_worker import EvalWorker
from tfagents_system.worker.expert_worker import ExpertWorker
from tfagents_system.worker.testing_worker import TestingWorker
from tfagents_system.worker.worker import Worker

_CLASSES: dict[str, type[Worker]] = {COLLECT: Worker, EVAL: EvalWorker, EXPERT: ExpertWorker, TEST: TestingWorker}


def make_worker(role: Role) -> Worker:
    """Builds a worker of the role's kind.

    Raises:
      UserError: What the kind needs is missing.
    """
    return _CLASSES[role.kind](role)
