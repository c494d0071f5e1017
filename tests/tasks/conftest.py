"""A user's folder whose runs are a small program in the place of run_script.sh."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tfagents_system.machine.signals import StopFlag
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.tasks import pool

# A run of ten iterations with an evaluation after each, worth its `n_step`.
RUN = """#!{python}
import json, os, signal, sys, time
from pathlib import Path

folder, number = Path({folder!r}), os.environ["SLURM_ARRAY_TASK_ID"]
(grid,) = [word.partition("=")[2] for word in sys.argv if word.startswith("SAC_GRID=")]
settings, run = json.loads(Path(grid).read_text())[int(number)], folder / f"logs/try_task_{{number}}"
start = {{"number": int(number), "settings": settings, "words": sys.argv[1:], "cpus": sorted(os.sched_getaffinity(0))}}
start["gpu"] = os.environ.get("TFAGENTS_CUDA_VISIBLE_DEVICES")
with (folder / "starts").open("a") as file:
    file.write(json.dumps(start) + "\\n")
behaviour = json.loads((folder / "behaviour.json").read_text()).get(number, {{}})
if "code" in behaviour:
    print("error: no luck")
    print("more")
    sys.exit(behaviour["code"])
signal.signal(signal.SIGTERM, lambda *_: os._exit(behaviour.get("stopped", 75)))
def write(name, content):
    (run / name).write_text(json.dumps(content))
variables = {{name: str(value) for name, value in settings.items() if name.startswith("SAC_")}}
params = {{name: value for name, value in settings.items() if name not in variables}}
overrides = {{"params": params, "variables": variables}}
attributes = {{"num_iter": behaviour.get("num_iter", 10)}}
write("run.json", {{"seed": int(variables.get("SAC_SEED", 0)), "attributes": attributes, "overrides": overrides}})
trainer = {{"state": "updating", "train_step": 1, "num_iter": 10, "iteration": 1, "eval_return": 5.0}}
state = {{"run": {{"name": "try", "state": "running", "started_at": time.time(), "updated_at": time.time()}}}}
write("status.json", state | {{"roles": {{"trainer": trainer}}}})
with (run / "metrics.csv").open("w") as file:
    file.write("train_step,iteration,env_steps,eval_return\\n0,0,0,-100\\n")
    for k in range(1, 11):
        file.write(f"{{k}},{{k}},{{k}},{{behaviour.get('value', settings.get('n_step', 0))}}\\n")
        file.flush()
        time.sleep(behaviour.get("secs", 0.0))
write("status.json", state | {{"roles": {{"trainer": trainer | {{"state": "done"}}}}}})
"""


class Project:
    """A vars file of the run `try`, and what its starts have noted."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.vars_file, self.tasks = folder, folder / "v.sh", folder / "logs/try_tasks"
        (folder / "p.py").write_text("class TrainParams: ...\n")
        (folder / "c.json").write_text('{"horizon": 20}')
        self.vars_file.write_text(
            "SAC_REVERB_CPUS=1 SAC_TRAIN_CPUS=1 SAC_NUM_COLLECT_WORKERS=1 SAC_COLLECT_WORKER_CPUS=1 SAC_SHARE_CPUS=1\n"
            "SAC_PARAMS=p.py SAC_CONFIG=c.json SAC_EXP_NAME=try SAC_LOGS_DIR=logs SAC_ALLOW_LOGIN=1\n"
        )
        self.behave({})
        script = folder / "bin/run_script.sh"
        script.parent.mkdir()
        script.write_text(RUN.format(python=sys.executable, folder=str(folder)))
        script.chmod(0o755)

    def behave(self, behaviour: dict[int, dict[str, Any]]) -> None:
        """Says how runs behave, by their tasks: `code` of one that ends at once, `stopped`, `num_iter`, `secs`."""
        (self.folder / "behaviour.json").write_text(json.dumps(behaviour))

    def starts(self) -> list[dict[str, Any]]:
        """Those since the last call."""
        path = self.folder / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    def run(self, number: int) -> RunPaths:
        return RunPaths(self.folder / f"logs/try_task_{number}")

    def write(self, name: str, content: Any) -> str:
        (self.folder / name).write_text(json.dumps(content))
        return str(self.folder / name)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in [name for name in os.environ if name.startswith(("SAC_", "SLURM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool, "LAUNCHERS", tmp_path / "bin")
    monkeypatch.setattr(pool, "_STEP_SECS", 0.02)
    monkeypatch.setattr(pool, "_LOOK_SECS", 0.05)
    monkeypatch.setattr(StopFlag, "of_supervisor", lambda: StopFlag(signals=()))
    return Project(tmp_path)
