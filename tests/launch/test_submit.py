"""submit.sh up to sbatch: what it shows, what it asks for and what it passes on; sbatch itself is a fake one."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.support.login_node import User, refused

GOLDEN = Path(__file__).parent / "golden"


def children_cpu_secs() -> float:
    """Of programs that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def test_the_dry_run_prints_the_job_script_and_writes_nothing(user: User) -> None:
    began = children_cpu_secs()
    done = user.submit("--dry_run", "--time", "1:00:00", "--partition=long", "--comment", 'x "y"')
    assert done.returncode == 0, done.stderr
    assert children_cpu_secs() - began < 2.5  # A fifth of it is needed.
    script = re.sub(r"snapshot/\d{8}-\d{6}-\d+", "snapshot/<time>", done.stdout).replace(
        str(user.folder.parent), "<folder>"
    )
    assert script == (GOLDEN / "job.sbatch").read_text()
    assert not user.exp_dir.exists() and user.calls == []


def test_the_dry_run_tells_what_would_be_submitted_frozen_and_run(user: User) -> None:
    (user.folder / "parts").mkdir()
    (user.folder / "parts/robot.xml").touch()
    (user.folder / "my_grid.json").write_text("[{}]")
    user.write_vars("SAC_GRID=my_grid.json\nSAC_ROBOT=$((3 + 4))\nSAC_JOB_PRELUDE='export TOKEN=123\nmodule load x'\n")
    options = ("--array=0-99", "--time=5", "--hold", "--set", "config.note=a b", "--keep")
    told = user.submit("--dry_run", *options).stderr
    assert not list(user.folder.glob("run*")) and user.calls == [] and "TOKEN" not in told
    done = user.submit(*options)
    assert done.returncode == 0, done.stderr
    snapshot = str(user.snapshot)
    told = re.sub(r"(?<![\w-])/[^\n]*?snapshot/\d{8}-\d{6}-\d+", "SNAPSHOT", told)
    commands = re.findall(r"(?m)^  sbatch (.*)$", told)
    assert commands == [call.replace(snapshot, "SNAPSHOT") for call in user.calls]
    launch = "SNAPSHOT/package/tfagents_system/launch"
    assert f"{launch}/run_script.sh SNAPSHOT/variables.sh --set config.note=a\\ b --keep\n" in told


def test_a_job_finds_the_files_that_are_named_beside_the_vars_file(user: User) -> None:
    """It reads its variables from the snapshot, whose package is its repository."""
    (user.folder / "expert.npz").touch()
    (user.folder / "old_run").mkdir()
    user.write_vars("SAC_EXPERT_POLICY=expert.npz\nSAC_FROM=old_run@best\n")
    with (user.folder / "vars.sh").open("a") as file:
        file.write("SAC_PASSWORD_FILE=secret\nSAC_CREDENTIALS_DIR=~/mine\n")
    done = user.submit(HOME="/home/me")
    assert done.returncode == 0, done.stderr
    values = user.resolved()
    assert values["SAC_EXPERT_POLICY"] == f"{user.folder}/expert.npz"
    assert values["SAC_FROM"] == f"{user.folder}/old_run@best"
    assert values["SAC_PASSWORD_FILE"] == str(user.folder / "secret")
    assert values["SAC_CREDENTIALS_DIR"] == "/home/me/mine"


def test_an_address_of_mlflow_is_frozen_as_an_absolute_one_and_not_with_a_key(user: User) -> None:
    for uri in ("http://s3cret@host:5000", "mysql://me:s3cret@host/db", "s3cret@host"):
        user.write_vars(f"SAC_MLFLOW_URI={uri}\n")
        (finding,) = refused(user.submit("--no_check"))
        assert "MLFLOW_TRACKING_TOKEN" in finding and "s3cret" not in finding
    assert not list(user.folder.glob("run*")), "nothing is frozen"
    user.write_vars("SAC_MLFLOW_URI=sqlite:///runs/a.db\n")
    assert user.submit("--no_check").returncode == 0
    assert user.resolved()["SAC_MLFLOW_URI"] == f"sqlite:///{user.folder.resolve()}/runs/a.db"


