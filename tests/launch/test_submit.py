"""submit.sh up to sbatch: what it asks for, what it freezes, what it refuses; sbatch itself is a fake one."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from tests.support.login_node import FAKE_PYTHON, ROOT, User, refused
from tfagents_system.launch import clean
from tfagents_system.launch.vars_file import read_vars_file
from tfagents_system.run_files import params_folder
from tfagents_system.settings.variables import read_variables

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


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
    options = ("--array=0-149", "--time=5", "--hold", "--set", "config.note=a b", "--take_edits")
    told = user.submit("--dry_run", *options).stderr
    assert not list(user.folder.glob("run*")) and user.calls == [] and "TOKEN" not in told
    done = user.submit(*options)
    assert done.returncode == 0, done.stderr
    snapshot = str(user.snapshot)
    told = re.sub(r"(?<![\w-])/[^\n]*?snapshot/\d{8}-\d{6}-\d+", "SNAPSHOT", told)
    commands = re.findall(r"(?m)^  sbatch (.*)$", told)
    assert commands == [call.replace(snapshot, "SNAPSHOT") for call in user.calls] and len(commands) == 2
    launch = "SNAPSHOT/package/tfagents_system/launch"
    assert f"{launch}/run_script.sh SNAPSHOT/variables.sh --set config.note=a\\ b --take_edits\n" in told
    frozen = told.split("frozen in SNAPSHOT:\n")[1].split("the job script:\n")[0]
    copied = {
        str(path.relative_to(user.snapshot / "params")) for path in user.snapshot.glob("params/**/*") if path.is_file()
    }
    assert (
        set(re.findall(r"(?m)^    ([^S]\S*)$", frozen.split("params/ of ")[1].split("config.json")[0]))
        == copied
        >= {"parts/robot.xml"}
    )
    assert (
        f"grid.json of {user.folder}/my_grid.json\n" in frozen and f"config.json of {user.folder}/my.json\n" in frozen
    )
    assert "    SAC_ROBOT='7'\n" in frozen and "    SAC_PARAMS='SNAPSHOT/params/my_params.py'\n" in frozen


@pytest.mark.parametrize("is_sac", [True, False])
def test_a_job_finds_the_files_that_are_named_beside_the_vars_file(user: User, is_sac: bool) -> None:
    """It reads its variables from the snapshot, whose package is its repository."""
    (user.folder / "expert.npz").touch()
    (user.folder / "old_run").mkdir()
    user.write_vars("SAC_EXPERT_POLICY=expert.npz\nSAC_REPLAY_FROM=old_run,expert.npz\nSAC_AGENT_FROM=old_run@best\n")
    with (user.folder / "vars.sh").open("a") as file:
        file.write("SAC_PASSWORD_FILE=secret\nSAC_CREDENTIALS_DIR=~/mine\n")
    done = user.submit(HOME="/home/me", **({"TFAGENTS_FOLDER": str(user.folder)} if is_sac else {}))
    assert done.returncode == 0, done.stderr
    values = user.resolved()
    assert values["SAC_EXPERT_POLICY"] == f"{user.folder}/expert.npz"
    assert values["SAC_REPLAY_FROM"] == f"{user.folder}/old_run,{user.folder}/expert.npz"
    assert values["SAC_AGENT_FROM"] == f"{user.folder}/old_run@best"
    assert values["SAC_PASSWORD_FILE"] == str((user.folder if is_sac else ROOT) / "secret")
    assert values["SAC_CREDENTIALS_DIR"] == "/home/me/mine"


def test_the_dry_run_makes_the_checks(user: User) -> None:
    checks(user, "echo 'ERROR settings  no such attribute discont'; exit 2")
    done = user.submit("--dry_run", "--set", "discont=0.9", "--array=7-9")
    assert (
        done.returncode == 2 and "no such attribute discont" in done.stderr and "nothing was submitted" in done.stderr
    )
    assert done.stdout.startswith("#!/usr/bin/env bash\n#SBATCH")
    command, given = (user.tools / "../env/bin/python.check").read_text().splitlines()
    assert f"{user.folder}/vars.sh" in command and command.endswith("--set discont=0.9 --check")
    assert given == "job 0 task 7 memory 4500"
    assert user.submit("--dry_run", "--no_check").returncode == 0 and not user.exp_dir.exists()


@pytest.mark.parametrize(
    ("option", "near"),
    [
        ("--aray=0-9", "array"), ("--dryrun", "dry_run"), ("--dry-run", "dry_run"), ("--arra=0-3", "array"),
        ("--node=3", "nodes"), ("--partitoin=long", "partition"), ("--no-check", "no_check"),
        ("--take-edits", "take_edits"), ("--zzz", ""),
    ],
)  # fmt: skip
def test_an_option_that_nobody_has_is_refused(user: User, option: str, near: str) -> None:
    (finding,) = refused(user.submit(option))
    assert finding.startswith(f"{option}: neither submit.sh nor sbatch has such an option")
    assert re.findall(r", is --(\S+) meant", finding) == [near] * bool(near)
    assert user.calls == [] and not user.exp_dir.exists()
    done = user.submit("--time=5", "--", option)  # A plugin of the site's may have it.
    assert done.returncode == 0, done
    assert user.calls == [f"--time=5 {option} {user.snapshot}/job.sbatch"]


def test_an_address_of_mlflow_is_frozen_as_an_absolute_one_and_not_with_a_key(user: User) -> None:
    for uri in ("http://s3cret@host:5000", "mysql://me:s3cret@host/db", "s3cret@host"):
        user.write_vars(f"SAC_MLFLOW_URI={uri}\n")
        (finding,) = refused(user.submit("--no_check"))
        assert "MLFLOW_TRACKING_TOKEN" in finding and "s3cret" not in finding
    assert not list(user.folder.glob("run*")), "nothing is frozen"
    user.write_vars("SAC_MLFLOW_URI=sqlite:///runs/a.db\n")
    assert user.submit("--no_check").returncode == 0
    assert user.resolved()["SAC_MLFLOW_URI"] == f"sqlite:///{user.folder.resolve()}/runs/a.db"


def test_what_sbatch_knows_in_short_passes(user: User) -> None:
    assert user.submit("--part=long", "--mail-user", "me", "--exclusive", "-C", "fast").returncode == 0
    assert user.calls[0].startswith("--part=long --mail-user me --exclusive -C fast ")


def test_edits_of_a_run_that_goes_on_are_kept_or_taken_but_it_is_not_moved_aside(user: User) -> None:
    assert refused(user.submit("--fresh"))[0].startswith("--fresh is for starts by hand")
    for option in ("--keep", "--take_edits"):
        script = user.submit("--dry_run", option).stdout
        assert shlex.split(script.splitlines()[-1])[-1] == option and "#SBATCH --keep" not in script


def test_a_run_is_reset_by_the_job(user: User) -> None:
    for given, passed in (
        (("--reset_training",), ["--reset_training"]),
        (("--reset_training", "--catch_up", "--time=5"), ["--reset_training", "--catch_up"]),
        (("--reset_training", "networks"), ["--reset_training=networks"]),
        (("--reset_training=networks", "--set", "num_iter=9"), ["--reset_training=networks", "--set", "num_iter=9"]),
    ):
        script = user.submit("--dry_run", *given).stdout
        assert shlex.split(script.splitlines()[-1])[-len(passed) :] == passed, script
        assert "#SBATCH --reset" not in script and "#SBATCH --catch" not in script


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
        ("SAC_FORK_ROLES=0", (), "--mem=5900M"),  # 200 more for each of 7
        ("SAC_MEM_GB=3", (), "--mem=3072M"),
        ("SAC_USE_HYPERTHREADS=0", (), "--hint=nomultithread"),
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
    try:
        memory = re.search(r"--mem=(\d+)M", user.submit("--dry_run").stdout)
    finally:
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
    script = user.submit("--dry_run", "--set", "train_batch_size=512", "--set=config.note=it's", "--time=5").stdout
    assert shlex.split(script.splitlines()[-1])[-3:] == ["--set", "train_batch_size=512", "--set=config.note=it's"]
    assert "#SBATCH --time=5\n" in script and script.count("train_batch_size") == 1


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("SAC_SEED=3", "what the job asks for follows from the variables: set SAC_SEED in"),
        ("nonsense", "it must be NAME=VALUE"),
        ("=3", "it must be NAME=VALUE"),
        ("9x=1", "it must be NAME=VALUE"),
        ("a b=1", "it must be NAME=VALUE"),
        ("config..a=1", "it must be NAME=VALUE"),
    ],
)
def test_settings_that_can_not_be_are_told_before_anything_is_queued(user: User, setting: str, told: str) -> None:
    for options in (("--set", setting), (f"--set={setting}",)):
        (finding,) = refused(user.submit("--dry_run", *options))
        assert finding.startswith(f"--set {setting}: {told}")


@pytest.mark.parametrize("setting", ["sac_log_alpha=-4.6", "sac_seed=3", "_x1.a b=c", "größe=1", 'a={"b": 1}'])
def test_settings_that_python_judges_are_queued(user: User, setting: str) -> None:
    script = user.submit("--dry_run", "--set", setting).stdout
    assert shlex.split(script.splitlines()[-1])[-2:] == ["--set", setting]


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


def test_experts_and_evaluators_are_of_runs_on_one_node(user: User) -> None:
    user.write_vars("SAC_EXPERT_WORKERS=2")
    assert refused(user.submit("--dry_run", "--nodes=2")) == [
        "--nodes=2 does not work with SAC_EXPERT_WORKERS=2: unset it, and let experts join with join_script.sh --role "
        "expert"
    ]
    user.write_vars("SAC_EVAL_WORKERS=1")
    assert refused(user.submit("--dry_run", "--nodes=2")) == [
        "--nodes=2 does not work with SAC_EVAL_WORKERS=1: unset it, and let workers join with join_script.sh --role "
        "eval, which add to each evaluation"
    ]
    user.write_vars("SAC_EXPERT_WORKERS=08")
    assert refused(user.submit("--dry_run")) == [
        "SAC_EXPERT_WORKERS=08 must be a whole number of at least 0 (expert workers)"
    ]


def test_workers_are_added_to_a_run_that_lets_them_in(user: User) -> None:
    findings = refused(user.submit("--add_workers", "many", "--to", "nowhere", "--array", "1"))
    assert [words in "\n".join(findings) for words in ("--add_workers=many", "--to=nowhere", "--array and")] == [
        True
    ] * 3
    user.exp_dir.mkdir()
    (user.exp_dir / "run.json").write_text("{}")
    add = ("--add_workers", "5", "--to", str(user.exp_dir), "--nodes=2")
    assert "start it with SAC_GATEWAY_PORT=0" in refused(user.submit(*add))[0]
    (user.exp_dir / "gateway.json").write_text("{}")
    assert refused(user.submit(*add, "--set", "discount=0.9")) == [
        "--add_workers: workers take the settings and files of their run: remove --set, --keep, --take_edits and "
        "--reset_training"
    ]
    cpus = int(re.findall(r"SAC_COLLECT_WORKER_CPUS=(\d+)", (user.folder / "vars.sh").read_text())[0])
    beside = user.submit("--add_workers", "5", "--to", "run", "--dry_run").stdout
    assert shlex.split(beside.splitlines()[-1])[-4:] == ["--to", str(user.exp_dir), "--workers", "5"]
    done = user.submit(*add)
    assert done.returncode == 0, done.stderr
    (snapshot,) = user.exp_dir.glob("joined/snapshot/*")
    script = (snapshot / "job.sbatch").read_text()
    assert f"#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task={3 * cpus + 1}\n" in script
    # The signal goes to the workers themselves.
    assert "#SBATCH --signal=USR1@" in script
    assert shlex.split(script.splitlines()[-1])[-4:] == ["--to", str(user.exp_dir), "--workers", "3"]
    assert "SAC_LOCAL_WORKERS" not in (snapshot / "variables.sh").read_text()


CHECKING_PYTHON = (
    FAKE_PYTHON
    + """
