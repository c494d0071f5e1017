"""What submit.sh checks before anything is queued, and what it refuses; sbatch itself is a fake one."""

from __future__ import annotations

import os
import shlex
import shutil
import time

import pytest

from tests.support.login_node import FAKE_PYTHON, User, refused

CHECKING_PYTHON = (
    FAKE_PYTHON
    + """
printf '%s\\n' "$*" "job $SLURM_JOB_ID task $SLURM_ARRAY_TASK_ID memory $TFAGENTS_JOB_MB" >"$0.check"
{ends}
"""
)


def checks(user: User, ends: str) -> None:
    user.add_tool("../env/bin/python", CHECKING_PYTHON.replace("{ends}", ends))


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


def test_the_dry_run_checks_the_run_on_all_nodes(user: User) -> None:
    checks(user, "exit 0")
    for port, told in (("", "0"), ("SAC_GATEWAY_PORT=8443\n", "8443")):
        user.write_vars(port)
        done = user.submit("--dry_run", "--nodes=3", "--keep")
        assert done.returncode == 0, done
        command = (user.tools / "../env/bin/python.check").read_text().splitlines()[0]
        assert command.endswith(
            f"--keep --set SAC_LOCAL_WORKERS=5 --set SAC_NUM_COLLECT_WORKERS=15 --set SAC_GATEWAY_PORT={told} --check"
        )
        assert "--set" not in done.stdout, "the job has them from variables.sh"


def test_trials_of_a_study_are_checked_without_the_vars_files_grid(user: User) -> None:
    checks(user, "exit 0")
    user.write_vars("SAC_GRID=grid.json\n")
    (user.folder / "grid.json").write_text('{"discount": [0.9]}')
    assert user.submit("--study=/the/study", "--array=7", "--set", "n_step=2").returncode == 0
    command = (user.tools / "../env/bin/python.check").read_text().splitlines()[0]
    assert command.endswith("--set n_step=2 --set SAC_GRID= --check") and "tasks.study" not in command


def test_tasks_of_an_array_ask_for_the_same_and_have_the_same_files(user: User) -> None:
    user.write_vars("SAC_GRID=grid.json\n")
    (user.folder / "grid.json").write_text('{"SAC_NUM_COLLECT_WORKERS": [2, 40], "SAC_CONFIG": ["my.json", "c.json"]}')
    workers, config = refused(user.submit("--array=0-3", "--no_check"))
    grid = f"grid file {user.folder}/grid.json"
    assert workers.startswith(f"{grid}: SAC_NUM_COLLECT_WORKERS can't be in a job array's grid")
    assert config.startswith(f"{grid}: SAC_CONFIG can't be in a job array's grid") and user.calls == []
    assert user.submit("--study=/the/study", "--array=7", "--no_check").returncode == 0, "it has its own settings"
    (user.folder / "grid.json").write_text('{"discount": 0.9}')
    (finding,) = refused(user.submit("--array=0-3", "--no_check"))
    assert finding.startswith(f"{grid}: discount must be a list of values")


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


@pytest.mark.parametrize(
    "line",
    [
        'SAC_JOB_PRELUDE="touch ran; cp data $SLURM_TMPDIR"',
        ': "${SAC_JOB_PRELUDE:=touch ran; cp data $SLURM_TMPDIR}"',
        'SAC_EXEC_PREFIX="touch ran $SLURM_TMPDIR"',
    ],
)
@pytest.mark.parametrize("options", [(), ("--dry_run",)])
def test_a_prelude_that_refers_to_the_job_does_not_run_on_the_login_node(
    user: User, line: str, options: tuple[str, ...]
) -> None:
    checks(user, "exit 2")
    user.write_vars(f"{line}\n")
    done = user.submit(*options)
    assert done.returncode == 0 and "checked by the job, not here: the environment is that of SAC_" in done.stderr
    assert not list(user.folder.rglob("ran")) and not (user.tools / "../env/bin/python.check").exists()


def test_the_check_of_a_dry_run_has_no_stand_ins_for_what_only_the_job_knows(user: User) -> None:
    checks(user, 'echo "note  $SAC_REPLAY_DIR $CACHE"; exit 0')
    user.write_vars(': "${SAC_REPLAY_DIR:=$SLURM_TMPDIR/ring}" "${CACHE:=$SLURM_TMPDIR/cache}"\n')
    assert "note  /ring /cache\n" in user.submit("--dry_run").stderr