def test_options_that_are_not_ours_are_sbatchs(user: User) -> None:
    assert user.submit("--part=long", "--mail-user", "me", "--of-this-site", "-C", "fast").returncode == 0
    assert user.calls[0].startswith("--part=long --mail-user me --of-this-site -C fast ")
    assert user.submit("--", "--nodes=7").returncode == 0 and user.calls[1].startswith("--nodes=7 ")


def test_edits_of_a_run_that_goes_on_are_kept_but_it_is_not_moved_aside(user: User) -> None:
    assert refused(user.submit("--fresh"))[0].startswith("--fresh is for starts by hand")
    script = user.submit("--dry_run", "--keep").stdout
    assert shlex.split(script.splitlines()[-1])[-1] == "--keep" and "#SBATCH --keep" not in script


def test_what_another_run_has_is_named_in_the_jobs_variables(user: User) -> None:
    """There it is when the job is requeued; a run that has begun with it goes on."""
    (user.folder / "old_run").mkdir()
    user.write_vars("SAC_FROM=another_run\n")
    done = user.submit("--from", "old_run@best", "--take=all", "--time=5")
    assert done.returncode == 0 and "--from" not in user.calls[0], done.stderr
    values = user.resolved()
    assert (values["SAC_FROM"], values["SAC_TAKE"]) == (f"{user.folder}/old_run@best", "all")


def test_the_job_script_that_is_submitted_is_the_one_that_was_shown(user: User) -> None:
    shown = user.submit("--dry_run", "--time=5").stdout
    done = user.submit("--time=5", "--hold")
    assert done.returncode == 0 and "Submitted batch job 12" in done.stdout, done
    (snapshot,) = user.exp_dir.glob("snapshot/*")
    assert user.calls == [f"--time=5 --hold {snapshot}/job.sbatch"]
    stamp = re.compile(r"snapshot/\d{8}-\d{6}-\d+")
    assert stamp.sub("", (snapshot / "job.sbatch").read_text()) == stamp.sub("", shown)
    assert "--hold" not in shown  # A job that is submitted once more is not held.


@pytest.mark.parametrize(
    ("variables", "options", "line"),
    [
        ("", (), "--cpus-per-task=18"),  # 2 + 4 + 5 * 2 + 2
        ("", (), "--mem=4500M"),  # 1500 + 5 * 400 + 1000
        ("SAC_EXPERT_WORKERS=3", (), "--cpus-per-task=24"),  # 3 * 2 more
        ("SAC_EXPERT_WORKERS=3", (), "--mem=5700M"),  # 3 * 400 more
        ("SAC_EVAL_WORKERS=2", (), "--cpus-per-task=22"),  # 2 * 2 more
        ("SAC_EVAL_WORKERS=2", (), "--mem=5300M"),  # 2 * 400 more
        ("SAC_WORKER_MEMORY_MB=1000", (), "--mem=7500M"),
        ("SAC_SAVE_DEADLINE_SECS=20.5", (), "--signal=B:USR1@80"),
        ("", ("--array", "0-9"), "--open-mode=append"),
    ],
)
def test_what_is_asked_for(user: User, variables: str, options: tuple[str, ...], line: str) -> None:
    user.write_vars(variables)
    assert f"#SBATCH {line}\n" in user.submit("--dry_run", *options).stdout


def test_a_run_that_goes_on_asks_for_the_ring_that_it_has(user: User) -> None:
    (user.exp_dir / "replay").mkdir(parents=True)
    with open(user.exp_dir / "replay/rows", "wb") as ring:
        os.posix_fallocate(ring.fileno(), 0, 1200 * 2**20)
    memory = re.search(r"--mem=(\d+)M", user.submit("--dry_run").stdout)
    (user.exp_dir / "replay/rows").unlink()
    assert memory is not None and 4700 <= int(memory[1]) <= 4702


