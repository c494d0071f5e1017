"""The job script of docs/how_to/slurm.md, with `srun` and `scontrol` in place of SLURM's."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/how_to/slurm.md"
STOPPED = (
    '{"message": "stopped by SIGUSR1, not everything was saved: the same command continues from the last checkpoint"}'
)


def commands_in(folder: Path, code: int, status: str) -> dict[str, str]:
    """An environment where a run leaves this status, if any, and exits with this code."""
    write = f"sleep 0.1; mkdir -p logs/my_run; echo '{status}' > logs/my_run/status.json" if status else ":"
    for name, line in (("srun", f"{write}; exit {code}"), ("scontrol", f'echo "$@" >> {folder}/asked')):
        (folder / name).write_text(f"#!/bin/bash\n{line}\n")
        (folder / name).chmod(0o755)
    slurm = {"SLURM_CPUS_PER_TASK": "2", "SLURM_JOB_ID": "17"}
    return {**os.environ, **slurm, "HOME": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("code", "status", "is_requeued"),
    [
        (75, '{"message": "stopped by SIGUSR1"}', True),
        (1, STOPPED, True),
        (1, '{"message": "trainer is given up"}', False),
        (1, "", False),
        (2, "", False),
        (0, '{"message": ""}', False),
    ],
)
def test_a_run_that_was_stopped_is_requeued_and_no_other(
    tmp_path: Path, code: int, status: str, is_requeued: bool
) -> None:
    script = re.search(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", PAGE.read_text(), re.DOTALL)
    assert script is not None
    before = tmp_path / "tfagents_system/logs/my_run/status.json"
    before.parent.mkdir(parents=True)
    before.write_text(STOPPED)  # Of an earlier attempt.
    environ = commands_in(tmp_path, code, status)
    (temporary := tmp_path / "tmp").mkdir()
    environ["TMPDIR"] = str(temporary)
    subprocess.run(["bash", "-c", script[1]], env=environ, check=False, timeout=30)
    assert not any(temporary.iterdir())
    asked = tmp_path / "asked"
    assert (asked.read_text() if asked.exists() else "") == ("requeue 17\n" if is_requeued else "")
