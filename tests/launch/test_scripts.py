"""The shell scripts: what run_script.sh says of a vars file, what surrounds a job, when setup.sh installs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import packaging
import pytest

from tests.support.login_node import User, refused
from tests.support.shell import ROOT, run
from tfagents_system.errors import UserError
from tfagents_system.launch.vars_file import read_vars_file

GOOD_VARS = """
SAC_REVERB_CPUS=1 SAC_TRAIN_CPUS=1 SAC_NUM_COLLECT_WORKERS=1
export SAC_COLLECT_WORKER_CPUS=1
SAC_EXP_NAME=try SAC_SHARE_CPUS=1
"""


def test_launchers_import_nothing_that_takes_seconds_and_memory() -> None:
    """A supervisor is there as long as its run is, and a start waits for it."""
    code = (
        "import sys\nfrom tfagents_system.cluster import join\nfrom tfagents_system.launch import prepare, start\n"
        "from tfagents_system.tasks import search, sweep\n"
        "print(sorted({'tensorflow', 'reverb', 'tf_agents', 'pandas', 'matplotlib', 'gymnasium'} & sys.modules.keys()))"
    )
    done = run(sys.executable, "-c", code, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("script", ["run_script.sh", "train_script.sh", "submit.sh", "setup.sh", "run_tests.sh"])
def test_help(script: str, tmp_path: Path) -> None:
    done = run(ROOT / script, "--help", cwd=tmp_path)
    assert done.returncode == 0 and "sage: ./" in done.stdout and done.stderr == ""
    assert len((ROOT / script).read_text().splitlines()) <= 100


def test_run_script_takes_a_vars_file(tmp_path: Path) -> None:
    done = run(ROOT / "run_script.sh", "nowhere.sh", cwd=tmp_path)
    assert done.returncode == 2 and "error: vars file nowhere.sh is missing" in done.stderr
    (tmp_path / "params.py").write_text("import gymnasium\n")
    done = run(ROOT / "run_script.sh", "params.py", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.endswith("train it as it is: sac train PARAMS.py --config JSON\n")


def test_settings_may_stand_before_and_after_the_file(tmp_path: Path, activated: dict[str, str]) -> None:
    (tmp_path / "my.sh").write_text(GOOD_VARS)
    options = ["--set", "SAC_SED=1", "my.sh", "--set=nonsense", "--name", "a b", "--seed=x", "--workers", "0"]
    done = run(ROOT / "run_script.sh", *options, cwd=tmp_path, **activated)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    for part in (
        "--set: SAC_SED is not a known variable",
        "--set nonsense: it must be NAME=VALUE",
        "SAC_PARAMS is missing",
        "SAC_SEED",
        "SAC_NUM_COLLECT_WORKERS",
    ):
        assert part in done.stderr
    done = run(ROOT / "run_script.sh", "my.sh", "--set", cwd=tmp_path)
    assert done.returncode == 2 and "--set needs NAME=VALUE" in done.stderr
    for options, told in (
        (["my.sh", "--sett", "a=1"], "--sett is no option of ./run_script.sh: give --check, --name, "),
        (["--fressh=3", "my.sh"], "--fressh is no option of ./run_script.sh: give --check, "),
        (
            ["my.sh", "--no_video"],
            "--no_video is no option of ./run_script.sh: give --check, --name, --seed, --workers, --set, ",
        ),
        ([], "VARS.sh is missing: ./run_script.sh VARS.sh, or --help"),
        (["my.sh", "your.sh"], "one vars file, found my.sh your.sh: give one"),
    ):
        done = run(ROOT / "run_script.sh", *options, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.startswith(f"error: {told}") and done.stderr.count("\n") == 1
    for script in ("submit.sh", "tfagents_system/launch/join_script.sh"):
        done = run(ROOT / script, "--nowhere", cwd=tmp_path)
        assert done.returncode == 2 and "the vars file comes first" in done.stderr


@pytest.mark.parametrize(
    ("text", "line"),
    [("SAC_SEED=1\nfalse\nSAC_SEED=2\n", "(line 2)"), ("SAC_SEED=$(cat nowhere)\n", "(line 1)"),
     ("SAC_SEED=1\nexit 0\n", ""), ("no_such_command\n", "(line 1)")],
)  # fmt: skip
def test_a_vars_file_that_fails_is_named(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "my.sh").write_text(text)
    done = run(ROOT / "run_script.sh", "my.sh", cwd=tmp_path)
    assert done.returncode == 2
    assert f"error: vars file {tmp_path}/my.sh fails" in done.stderr and line in done.stderr


def test_a_start_knows_how_it_was_called_where_the_words_alone_call_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "my arm.sh").write_text('echo "call: ${TFAGENTS_CALL-none}" >&2\nfalse\n')
    words = [str(ROOT / "run_script.sh"), "my arm.sh", "--seed", "3"]
    for variables, call in (({}, f"{ROOT}/run_script.sh my\\ arm.sh --seed 3"), ({"SAC_EXP_NAME": "arm"}, "none")):
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SAC_", "TFAGENTS_"))}
        done = subprocess.run(words, cwd=tmp_path, env=environ | variables, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and f"call: {call}\n" in done.stderr, done.stderr


def test_a_vars_file_that_is_no_shell_is_told_with_its_line_alone(tmp_path: Path) -> None:
    (tmp_path / "my.sh").write_text('SAC_SEED=1\nSAC_EXP_NAME="arm\n')
    told = "vars file my.sh: line 2: unexpected EOF while looking for matching `\"': correct this line, or one above it"
    done = run(ROOT / "run_script.sh", "my.sh", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"error: {told}\n")
    with pytest.raises(UserError) as raised:
        read_vars_file(tmp_path / "my.sh")
    assert str(raised.value) == told.replace("my.sh", f"{tmp_path}/my.sh")
    (tmp_path / "my.sh").write_text("shopt -s extglob\ncase vm7 in @(vm|node)*) SAC_SEED=3 ;; esac\n")
    assert read_vars_file(tmp_path / "my.sh")["SAC_SEED"] == "3"
    (tmp_path / "arm").mkdir()
    (tmp_path / "arm/vars.sh").touch()
    with pytest.raises(UserError, match=f"vars file {tmp_path}/arm is missing: give {tmp_path}/arm/vars.sh"):
        read_vars_file(tmp_path / "arm")
    assert run(ROOT / "run_script.sh", "arm/", cwd=tmp_path).stderr.endswith("read: give arm/vars.sh\n")


def test_missing_variables_are_told_with_the_file_and_nothing_else(tmp_path: Path, activated: dict[str, str]) -> None:
    (tmp_path / "my.sh").write_text(GOOD_VARS + '[[ -n "$UNSET" ]] || :\ncd /\n')
    done = run(ROOT / "run_script.sh", "my.sh", cwd=tmp_path, **activated)
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2 and "SAC_PARAMS is missing" in errors[0] and "SAC_CONFIG is missing" in errors[1]
    assert f"{tmp_path}/my.sh" in errors[0] and "Traceback" not in done.stderr


@pytest.fixture
def activated() -> dict[str, str]:
    """This very Python, activated: it holds the required packages."""
    return {"VIRTUAL_ENV": sys.prefix, "CONDA_PREFIX": ""}


# What surrounds a run in its job: a prelude and a prefix.


def surrounded(user: User, *, more: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """`run_script.sh` with more variables, up to Python."""
    user.write_vars(more)
    return user.run("run_script.sh", "vars.sh", **{"SAC_ALLOW_LOGIN": "1", **environ})


def test_the_prelude_runs_first_and_only_in_a_job(user: User) -> None:
    more = f"SAC_JOB_PRELUDE='echo loaded $NOTHING; export PATH={user.tools}/module:$PATH'\n"
    done = surrounded(user, more=more, SLURM_JOB_ID="7")
    assert done.stdout.startswith("loaded\n") and done.stdout.count("loaded") == 1
    assert "loaded" not in surrounded(user, more=more).stdout
    done = surrounded(user, more="SAC_JOB_PRELUDE='declare -x SAC_SEED=11'\n", SLURM_JOB_ID="7")
    assert done.stdout.endswith("and seed 11\n"), "as `export -p` writes it"
    done = surrounded(user, more="SAC_JOB_PRELUDE='TOKEN=s3cret no_such_module load x'\n", SLURM_JOB_ID="7")
    assert "SAC_JOB_PRELUDE ends with exit code 127" in refused(done)[0] and "s3cret" not in done.stderr


def test_the_prefix_wraps_the_whole_run_once(user: User) -> None:
    (user.tools / "container").write_text(
        '#!/usr/bin/env bash\necho "inside $1"\necho "$*" >arguments\nshift\nINSIDE=1 exec "$@"\n'
    )
    (user.tools / "container").chmod(0o755)
    more = "SAC_EXEC_PREFIX='container image.sif'\nSAC_JOB_PRELUDE='echo prelude $INSIDE'\n"
    done = surrounded(user, more=more, SLURM_JOB_ID="7", SLURM_JWT="s3cret")
    assert done.stdout.startswith("prelude\ninside image.sif\n") and done.stdout.count("inside") == 1
    assert "trains with" in done.stdout
    arguments = (user.folder / "arguments").read_text()
    assert "SLURM_JOB_ID=7" in arguments and "s3cret" not in arguments, "everybody can read them"
    done = surrounded(user, more="SAC_EXEC_PREFIX='no_such_program x'\n")
    assert "there is no program no_such_program" in refused(done)[0]


# setup.sh, in a repository of its own that pins a package of no content, with a uv that only notes what it is asked.

PINNED = "lib/python3.11/site-packages/pinned_thing-1.0.dist-info"
BASE = Path(sys.executable).resolve()
FAKE_UV = f"""#!/usr/bin/env bash
set -e
echo "$1 $2" >> "$UV_LOG"
case $1 in
  venv)
    for last; do :; done
    mkdir -p "$last/bin" "$last/{PINNED}"
    ln -sf {BASE} "$last/bin/python"
    printf "home = {BASE.parent}\\ninclude-system-site-packages = false\\n" >"$last/pyvenv.cfg"
    printf 'Name: pinned-thing\\nVersion: 1.0\\n' >"$last/{PINNED}/METADATA"
    ln -sfn {Path(packaging.__file__).parent} "$last/{PINNED}/../packaging"
    ;;
  pip) sleep "${{UV_SLEEP:-0}}"; if [[ -n ${{UV_FAIL:-}} ]]; then exit 1; fi ;;
  *) exit 1 ;;