@pytest.mark.parametrize(
    ("options", "absent"),
    [(("--mem-per-cpu=2G",), "--mem="), (("--no-requeue",), "--requeue"), (("--mem", "9G"), "--mem=")],
)
def test_a_users_options_win(user: User, options: tuple[str, ...], absent: str) -> None:
    script = user.submit("--dry_run", *options).stdout
    assert absent not in script and f"#SBATCH {' '.join(options)}\n" in script
    assert "#SBATCH --mem=4500M\n" in user.submit("--dry_run", "--mem-bind=local").stdout


def test_a_gpu_is_asked_for_where_the_trainer_has_one(user: User) -> None:
    assert "gpus" not in user.submit("--dry_run").stdout
    user.write_vars("SAC_TRAIN_GPUS=1\n")
    assert "#SBATCH --gpus-per-node=1\n" in user.submit("--dry_run").stdout
    for own in (
        ("--gres=gpu:a100:1",), ("--gres", "gpu"), ("-G", "2"), ("-G2",), ("--gpus=1",), ("--gpus-per-task", "1"),
        ("--tres-per-task=gres/gpu:1",),
    ):  # fmt: skip
        script = user.submit("--dry_run", "--nodes=2", *own).stdout
        assert "--gpus-per-node" not in script and "hetjob" not in script and f"#SBATCH {' '.join(own)}\n" in script
    for other in (("--gres=tmpdisk:100",), ("--gpu-freq=high",), ("--comment=-G",)):
        assert "#SBATCH --gpus-per-node=1\n" in user.submit("--dry_run", *other).stdout
    user.write_vars("SAC_TRAIN_GPUS=2\n")
    assert "SAC_TRAIN_GPUS=2 must be 0 or 1" in refused(user.submit())


def test_of_several_nodes_the_first_has_the_gpu(user: User) -> None:
    plain = user.submit("--dry_run", "--nodes=3", "--partition=long").stdout
    user.write_vars("SAC_TRAIN_GPUS=1\n")
    script = user.submit("--dry_run", "--nodes=3", "--partition=long").stdout
    first, further = script.split("#SBATCH hetjob\n")
    options = first.splitlines()[1:]
    assert "#SBATCH --gpus-per-node=1" in options and "#SBATCH --nodes=1" in options
    options.remove("#SBATCH --gpus-per-node=1")
    assert [line.replace("--nodes=1", "--nodes=2") for line in options] == further.split("\n\n")[0].splitlines()
    stamp = re.compile(r"snapshot/\d{8}-\d{6}-\d+")
    assert stamp.sub("", script.splitlines()[-1]) == stamp.sub("", plain.splitlines()[-1])
    # SLURM has no arrays of such jobs: each node of each task then has one.
    array = user.submit("--dry_run", "--nodes=3", "--array=0-1").stdout
    assert "hetjob" not in array and "#SBATCH --gpus-per-node=1\n" in array and "#SBATCH --nodes=3\n" in array


def test_settings_go_to_the_run(user: User) -> None:
    (finding,) = refused(user.submit("--dry_run", "--set", "SAC_SEED=3"))
    assert finding.startswith("--set SAC_SEED=3: what the job asks for follows from the variables: set SAC_SEED in")
    script = user.submit("--dry_run", "--set", "batch_size=512", "--set=config.note=it's", "--time=5").stdout
    assert shlex.split(script.splitlines()[-1])[-3:] == ["--set", "batch_size=512", "--set=config.note=it's"]
    assert "#SBATCH --time=5\n" in script and script.count("batch_size") == 1


OF_ANOTHER_JOB = {
    "SLURM_JOB_ID": "5", "SLURM_MEM_PER_CPU": "100", "SLURM_CPU_BIND": "quiet", "SLURM_HINT": "nomultithread",
    "SLURM_HET_SIZE": "2", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "1", "SLURM_TMPDIR": "/tmp/5",
    "TFAGENTS_SUBMITTED_AGAIN": "4", "TFAGENTS_NO_TASK": "1", "SLURMD_NODENAME": "node5",
    "CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1", "GPU_DEVICE_ORDINAL": "1",
}  # fmt: skip
OF_ITS_COMMANDS = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_TIME_FORMAT": "relative", "SLURM_JWT": "token"}


