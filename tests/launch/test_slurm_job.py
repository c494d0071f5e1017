"""The job's own script, with a SLURM that only notes what it is asked; tests/slurm has a real one."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tfagents_system/launch/slurm/job.sh"

FAKE_SCONTROL = """#!/usr/bin/env bash
echo "scontrol $*" >>"$CALLS"
case "$*" in
  --oneliner*)
    echo "JobId=7 Requeue=${REQUEUE:-1} Restarts=${RESTARTS:-0} JobState=${STATE:-RUNNING} Reason=${REASON:-None}"
    ;;
esac
"""


class Job:
    """One attempt after another at a run of which only the exit codes and the files exist."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.exp_dir, self.calls_file = folder, folder / "run", folder / "calls"
        self.tools, self.snapshot = folder / "tools", folder / "snapshot"
        (self.snapshot / "package").mkdir(parents=True)
        self.tools.mkdir()
        (self.snapshot / "variables.sh").write_text(f"SAC_EXP_DIR={shlex.quote(str(self.exp_dir))}\n")
        self.write("srun", '#!/usr/bin/env bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
        self.write("scontrol", FAKE_SCONTROL)
        self.write("squeue", '#!/usr/bin/env bash\necho "${LEFT:-23:59:00}"\n')
        self.write("sbatch", '#!/usr/bin/env bash\necho "sbatch $*" >>"$CALLS"\n')

    def write(self, name: str, text: str) -> None:
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def attempt(self, code: int, *arguments: str, does: str = "", **environ: str) -> tuple[int, str]:
        """Has the run do something and end with a code; returns the job's exit code and output."""
        run = self.snapshot / "package/run_script.sh"
        run.write_text(
            f"#!/usr/bin/env bash\nexp_dir=$(. {self.snapshot}/variables.sh; echo $SAC_EXP_DIR)\n{does}\nexit {code}\n"
        )
        run.chmod(0o755)
        self.calls_file.write_text("")
        base = {"PATH": f"{self.tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "CALLS": str(self.calls_file)}
        done = subprocess.run(
            ["bash", str(JOB), str(self.snapshot), *arguments],
            env={**base, **environ}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30,
        )  # fmt: skip
        return done.returncode, done.stdout

    @property
    def calls(self) -> list[str]:
        return [call for call in self.calls_file.read_text().splitlines() if "--oneliner" not in call]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


TRAINS = (
    'mkdir -p "$exp_dir/heartbeats"; sleep 0.02; echo \'{"state": "updating"}\' >"$exp_dir/heartbeats/trainer.json"\n'
)
DIES = TRAINS + "kill -KILL $PPID\n"


def saves(step: int) -> str:
    folder = f'"$exp_dir/checkpoints/checkpoint_{step:010d}"'
    return f"{TRAINS}mkdir -p {folder} && touch {folder}/manifest.json\n"


def test_saved_runs_are_requeued_as_long_as_they_get_on(job: Job) -> None:
    for step in (100, 200, 300):
        code, output = job.attempt(75, does=saves(step))
        assert code == 75 and job.calls == ["scontrol requeue 7"], output
    assert "from train step 200" in output
    code, output = job.attempt(0)
    assert code == 0 and job.calls == [] and "finished" in output


def test_without_progress_the_second_attempt_is_the_last(job: Job) -> None:
    assert job.attempt(75, does=TRAINS)[0] == 75
    code, output = job.attempt(75, does=TRAINS)
    assert code == 1 and job.calls == [] and "2 attempts in a row have saved no update after step 0" in output
    # Whoever submits it anew has changed something.
    (job.snapshot / "variables.sh").rename(job.folder / "variables.sh")
    job.snapshot.rename(job.folder / "second")
    job.snapshot = job.folder / "second"
    (job.folder / "variables.sh").rename(job.snapshot / "variables.sh")
    assert job.attempt(75, does=TRAINS)[0] == 75


def test_a_start_that_is_interrupted_is_not_counted_unless_by_the_time_limit(job: Job) -> None:
    for _ in range(4):
        assert job.attempt(75)[0] == 75
    assert job.attempt(75, LEFT="1:58")[0] == 75
    code, output = job.attempt(75, LEFT="0:40")
    assert code == 1 and "give it more time (--time)" in output


def test_a_start_that_fails_by_itself_is_counted(job: Job) -> None:
    assert job.attempt(193)[0] == 75  # As where `srun` can't start the step.
    code, output = job.attempt(193)
    assert code == 1 and job.calls == [] and "2 attempts in a row" in output


def test_deaths_without_a_word_are_limited_too(job: Job) -> None:
    for _ in range(5):
        assert job.attempt(0, does=DIES)[0] == -9
    code, output = job.attempt(0)
    assert code == 1 and "it has died 5 times in a row" in output
    (job.exp_dir / "requeues").unlink()
    for step in range(1, 8):
        assert job.attempt(0, does=saves(step) + DIES)[0] == -9
    assert job.attempt(0)[0] == 0


@pytest.mark.parametrize(
    ("environ", "code", "words", "calls"),
    [
        ({"STATE": "COMPLETING"}, 75, "it was cancelled", []),
        ({"STATE": "COMPLETING", "RESTARTS": "1"}, 75, "saved, and requeued by SLURM", []),
        ({"STATE": "COMPLETING", "REASON": "TimeLimit"}, 75, "saved, and requeued", ["scontrol requeue 7"]),
        ({"REQUEUE": "0"}, 75, "not requeued (--no-requeue)", []),
    ],
)
def test_who_requeues(job: Job, environ: dict[str, str], code: int, words: str, calls: list[str]) -> None:
    done, output = job.attempt(75, does=saves(1), **environ)
    assert (done, job.calls) == (code, calls) and words in output


def test_a_site_that_forbids_requeue_gets_a_new_job_of_the_same_task(job: Job) -> None:
    job.write("scontrol", FAKE_SCONTROL + "[[ $1 != requeue ]]\n")
    script = f"{job.snapshot}/job.sbatch"
    assert job.attempt(75, does=saves(1))[0] == 75
    assert job.calls == ["scontrol requeue 7", f"sbatch --dependency=afterany:7 {script} 0"]
    code, output = job.attempt(75, "101", SLURM_ARRAY_TASK_ID="4", does=TRAINS)
    assert f"{job.exp_dir}_task_105" in output
    assert job.calls[-1] == f"sbatch --dependency=afterany:7 --array=4 {script} 101"


@pytest.mark.parametrize("code", [1, 2, 3])
def test_failures_end_the_job(job: Job, code: int) -> None:
    done, output = job.attempt(code, does=saves(1))
    assert done == code and job.calls == [] and "not requeued" in output


def test_a_stop_that_could_not_save_all_is_no_failure(job: Job) -> None:
    stopped = 'echo \'{"run": {"message": "stopped by SIGUSR1, not everything was saved"}}\' >"$exp_dir/status.json"\n'
    assert job.attempt(1, does=saves(1) + stopped)[0] == 75 and job.calls == ["scontrol requeue 7"]
    assert job.attempt(1, does=saves(2))[0] == 1  # What an earlier attempt said counts no more.


def test_a_lack_of_memory_is_named_and_not_retried(job: Job) -> None:
    counter = f'echo "oom_kill $(( $(cat {job.folder}/kills 2>/dev/null || echo 4) ))"'
    job.write("cat", f'#!/usr/bin/env bash\ncase "$*" in *memory.events*) {counter} ;; *) exec /bin/cat "$@" ;; esac\n')
    code, output = job.attempt(137, does=f"{saves(1)}echo 5 >{job.folder}/kills")
    assert code == 1 and job.calls == [] and "lack of memory: ask for more (SAC_MEM_GB" in output
    # Killed otherwise, it is requeued.
    assert job.attempt(137, does=saves(2))[0] == 75 and job.calls == ["scontrol requeue 7"]


# What `srun` starts on the further nodes, until the run is over.
JOINS = """#!/usr/bin/env bash
echo "joins $*"
trap 'echo "is told to leave"; exit 0' TERM
until [[ -e {over} ]]; do sleep 0.1; done
echo "sees the end"
"""


def test_settings_go_to_the_run(job: Job) -> None:
    assert "run gets --set a=1" in job.attempt(0, "0", "--set", "a=1", does='echo "run gets ${*:2}"')[1]


@pytest.mark.parametrize(
    ("code", "does", "last_words"),
    [(0, "sleep 0.5; touch {over}", "sees the end"), (2, "sleep 0.5", "is told to leave")],
)
def test_further_nodes_join_and_leave(job: Job, code: int, does: str, last_words: str) -> None:
    over = job.folder / "over"
    job.write("../snapshot/package/join_script.sh", JOINS.format(over=over))
    with (job.snapshot / "variables.sh").open("a") as file:
        file.write("SAC_LOCAL_WORKERS=4\n")
    job.write("srun", '#!/usr/bin/env bash\necho "srun ${*:1:3}"\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
    ended, output = job.attempt(code, does=does.format(over=over), SLURM_JOB_NUM_NODES="3")
    assert ended == code
    assert "srun --nodes=1 --ntasks=1 --relative=0" in output and "srun --nodes=2 --ntasks=2 --relative=1" in output
    assert f"joins {job.snapshot}/variables.sh --to {job.exp_dir} --workers 4" in output
    assert last_words in output
