"""What becomes of a job that is signalled, killed, cancelled or preempted: a real SLURM, and a run that starts fast."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.cluster import SlurmCluster

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

# In place of run_script.sh: it updates, and saves when it is told to stop, as far as `behaviour` says.
FAKE_RUN = """#!{python}
import os, signal, sys, time
from pathlib import Path

task = os.environ.get("SLURM_ARRAY_TASK_ID")
exp_dir, behaviour = Path({exp_dir!r} + (f"_task_{{task}}" if task else "")), {behaviour!r}
folders = sorted(exp_dir.glob("checkpoints/checkpoint_*"))
step = int(folders[-1].name[-10:]) if folders else 0
print("resumed at", step, flush=True)
if step >= 20:
    sys.exit(0)
def save():
    folder = exp_dir / f"checkpoints/checkpoint_{{step + 10:010d}}"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{{}}")
def stop(number, frame):
    if behaviour == "saves":
        time.sleep(1.0)
        save()
    print("saved after", signal.Signals(number).name, flush=True)
    os._exit(75)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, stop)
if behaviour == "saves at once":
    save()
print("at work", flush=True)
time.sleep(60)
"""
# In place of launch/start.py, for a trial of a study: its first attempt saves when it is told to, its second is done.
FAKE_START = """
import json, os, signal, sys, time
from pathlib import Path

exp_dir = Path(os.environ["SAC_EXP_DIR"] + "_task_" + os.environ["SLURM_ARRAY_TASK_ID"])
exp_dir.mkdir(exist_ok=True)
with (exp_dir / "starts").open("a") as file:
    (grid,) = [word.partition("=")[2] for word in sys.argv if word.startswith("SAC_GRID=")]
    file.write(json.dumps(json.loads(Path(grid).read_text())[int(os.environ["SLURM_ARRAY_TASK_ID"])]) + "\\n")
def stop(number, frame):
    folder = exp_dir / "checkpoints/checkpoint_0000000010"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    os._exit(75)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, stop)
if len((exp_dir / "starts").read_text().splitlines()) < 2:
    time.sleep(60)
(exp_dir / "run.json").write_text(json.dumps({"attributes": {"num_iter": 1}}))
(exp_dir / "metrics.csv").write_text("train_step,iteration,env_steps,eval_return\\n1,1,1,7\\n")
"""


class Job:
    """A submitted job, or an array of them, whose run is a fake one."""

    def __init__(self, cluster: SlurmCluster, folder: Path, behaviour: str, *options: str, variables: str = "") -> None:
        self.cluster, self.folder = cluster, folder / "a user's folder"
        folder, self.exp_dir = self.folder, self.folder / "run"
        folder.mkdir()
        (folder / "my_params.py").write_text("class TrainParams: ...\n")
        (folder / "my.json").write_text("{}")
        (folder / "vars.sh").write_text(
            f'SAC_EXP_NAME=test SAC_EXP_DIR="{self.exp_dir}" SAC_PARAMS=my_params.py SAC_CONFIG=my.json\n'
            "SAC_REVERB_CPUS=1 SAC_TRAIN_CPUS=1 SAC_NUM_COLLECT_WORKERS=1 SAC_COLLECT_WORKER_CPUS=1\n"
            f"SAC_SAVE_DEADLINE_SECS=5 {variables}\n"
        )
        sharing = () if "--exclusive" in options else ("--oversubscribe",)
        given = ("--no_check", "--hold", "--parsable", "--comment", 'a "b" c', "--nodelist=n2")
        done = self.submit(*given, *sharing, *options)
        assert done.returncode == 0, done.stderr
        (self.id,) = done.stdout.split()
        (self.snapshot,) = folder.glob("run*/snapshot/*")
        run = FAKE_RUN.format(python=sys.executable, exp_dir=str(self.exp_dir), behaviour=behaviour)
        launch = self.snapshot / "package/tfagents_system/launch"
        if behaviour == "trial":
            (launch / "start.py").write_text(FAKE_START)
        else:
            (launch / "run_script.sh").write_text(run)
        assert cluster.run("scontrol", "release", self.id).returncode == 0

    def submit(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(
            str(ROOT / "submit.sh"), "vars.sh", *options, cwd=self.folder, environ={"VIRTUAL_ENV": sys.prefix}
        )

    @property
    def output(self) -> str:
        """What all attempts of all jobs have written."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("run*/slurm-*.out")))

    def starts(self, task: int) -> list[int]:
        """The steps from which a task of an array was started."""
        output = self.folder / f"run_array/slurm-{self.id}_{task}.out"
        return [int(step) for step in re.findall(r"resumed at (\d+)", output.read_text())] if output.exists() else []

    def wait_for(self, words: str, count: int = 1, timeout_secs: float = 60.0) -> None:
        self.cluster.wait_until(
            lambda: self.output.count(words) >= count, timeout_secs, f"{words!r} {count} times in\n{self.output}"
        )

    def signal(self, *options: str, part: str = "") -> None:
        assert self.cluster.run("scancel", *options, self.id + part).returncode == 0

    def end(self, *states: str) -> str:
        """Waits for the job's end and returns the output."""
        self.cluster.wait_for_state(self.id, states, 60.0)
        return self.output


def has_started_twice(job: Job, task: int) -> bool:
    return len(job.starts(task)) == 2


def every_signal_saves_and_requeues_until_it_is_done(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, "saves")
    job.wait_for("at work")
    job.signal("--signal=USR1")
    job.wait_for("at work", 2)
    job.signal("--batch", "--signal=USR2")
    output = job.end("COMPLETED")
    assert [line for line in output.splitlines() if "resumed at" in line] == [f"resumed at {k}" for k in (0, 10, 20)]
    assert output.count("saved, and requeued") == 2 and "finished" in output
    assert cluster.job(job.id)["Restarts"] == "2"
    assert '--comment "a \\"b\\" c"' in (job.snapshot / "job.sbatch").read_text()