esac
"""
INSTALLED = ["venv --quiet", "pip install", "pip install"]  # The packages, then the toolkit itself.

LAUNCH_FILES = ("environment.sh", "shell_variables.sh", "required_packages.py")


class Repository:
    def __init__(self, root: Path) -> None:
        self.root = root / "repository"
        (self.root / "tfagents_system/launch").mkdir(parents=True)
        launch = "tfagents_system/launch"
        for name in ("setup.sh", *(f"{launch}/{name}" for name in LAUNCH_FILES)):
            shutil.copy2(ROOT / name, self.root / name)
        self.pin(["pinned-thing==1.0"])
        (self.root / "requirements.lock").write_text("# nothing\n")
        tools = root / "tools"
        tools.mkdir()
        (tools / "uv").write_text(FAKE_UV)
        (tools / "uv").chmod(0o755)
        self.log = root / "uv.log"
        self.tools = tools
        self.environ = {"PATH": f"{tools}:{os.environ['PATH']}", "UV_LOG": str(self.log)}
        self.environ |= {"VIRTUAL_ENV": "", "CONDA_PREFIX": ""}

    def pin(self, dependencies: list[str]) -> None:
        (self.root / "pyproject.toml").write_text(
            f"[project]\ndependencies = {dependencies!r}\n[project.optional-dependencies]\ndev = []\n"
        )

    def setup(self, **environ: str) -> subprocess.CompletedProcess[str]:
        return run(self.root / "setup.sh", "--print-python", cwd=self.root.parent, **{**self.environ, **environ})

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def environment(folder: Path) -> Path:
    """A virtual environment that holds the pinned package."""
    for part in ("bin", PINNED):
        (folder / part).mkdir(parents=True)
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(BASE)
    (folder / "pyvenv.cfg").write_text(f"home = {BASE.parent}\ninclude-system-site-packages = false\n")
    (folder / PINNED / "METADATA").write_text("Name: pinned-thing\nVersion: 1.0\n")
    (folder / PINNED).with_name("packaging").symlink_to(Path(packaging.__file__).parent)
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_two_setups_at_once_install_once_and_another_when_the_lock_has_changed(repository: Repository) -> None:
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda _: repository.setup(UV_SLEEP="1"), range(2)))
    assert [done.returncode for done in both] == [0, 0], both
    assert {done.stdout for done in both} == {f"{repository.root}/.venv/bin/python\n"}
    assert repository.calls == INSTALLED
    assert repository.setup().stdout == both[0].stdout and len(repository.calls) == 3
    (repository.root / "requirements.lock").write_text("# other\n")
    assert repository.setup().returncode == 0 and len(repository.calls) == 6


def test_jobs_install_nothing(repository: Repository) -> None:
    repository.pin(["no-such-package==1.0"])
    done = repository.setup(SLURM_JOB_ID="7")
    assert done.returncode == 2 and "jobs install nothing: run ./setup.sh on the login node" in done.stderr
    assert repository.calls == [] and not (repository.root / ".venv").exists()
    repository.pin(["pinned-thing==1.0"])
    assert repository.setup().returncode == 0
    assert repository.setup(SLURM_JOB_ID="7").stdout == f"{repository.root}/.venv/bin/python\n"


def test_an_interrupted_installation_is_not_taken_for_a_whole_one(repository: Repository) -> None:
    assert repository.setup(UV_FAIL="1").returncode != 0
    (repository.root / ".venv/half").touch()
    shutil.rmtree(repository.root / ".venv" / PINNED)
    done = repository.setup()
    assert done.returncode == 0 and "was interrupted: starting over" in done.stderr
    assert not (repository.root / ".venv/half").exists()


def test_an_environment_that_runs_may_use_stays_when_its_update_was_interrupted(repository: Repository) -> None:
    assert repository.setup().returncode == 0
    (repository.root / "requirements.lock").write_text("# other\n")
    (repository.root / ".venv/in_use").touch()
    assert repository.setup(UV_FAIL="1").returncode != 0 and not (repository.root / ".venv/.complete").exists()
    assert repository.setup().returncode == 0 and (repository.root / ".venv/in_use").exists()
    assert repository.calls[-3:] == INSTALLED and (repository.root / ".venv/.complete").exists()


def test_an_active_environment_is_used_or_left_as_it_is(repository: Repository, tmp_path: Path) -> None:
    active = environment(tmp_path / "active")
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        done = repository.setup(**{variable: str(active)})
        assert done.stdout == f"{active}/bin/python\n" and repository.calls == []
    repository.pin(["no-such-package==1.0"])
    before = sorted(active.rglob("*"))
    done = repository.setup(VIRTUAL_ENV=str(active))
    assert f"{active} is active but does not hold the required packages" in done.stderr
    assert done.returncode == 2 and "does not hold the required packages after installing" in done.stderr
    assert sorted(active.rglob("*")) == before


def test_the_environment_of_another_checkout_is_shared_by_a_link_but_not_changed(
    repository: Repository, tmp_path: Path
) -> None:
    assert repository.setup().returncode == 0
    other = Repository(tmp_path / "other")
    (other.root / ".venv").symlink_to(repository.root / ".venv")
    (other.root / "requirements.lock").write_text("# other\n")
    assert other.setup().stdout == f"{other.root}/.venv/bin/python\n"
    other.pin(["no-such-package==1.0"])
    before = sorted((repository.root / ".venv").iterdir())
    done = other.setup()
    assert done.returncode == 2 and "was not made by setup.sh here" in done.stderr
    assert sorted((repository.root / ".venv").iterdir()) == before and other.calls == []
    (other.root / ".venv").unlink()
    (other.root / ".venv").mkdir()
    (other.root / ".venv/mine").touch()  # A folder of the user's own.
    done = other.setup()
    assert done.returncode == 2 and "was not made by setup.sh" in done.stderr
    assert (other.root / ".venv/mine").exists() and other.calls == []


def test_a_python_that_is_named_is_used_or_refused_with_what_it_lacks(repository: Repository, tmp_path: Path) -> None:
    named, other = environment(tmp_path / "named"), environment(tmp_path / "other")
    python = f"{named}/bin/python"
    for more in ({}, {"SLURM_JOB_ID": "7"}, {"VIRTUAL_ENV": str(other)}):
        assert repository.setup(SAC_PYTHON=python, **more).stdout == f"{python}\n"
    by_name = {"SAC_PYTHON": "my_python", "PATH": f"{tmp_path}/bin:{repository.environ['PATH']}"}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/my_python").write_text(f'#!/bin/sh\nexec {other}/bin/python "$@"\n')
    (tmp_path / "bin/my_python").chmod(0o755)
    assert repository.setup(**by_name).stdout == f"{tmp_path}/bin/my_python\n"
    repository.pin(["pinned-thing==1.0", "no-such-package==2.0", "pip==0.1"])
    done = repository.setup(SAC_PYTHON=python)
    assert done.returncode == 2 and done.stdout == ""
    assert (
        "does not hold the required packages: no-such-package==2.0 (found none), pip==0.1 (found none)." in done.stderr
    )
    for wrong in (f"{named}/bin/nowhere", "no_such_python", "named/bin/python"):
        done = repository.setup(SAC_PYTHON=wrong)
        assert done.returncode == 2 and f"SAC_PYTHON={wrong} is no program here" in done.stderr
    (tmp_path / "bin/python3.9").write_text("#!/usr/bin/env bash\n[[ $1 == -c ]] && echo 3.9\n")
    (tmp_path / "bin/python3.9").chmod(0o755)
    done = repository.setup(SAC_PYTHON=f"{tmp_path}/bin/python3.9")
    assert done.returncode == 2 and "is no Python 3.11 but 3.9: give the path of one" in done.stderr
    assert repository.calls == [] and not (repository.root / ".venv").exists()


def test_a_python_on_path_is_used_before_anything_is_installed(repository: Repository, tmp_path: Path) -> None:
    on_path = environment(tmp_path / "module")
    (on_path / "bin/python3").unlink()
    environ = {"PATH": f"{on_path}/bin:{repository.environ['PATH']}"}
    for more in ({}, {"SLURM_JOB_ID": "7"}):
        assert repository.setup(**environ, **more).stdout == f"{on_path}/bin/python\n"
    assert repository.calls == [] and not (repository.root / ".venv").exists()
    assert repository.setup().stdout == f"{repository.root}/.venv/bin/python\n"
    assert repository.setup(**environ).stdout == f"{repository.root}/.venv/bin/python\n", "made, so it is wanted"
    # A home that is seen in a container: the image's own comes before what its host has.
    inside = environ | {"TFAGENTS_CONTAINER": "1", "TFAGENTS_HOST_VIRTUAL_ENV": str(environment(tmp_path / "host"))}
    assert repository.setup(**inside).stdout == f"{on_path}/bin/python\n"
    assert repository.setup(**inside | {"PATH": repository.environ["PATH"]}).stdout == f"{tmp_path}/host/bin/python\n"


@pytest.mark.slow
def test_the_toolkit_is_imported_and_started_from_anywhere_even_in_a_folder_with_spaces(tmp_path: Path) -> None:
    checkout = tmp_path / "my projects/sac"
    listed = run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).stdout.splitlines()
    for name in filter(lambda name: (ROOT / name).is_file(), listed):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, checkout / name)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "uv").write_text(  # The packages are those of this Python, by a link; the rest is pip's.
        f"""#!/usr/bin/env bash