printf '%s\\n' "$*" "job $SLURM_JOB_ID task $SLURM_ARRAY_TASK_ID memory $TFAGENTS_JOB_MB" >"$0.check"
{ends}
"""
)


def checks(user: User, ends: str) -> None:
    user.add_tool("../env/bin/python", CHECKING_PYTHON.replace("{ends}", ends))


def test_what_was_frozen_is_checked_before_it_is_queued(user: User) -> None:
    checks(user, "echo 'note  memory  it is tight'; exit 0")
    done = user.submit("--set", "discount=0.9", "--array=7-9")
    assert done.returncode == 0 and len(user.calls) == 1 and "note  memory  it is tight" in done.stderr
    command, given = (user.tools / "../env/bin/python.check").read_text().splitlines()
    assert f"{user.snapshot}/variables.sh" in command and command.endswith("--set discount=0.9 --check")
    assert given == "job 0 task 7 memory 4500"
    assert "it is tight" in (user.snapshot / "check.txt").read_text()


def test_what_the_check_refuses_is_not_queued(user: User) -> None:
    checks(user, "echo 'ok    config  fine'; echo 'ERROR params  num_iter is missing'; exit 2")
    done = user.submit()
    assert done.returncode == 2 and user.calls == [] and not user.exp_dir.exists()
    assert "ERROR params  num_iter is missing" in done.stderr and "fine" not in done.stderr
    assert "nothing was submitted" in done.stderr
    user.exp_dir.mkdir()
    (user.exp_dir / "run.json").touch()
    assert user.submit().returncode == 2 and sorted(path.name for path in user.exp_dir.iterdir()) == ["run.json"]
    assert user.submit("--no_check").returncode == 0 and len(user.calls) == 1


@pytest.mark.parametrize(
    ("more", "options", "told"),
    [
        ("", ("--no_check",), "--no_check"),
        ("SAC_EXEC_PREFIX='container x'\n", (), "the environment is that of SAC_EXEC_PREFIX"),
        ("SAC_JOB_PRELUDE='module load x'\n", (), "the environment is that of SAC_JOB_PRELUDE"),
    ],
)
def test_where_the_check_can_not_be_made_the_job_makes_it(
    user: User, more: str, options: tuple[str, ...], told: str
) -> None:
    checks(user, "exit 2")
    user.write_vars(more)
    done = user.submit(*options)
    assert done.returncode == 0 and len(user.calls) == 1 and told in done.stderr


def test_a_python_that_only_nodes_have_is_left_to_the_job(user: User) -> None:
    """The start is refused here, which says nothing of the place where the job runs."""
    user.write_vars("SAC_PYTHON=/opt/on_nodes/bin/python\n")
    done = user.submit()
    assert done.returncode == 0 and len(user.calls) == 1 and (user.snapshot / "job.sbatch").exists(), done
    assert "checked by the job, not here: SAC_PYTHON=/opt/on_nodes/bin/python is no program here" in done.stderr
    assert "nothing was submitted" not in done.stderr
    user.write_vars("SAC_VENV=env\n")
    assert refused(user.submit()) == ["SAC_VENV=env must be an absolute path: jobs start in other folders"]


@pytest.mark.parametrize("where", ["", "/", "/new/run", "/new//run/", "/../empty/run"])
def test_folders_that_were_there_outlive_a_refusal(user: User, where: str) -> None:
    checks(user, "exit 2")
    mine = user.folder / "mine/empty"
    mine.mkdir(parents=True)
    user.write_vars(f"SAC_EXP_DIR={shlex.quote(f'{mine}{where}')}\n")
    assert user.submit().returncode == 2
    assert mine.is_dir() and not list(mine.iterdir())


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30.0
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_nobody_waits_for_the_clean_up(user: User) -> None:
    old = user.exp_dir / "snapshot/20260101-000001-1"
    old.mkdir(parents=True)
    os.utime(old, (1, 1))
    # It takes as long as the queue does not answer, and 10 s at most.
    user.add_tool(
        "squeue",
        '#!/usr/bin/env bash\ncut -d" " -f6 /proc/$$/stat >"$0.session"\nuntil [[ -e $0.go ]]; do sleep 0.02; done\n',
    )
    done = user.submit("--no_check")
    assert done.returncode == 0 and len(user.calls) == 1 and old.exists()
    (user.tools / "squeue.go").touch()
    wait_until(lambda: len(list((user.exp_dir / "snapshot").iterdir())) == 1)
    # A Ctrl-C, or the terminal's end, does not reach it.
    assert int((user.tools / "squeue.session").read_text()) != os.getsid(0)
    assert not old.exists()


def test_a_check_that_hangs_or_breaks_holds_nothing_up(user: User) -> None:
    checks(user, "exit 1")
    done = user.submit()
    assert done.returncode == 0 and "exit code 1, see" in done.stderr and len(user.calls) == 1
    checks(user, "exec sleep 300")
    # Shorter than 20 s, for the test.
    user.add_tool("timeout", '#!/usr/bin/env bash\nexec /usr/bin/timeout "${@:1:2}" ${3/20/0.5} "${@:4}"\n')
    began = time.monotonic()
    done = user.submit()
    assert done.returncode == 0 and "could not be checked within 20 s" in done.stderr and len(user.calls) == 2
    assert time.monotonic() - began < 15.0


@pytest.mark.parametrize(
    ("options", "megabytes"),
    [
        (("--mem=9G",), "9216"), (("--mem", "700"), "700"), (("--mem=2T",), "2097152"), (("--mem=4096K",), "4"),
        (("--mem=0",), ""), (("--mem-per-cpu=2G",), ""), (("--mem-bind=local",), "4500"),
    ],
)  # fmt: skip
def test_the_check_knows_the_memory_of_the_job(user: User, options: tuple[str, ...], megabytes: str) -> None:
    checks(user, "exit 0")
    assert user.submit(*options).returncode == 0
    assert (user.tools / "../env/bin/python.check").read_text().endswith(f"memory {megabytes}\n")


def test_all_that_is_wrong_is_told_at_once(user: User) -> None:
    (user.folder / "vars.sh").write_text(
        "SAC_REVERB_CPUS=0 SAC_TRAIN_CPUS=two SAC_PARAMS=no.py SAC_USE_HYPERTHREADS=yes\n"
    )
    findings = refused(user.submit("--array", "0..3", "--nodes=2-4"))
    text = "\n".join(findings)
    assert len(findings) == 10
    for words in (
        "SAC_REVERB_CPUS=0 must be a whole number", "SAC_TRAIN_CPUS=two must be", "SAC_NUM_COLLECT_WORKERS is missing",
        "SAC_COLLECT_WORKER_CPUS is missing", "SAC_PARAMS=no.py must be an existing file", "SAC_CONFIG is missing",
        "SAC_USE_HYPERTHREADS=yes must be 0 or 1", "SAC_EXP_NAME is missing", "--nodes=2-4 must be a number of nodes",
        "--array=0..3 must be task ids such as 0-9",
    ):  # fmt: skip
        assert words in text
    assert user.calls == [] and not user.exp_dir.exists()


def test_files_are_looked_for_as_by_a_start(user: User) -> None:
    elsewhere = user.folder / "elsewhere"
    elsewhere.mkdir()
    (user.folder / "vars.sh").rename(elsewhere / "vars.sh")
    (elsewhere / "my_params.py").write_text("class TrainParams: ...  # Of the vars file's folder.\n")
    (finding,) = refused(user.run("submit.sh", "elsewhere/vars.sh"))
    assert finding.startswith("SAC_PARAMS=my_params.py must be one file") and str(user.folder) in finding
    (user.folder / "my_params.py").unlink()
    assert user.run("submit.sh", "elsewhere/vars.sh").returncode == 0
    (params,) = user.exp_dir.glob("snapshot/*/params/my_params.py")
    assert "Of the vars file's folder" in params.read_text()


def test_other_refusals(user: User) -> None:
    assert user.run("submit.sh").returncode == 2 and user.run("submit.sh", "--time=3").returncode == 2
    assert refused(user.run("submit.sh", "nowhere.sh"))[0].startswith("vars file nowhere.sh is missing")
    assert "--array needs a value" in refused(user.submit("--array"))[0]
    user.write_vars("false\n")
    assert "vars.sh fails (line 4)" in refused(user.submit())[0]
    user.write_vars("SAC_EXP_DIR=$PWD/my.json/run\n")
    assert "my.json/run can't be made" in refused(user.submit())[0]
    user.write_vars('SAC_EXP_DIR="$TMPDIR/run"\n')
    assert "must not depend on the job" in refused(user.submit())[0]
    user.write_vars()
    (user.tools / "sbatch").unlink()
    path = f"{user.tools}:{os.path.dirname(shutil.which('env') or '')}"
    if shutil.which("sbatch", path=path) is None:
        assert "sbatch is not on PATH" in refused(user.submit(PATH=path))[0]


def test_a_folder_that_is_too_large_is_refused(user: User) -> None:
    (user.folder / "data.bin").write_bytes(bytes(3 * 2**20))
    user.write_vars("SAC_SNAPSHOT_MB=2\n")
    (finding,) = refused(user.submit())
    assert (
        "has 4 files with 3 MiB" in finding
        and "Traceback" not in finding
        and "SAC_SNAPSHOT_MB=2" in finding
        and "a folder of their own" in finding
    )


def test_the_snapshot_holds_what_the_run_needs_and_nothing_else(user: User) -> None:
    (user.folder / "parts/deep").mkdir(parents=True)
    (user.folder / "parts/deep/robot.xml").write_text("<robot/>")
    (user.folder / "link.py").symlink_to(ROOT / "setup.sh")
    for unwanted in ("logs/old/x", ".git/x", "__pycache__/x", "env/pyvenv.cfg", "other/run.json"):
        (user.folder / unwanted).parent.mkdir(parents=True)
        (user.folder / unwanted).touch()
    assert user.submit().returncode == 0
    copied = {
        str(path.relative_to(user.snapshot / "params")) for path in user.snapshot.glob("params/**/*") if path.is_file()
    }
    assert copied == {"my_params.py", "my.json", "vars.sh", "link.py", "parts/deep/robot.xml"}
    assert not (user.snapshot / "params/link.py").is_symlink()
    package = user.snapshot / "package"
    assert (package / "tfagents_system/launch/run_script.sh").stat().st_mode & 0o111
    assert (package / "tfagents_system/sac_train.py").read_bytes() == (
        ROOT / "tfagents_system/sac_train.py"
    ).read_bytes()
    assert not list(package.rglob("__pycache__"))
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    assert (user.snapshot / "package.commit").read_text() in (head, "no git repository\n")


def test_the_snapshot_has_what_a_run_keeps(user: User) -> None:
    (user.folder / "parts").mkdir()
    (user.folder / "parts/loop").symlink_to(user.folder)
    (user.folder / "parts/größe.xml").write_text("<robot/>")
    assert user.submit().returncode == 0
    files = params_folder.files_of(user.folder, [user.exp_dir])
    assert "parts/größe.xml" in files
    assert params_folder.digests(user.snapshot / "params", files) == params_folder.digests(user.folder, files)


def test_without_any_python_the_remedy_is_told(user: User) -> None:
    for name in ("python3", "python"):
        user.add_tool(name, "#!/bin/sh\nexit 1\n")
    (finding,) = refused(user.submit(SAC_VENV="/nowhere"))
    assert "no Python here that copies the folder of SAC_PARAMS" in finding and "3.6 or later" in finding


def test_variables_are_resolved_when_submitted_but_for_what_only_the_job_knows(user: User) -> None:
    user.write_vars('SAC_REPLAY_DIR="$SLURM_TMPDIR/ring"\nSAC_ROBOT="it\'s $(date +%s) \\$HOME"\n')
    assert user.submit(SAC_ENV_PYTHON="my_params.py").returncode == 0
    values = user.resolved(SLURM_TMPDIR="/node/scratch 7", HOME="/elsewhere")
    assert values["SAC_PARAMS"] == f"{user.snapshot}/params/my_params.py"
    assert values["SAC_CONFIG"] == f"{user.snapshot}/config.json"
    assert values["SAC_EXP_DIR"] == str(user.exp_dir) and values["SAC_SEED"] == "3"
    assert values["SAC_REPLAY_DIR"] == "/node/scratch 7/ring"
    assert user.resolved()["SAC_REPLAY_DIR"] == "/tmp/ring"
    assert re.fullmatch(r"it's \d+ \$HOME", values["SAC_ROBOT"])
    assert values["SAC_ENV_PYTHON"] == str(user.folder / "my_params.py")
    assert values["VIRTUAL_ENV"] == f"{user.tools.parent}/env"
    assert (user.snapshot / "variables.sh").stat().st_mode & 0o777 == 0o600, "people put tokens into preludes"


@pytest.mark.parametrize(
    "places",
    ["", "SAC_LOGS_DIR=runs", "SAC_LOGS_DIR=../of_all/./runs", "SAC_LOGS_DIR=~/runs", "SAC_LOGS_DIR=/runs/../x",
     "SAC_EXP_DIR=logs/x SAC_LOGS_DIR=runs", "SAC_EXP_DIR=~/x"],
)  # fmt: skip
def test_the_run_directory_is_that_of_a_start(user: User, places: str) -> None:
    (user.folder / "linked").mkdir()
    (user.folder / "linked/vars.sh").symlink_to("../vars.sh")
    user.write_vars(f"unset SAC_EXP_DIR\n{places}\n")
    environ = read_vars_file(user.folder / "vars.sh", {"PATH": os.environ["PATH"], "HOME": "/home/user"})
    for path in ("vars.sh", "linked/vars.sh"):
        done = user.run("submit.sh", path, "--dry_run", HOME="/home/user")
        assert done.returncode == 0, done.stderr
        (told,) = re.findall(r"(?m)^    SAC_EXP_DIR=(.*)$", done.stderr)
        with mock.patch.dict(os.environ, {"HOME": "/home/user"}):
            values, findings = read_variables(environ, vars_file=user.folder / path, root=ROOT)
        assert findings == [] and Path(shlex.split(told)[0]) == values["exp_dir"]
        assert "SAC_LOGS_DIR=" not in done.stderr


def test_other_runs_are_not_copied(user: User) -> None:
    user.write_vars("unset SAC_EXP_DIR\nSAC_LOGS_DIR=runs\n")
    snapshots = [user.submit("--array=0-1"), user.submit()]
    assert [done.returncode for done in snapshots] == [0, 0], snapshots
    (params,) = user.folder.glob("runs/test/snapshot/*/params")
    assert {path.name for path in params.iterdir()} == {"my_params.py", "my.json", "vars.sh"}


def test_a_grid_is_frozen_too(user: User) -> None:
    (user.folder / "my_grid.json").write_text('{"discount": [0.9, 0.99]}')
    user.write_vars("SAC_GRID=my_grid.json\n")
    assert user.submit("--array=0-1").returncode == 0
    assert user.resolved()["SAC_GRID"] == f"{user.snapshot}/grid.json"
    assert (user.snapshot / "grid.json").read_bytes() == (user.folder / "my_grid.json").read_bytes()


def test_an_array_has_a_folder_of_its_own_and_a_throttle(user: User) -> None:
    assert user.submit("--array", "0-9").returncode == 0
    assert user.submit("--array=1,3%2").returncode == 0
    scripts = sorted((user.folder / "run_array").glob("snapshot/*/job.sbatch"))
    assert user.calls == [f"--array=0-9%10 {scripts[0]} 0", f"--array=1,3%2 {scripts[1]} 0"]
    assert "run_array/slurm-%A_%a.out" in scripts[0].read_text()


def test_an_array_that_is_larger_than_the_site_allows_is_split(user: User) -> None:
    assert user.submit("--array", "0-249,98-110:5").returncode == 0
    script = next((user.folder / "run_array").glob("snapshot/*/job.sbatch"))
    assert user.calls == [
        f"--array=0-100,98-100:5%10 {script} 0",
        f"--array=0-100,2-9:5%10 {script} 101",
        f"--array=0-47%10 {script} 202",
    ]


def test_training_on_a_login_node_is_refused(user: User) -> None:
    assert "this machine submits to a SLURM cluster" in refused(user.run("run_script.sh", "vars.sh"))[0]
    # With it, without a controller that answers, or in a job, it goes on to its checks.
    for environ in ({"SAC_ALLOW_LOGIN": "1"}, {"STATE": "DOWN"}, {"SLURM_JOB_ID": "7"}):
        assert "trains with" in user.run("run_script.sh", "vars.sh", **environ).stdout
    assert "trains with" in user.run("run_script.sh", "--check", "vars.sh").stdout


def surrounded(user: User, *, more: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """`run_script.sh` with more variables, up to Python."""
    user.write_vars(more)
    return user.run("run_script.sh", "vars.sh", **{"SAC_ALLOW_LOGIN": "1", **environ})


def test_the_prelude_runs_first_and_only_in_a_job(user: User) -> None:
    more = f"SAC_JOB_PRELUDE='echo loaded $NOTHING; export PATH={user.tools}/module:$PATH'\n"
    done = surrounded(user, more=more, SLURM_JOB_ID="7")
    assert done.stdout.startswith("loaded\n") and done.stdout.count("loaded") == 1
    assert "loaded" not in surrounded(user, more=more).stdout
    done = surrounded(user, more="SAC_JOB_PRELUDE='no_such_module load x'\n", SLURM_JOB_ID="7")
    assert "SAC_JOB_PRELUDE ends with exit code 127" in refused(done)[0]


def test_the_prefix_wraps_the_whole_run_once(user: User) -> None:
    (user.tools / "container").write_text('#!/usr/bin/env bash\necho "inside $1"\nshift\nINSIDE=1 exec "$@"\n')
    (user.tools / "container").chmod(0o755)
    more = "SAC_EXEC_PREFIX='container image.sif'\nSAC_JOB_PRELUDE='echo prelude $INSIDE'\n"
    done = surrounded(user, more=more, SLURM_JOB_ID="7")
    assert done.stdout.startswith("prelude\ninside image.sif\n") and done.stdout.count("inside") == 1
    assert "trains with" in done.stdout
    done = surrounded(user, more="SAC_EXEC_PREFIX='no_such_program x'\n")
    assert "there is no program no_such_program" in refused(done)[0]


def pack_environment(user: User, folder: Path) -> tuple[str, Path]:
    """More variables, and an empty scratch folder."""
    packed, scratch = folder / "packed", folder / "scratch"
    (packed / "bin").mkdir(parents=True)
    scratch.mkdir()
    shutil.copy2(user.tools / "../env/bin/python", packed / "bin/python")
    subprocess.run(["tar", "-czf", str(folder / "env.tar.gz"), "-C", str(packed), "."], check=True)
    return f"SAC_PACKED_ENV={folder}/env.tar.gz\n", scratch


def test_a_packed_environment_is_unpacked_once(user: User, tmp_path: Path) -> None:
    more, scratch = pack_environment(user, tmp_path)
    environ = {"VIRTUAL_ENV": "", "TMPDIR": str(scratch), "SLURM_JOB_ID": "7"}
    for words in (1, 0):
        for lock in scratch.glob("*/.lock"):
            os.utime(lock, (1, 1))
        done = surrounded(user, more=more, **environ)
        assert done.stderr.count("unpacking") == words and f"trains with {scratch}/sac_env_" in done.stdout, done
    (folder,) = scratch.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / ".lock").stat().st_mtime > 1  # By it `clean` sees when it was last used.
    (folder / ".complete").unlink()
    folder.chmod(0o755)
    assert "unpacking" in surrounded(user, more=more, **environ).stderr
    assert folder.stat().st_mode & 0o777 == 0o700
    # What anybody may have put there: a link, also to a folder of ours, and another user's folder.
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert "is a link, or is another user's: set TMPDIR" in surrounded(user, more=more, **environ).stderr
    folder.unlink()
    (tmp_path / "moved").rename(folder)
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        done = surrounded(user, more=more, **environ)
        assert "is a link, or is another user's: set TMPDIR" in done.stderr and "trains with" not in done.stdout


def test_an_environment_that_a_clean_up_takes_away_is_unpacked_anew(user: User, tmp_path: Path) -> None:
    more, scratch = pack_environment(user, tmp_path)
    environ = {"VIRTUAL_ENV": "", "TMPDIR": str(scratch), "SLURM_JOB_ID": "7"}
    assert surrounded(user, more=more, **environ).returncode == 0
    (folder,) = scratch.iterdir()
    lock = folder / ".lock"
    for path in (folder, lock):
        os.utime(path, (1, 1))
    assert [found.path for found in clean.unused_environments(str(scratch))] == [str(folder)]
    told: list[subprocess.CompletedProcess[str]] = []
    start = threading.Thread(target=lambda: told.append(surrounded(user, more=more, **environ)))
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # As a clean-up does.
        start.start()
        wait_until(lambda: lock.stat().st_mtime > 1)  # The start has opened it.
        folder.rename(tmp_path / "aside")
    start.join()
    shutil.rmtree(tmp_path / "aside")
    assert "unpacking" in told[0].stderr and f"trains with {folder}/env/bin/python" in told[0].stdout
    assert (folder / "env/bin/python").exists() and (folder / ".complete").exists()
    assert lock.exists() and folder.stat().st_mode & 0o777 == 0o700  # With a lock of its own.


def test_a_package_that_cannot_be_written_runs_all_the_same(user: User, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name in ("run_script.sh", "train_script.sh", "setup.sh", "pyproject.toml", "requirements.lock"):
        shutil.copy2(ROOT / name, package)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tfagents_system", package / "tfagents_system", ignore=ignore)
    before = sorted(package.rglob("*"))
    user.write_vars("SAC_TRAIN_CPUS=none SAC_PARAMS=no.py\n")
    subprocess.run(["chmod", "-R", "a-w", str(package)], check=True)
    try:
        # Root writes wherever it likes, unless it gives that up.
        drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner"] if os.geteuid() == 0 else []
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SAC_", "SLURM_"))}
        done = subprocess.run(
            [*drop, str(package / "run_script.sh"), "--check", "vars.sh"],
            cwd=user.folder, env={**environ, "VIRTUAL_ENV": sys.prefix}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert "SAC_TRAIN_CPUS=none must be" in done.stdout and "Traceback" not in done.stderr, done
        assert sorted(package.rglob("*")) == before
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(package)], check=True)
