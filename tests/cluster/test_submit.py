"""What a submission asks for, freezes, checks and passes on; sbatch is a fake one that notes what it is asked."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.login_node import FAKE_PYTHON, FAKE_SBATCH, ROOT, User, refused, sourced
from tfagents_system.cluster import submit
from tfagents_system.errors import UserError
from tfagents_system.run_files import params_folder

GOLDEN = Path(__file__).parent / "golden/job.sbatch"
SNAPSHOT = Path("/the snapshot")


def read(user: User, *options: str, **environ: str) -> submit.Run:
    """What is to be submitted."""
    base = submit.environ_outside(user.environ(**environ))
    return submit.read_run(submit.parse(["vars.sh", *options]), base)


def script(user: User, *options: str, **environ: str) -> list[str]:
    return submit.job_script(read(user, *options, **environ), SNAPSHOT).splitlines()


def findings(user: User, *options: str, **environ: str) -> list[str]:
    with pytest.raises(UserError) as error:
        read(user, *options, **environ)
    return list(error.value.findings)


def variables(user: User, folder: Path, *options: str, job: dict[str, str] | None = None, **environ: str) -> dict:
    """What a job has after it has read variables.sh."""
    (folder / "variables.sh").write_text(submit.variables_script(read(user, *options, **environ), SNAPSHOT))
    return sourced(folder / "variables.sh", **(job or {}))


# The job script.


def test_the_dry_run_prints_the_job_script_and_writes_nothing(user: User) -> None:
    done = user.submit("--dry_run", "--time", "1:00:00", "--partition=long", "--comment", 'x "y"', "--set", "n_step=2")
    assert done.returncode == 0, done.stderr
    shown = re.sub(r"snapshot/\d{8}-\d{6}-\d+", "snapshot/<time>", done.stdout)
    shown = re.sub(r"(?m)^python='.*?'", "python='<python>'", shown.replace(str(user.folder.parent), "<folder>"))
    assert shown == GOLDEN.read_text()
    assert not user.exp_dir.exists() and user.calls == []
    assert "  sbatch --time 1:00:00 --partition=long --comment 'x \"y\"' " in done.stderr
    assert f"run directory {user.exp_dir}, job script " in done.stderr


def test_the_job_script_that_is_submitted_is_the_one_that_was_shown(user: User) -> None:
    shown = user.submit("--dry_run", "--no_check", "--time=5", "--hold").stdout
    done = user.submit("--no_check", "--time=5", "--hold")
    assert done.returncode == 0 and "Submitted batch job 12" in done.stdout, done
    assert user.calls == [f"--time=5 --hold {user.snapshot}/job.sbatch"]
    stamp = re.compile(r"snapshot/\d{8}-\d{6}-\d+")
    assert stamp.sub("", (user.snapshot / "job.sbatch").read_text()) == stamp.sub("", shown)


@pytest.mark.parametrize(
    ("more", "options", "words"),
    [
        ("", (), "--cpus-per-task=18"),  # 2 + 4 + 5 * 2 + 2
        ("", (), "--mem=4500M"),  # 1500 + 5 * 400 + 1000
        ("SAC_REVERB_CPUS=auto SAC_TRAIN_CPUS= SAC_COLLECT_WORKER_CPUS=auto", (), "--cpus-per-task=10"),  # 1+2+5*1+2
        ("SAC_EXPERT_WORKERS=3", (), "--cpus-per-task=24"),  # 3 * 2 more
        ("SAC_EVAL_WORKERS=2", (), "--cpus-per-task=22"),  # 2 * 2 more
        ("SAC_WORKER_MEMORY_MB=1000", (), "--mem=7500M"),
        ("SAC_SAVE_DEADLINE_SECS=20.5", (), "--signal=B:USR1@80"),
        ("SAC_TRAIN_GPUS=1", ("--gres=tmpdisk:100",), "--gpus-per-node=1"),
        ("", ("-N3",), "--nodes=3"),
        ("", ("--nodes", "3"), "--no-kill"),
        ("SAC_EXP_DIR=/50%", (), "--output=/50%%/slurm-%j.out"),
    ],
)
def test_what_is_asked_for(user: User, more: str, options: tuple[str, ...], words: str) -> None:
    user.write_vars(more)
    asked = [
        word for line in script(user, "--dry_run", *options) if line.startswith("#SBATCH ") for word in line.split()
    ]
    assert words in asked


def test_a_run_that_goes_on_asks_for_the_ring_that_it_has(user: User) -> None:
    (user.exp_dir / "replay").mkdir(parents=True)
    with open(user.exp_dir / "replay/rows", "wb") as ring:
        os.posix_fallocate(ring.fileno(), 0, 1200 * 2**20)
    memory_mb = read(user).memory_mb
    (user.exp_dir / "replay/rows").unlink()
    assert 4700 <= memory_mb <= 4702


@pytest.mark.parametrize(
    ("options", "absent"),
    [(("--mem-per-cpu=2G",), "--mem="), (("--no-requeue",), "--requeue"), (("--mem", "9G"), "--mem=")]
    + [
        (own, "--gpus-per-node")
        for own in (("--gres=gpu:a100:1",), ("--gres", "gpu"), ("-G", "2"), ("-G2",), ("--gpus-per-task", "1"))
    ],
)  # fmt: skip
def test_a_users_options_win(user: User, options: tuple[str, ...], absent: str) -> None:
    user.write_vars("SAC_TRAIN_GPUS=1")
    lines = script(user, *options)
    assert not any(absent in line for line in lines) and f"#SBATCH {' '.join(options)}" in lines


def test_options_go_to_the_run_or_to_sbatch(user: User) -> None:
    given = ["--set", "config.note=it's a", "--keep", "--set=n_step=2", "--from", "old", "--study=/the study"]
    options = submit.parse(["vars.sh", *given, "--part=long", "-C", "fast", "--hold", "--", "--nodes=7"])
    assert options.run == ["--keep", "--from=old", "--study=/the study", "--set=config.note=it's a", "--set=n_step=2"]
    assert options.sbatch == ["--part=long", "-C", "fast", "--hold", "--nodes=7"]
    assert shlex.split(script(user, *given)[-1])[-5:] == options.run


# What is refused.


def test_all_that_is_wrong_is_told_at_once(user: User) -> None:
    (user.folder / "vars.sh").write_text("SAC_REVERB_CPUS=0 SAC_TRAIN_CPUS=two SAC_PARAMS=no.py SAC_TRAIN_GPUS=yes\n")
    text = "\n".join(found := refused(user.submit("--array", "x", "--nodes=2-4")))
    for words in (
        "SAC_REVERB_CPUS=0 must be an integer", "SAC_TRAIN_CPUS=two must be", "SAC_NUM_COLLECT_WORKERS=auto must",
        "SAC_PARAMS=no.py must be an existing file", "SAC_CONFIG is missing",
        "SAC_TRAIN_GPUS=yes must be 0 or 1", "SAC_EXP_NAME is missing", "--nodes=2-4 must be a number of nodes",
        "--array=x must be task ids such as 0-9",
    ):  # fmt: skip
        assert words in text
    assert len(found) == 9 and user.calls == [] and not user.exp_dir.exists()


@pytest.mark.parametrize(
    ("more", "options", "words"),
    [
        ("SAC_EXP_DIR=$PWD/my.json/run", (), "my.json/run can't be made"),
        ('SAC_EXP_DIR="$TMPDIR/run"', (), "must not depend on the job"),
        ("SAC_EXP_DIR=/tmp/a\\\"b", (), "must not have a quotation mark"),
        ("unset SAC_EXP_DIR; SAC_EXP_NAME=walk_task_3", ("--array=0-4",), "must not end in _task_3 with --array"),
        ("SAC_EXPERT_WORKERS=2", ("--nodes=2",), "as with --nodes: unset it, and let experts join"),
        ("SAC_DETERMINISTIC=1", ("--nodes=2",), "--nodes=2 does not work with SAC_DETERMINISTIC=1"),
        ("SAC_GRID=bad.json", ("--array=0-1",), "discount must be a list of at least one value"),
        ("SAC_GRID=my_grid.json", ("--array=0-1",), "SAC_TRAIN_CPUS can't be in a job array's grid"),
    ],
)  # fmt: skip
def test_refusals(user: User, more: str, options: tuple[str, ...], words: str) -> None:
    (user.folder / "bad.json").write_text('{"discount": 0.9}')
    (user.folder / "my_grid.json").write_text('{"SAC_TRAIN_CPUS": [1, 2]}')
    user.write_vars(f"{more}\n")
    (finding,) = findings(user, "--dry_run", *options)
    assert words in finding


def test_a_folder_that_is_too_large_is_refused(user: User) -> None:
    with (user.folder / "data.bin").open("wb") as file:
        file.truncate(101 * 2**20)
    (finding,) = findings(user)
    assert "MiB or more (at most 5000, and 100 MiB)" in finding


def test_the_command_line_is_checked(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ((), ("--time=3",), ("--time", "3", "vars.sh"), ("--set", "a=1", "vars.sh")):
        with pytest.raises(UserError, match="the vars file comes first, as in ./submit.sh"):
            submit.parse(words)
    with pytest.raises(UserError, match="--fresh is for starts by hand"):
        submit.parse(["vars.sh", "--fresh"])
    with pytest.raises(UserError, match="-a/--array: expected one argument: see ./submit.sh --help"):
        submit.parse(["vars.sh", "--array"])
    assert refused(user.run("submit.sh", "nowhere.sh"))[0].endswith(
        "/nowhere.sh is missing: give the path of a file such as training_variables.sh"
    )
    user.write_vars("false\n")
    assert "vars.sh fails: see above" in findings(user)[0]
    user.write_vars()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "sbatch is not on PATH" in findings(user)[0]


def test_a_login_node_needs_no_package(user: User) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tfagents_system.cluster import submit; submit.main()"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, "vars.sh", "--dry_run", "--no_check"],
        env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and "#SBATCH --job-name=test" in done.stdout, done.stderr  # HOME is unset, too.


# What is frozen.


def test_the_snapshot_holds_what_the_run_needs_and_nothing_else(user: User) -> None:
    (user.folder / "parts/deep").mkdir(parents=True)
    (user.folder / "parts/deep/robot.xml").write_text("<robot/>")
    (user.folder / "link.py").symlink_to(ROOT / "setup.sh")
    for unwanted in ("logs/old/x", ".git/x", "__pycache__/x", "env/pyvenv.cfg", "other/run.json"):
        (user.folder / unwanted).parent.mkdir(parents=True)
        (user.folder / unwanted).touch()
    (user.folder / "my_grid.json").write_text('{"discount": [0.9, 0.99]}')
    user.write_vars("SAC_GRID=my_grid.json\n")
    assert user.submit("--array=0-1").returncode == 0
    files = sorted(str(path.relative_to(user.snapshot)) for path in user.snapshot.glob("params/**/*") if path.is_file())
    names = ["link.py", "my.json", "my_grid.json", "my_params.py", "parts/deep/robot.xml", "vars.sh"]
    assert files == [f"params/{name}" for name in names]
    kept = params_folder.files_of(user.folder, [user.folder / "run_array"])
    assert kept == names, "what a run keeps"
    assert params_folder.digests_of(user.snapshot / "params", kept) == params_folder.digests_of(user.folder, kept)
    package = user.snapshot / "package"
    assert (package / "tfagents_system/launch/run_script.sh").stat().st_mode & 0o111
    program = "tfagents_system/sac_train.py"
    assert (package / program).read_bytes() == (ROOT / program).read_bytes()
    assert not list(package.rglob("__pycache__"))
    assert (user.snapshot / "variables.sh").stat().st_mode & 0o777 == 0o600, "people put tokens into preludes"
    values = user.resolved()
    assert values["SAC_PARAMS"] == f"{user.snapshot}/params/my_params.py"
    assert Path(values["SAC_CONFIG"]).read_text() == "{}" and "0.99" in Path(values["SAC_GRID"]).read_text()
    assert user.calls == [f"--array=0-1%10 {user.snapshot}/job.sbatch"]
    assert f'#SBATCH --output="{user.folder}/run_array/slurm-%A_%a.out"\n' in (user.snapshot / "job.sbatch").read_text()


def test_params_of_the_toolkit_are_those_of_the_frozen_package(user: User) -> None:
    place = "tfagents_system/examples/pendulum/params.py"
    user.write_vars(f"SAC_PARAMS={ROOT}/{place}\n")
    run = read(user)
    assert run.files == [] and f"SAC_PARAMS='{SNAPSHOT}/package/{place}'" in submit.variables_script(run, SNAPSHOT)


def test_paths_are_absolute_and_found_as_by_a_start(user: User, tmp_path: Path) -> None:
    elsewhere = user.folder / "beside"
    elsewhere.mkdir()
    (elsewhere / "my_params.py").touch()
    for name in ("expert.npz", "old_run/run.json"):
        (elsewhere / name).parent.mkdir(exist_ok=True)
        (elsewhere / name).touch()
    user.write_vars(
        "SAC_EXPERT_POLICY=expert.npz SAC_FROM=old_run@best\n"
        "SAC_PASSWORD_FILE=secret SAC_CREDENTIALS_DIR=~/mine SAC_REPLAY_DIR=../ring\n"
        "SAC_MLFLOW_URI=sqlite:////runs/a.db\n"
    )
    (user.folder / "vars.sh").rename(elsewhere / "vars.sh")
    (user.folder / "vars.sh").symlink_to("beside/vars.sh")
    values = variables(user, tmp_path, HOME="/home/me")
    assert values["SAC_PARAMS"] == f"{SNAPSHOT}/params/my_params.py"
    assert values["SAC_EXPERT_POLICY"] == f"{elsewhere}/expert.npz"
    assert values["SAC_FROM"] == f"{elsewhere}/old_run@best"
    assert values["SAC_PASSWORD_FILE"] == f"{user.folder}/secret" and values["SAC_CREDENTIALS_DIR"] == "/home/me/mine"
    assert values["SAC_MLFLOW_URI"] == "sqlite:////runs/a.db"
    assert values["SAC_REPLAY_DIR"] == str(user.folder.parent / "ring"), "each run has a folder of its own there"
    assert values["SAC_EXP_DIR"] == str(user.exp_dir) and values["SAC_SEED"] == "3"


def test_options_win_over_the_vars_file(user: User, tmp_path: Path) -> None:
    done = user.submit("--no-check", "--name", "mine", "--seed=7", "--workers", "2", "--set", "SAC_TRAIN_CPUS=3")
    assert done.returncode == 0, done.stderr
    values = sourced(user.snapshot / "variables.sh")
    names = ("SAC_EXP_NAME", "SAC_SEED", "SAC_NUM_COLLECT_WORKERS", "SAC_TRAIN_CPUS")
    assert [values[name] for name in names] == ["mine", "7", "2", "3"]
    assert "--cpus-per-task=11" in (user.snapshot / "job.sbatch").read_text()  # 2 + 3 + 2 * 2 + 2


def test_further_nodes_get_as_many_workers(user: User, tmp_path: Path) -> None:
    values = variables(user, tmp_path, "--nodes", "3")
    names = ("SAC_LOCAL_WORKERS", "SAC_NUM_COLLECT_WORKERS", "SAC_GATEWAY_PORT")
    assert [values[name] for name in names] == ["5", "15", "0"]
    assert script(user, "--nodes=3")[-1].endswith("/run' 5")
    user.write_vars("SAC_GATEWAY_PORT=8443\n")
    assert variables(user, tmp_path, "--nodes=3")["SAC_GATEWAY_PORT"] == "8443"


# What only the job knows.


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("SAC_REPLAY_DIR=$SLURM_TMPDIR/ring", {"SAC_REPLAY_DIR": "/node/ring"}),
        ('SAC_ROBOT="it\'s \\$HOME $(echo 7)"', {"SAC_ROBOT": "it's $HOME 7"}),
        ('XDG_CACHE_HOME="$TMPDIR/it\'s"', {"XDG_CACHE_HOME": "/node/tmp/it's"}),
        ("TRACK=track_$SLURM_ARRAY_TASK_ID", {"TRACK": "track_2"}),
        ("TMPDIR=/mine SAC_REPLAY_DIR=$TMPDIR/ring", {"TMPDIR": "/mine", "SAC_REPLAY_DIR": "/mine/ring"}),
        ("TMPDIR=$SLURM_TMPDIR/mine", {"TMPDIR": "/node/mine"}),
        ("readonly CACHE=$TMPDIR/cache SLURM_NTASKS=1", {"CACHE": "/node/tmp/cache"}),
    ],
)
def test_it_is_expanded_in_the_job(user: User, tmp_path: Path, lines: str, expected: dict[str, str]) -> None:
    user.write_vars(f"{lines}\n")
    job = {"SLURM_TMPDIR": "/node", "TMPDIR": "/node/tmp", "SLURM_ARRAY_TASK_ID": "2"}
    values = variables(user, tmp_path, "--array=0-3", job=job, TMPDIR="/login")
    assert {name: values[name] for name in expected} == expected


def test_inside_the_prefix_what_the_prelude_made_of_a_variable_stays(user: User) -> None:
    told = 'case "$*" in *required_packages*) exit 0 ;; esac\necho "PATH=$PATH KEPT=$KEPT LOST=$LOST"\n'
    user.add_tool("../env/bin/python", f"#!/usr/bin/env bash\n{told}")
    user.write_vars(
        "SAC_EXEC_PREFIX='env -u LOST nice -n 1' \n"
        "KEPT=$SLURM_TMPDIR/kept LOST=$SLURM_TMPDIR/lost\n"
        "SAC_JOB_PRELUDE='export PATH=/module/bin:$PATH KEPT=/of/the/module'\n"
    )
    assert user.submit("--no_check").returncode == 0
    done = user.run("run_script.sh", f"{user.snapshot}/variables.sh", SLURM_JOB_ID="7", SLURM_TMPDIR="/node")
    assert done.returncode == 0, done
    assert "PATH=/module/bin:" in done.stdout and "KEPT=/of/the/module" in done.stdout
    assert "LOST=/node/lost" in done.stdout, "what a container drops is given to it again"


def test_a_job_has_nothing_of_the_one_that_it_is_submitted_from(user: User) -> None:
    of_another = {
        "SLURM_JOB_ID": "5", "SLURM_MEM_PER_CPU": "100", "SLURM_ARRAY_TASK_ID": "3", "SLURM_TMPDIR": "/tmp/5",
        "SLURMD_NODENAME": "node5", "CUDA_VISIBLE_DEVICES": "1", "TFAGENTS_NO_TASK": "1",
    }  # fmt: skip
    of_commands = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_TIME_FORMAT": "relative", "SLURM_JWT": "token"}
    user.write_vars("SAC_REPLAY_DIR=$SLURM_TMPDIR/ring\n")
    assert user.submit("--no_check", **of_another, **of_commands).returncode == 0
    told = user.environ_of_sbatch
    kept = {name: told[name] for name in told if name in of_another or name.startswith(("SLURM", "TFAGENTS_"))}
    assert kept == of_commands
    assert '"${SLURM_TMPDIR:-' in (user.snapshot / "variables.sh").read_text()
    assert submit.environ_outside({"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": "1"}, "of no job"


# The check, and what sbatch says.


def checks(user: User, ends: str) -> None:
    """The check of a start tells what it gets, and ends so."""
    told = 'printf "%s\\n" "$*" "job $SLURM_JOB_ID task $SLURM_ARRAY_TASK_ID memory $TFAGENTS_JOB_MB" >"$0.check"\n'
    user.add_tool("../env/bin/python", f"{FAKE_PYTHON}{told}{ends}\n")


@pytest.mark.parametrize("options", [(), ("--dry_run",)])
def test_what_was_frozen_is_checked_before_it_is_queued(user: User, options: tuple[str, ...]) -> None:
    checks(user, "echo 'note  memory  it is tight'; echo 'ok    config  fine'; exit 0")
    done = user.submit("--set", "discount=0.9", "--array=7-9", *options)
    assert done.returncode == 0 and "note  memory  it is tight\nchecked: nothing" in done.stderr
    command, given = (user.tools / "../env/bin/python.check").read_text().splitlines()
    assert "/variables.sh" in command and command.endswith("--set discount=0.9 --check")
    assert given == "job 0 task 7 memory 4500"
    assert len(user.calls) == (not options) and user.folder.joinpath("run_array").exists() == (not options)


@pytest.mark.parametrize(
    ("option", "memory"),
    [("--mem=2G", "2048"), ("--mem=3000", "3000"), ("--mem=0", ""), ("--mem-per-cpu=2G", "")],
)
def test_the_memory_that_was_asked_for_is_checked(user: User, option: str, memory: str) -> None:
    assert submit.memory_of_job(read(user, option)) == memory


def test_what_the_check_refuses_is_not_queued(user: User) -> None:
    checks(user, "echo 'ok    config  fine'; echo 'ERROR params  num_iter is missing'; exit 2")
    user.exp_dir.mkdir()
    (user.exp_dir / "run.json").touch()
    done = user.submit()
    assert done.returncode == 2 and user.calls == []
    assert "ERROR params  num_iter is missing" in done.stderr and "fine" not in done.stderr
    assert refused(done)[0].startswith("nothing was submitted: correct what is said above")
    assert [path.name for path in user.exp_dir.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("SAC_EXEC_PREFIX='container x'", "the environment is that of SAC_EXEC_PREFIX"),
        (': "${SAC_JOB_PRELUDE:=touch ran; cp data $SLURM_TMPDIR}"', "the environment is that of SAC_JOB_PRELUDE"),
        ("SAC_PYTHON=/opt/on_nodes/python", "SAC_PYTHON=/opt/on_nodes/python is no program here"),
        ("", ""),
    ],
)
def test_where_the_check_can_not_be_made_the_job_makes_it(user: User, more: str, words: str) -> None:
    user.write_vars(f"{more}\n")
    assert submit.why_unchecked(read(user)) == words
    assert not list(user.folder.rglob("ran"))


def test_a_check_that_hangs_or_breaks_holds_nothing_up(user: User) -> None:
    checks(user, "exit 1")
    done = user.submit()
    assert done.returncode == 0 and "could not be checked here (exit code 1)" in done.stderr and len(user.calls) == 1
    checks(user, "exec sleep 300")
    done = user.submit(TFAGENTS_CHECK_SECS="0.5")
    assert done.returncode == 0 and "could not be checked within 0.5 s" in done.stderr and len(user.calls) == 2


REFUSING_SBATCH = FAKE_SBATCH.replace("echo", "echo sbatch: error: ${REASON:-invalid partition} >&2; exit 1;")


@pytest.mark.parametrize(
    ("options", "environ", "stays"),
    [
        ((), {}, False),
        ((), {"REASON": "Socket timed out on send/recv operation"}, True),
        (("--wait",), {}, True),
    ],
)
def test_what_sbatch_refuses_leaves_nothing(
    user: User, options: tuple[str, ...], environ: dict[str, Any], stays: bool
) -> None:
    user.add_tool("sbatch", REFUSING_SBATCH)
    (user.folder / "mine/empty").mkdir(parents=True)
    user.write_vars(f"SAC_EXP_DIR={shlex.quote(str(user.folder))}/mine/empty/new/run\n")
    done = user.submit("--no_check", *options, **environ)
    assert done.returncode == 1 and f"sbatch: error: {environ.get('REASON', 'invalid partition')}\n" in done.stderr
    assert ("nothing was submitted" in done.stderr) == (not stays)
    assert len(user.calls) == 1
    assert [path.name for path in (user.folder / "mine/empty").iterdir()] == ["new"] * stays, "what was there stays"