set -e
for last; do :; done
case "$*" in
  venv*) {sys.executable} -m venv --without-pip "$last" ;;
  *--editable*) {sys.executable} -m pip --python "$last/.venv" install --quiet "${{@:6}}" ;;
  *) echo {Path(packaging.__file__).parents[1]} >"{checkout}/.venv/lib/python3.11/site-packages/packages.pth" ;;
esac
"""
    )
    (tools / "uv").chmod(0o755)
    folders = [folder for folder in os.environ["PATH"].split(":") if Path(folder).parent != Path(sys.prefix)]
    path = ":".join([str(tools), *folders])
    environ = {"PATH": path, "VIRTUAL_ENV": "", "CONDA_PREFIX": "", "PYTHONPATH": ""}
    done = run(checkout / "setup.sh", cwd=tmp_path, **environ)
    assert done.returncode == 0, done.stderr
    where = run(
        checkout / ".venv/bin/python", "-c", "import tfagents_system as t; print(t.__file__)", cwd=Path("/"), **environ
    )
    assert where.stdout == f"{checkout}/tfagents_system/__init__.py\n", where.stderr
    example = "tfagents_system/examples/pendulum"
    four = f"SAC_EXP_NAME=four\nSAC_PARAMS={example}/params.py\nSAC_SEED=3\n"
    (tmp_path / "vars.sh").write_text(four)
    done = run(checkout / ".venv/bin/sac", "check", "vars.sh", cwd=tmp_path, **environ)
    assert done.returncode == 2 and "SAC_CONFIG is missing" in done.stdout, done.stdout + done.stderr
    assert f"{tmp_path}/logs/four: a new run" in done.stdout, "in the current folder"
