"""A user's folder with params, and what starts of a run make of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tfagents_system.launch.prepare import Preparation
from tfagents_system.launch.trial import Inspection, Inspector
from tfagents_system.run_files import kept_checkpoints, params_folder, run_directory
from tfagents_system.run_files.run_directory import Inputs
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.load_params import load_env_config, load_params
from tfagents_system.settings.resolved import Overrides, Settings
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


Starter = Callable[..., "Start"]


class Start(NamedTuple):
    code: int
    told: str


def write(
    environ: dict[str, str],
    *,
    folder: Path | None,
    overrides: Overrides | None = None,
    input_files: Mapping[str, Path] | None = None,
    inputs: Inputs | None = None,
) -> RunPaths:
    """What a start leaves once its checks have passed."""
    values, findings = read_variables(environ, vars_file=None, root=ROOT)
    assert findings == []
    paths = RunPaths(values["exp_dir"])
    digests = {} if folder is None else params_folder.digests_of(folder, params_folder.files_of(folder))
    imported = [name for name in digests if name.endswith(".py")]
    files = values["params"], values["config"]
    inputs = inputs or Inputs(*files, folder, digests, imported, input_files=input_files or {})
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
    """What the run's programs import beside their params, and from where."""
    sys.modules.pop("mass_of_robot", None)
    with mock.patch.object(sys, "path", list(sys.path)):
        load_params(paths.params, load_env_config(paths.config), origin=run_directory.origin_of_run(paths))
    module = sys.modules.pop("mass_of_robot")
    assert module.__file__ is not None
    return str(module.MASS), Path(module.__file__)


def load_only(start: Preparation, *_: Any, **__: Any) -> Inspection:
    """In the place of `run_trial`: params and JSON are loaded, the environment is not built."""
    inspector = Inspector(start)
    inspector.load_inputs()
    inspector._inspection.specs, inspector._inspection.imported = b"", inspector._imported()
    return inspector._inspection
