"""A worker's collect_env and eval_env: worker/environments.py builds them, envs/curriculum.py calls `set_state`."""

from tfagents_system.worker.environments import WorkerEnvironments

__all__ = ["WorkerEnvironments"]
