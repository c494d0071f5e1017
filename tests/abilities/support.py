"""Projects of a user, and commands as they are typed. Of the package, only what is public is imported here.

Each call of `start`, `train` or `train_shipped` in this folder is a start of a run: test_abilities.py counts them.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support import launching
from tests.support.warm_starts import WarmPopen  # The tests' own way to start quickly; subprocess.Popen does, too.

ROOT = Path(__file__).resolve().parents[2]
CPUS = {"REVERB_CPUS": 1, "TRAIN_CPUS": 1, "NUM_COLLECT_WORKERS": 1, "COLLECT_WORKER_CPUS": 1, "SHARE_CPUS": 1}
QUIET = {"REPORT": 0}

# Small networks, no evaluation, few updates: each test says what it has beyond that.
SMALL = """
    updates_per_iter = 4
    num_initial_episodes = 2
    num_eval_episodes = 0
    batch_size = 8
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)
"""


def environ(**variables: object) -> dict[str, str]:
    """A user's environment, with SAC_ variables (without the prefix)."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("SAC_", "SLURM_", "TFAGENTS_"))}
    given = {f"SAC_{name}": str(value) for name, value in variables.items()}
    return {**clean, "PYTHONPATH": str(ROOT), "VIRTUAL_ENV": sys.prefix, "SAC_ALLOW_LOGIN": "1", **given}


def call(*command: object, cwd: Path = ROOT, code: int = 0, timeout: float = 400.0, **variables: object) -> str:
    """What a command prints that ends with this exit code and without a traceback."""
    return ended(begin([str(word) for word in command], None, cwd, variables), code, timeout)


def sac(*words: object, **options: Any) -> str:
    """`sac WORD...`; options as of `call`."""
    return call(sys.executable, "-m", "tfagents_system", *words, **options)


def begin(
    words: list[str],
    run: Path | None,
    cwd: Path,
    variables: Mapping[str, object],
    output: Any = subprocess.PIPE,
    others: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """A command; modules of Python, and run_script.sh with its run directory, where all is imported already."""
    is_quick = run is not None or words[:2] == [sys.executable, "-m"]
    options: dict[str, Any] = {"exp_dir": run} if is_quick else {"start_new_session": True}
    kind: Any = WarmPopen if is_quick else subprocess.Popen
    streams = {"stdout": output, "stderr": subprocess.STDOUT, "text": True}
    variables_of_it = {**environ(**variables), **(others or {})}
    process: subprocess.Popen[str] = kind(words, cwd=cwd, env=variables_of_it, **streams, **options)
    launching.note(process, run or cwd)
    return process


def ended(process: subprocess.Popen[str], code: int, timeout: float) -> str:
    output, _ = process.communicate(timeout=timeout)
    assert process.returncode == code, output
    assert "Traceback" not in output, output
    return output


def train_shipped(vars_file: str, folder: Path, name: str, *settings: str) -> str:
    """A start of a vars file of the repository with these settings, from another folder: logs/NAME there."""
    words = [str(ROOT / "run_script.sh"), str(ROOT / vars_file)]
    words += [word for setting in settings for word in ("--set", setting)]
    return ended(begin(words, folder / "logs" / name, folder, {"LOGS_DIR": folder / "logs"}), 0, 600.0)


class Project:
    """A user's folder.

    Args:
      folder: It gets params.py, config.json and vars.sh; runs are in its folder `logs`.
      params: Text of params.py, in which FOLDER is the folder.
      config: Content of config.json.
      name: Of the run.
      **variables: SAC_ variables without the prefix, beside `CPUS`.
    """

    def __init__(
        self, folder: Path, params: str, config: Mapping[str, Any], name: str = "try", **variables: object
    ) -> None:
        self.folder, self.run = folder, folder / "logs" / name
        self.vars_file = folder / "vars.sh"
        (folder / "params.py").write_text(params.replace("FOLDER", str(folder)))
        (folder / "config.json").write_text(json.dumps(config))
        names = {"PARAMS": "params.py", "CONFIG": "config.json", "EXP_NAME": name, "LOGS_DIR": "logs"}
        values = {**names, **CPUS, **QUIET, **variables}
        self.vars_file.write_text("".join(f': "${{SAC_{key}:={value}}}"\n' for key, value in values.items()))

    def start(self, *arguments: str, **variables: object) -> subprocess.Popen[str]:
        """`./run_script.sh VARS.sh ARGUMENT...`; what it prints is in output.txt."""
        words = [str(ROOT / "run_script.sh"), str(self.vars_file), *arguments]
        with (self.folder / "output.txt").open("a") as output:
            return begin(words, self.run, self.folder, variables, output)

    def train(self, *arguments: str, code: int = 0, **variables: object) -> str:
        """A start to its end; what it printed."""
        (self.folder / "output.txt").unlink(missing_ok=True)
        return self.finish(self.start(*arguments, **variables), code)

    def finish(self, process: subprocess.Popen[str], code: int = 0, timeout: float = 500.0) -> str:
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait(90.0)
            raise AssertionError(f"the run did not end:\n{self.output()}\n{self.logs()}") from None
        assert process.returncode == code, f"{self.output()}\n{self.logs()}"
        return self.output()

    def refuse(self, *arguments: str, **variables: object) -> str:
        """What a start says that starts nothing, with exit code 2."""
        words = [str(ROOT / "run_script.sh"), str(self.vars_file), *arguments]
        return ended(begin(words, self.run, self.folder, variables), 2, 400.0)

    def check(self, *arguments: str, code: int = 0, **variables: object) -> str:
        """`./run_script.sh --check`, which starts nothing."""
        words = [str(ROOT / "run_script.sh"), "--check", str(self.vars_file), *arguments]
        return ended(begin(words, self.run, self.folder, variables), code, 400.0)

    def wait_until(self, process: subprocess.Popen[str], condition: Callable[[], Any], timeout: float = 400.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if process.poll() is not None or time.monotonic() > deadline:
                process.send_signal(signal.SIGTERM)
                process.wait(90.0)
                raise AssertionError(f"the run did not get there:\n{self.output()}\n{self.logs()}")
            time.sleep(0.1)

    def output(self) -> str:
        return (self.folder / "output.txt").read_text()

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in self.run.glob("logs/*.log"))

    def role(self, name: str) -> dict[str, Any]:
        """What a role has reported last."""
        part: dict[str, Any] = status(self.run).get("roles", {}).get(name, {})
        return part

    def train_step(self) -> int:
        return self.role("trainer").get("train_step") or 0


def sets(*settings: str) -> list[str]:
    """`--set` before each of them."""
    return [word for setting in settings for word in ("--set", setting)]


def status(run: Path) -> dict[str, Any]:
    """status.json, empty while there is none."""
    try:
        content: dict[str, Any] = json.loads((run / "status.json").read_text())
    except (OSError, ValueError):
        return {}
    return content


def rows(run: Path) -> list[dict[str, float]]:
    """metrics.csv, each row with what it is about."""
    with (run / "metrics.csv").open() as file:
        return [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]


def column(run: Path, name: str) -> list[float]:
    """The values of a column, where there are any."""
    return [row[name] for row in rows(run) if name in row]