def test_a_job_has_nothing_of_the_one_that_it_is_submitted_from(user: User) -> None:
    user.write_vars("SAC_REPLAY_DIR=$SLURM_TMPDIR/ring\nreadonly SLURM_NTASKS=1\n")
    for options in (("--wait",), (), ("--array=0-99",)):
        assert user.submit("--no_check", *options, **OF_ANOTHER_JOB, **OF_ITS_COMMANDS).returncode == 0
        told = user.environ_of_sbatch
        kept = {name: told[name] for name in told if name in OF_ANOTHER_JOB or name.startswith(("SLURM", "TFAGENTS_"))}
        assert kept == OF_ITS_COMMANDS
    assert len(user.calls) == 3
    for script in user.folder.glob("run*/snapshot/*/variables.sh"):
        assert '"${SLURM_TMPDIR:-' in script.read_text()


def test_devices_of_the_vars_file_or_the_login_node_hold_for_the_job(user: User) -> None:
    assert user.submit("--no_check", CUDA_VISIBLE_DEVICES="1").returncode == 0
    assert user.environ_of_sbatch["CUDA_VISIBLE_DEVICES"] == "1"
    user.write_vars("CUDA_VISIBLE_DEVICES=1\n")
    assert user.submit("--no_check", **OF_ANOTHER_JOB).returncode == 0
    assert user.environ_of_sbatch["CUDA_VISIBLE_DEVICES"] == "1", "the same device, but the vars file's"


def test_further_nodes_get_as_many_workers(user: User) -> None:
    done = user.submit("--nodes", "3")
    assert done.returncode == 0, done.stderr
    script = (user.snapshot / "job.sbatch").read_text()
    one = user.submit("--dry_run").stdout
    for option in ("--nodes=3", "--ntasks-per-node=1", "--no-kill"):
        assert f"#SBATCH {option}\n" in script
    assert [line for line in script.splitlines() if "cpus" in line or "--mem" in line] == [
        line for line in one.splitlines() if "cpus" in line or "--mem" in line
    ]
    variables = user.resolved()
    local = int(variables["SAC_LOCAL_WORKERS"])
    assert int(variables["SAC_NUM_COLLECT_WORKERS"]) == 3 * local
    assert variables["SAC_GATEWAY_PORT"] == "0"
    assert (user.snapshot / "package/tfagents_system/launch/join_script.sh").exists()


def test_what_does_not_work_with_several_nodes_is_refused(user: User) -> None:
    user.write_vars("SAC_EXPERT_WORKERS=2")
    assert refused(user.submit("--dry_run", "--nodes=2")) == [
        "--nodes=2 does not work with SAC_EXPERT_WORKERS=2: unset it, and let experts join with sac join --role expert"
    ]
    user.write_vars("SAC_EVAL_WORKERS=1")
    assert refused(user.submit("--dry_run", "--nodes=2")) == [
        "--nodes=2 does not work with SAC_EVAL_WORKERS=1: unset it, and let workers join with sac join --role "
        "eval, which add to each evaluation"
    ]
    user.write_vars("SAC_DETERMINISTIC=1")
    assert refused(user.submit("--dry_run", "--nodes=2")) == [
        "--nodes=2 does not work with SAC_DETERMINISTIC=1, where a run restarts all its workers with itself: leave out "
        "one of the two"
    ]
    assert user.submit("--dry_run", "--no_check").returncode == 0
    user.write_vars("SAC_EXPERT_WORKERS=08")
    assert refused(user.submit("--dry_run")) == [
        "SAC_EXPERT_WORKERS=08 must be a whole number of at least 0 (expert workers)"
    ]
