"""A run that trains at full rate on a ring of many steps, for `benchmarks.saving`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import sleeping_params


class TrainParams(sleeping_params.TrainParams):
    """Networks and batches of the default size.

    Keys: `horizon`, `step_ms`, `episodes` that the ring has room for, `updates` of an iteration.
    """

    checkpoint_period_itrs = 5

    def __init__(self, env_config: Mapping[str, Any], compute_config: Mapping[str, Any] | None = None) -> None:
        super().__init__(env_config, compute_config)
        self.num_steps_per_iter = int(env_config["updates"])
        self.n_buffer_init_episodes = int(env_config["episodes"])
        self.buffer_size = self.n_buffer_init_episodes * self.horizon
