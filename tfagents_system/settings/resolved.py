"""What a run is and how this start runs it, resolved once: run.json, which every process of the run reads.

{"id": 7, "seed": 3, "overrides": {...}, "attributes": {...}, "config": {...}, ...    fixed for the run's life
 "start": {"variables": {"train_cpus": 2, ...}, ...}}                                 written anew by each start
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.settings.overrides import Overrides
from tfagents_system.settings.variables import VARIABLES, RunVariables

# Variables that stay what the run began with.
FIXED = ("seed", "envs_per_worker", "deterministic")
# Those that a role which joins the run takes over from it.
SHARED = (
    *FIXED,
    "exp_name",
    "reverb_cpus",
    "train_cpus",
    "num_collect_workers",
    "local_workers",
    "expert_workers",
    "eval_workers",
    "max_workers",
    "step_timeout_secs",
    "straggler_secs",
)
# And of `Overrides.defaults`, whose values are whole numbers.
_SHARED_DEFAULTS = (
    *("env_steps_per_iter", "log_period_iters", "initial_collect_steps", "horizon"),
    *("eval_period_env_steps", "checkpoint_period_env_steps"),
)
_PATHS = tuple(variable.field for variable in VARIABLES if variable.kind.is_path)
_UNSAVED = ("job_prelude", "exec_prefix")  # People put keys into them: `export HF_TOKEN=...`.
# Attributes that say when a run ends.
SETTINGS_OF_END = ("num_iter", "stop_when", "max_hours", "num_env_steps")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes:
      variables: Of this start.
      overrides: How the run differs from what its files say.
      attributes: All of TrainParams by name, as JSON has them.
      config: The configuration with what is merged into it.
    """

    variables: RunVariables
    overrides: Overrides = dataclasses.field(default_factory=Overrides)
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Those of a run.json.

        Raises:
          UserError: The run is not prepared, or its file is damaged.
        """
        run = read_run(path)
        try:
            values = {**run["start"]["variables"], **{name: run[name] for name in FIXED}}
            given = {
                name: Path(value) if name in _PATHS and value is not None else value for name, value in values.items()
            }
            return cls(RunVariables(**given), Overrides.of_run(run), run.get("attributes", {}), run.get("config", {}))
        except (KeyError, TypeError):
            raise UserError(f"{path} says nothing of a start: start the run, or restore the file") from None

    def of_run(self) -> dict[str, Any]:
        """The part that is fixed for the run's life."""
        fixed = {name: getattr(self.variables, name) for name in FIXED}
        overrides = dataclasses.asdict(self.overrides)
        return {**fixed, "overrides": overrides, "attributes": _finite(self.attributes), "config": _finite(self.config)}

    def shared(self) -> dict[str, Any]:
        """What a role takes over that joins the run from another machine, see `joined`."""
        values = {name: getattr(self.variables, name) for name in SHARED}
        return {"variables": values, "defaults": dict(self.overrides.defaults)}

    def joined(self, shared: Mapping[str, Any]) -> Settings:
        """These, with what the run that is joined shares."""
        told = shared["variables"]
        kinds: dict[str, Any] = {name: str if name == "exp_name" else (int, float, type(None)) for name in SHARED}
        variables = {name: told[name] for name in SHARED if name in told and isinstance(told[name], kinds[name])}
        if missing := [name for name in SHARED if name not in variables]:
            raise UserError(f"the run that is joined says nothing usable of {', '.join(missing)}: install its version")
        if self.variables.trainer_server is not None:  # Its CPUs are this machine's.
            variables |= {name: getattr(self.variables, name) for name in ("reverb_cpus", "train_cpus")}
        defaults = {name: steps for name in _SHARED_DEFAULTS if isinstance(steps := shared["defaults"].get(name), int)}
        overrides = dataclasses.replace(self.overrides, defaults=defaults)
        return Settings(dataclasses.replace(self.variables, **variables), overrides, self.attributes, self.config)


def settings_of_end(attributes: Mapping[str, Any]) -> str:
    """Attributes that say when a run ends, as one text: a run that ended early ended because of these."""
    num_iter, stop_when, max_hours, num_env_steps = (attributes[name] for name in SETTINGS_OF_END)
    numbers = None if stop_when is None else {name: float(value) for name, value in stop_when.items()}
    hours, steps = (None if value is None else float(value) for value in (max_hours, num_env_steps))
    return json.dumps([int(num_iter), numbers, hours, steps], sort_keys=True)


def of_start(variables: RunVariables) -> dict[str, Any]:
    """The variables of a start as JSON has them."""
    values = {name: value for name, value in vars(variables).items() if name not in (*FIXED, *_UNSAVED)}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def read_run(path: Path) -> dict[str, Any]:
    """The content of a run.json; empty for a run that was never prepared.

    Raises:
      UserError: It can't be read, or holds something else.
    """
    try:
        run = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): restore it, or choose another SAC_EXP_NAME") from None
    if not isinstance(run, dict):
        raise UserError(f"{path} must hold an object: restore it, or choose another SAC_EXP_NAME")
    return run


def _finite(value: Any) -> Any:
    """With texts instead of the numbers that JSON lacks, `inf` and `nan`."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
