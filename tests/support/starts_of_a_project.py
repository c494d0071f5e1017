"""A user's folder with params, and what starts of a run make of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tfagents_system.run_files import kept_checkpoints, params_folder, run_directory
from tfagents_system.run_files.run_inputs import Inputs
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.overrides import Overrides
from tfagents_system.settings.resolved import Settings
from tfagents_system.settings.variables import RunVariables, read_variables

ROOT = Path(__file__).resolve().parents[2]


PARAMS = """
import gymnasium
from pathlib import Path
import mass_of_robot
from tfagents_system.train_params_base import TrainParamsBase

class TrainParams(TrainParamsBase):
    num_iter = 3
    batch_size = 32
    buffer_size = 200

    def env_ctor(self, *args, seed=None, **kwargs):
        assert mass_of_robot.MASS and (Path(__file__).parent / "models/robot.xml").exists()
        return gymnasium.make("Pendulum-v1")
"""


LOADS = """
import sys
from pathlib import Path
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.playing.saved_run import load_run_params
load_run_params(RunPaths(Path(sys.argv[1])), None, None)
import mass_of_robot
print(mass_of_robot.MASS, mass_of_robot.__file__)
"""


Starter = Callable[..., "Start"]


class Start(NamedTuple):
    code: int
    told: str


def write(
    environ: dict[str, str],
    *,
    folder: Path | None,
    overrides: Overrides | None = None,
    reward: Path | None = None,
    inputs: Inputs | None = None,
) -> RunPaths:
    """What a start leaves once its checks have passed."""
    values, findings = read_variables(environ, vars_file=None, root=ROOT)
    assert findings == []
    paths = RunPaths(values["exp_dir"])
    digests = {} if folder is None else params_folder.digests_of(folder, params_folder.files_of(folder))
    imported = [name for name in digests if name.endswith(".py")]
    inputs = inputs or Inputs(values["params"], values["config"], folder, digests, imported, reward=reward)
    settings = Settings(RunVariables(**values), overrides or Overrides(), {"num_iter": 3})
    run_directory.write_inputs(paths, settings, inputs)
    return paths


def train(paths: RunPaths) -> None:
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')


def update(paths: RunPaths, train_step: int) -> None:
    """A start has trained, and saved a checkpoint."""
    partial = kept_checkpoints.begin(paths.trainer_checkpoints, train_step)
    (partial / "agent.index").write_bytes(b"index")
    kept_checkpoints.finish(partial, train_step, 1, {})


def loaded_mass(paths: RunPaths) -> tuple[str, Path]:
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(paths.exp_dir)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    mass, file = done.stdout.split()
    return mass, Path(file)