def slurms_own_requeue_and_preemption_are_left_to_slurm(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, "saves", "--partition=lonely", "--nodelist=n3", "--exclusive")
    job.wait_for("at work")
    options = ("--partition=urgent", "--nodelist=n3", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    urgent = cluster.run("sbatch", "--parsable", *options).stdout.strip()
    job.wait_for("saved, and requeued by SLURM")
    assert "saved after" in job.output
    cluster.wait_for_state(urgent, ("COMPLETED",), 60.0)
    job.wait_for("resumed at 10")
    job.signal()
    job.end("CANCELLED")


def a_cancelled_job_stays_cancelled(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, "saves", "--nodelist=n1", variables="SAC_TRAIN_GPUS=1")
    job.wait_for("at work")
    assert "gpu:1" in cluster.job(job.id)["TresPerNode"]
    job.signal()
    job.wait_for("it was cancelled")
    assert "saved after" in job.end("CANCELLED")


def a_task_of_an_array_is_requeued_alone(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, "saves at once", "--array=0-2")
    job.wait_for("at work", 3)
    expected = [[0], [0], [0]]
    ends = (("--signal=USR1", ""), ("--signal=KILL", ".0"), ("--signal=TERM", ".0"))  # Without a suffix: the job.
    for task, (signal, step) in enumerate(ends):
        job.signal(signal, part=f"_{task}{step}")
        expected[task].append(10)
        cluster.wait_until(functools.partial(has_started_twice, job, task), 60.0, f"task {task} again in\n{job.output}")
        assert [job.starts(each) for each in range(3)] == expected, job.output
    assert job.output.count("and requeued") == 3 and "from train step 10: " in job.output
    assert [cluster.job(f"{job.id}_{task}")["Restarts"] for task in range(3)] == ["1"] * 3
    assert sorted(path.name for path in job.folder.glob("run_task_*")) == [f"run_task_{k}" for k in range(3)]
    job.signal(part="_2")
    cluster.wait_for_state(f"{job.id}_2", ("CANCELLED",), 60.0)
    assert [cluster.state(f"{job.id}_{task}") for task in range(2)] == ["RUNNING"] * 2
    job.signal()
    job.wait_for("it was cancelled", 3)


def trials_of_a_study_go_on_with_their_settings(cluster: SlurmCluster, tmp_path: Path) -> None:
    study = tmp_path / "run_tasks"
    study.mkdir()
    records = {"space": {"discount": {"low": 0.9, "high": 0.99}}, "pruner": "none", "wanted": 2, "trials": []}
    (study / "study.json").write_text(json.dumps(records))
    job = Job(cluster, tmp_path, "trial", "--array=0-1", f"--study={study}")

    def starts(task: int) -> list[str]:
        file = Path(f"{job.exp_dir}_task_{task}/starts")
        return file.read_text().splitlines() if file.exists() else []

    cluster.wait_until(lambda: all(len(starts(task)) == 1 for task in range(2)), 90.0, f"starts in\n{job.output}")
    asked = "import pathlib, sys; from tfagents_system.tasks.search import queued_workers as queued"
    asked += "; print(*(queued(pathlib.Path(folder)) for folder in sys.argv[1:]))"
    found = cluster.run(sys.executable, "-c", asked, f"{job.exp_dir}_tasks", str(study), cwd=ROOT)
    assert found.stdout.split("\n")[-2] == "{0, 1} set()", found.stderr
    job.signal("--signal=USR1", part="_0")
    job.signal("--signal=KILL", part="_1.0")
    cluster.wait_until(lambda: job.output.count(": finished") == 2, 90.0, f"the end of both in\n{job.output}")
    for task in range(2):
        first, second = starts(task)
        assert first == second and first.startswith('{"discount": 0.9')
    assert starts(0) != starts(1) and job.output.count("and requeued") == 2
    table = (study / "trials.csv").read_text().splitlines()
    assert [line.split(",")[:3] for line in table[1:]] == [["0", "done", "7.0"], ["1", "done", "7.0"]]


SCENARIOS = (
    every_signal_saves_and_requeues_until_it_is_done,
    slurms_own_requeue_and_preemption_are_left_to_slurm,
    a_cancelled_job_stays_cancelled,
    a_task_of_an_array_is_requeued_alone,
    trials_of_a_study_go_on_with_their_settings,
)


@pytest.fixture(scope="module")
def outcomes(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """All scenarios at once: most of their time they wait until SLURM starts a requeued job."""
    with ThreadPoolExecutor(len(SCENARIOS)) as pool:
        yield {
            scenario.__name__: pool.submit(scenario, cluster, tmp_path_factory.mktemp("jobs")) for scenario in SCENARIOS
        }


@pytest.mark.parametrize("name", [scenario.__name__ for scenario in SCENARIOS])
def test_scenario(outcomes: dict[str, Future[None]], name: str) -> None:
    outcomes[name].result(200.0)


def test_a_node_that_dies_costs_what_was_not_saved(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, "saves at once")
    job.wait_for("at work")
    cluster.kill_node("n2")
    try:
        down = cluster.run("scontrol", "update", "nodename=n2", "state=down", "reason=died")
        assert down.returncode == 0, down.stderr
    finally:
        cluster.start_node("n2")
        cluster.run("scontrol", "update", "nodename=n2", "state=resume")
    job.wait_for("at work", 2)
    assert "from train step 10" in job.output
    job.signal()
    job.end("CANCELLED")
