"""The job's own script, with a SLURM that only notes what it is asked; tests/slurm has a real one."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tfagents_system/launch/slurm/job.sh"

FAKE_SCONTROL = """#!/usr/bin/env bash
echo "scontrol $*" >>"$CALLS"
case "$*" in
  --oneliner*)
    echo "JobId=7 Requeue=${REQUEUE:-1} Restarts=${RESTARTS:-0} JobState=${STATE:-RUNNING} Reason=${REASON:-None}" \\
      "DerivedExitCode=$(cat "$0.derived" 2>/dev/null || echo 0:0)"
    ;;
esac
"""
FAKE_SQUEUE = """#!/usr/bin/env bash
case "$*" in
  *%L*) echo "${LEFT:-23:59:00}" ;;
  *%T*) echo "${STATE:-RUNNING}" ;;
  *%r*) echo "${REASON:-None}" ;;
esac
"""
# The last of an array's tasks: SLURM_JOB_ID is then the array's own.
OF_ARRAY = {"SLURM_JOB_ID": "5", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "4"}


class Job:
    """One attempt after another at a run of which only the exit codes and the files exist."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.exp_dir, self.calls_file = folder, folder / "run", folder / "calls"
        self.tools, self.snapshot = folder / "tools", folder / "snapshot"
        (self.snapshot / "package/tfagents_system/launch").mkdir(parents=True)
        self.tools.mkdir()
        (self.snapshot / "variables.sh").write_text(f"SAC_EXP_DIR={shlex.quote(str(self.exp_dir))}\n")
        self.write("srun", '#!/usr/bin/env bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
        self.write("scontrol", FAKE_SCONTROL)
        self.write("squeue", FAKE_SQUEUE)
        self.write("sbatch", '#!/usr/bin/env bash\necho "sbatch $*" >>"$CALLS"\n')

    def write(self, name: str, text: str) -> None:
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def attempt(self, code: int, *arguments: str, does: str = "", **environ: str) -> tuple[int, str]:
        """Has the run do something and end with a code; returns the job's exit code and output."""
        run = self.snapshot / "package/tfagents_system/launch/run_script.sh"
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


def collects(env_steps: int) -> str:
    """Before the first update: the trainer waits."""
    content = f'{{"capacity_steps": 9, "env_steps": {env_steps}, "ring_steps": 3}}'
    return f"{TRAINS.replace('updating', 'waiting')}echo '{content}' >\"$exp_dir/heartbeats/replay.json\"\n"


def test_saved_experience_is_progress_too(job: Job) -> None:
    for env_steps in (0, 500, 1000, 1500, 1500):  # Neither the first nor the last is the second in a row.
        assert job.attempt(75, does=collects(env_steps))[0] == 75 and job.calls == ["scontrol requeue 7"]
    code, output = job.attempt(75, does=collects(1500))
    assert code == 1 and "2 attempts in a row have saved no update after step 0, nor more experience: give" in output


def test_experience_that_nobody_has_saved_is_none(job: Job) -> None:
    assert job.attempt(137, does=collects(500))[0] == 75
    assert job.attempt(137, does=collects(1000))[0] == 1
    (job.exp_dir / "requeues").unlink()
    for env_steps in range(1500, 4000, 500):
        assert job.attempt(0, does=collects(env_steps) + "kill -KILL $PPID\n")[0] == -9
    assert "it has died 5 times in a row" in job.attempt(0)[1]


def test_a_start_that_is_interrupted_is_not_counted_unless_by_the_time_limit(job: Job) -> None:
    for _ in range(4):
        assert job.attempt(75)[0] == 75
    (job.snapshot / "job.sbatch").write_text("#SBATCH --signal=B:USR1@120\n")
    assert job.attempt(75, LEFT="3:10")[0] == 75
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


def test_what_is_asked_for_once_is_not_done_by_the_job_that_is_submitted_again(job: Job) -> None:
    job.write("scontrol", FAKE_SCONTROL + "[[ $1 != requeue ]]\n")
    told = 'echo "again: ${TFAGENTS_SUBMITTED_AGAIN-no}"; '
    assert "again: no\n" in job.attempt(75, **OF_ARRAY, does=told + TRAINS)[1]
    for number in ("6", "8"):  # As long as it goes on, the first one's.
        again = OF_ARRAY | {"SLURM_JOB_ID": number}
        assert "again: 5\n" in job.attempt(75, **again, does=told + TRAINS)[1]
    assert "again: no\n" in job.attempt(0, does=told)[1], "another task, or another job"


def test_a_site_that_forbids_requeue_gets_a_new_job_of_the_same_task(job: Job) -> None:
    job.write("scontrol", FAKE_SCONTROL + "[[ $1 != requeue ]]\n")
    script = f"{job.snapshot}/job.sbatch"
    assert job.attempt(75, does=saves(1))[0] == 75
    assert job.calls == ["scontrol requeue 7", f"sbatch --dependency=afterany:7 {script}"]
    code, output = job.attempt(75, **OF_ARRAY, does=TRAINS)
    assert f"{job.exp_dir}_task_4" in output
    assert job.calls == ["scontrol requeue 5_4", f"sbatch --dependency=afterany:5_4 --array=4 {script}"]


def test_a_requeue_that_ends_its_own_scontrol_is_not_asked_for_twice(job: Job) -> None:
    job.write("scontrol", FAKE_SCONTROL + "if [[ $1 == requeue ]]; then kill -TERM $$; fi\n")
    code, output = job.attempt(75, does=saves(1))
    assert code == 75 and job.calls == ["scontrol requeue 7"] and "saved, and requeued" in output


def test_a_new_job_begins_with_no_restarts_of_the_old_one(job: Job) -> None:
    job.write("scontrol", FAKE_SCONTROL + "[[ $1 != requeue ]]\n")
    job.write("sbatch", '#!/usr/bin/env bash\necho "sbatch ${SLURM_RESTART_COUNT-none}" >>"$CALLS"\n')
    assert job.attempt(75, does=saves(1), SLURM_RESTART_COUNT="2", RESTARTS="2")[0] == 75
    assert job.calls == ["scontrol requeue 7", "sbatch none"]


def test_where_scontrol_is_missing_a_new_job_goes_on_all_the_same(job: Job) -> None:
    job.write("scontrol", "#!/bin/sh\nexit 127\n")
    goes_on = [f"sbatch --dependency=afterany:5_4 --array=4 {job.snapshot}/job.sbatch"]
    for step, (state, reason, calls) in enumerate(
        (("RUNNING", "None", goes_on), ("COMPLETING", "TimeLimit", goes_on), ("COMPLETING", "None", [])), start=1
    ):
        _, output = job.attempt(75, does=saves(step), STATE=state, REASON=reason, **OF_ARRAY)
        assert job.calls == calls and ("it was cancelled" in output) == (not calls), output


@pytest.mark.parametrize("code", [1, 2, 3])
def test_failures_end_the_job(job: Job, code: int) -> None:
    done, output = job.attempt(code, does=saves(1))
    assert done == code and job.calls == [] and "not requeued" in output


def test_a_stop_that_could_not_save_all_is_no_failure(job: Job) -> None:
    stopped = 'echo \'{"run": {"message": "stopped by SIGUSR1, not everything was saved"}}\' >"$exp_dir/status.json"\n'
    assert job.attempt(1, does=saves(1) + stopped)[0] == 75 and job.calls == ["scontrol requeue 7"]
    assert job.attempt(1, does=saves(2))[0] == 1  # What an earlier attempt said counts no more.


@pytest.mark.parametrize("code", [1, 137])
def test_a_lack_of_memory_is_named_and_not_retried(job: Job, code: int) -> None:
    lacks = f"{saves(1)}echo 0:125 >{job.tools}/scontrol.derived"
    done, output = job.attempt(code, does=lacks)
    assert done == 1 and job.calls == [] and "lack of memory: ask for more (--mem)" in output
    # What SLURM still says of an earlier attempt counts no more, and who has saved goes on.
    assert job.attempt(137, does=saves(2))[0] == 75 and job.calls == ["scontrol requeue 7"]
    (job.tools / "scontrol.derived").unlink()
    assert job.attempt(75, does=lacks + saves(3))[0] == 75


def asked(script: str, words: str, **variables: str) -> str:
    """What a function of the job's scripts prints, in words of bash, and `yes` or `no` for its exit code."""
    names = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5", "task": "", "told": "", **variables}
    done = subprocess.run(
        ["bash", "-uc", f'source "{JOB.parent}/{script}"; {words} && echo yes || echo no'],
        env={"PATH": os.environ["PATH"], **names}, capture_output=True, text=True, timeout=10,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return " ".join(done.stdout.split())


def test_kills_count_only_in_the_jobs_own_cgroup(tmp_path: Path) -> None:
    ours = f'job_cgroup() {{ echo "{tmp_path}"; }}; job_says() {{ :; }}; memory_faults'
    assert asked("outcome.sh", ours) == "0 yes"  # As where the job has none: the node's count is not asked.
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert asked("outcome.sh", ours) == "2 yes"
    assert asked("outcome.sh", ours.replace("{ :; }", "{ echo 0:125; }")) == "3 yes"


@pytest.mark.parametrize(
    ("left", "seconds"),
    [("0:40", "40"), ("4:59", "299"), ("09:08", "548"), ("1:00:00", "3600"), ("2-03:04:05", "183845")],
)
def test_time_left(left: str, seconds: str) -> None:
    assert asked("requeue.sh", f"queue_says() {{ echo {left}; }}; seconds_left") == f"{seconds} yes"
    for none in ("UNLIMITED", "NOT_SET", "INVALID", ""):
        assert asked("requeue.sh", f"queue_says() {{ echo {none}; }}; seconds_left") == "no"


@pytest.mark.parametrize(
    ("header", "warned_secs"),
    [
        ("#SBATCH --signal=B:USR1@120", 120),
        ("#SBATCH --signal=B:USR1@660\n#SBATCH --requeue", 660),  # SAC_SAVE_DEADLINE_SECS=600
        ("#SBATCH --signal=B:USR1@120\n#SBATCH --time 9 --signal TERM@900 --partition=x@7", 900),  # The user's own.
        ("#SBATCH --time=9", 60),
    ],
)
def test_the_time_limit_is_near_once_its_warning_may_have_come(tmp_path: Path, header: str, warned_secs: int) -> None:
    (tmp_path / "job.sbatch").write_text(f"#!/bin/bash\n{header}\n\nexec job.sh @77\n")
    for seconds, answer in ((warned_secs + 60, "yes"), (warned_secs + 61, "no"), (0, "yes")):
        left = f"queue_says() {{ echo {seconds // 60}:{seconds % 60:02}; }}; is_at_time_limit"
        assert asked("requeue.sh", left, snapshot=str(tmp_path)) == answer


@pytest.mark.parametrize(
    ("state", "reason", "told", "cancelled"),
    [
        ("RUNNING", "None", "TERM", "no"),
        ("COMPLETING", "None", "TERM", "yes"),
        ("CANCELLED", "", "", "yes"),
        ("COMPLETING", "TimeLimit", "TERM", "no"),
        ("", "", "TERM", "yes"),
        ("", "", "USR1", "no"),
        ("", "", "", "no"),
    ],
)
def test_who_was_cancelled(state: str, reason: str, told: str, cancelled: str) -> None:
    says = f"job_state() {{ echo {state}; }}; job_reason() {{ echo {reason}; }}; was_cancelled"
    assert asked("requeue.sh", says, told=told) == cancelled


@pytest.mark.parametrize(
    ("code", "is_late", "goes_on", "to_blame"),
    [
        (75, False, "yes", "no"),
        (75, True, "yes", "yes"),
        (143, False, "yes", "no"),
        (138, True, "yes", "yes"),
        (137, False, "yes", "yes"),  # SIGKILL: nobody told it to stop.
        (193, False, "yes", "yes"),
        (1, False, "no", "yes"),
        (3, False, "no", "yes"),
    ],
)
def test_what_an_exit_code_means(code: int, is_late: bool, goes_on: str, to_blame: str) -> None:
    with_limit = f"is_at_time_limit() {{ {'true' if is_late else 'false'}; }}; "
    assert asked("outcome.sh", with_limit + "goes_on", code=str(code), exp_dir="/none") == goes_on
    assert asked("outcome.sh", with_limit + "is_to_blame", code=str(code), exp_dir="/none") == to_blame


def test_a_start_that_always_ends_at_the_time_limit_ends_the_job_however_early_the_warning(job: Job) -> None:
    """With SAC_SAVE_DEADLINE_SECS=600 the warning comes more than ten minutes before the end."""
    (job.snapshot / "job.sbatch").write_text("#SBATCH --signal=B:USR1@660\n")
    assert job.attempt(75, LEFT="10:55")[0] == 75
    code, output = job.attempt(75, LEFT="10:55")
    assert code == 1 and "give it more time (--time)" in output


# What `srun` starts on the further nodes, until the run is over.
JOINS = """#!/usr/bin/env bash
echo "joins $*"
echo "since $TFAGENTS_SINCE"
trap 'echo "is told to leave"; exit 0' TERM
until [[ -e {over} ]]; do sleep 0.1; done
echo "sees the end"
"""


def test_settings_go_to_the_run(job: Job) -> None:
    assert "run gets --set a=1" in job.attempt(0, "--set", "a=1", does='echo "run gets ${*:2}"')[1]


@pytest.mark.parametrize(
    ("code", "does", "last_words"),
    [
        (0, "sleep 0.5; mkdir -p $exp_dir; touch $exp_dir/status.json {over}", "sees the end"),
        (0, "sleep 0.5", "is told to leave"),  # It is finished already: nobody says that it is over.
        (2, "sleep 0.5", "is told to leave"),
    ],
)
def test_further_nodes_join_and_leave(job: Job, code: int, does: str, last_words: str) -> None:
    over = job.folder / "over"
    job.write("../snapshot/package/tfagents_system/launch/join_script.sh", JOINS.format(over=over))
    with (job.snapshot / "variables.sh").open("a") as file:
        file.write("SAC_LOCAL_WORKERS=4\n")
    job.write("srun", '#!/usr/bin/env bash\necho "srun ${*:1:3}"\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
    began = time.time()
    ended, output = job.attempt(code, does=does.format(over=over), SLURM_JOB_NUM_NODES="3")
    assert ended == code
    since = int(re.search(r"since (\d+)", output)[1])  # type: ignore[index]
    assert int(began) <= since <= time.time(), "whatever is older is of another attempt"
    assert "srun --nodes=1 --ntasks=1 --relative=0" in output and "srun --nodes=2 --ntasks=2 --relative=1" in output
    assert f"joins {job.snapshot}/variables.sh --to {job.exp_dir} --workers 4" in output
    assert last_words in output


def test_the_components_of_a_job_with_one_gpu(job: Job) -> None:
    job.write("../snapshot/package/tfagents_system/launch/join_script.sh", "#!/usr/bin/env bash\nexit 0\n")
    with (job.snapshot / "variables.sh").open("a") as file:
        file.write("SAC_LOCAL_WORKERS=4\n")
    job.write("srun", '#!/usr/bin/env bash\necho "srun ${*:1:4}"\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
    of_slurm = {
        "SLURM_JOB_NUM_NODES": "1", "SLURM_HET_SIZE": "2", "SLURM_JOB_NUM_NODES_HET_GROUP_1": "3",
        "SLURM_CPUS_PER_TASK_HET_GROUP_0": "9",
    }  # fmt: skip
    ended, output = job.attempt(0, **of_slurm)
    assert ended == 0, output
    assert "srun --nodes=1 --ntasks=1 --het-group=0 --cpus-per-task=9" in output
    assert "srun --nodes=3 --ntasks=3 --het-group=1 --cpus-per-task=9" in output and "relative" not in output