def test_a_python_that_only_nodes_have_is_left_to_the_job(user: User) -> None:
    """The start is refused here, which says nothing of the place where the job runs."""
    user.write_vars("SAC_PYTHON=/opt/on_nodes/bin/python\n")
    done = user.submit()
    assert done.returncode == 0 and len(user.calls) == 1 and (user.snapshot / "job.sbatch").exists(), done
    assert "checked by the job, not here: SAC_PYTHON=/opt/on_nodes/bin/python is no program here" in done.stderr
    assert "nothing was submitted" not in done.stderr
    user.write_vars("SAC_PYTHON=$SLURM_TMPDIR/env/bin/python\n")
    done = user.submit("--dry_run")
    assert done.returncode == 0 and "checked by the job, not here: SAC_PYTHON=" in done.stderr, done


@pytest.mark.parametrize("where", ["", "/", "/new/run", "/new//run/", "/../empty/run"])
def test_folders_that_were_there_outlive_a_refusal(user: User, where: str) -> None:
    checks(user, "exit 2")
    mine = user.folder / "mine/empty"
    mine.mkdir(parents=True)
    user.write_vars(f"SAC_EXP_DIR={shlex.quote(f'{mine}{where}')}\n")
    assert user.submit().returncode == 2
    assert mine.is_dir() and not list(mine.iterdir())


REFUSING_SBATCH = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$0.calls"
echo "sbatch: error: ${REASON:-invalid partition}" >&2
exit 1
"""


@pytest.mark.parametrize(
    ("options", "environ", "stays"),
    [
        ((), {}, False),
        (("--array=0-99",), {}, False),
        ((), {"REASON": "Socket timed out on send/recv operation"}, True),
        (("--wait",), {}, True),
    ],
    ids=["a job", "an array", "perhaps queued", "the job has failed"],
)
def test_what_sbatch_refuses_leaves_nothing(
    user: User, options: tuple[str, ...], environ: dict[str, str], stays: bool
) -> None:
    user.add_tool("sbatch", REFUSING_SBATCH)
    done = user.submit("--no_check", *options, **environ)
    assert done.returncode == 1 and f"sbatch: error: {environ.get('REASON', 'invalid partition')}\n" in done.stderr
    assert ("nothing was submitted" in done.stderr) == (not stays)
    assert len(user.calls) == 1
    assert [path.is_dir() for path in user.folder.glob("run*")] == [True] * stays
    assert not stays or (user.snapshot / "job.sbatch").exists()


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
    (user.folder / "vars.sh").write_text("SAC_REVERB_CPUS=0 SAC_TRAIN_CPUS=two SAC_PARAMS=no.py SAC_TRAIN_GPUS=yes\n")
    findings = refused(user.submit("--array", "0..3", "--nodes=2-4"))
    text = "\n".join(findings)
    assert len(findings) == 9
    for words in (
        "SAC_REVERB_CPUS=0 must be a whole number", "SAC_TRAIN_CPUS=two must be", "SAC_NUM_COLLECT_WORKERS=auto must",
        "SAC_PARAMS=no.py must be an existing file", "SAC_CONFIG is missing",
        "SAC_TRAIN_GPUS=yes must be 0 or 1", "SAC_EXP_NAME is missing", "--nodes=2-4 must be a number of nodes",
        "--array=0..3 must be task ids such as 0-9",
    ):  # fmt: skip
        assert words in text
    assert user.calls == [] and not user.exp_dir.exists()


def test_files_are_looked_for_as_by_a_start(user: User) -> None:
    elsewhere = user.folder / "elsewhere"
    elsewhere.mkdir()
    (user.folder / "vars.sh").rename(elsewhere / "vars.sh")
    (elsewhere / "my_params.py").write_text("class TrainParams: ...  # Of the vars file's folder.\n")
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
    with (user.folder / "data.bin").open("wb") as file:
        file.truncate(101 * 2**20)
    (finding,) = refused(user.submit())
    assert "has 4 files with 101 MiB or more (at most 5000, and 100 MiB)" in finding
    assert "a folder of their own" in finding and "Traceback" not in finding
