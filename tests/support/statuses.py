"""Statuses as a supervisor writes them, for tests of what shows them."""

from typing import Any

NOW = 1_700_000_600.0


def beat(state: str, *, age: float = 1.0, since: float = 1.0, **fields: Any) -> dict[str, Any]:
    """A role's entry: its last heartbeat is `age` seconds old, its state `since` seconds."""
    return {"state": state, "time": NOW - age, "since": NOW - since, "alive": True, "restarts": 0, **fields}


TRAINED: dict[str, Any] = {
    "iteration": 12,
    "num_iter": 25,
    "train_step": 4800,
    "env_steps": 4800,
    "updates_per_s": 181.4,
    "env_steps_per_s": 172.3,
    "critic_loss": 0.0543,
    "actor_loss": 35.21,
    "alpha": 0.2134,
    "train_return": -423.14,
    "eval_return": -310.21,
    "eval_return_std": 40.12,
    "best_eval_return": -298.7,
    "time_left_s": 70.4,
    "logged_at": NOW - 3.0,
    "evaluated_at": NOW - 20.0,
    "time_shares": {"waiting": 0.04, "updates": 0.93, "publishing": 0.003, "logging": 0.01, "saving": 0.017},
}


def status(
    *, name: str = "pendulum", state: str = "running", workers: int = 2, age: float = 0.0, elapsed: float = 42.0
) -> dict[str, Any]:
    """A run in training; `age` is that of the status itself."""
    names = [f"worker_{i}" for i in range(workers)]
    roles = {
        "replay": beat("serving", env_steps=4800),
        "trainer": beat("updating", **TRAINED),
        **{worker: beat("collecting", curriculum={"mass": 1.5}) for worker in names},
    }
    run = {
        "name": name,
        "exp_dir": f"/logs/{name}",
        "state": state,
        "started_at": NOW - elapsed,
        "updated_at": NOW - age,
        "pid": 4242,
        "host": "node7",
        "exit_code": None,
        "message": "",
    }
    plan = {"replay": [0], "trainer": [1, 2, 3], **{worker: [4 + i] for i, worker in enumerate(names)}}
    return {"run": run, "plan": plan, "pinned": True, "roles": roles}
