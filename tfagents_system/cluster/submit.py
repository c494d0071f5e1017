"""Submits a run, or an array of runs, to SLURM: `./submit.sh` and `sac submit`.

A submission freezes what its job runs. Edits change neither a job that waits nor one that is requeued:

    snapshot/<time>/package/        the toolkit's programs
    snapshot/<time>/params/         the folder of SAC_PARAMS
    snapshot/<time>/config.json     SAC_CONFIG, and grid.json SAC_GRID
    snapshot/<time>/variables.sh    the variables as they were resolved; the job expands those that refer to it
    snapshot/<time>/job.sbatch      the job script, made from job.sbatch beside this module

This module runs on login nodes. It imports the standard library and parts of the toolkit that need nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_INTERRUPTED,
    OptionParser,
    UserError,
    called_as,
    exit_with,
)
from tfagents_system.launch.vars_file import ROOT, read_vars_file
from tfagents_system.run_files import params_folder
from tfagents_system.settings.grid import faults_in_job, read_grid
from tfagents_system.settings.values import as_text
from tfagents_system.settings.variables import PATH, VARIABLES, WORKERS, read_variables

_GPU_OPTION = re.compile(r" (-G|--gpus|--(gres|tres)[^ ]*[= ][^ ]*gpu)")
_MEMORY_OPTION = re.compile(r" --mem(?:-per-[a-z]+)?[= ]")
_MEGABYTES = re.compile(r" --mem[= ]([1-9]\d*)([KMGT]?)(?= |$)", re.IGNORECASE)

# The vars file may refer to these, which the job alone knows: `@NAME@` stands for them until the job expands it.
_OF_JOB = {
    "SLURM_TMPDIR": "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}",
    "TMPDIR": "${TMPDIR:-/tmp}",
    "SLURM_JOB_ID": "${SLURM_JOB_ID:-}",
    "SLURM_ARRAY_JOB_ID": "${SLURM_ARRAY_JOB_ID:-}",
    "SLURM_ARRAY_TASK_ID": "${SLURM_ARRAY_TASK_ID:-}",
}
# In a job, what SLURM has set for it is not the new job's; what SLURM's commands need is.
_OF_COMMANDS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_TIME_FORMAT")
_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURMD_NODENAME")
_PLACES = ("SAC_EXP_NAME", "SAC_EXP_DIR", "SAC_LOGS_DIR", "SAC_PARAMS", "SAC_CONFIG")
_SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH")  # Without them no program starts, here or there.
_AUTOMATIC = {"SAC_REVERB_CPUS": "1", "SAC_TRAIN_CPUS": "2", "SAC_COLLECT_WORKER_CPUS": "1"}

_SPARE_CPUS = 2  # For the supervisor and the system.
_BASE_MB, _WORKER_MB, _NEW_RING_MB = 1500, 400, 1000
_SIGNAL_SLACK_SECS = 60  # SLURM checks time limits at such intervals.
_TASKS_AT_ONCE = 10
_TASK = "_task_<id>"
_CHECK_SECS = "20"

_ABOUT = """VARS.sh assigns the SAC_ variables. The job has the CPUs and the memory that they ask for; it is requeued until
the run is finished. Options of sbatch, such as --time 24:00:00, win over what is asked for here; what your cluster has added
to them follows after --. Exit codes: those of sbatch; 2 something must be changed first."""  # noqa: E501


class Options(argparse.Namespace):
    """The command line. sbatch knows its own options, and what a cluster has added to them: they are not looked at."""

    vars_file: Path
    is_dry: bool
    is_checked: bool
    array: str  # Empty without one.
    nodes: str
    assignments: list[str]
    run: list[str]  # Options of run_script.sh.
    sbatch: list[str]

    @property
    def text(self) -> str:
        """Options of sbatch on one line, each after a space."""
        return "".join(f" {word}" for word in self.sbatch)

    @property
    def node_count(self) -> int:
        return int(self.nodes) if re.fullmatch(r"[1-9]\d{0,3}", self.nodes) else 1

    @property
    def first_task(self) -> str:
        """The first id of the array; empty without one."""
        return re.match(r"\d*", self.array)[0]  # type: ignore[index]


def parse(arguments: Sequence[str]) -> Options:
    """Raises UserError where there is no vars file, or an option that a job can't have."""
    command = called_as("./submit.sh")
    parser = OptionParser(prog=command, usage=f"{command} VARS.sh [OPTION]... [SBATCH_OPTION]...", description=_ABOUT)
    add = parser.add_argument
    add("--dry-run", action="store_true", dest="is_dry", help="print the job script and check; submit nothing")
    add("--no-check", action="store_false", dest="is_checked", help="leave out the check, which takes up to 20 s")
    add("-a", "--array", default="", metavar="IDS", help="a run for each id, such as 0-9: logs/<name>_task_<id>")
    add("-N", "--nodes", default="1", metavar="K", help="SAC_NUM_COLLECT_WORKERS workers on each of K nodes")
    parser.add_settings()
    for name, metavar in (("--from", "RUN[@CHECKPOINT]"), ("--take", "WHAT"), ("--study", "")):
        text = "as for sac train" if metavar else argparse.SUPPRESS  # --study is of sac tune-params.
        add(name, action="append", dest="run", type=f"{name}={{}}".format, metavar=metavar, help=text)
    add("--keep", action="append_const", dest="run", const="--keep", help="as for sac train")
    words = list(arguments)
    ours = words[: words.index("--")] if "--" in words else words
    options, others = parser.parse_known_args(ours, Options(run=[]))
    vars_file = others.pop(0) if others else ""
    if not vars_file or vars_file.startswith("-") or ours[0] != vars_file:
        raise UserError(f"the vars file comes first, as in {command} my_vars.sh --time 4:00:00 (--help says more)")
    if "--fresh" in others:
        raise UserError(
            "--fresh is for starts by hand, and a job continues the run that is there: choose another SAC_EXP_NAME, "
            "or move the run's directory away yourself"
        )
    options.run += [f"--set={text}" for text in options.assignments]
    options.vars_file = Path(os.path.abspath(vars_file))
    options.sbatch = others + words[len(ours) + 1 :]
    return options


@dataclasses.dataclass(frozen=True)
class Run:
    """The run of a job, or those of an array.

    Attributes:
      environ: After the vars file was sourced, with stand-ins for what only the job knows.
      values: The variables that refer to nothing of the job, by field.
      exp_dir: The run directory; in an array, without the task's number.
      folder: Of snapshots and outputs.
      files: Of the params' folder, relative to it: the job gets copies. None of the toolkit's own.
      workers: SAC_NUM_COLLECT_WORKERS of each node.
      cpus: Of each node. Further ones have neither a replay server nor a trainer: those CPUs are spare.
      memory_mb: MiB of each node.
    """

    options: Options
    environ: Mapping[str, str]
    values: Mapping[str, Any]
    exp_dir: Path
    folder: Path
    files: Sequence[str]
    workers: int
    cpus: int
    memory_mb: int


def environ_outside(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what belongs to the job or the command that calls this."""
    others = {name for name in environ if name.startswith("TFAGENTS_")}
    if "SLURM_JOB_ID" in environ:
        others |= {name for name in environ if name.startswith("SLURM_")}.difference(_OF_COMMANDS).union(_DEVICES)
    return {name: text for name, text in environ.items() if name not in others}


def environ_of_sbatch(run: Run, base: Mapping[str, str]) -> dict[str, str]:
    """What sbatch hands on to the job, beside variables.sh. `base` is the environment before the vars file."""
    fixed = {name: text for name, text in run.environ.items() if name in _SEARCH_PATHS or not _refers_to_job(text)}
    own = {name: text for name, text in fixed.items() if name not in _OF_JOB}
    return own | {name: base[name] for name in _OF_JOB if name in base}


def read_run(options: Options, base: Mapping[str, str]) -> Run:
    """Sources the vars file, and checks what it says and what is asked for.

    Raises:
      UserError: With all findings.
    """
    environ = read_vars_file(options.vars_file, {**base, **{name: f"@{name}@" for name in _OF_JOB}})
    for word in [word for word in options.run if re.match("--set=SAC_[A-Z_]+=", word)]:
        options.run.remove(word)
        name, _, environ[name] = word.removeprefix("--set=").partition("=")
    texts = {name: environ.get(name, "").strip() for name in (*_AUTOMATIC, WORKERS, "SAC_DETERMINISTIC")}
    for name, count in _AUTOMATIC.items():  # The CPUs of a login node say nothing of a job's.
        if texts[name] in ("", "auto"):
            environ[name] = count
    if options.node_count > 1 and texts[WORKERS].isdecimal() and texts["SAC_DETERMINISTIC"] != "1":
        environ["SAC_LOCAL_WORKERS"], environ[WORKERS] = texts[WORKERS], str(int(texts[WORKERS]) * options.node_count)
        environ["SAC_GATEWAY_PORT"] = environ.get("SAC_GATEWAY_PORT", "").strip() or "0"
    fixed = {name: text for name, text in environ.items() if name in _PLACES or not _refers_to_job(text)}
    values, findings = read_variables(fixed, vars_file=options.vars_file, root=ROOT)
    exp_dir = values.get("exp_dir", Path.cwd())
    folder = exp_dir.with_name(f"{exp_dir.name}_array") if options.array else exp_dir
    findings += _check(options, texts, exp_dir, folder)
    files: list[str] = []
    try:
        if "grid" in values and not any(word.startswith("--study=") for word in options.run):
            faults = faults_in_job(read_grid(str(values["grid"])).values())
            findings += [f"grid file {values['grid']}: {fault}" for fault in faults]
        if "params" in values and not params_folder.is_kept_otherwise(values["params"]):
            skipped = [values[name] for name in ("password_file", "credentials_dir") if name in values]
            skipped += [exp_dir, folder, values.get("logs_dir", Path.cwd() / "logs")]
            files = params_folder.files_of(values["params"].parent, skipped)
    except UserError as error:
        findings += error.findings
    except params_folder.TooLargeError as error:
        findings.append(
            f"the folder of SAC_PARAMS is copied for the job, and {error}: move {values['params'].name} and what it "
            "imports into a folder of their own"
        )
    if findings:
        raise UserError(*findings)
    workers = values["local_workers" if options.node_count > 1 else "num_collect_workers"]
    all_workers = workers + values.get("expert_workers", 0) + values.get("eval_workers", 0)
    cpus = values["reverb_cpus"] + values["train_cpus"] + all_workers * values["collect_worker_cpus"] + _SPARE_CPUS
    # The ring counts as far as it is in the page cache. Only its params know the size of a new run's.
    ring_mb = sum(path.lstat().st_blocks for path in (exp_dir / "replay").rglob("*")) // 2048
    memory_mb = _BASE_MB + all_workers * values.get("worker_memory_mb", _WORKER_MB) + max(ring_mb, _NEW_RING_MB)
    return Run(options, environ, values, exp_dir, folder, files, workers, cpus, memory_mb)


def _check(options: Options, texts: Mapping[str, str], exp_dir: Path, folder: Path) -> list[str]:
    """Findings beside those about each variable by itself."""
    ancestor = next(path for path in (folder, *folder.parents) if path.exists())
    task = re.search(r"_task_(\d+)$", exp_dir.name)
    rules = {
        f"{WORKERS}=auto must be a number in a job, whose CPUs follow from it: add {WORKERS}=8 to {options.vars_file}":
            texts[WORKERS] in ("", "auto"),
        f"--nodes={options.nodes} must be a number of nodes, such as 2": options.nodes != str(options.node_count),
        f"--nodes={options.nodes} does not work with SAC_DETERMINISTIC=1, where a run restarts all its workers with "
        "itself: leave out one of the two": options.node_count > 1 and texts["SAC_DETERMINISTIC"] == "1",
        f"--array={options.array} must be task ids such as 0-9, 0-9:2 or 1,5,7":
            bool(options.array) and not options.first_task,
        "sbatch is not on PATH: this is no SLURM cluster, or its module is not loaded; run_script.sh trains right here":
            not options.is_dry and shutil.which("sbatch") is None,
        f"the run directory {exp_dir} must not depend on the job: take its number or $TMPDIR out of the path":
            _refers_to_job(str(exp_dir)),
        f"the run directory {exp_dir} must not have a quotation mark in its name: rename it": '"' in str(exp_dir),
        f"the run directory {exp_dir} must not end in {task and task[0]} with --array, where that is the one of task "
        f"{task and task[1]}: choose another SAC_EXP_NAME": bool(options.array and task),
        f"{folder} can't be made, {ancestor} can't be written: set SAC_LOGS_DIR to a folder that is yours":
            not (ancestor.is_dir() and os.access(ancestor, os.W_OK | os.X_OK)),
    }  # fmt: skip
    return [text for text, is_broken in rules.items() if is_broken]


def _refers_to_job(text: str) -> bool:
    return any(f"@{name}@" in text for name in _OF_JOB)


# What the job runs.


def job_script(run: Run, snapshot: Path) -> str:
    """The text that sbatch gets: job.sbatch with the values of this submission."""
    options = run.options
    asked = [] if options.node_count == 1 else ["--no-kill"]
    if run.values.get("train_gpus") and not _GPU_OPTION.search(options.text):
        asked.append("--gpus-per-node=1")
    if not _MEMORY_OPTION.search(options.text):
        asked.append(f"--mem={run.memory_mb}M")
    if "--no-requeue" not in options.sbatch:
        asked.append("--requeue")
    lines = [[word] for word in asked] + ([options.sbatch] if options.sbatch else [])
    texts = {
        "name": _sbatch_word(run.values["exp_name"]),
        "folder": _sbatch_word(os.getcwd()),
        "output": _sbatch_word(str(run.folder).replace("%", "%%") + f"/slurm-{'%A_%a' if options.array else '%j'}.out"),
        "nodes": options.nodes,
        "cpus": str(run.cpus),
        "warning_secs": str(int(run.values.get("save_deadline_secs", 60.0)) + _SIGNAL_SLACK_SECS),
        "options": "\n".join(f"#SBATCH {' '.join(map(_sbatch_word, words))}" for words in lines),
        "python": _quoted(sys.executable),
        "program": _quoted(f"{snapshot}/package/tfagents_system/cluster/requeue.py"),
        "snapshot": _quoted(str(snapshot)),
        "exp_dir": _quoted(str(run.exp_dir)),
        "workers": str(run.workers),
        "run_options": " ".join(map(_quoted, options.run)),
    }
    template = Path(__file__).with_name("job.sbatch").read_text()
    return re.sub(r"\{(\w+)\}", lambda name: texts[name[1]], template).rstrip() + "\n"


def _sbatch_word(text: str) -> str:
    """A word of an #SBATCH line, whose quotes and escapes are not those of a shell."""
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"' if re.search(r"[\s'\"\\#]", text) else text


def _quoted(text: str) -> str:
    """A word of shell code, in which the job expands what refers to it."""
    word = "'" + text.replace("'", "'\\''") + "'"
    for name, expansion in _OF_JOB.items():
        word = word.replace(f"@{name}@", f"'\"{expansion}\"'")
    return word


def freeze(run: Run, snapshot: Path) -> None:
    """Writes what the job runs."""
    package, ignore = snapshot / "package", shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tfagents_system", package / "tfagents_system", symlinks=True, ignore=ignore)
    if (ROOT / "setup.sh").is_file():  # Installed with pip, the toolkit is its package alone.
        shutil.copytree(ROOT / "config", package / "config", symlinks=True)
        for name in ("setup.sh", "pyproject.toml", "requirements.lock"):
            shutil.copy2(ROOT / name, package / name)
        if (ROOT / ".venv").exists():  # The environment stays where it is: jobs install nothing.
            (package / ".venv").symlink_to(ROOT / ".venv")
    params_folder.copy_files(run.values["params"].parent, run.files, snapshot / "params")
    for name in ("config", "grid"):
        if name in run.values:
            shutil.copyfile(run.values[name], snapshot / f"{name}.json")
    variables = snapshot / "variables.sh"
    variables.touch(mode=0o600)  # People put tokens into SAC_JOB_PRELUDE.
    variables.write_text(variables_script(run, snapshot), errors="surrogateescape")
    (snapshot / "job.sbatch").write_text(job_script(run, snapshot), errors="surrogateescape")


def variables_script(run: Run, snapshot: Path) -> str:
    """variables.sh: bash that assigns the variables as they were resolved."""
    params = snapshot / "params" / run.values["params"].name
    if not run.files:
        params = snapshot / "package" / os.path.relpath(os.path.realpath(run.values["params"]), ROOT)
    own = {"SAC_PARAMS": params, "SAC_CONFIG": snapshot / "config.json", "SAC_EXP_DIR": run.exp_dir, "SAC_LOGS_DIR": ""}
    own |= {"SAC_GRID": snapshot / "grid.json"} if "grid" in run.values else {}
    lines = [f"# What {run.options.vars_file} said on {time.strftime('%F %T')}."]
    # Of the job's folders, what the vars file itself has made.
    scratch = {name: run.environ[name] for name in ("SLURM_TMPDIR", "TMPDIR") if name in run.environ}
    lines += [_export(name, text) for name, text in scratch.items() if text != f"@{name}@"]
    known = {variable.name: variable for variable in VARIABLES}
    for name, text in sorted(run.environ.items()):
        if name in known and text.strip() and not _refers_to_job(text):
            if known[name].kind is PATH:  # As it was given: each run has a folder of its own below SAC_REPLAY_DIR.
                text = os.path.abspath(Path(text.strip()).expanduser())
            else:
                text = as_text(run.values.get(known[name].field, text))
        if name.startswith("SAC_") or name in ("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX"):
            lines.append(f"{name}={_quoted(text if text.strip() else '')}")
        elif _refers_to_job(text) and name not in (*_OF_JOB, *_SEARCH_PATHS) and name.isidentifier():
            lines.append(_export(name, text))
    return "\n".join([*lines, *(f"{name}={_quoted(str(value))}" for name, value in own.items())]) + "\n"


def _export(name: str, text: str) -> str:
    """Exports one of the user's own. Within SAC_EXEC_PREFIX the file is read once more: what it has there stays."""
    return f"[[ -n ${{TFAGENTS_SURROUNDED:+${{{name}-}}}} ]] || export {name}={_quoted(text)}"


# The check, and the submission.


def check(run: Run, snapshot: Path, environ: Mapping[str, str]) -> None:
    """Makes the checks of a start with what was frozen, as far as they don't follow from the job's machine.

    Raises:
      UserError: Something must be changed first.
    """
    if reason := why_unchecked(run):
        _say(f"note: params and memory are checked by the job, not here: {reason}")
        return
    secs = os.environ.get("TFAGENTS_CHECK_SECS") or _CHECK_SECS  # Tests have more, on machines that are busy.
    _say(f"checking params, environment and memory, for at most {secs} s (--no-check leaves it out)")
    script, variables = snapshot / "package/tfagents_system/launch/run_script.sh", snapshot / "variables.sh"
    of_job = {"SLURM_JOB_ID": "0", "SLURM_RESTART_COUNT": "0", "TFAGENTS_JOB_MB": memory_of_job(run)}
    of_job |= {"SLURM_ARRAY_TASK_ID": run.options.first_task} if run.options.array else {}
    done = subprocess.run(
        ["timeout", "--foreground", "--kill-after=2", secs, script, "--check", *run.options.run, variables],
        env={**environ, **of_job}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="backslashreplace", check=False,
    )  # fmt: skip
    (snapshot / "check.txt").write_text(done.stdout)
    lines = done.stdout.splitlines()
    if done.returncode in (0, EXIT_BAD_INPUT):
        _say("\n".join(line for line in lines if re.match(r"(ERROR|error:|note|  \|) ", line)))
    if done.returncode == EXIT_BAD_INPUT:
        raise UserError("nothing was submitted: correct what is said above (--no-check submits without this check)")
    if done.returncode == 0:
        _say("checked: nothing is in its way")
    elif done.returncode in (124, 137):  # Of `timeout`.
        _say(f"note: params and memory could not be checked within {secs} s: the job does it")
    else:
        _say("\n".join(lines[-5:]))
        _say(f"note: params and memory could not be checked here (exit code {done.returncode}): the job does it")


def why_unchecked(run: Run) -> str:
    if not run.options.is_checked:
        return "--no-check"
    for name in ("SAC_JOB_PRELUDE", "SAC_EXEC_PREFIX"):
        if run.environ.get(name, "").strip():
            return f"the environment is that of {name}"
    python = run.environ.get("SAC_PYTHON", "").strip()
    return f"SAC_PYTHON={python} is no program here" if python and shutil.which(python) is None else ""


def memory_of_job(run: Run) -> str:
    """MiB; empty where an option leaves that to the cluster."""
    if not _MEMORY_OPTION.search(run.options.text):
        return str(run.memory_mb)
    given = _MEGABYTES.search(run.options.text)
    return "" if given is None else str(int(int(given[1]) * 1024.0 ** ("KMGT".index(given[2].upper() or "M") - 1)))


def submit(run: Run, snapshot: Path, environ: Mapping[str, str]) -> int:
    """Freezes, checks and submits, or shows what would be submitted: then only the job script goes to standard output.

    What was written in vain is removed again. Returns the exit code.
    """
    options, is_kept = run.options, False
    array = [f"--array={options.array}{'' if '%' in options.array else f'%{_TASKS_AT_ONCE}'}"] if options.array else []
    command = ["sbatch", *options.sbatch, *array, str(snapshot / "job.sbatch")]
    waits = bool({"-W", "--wait"} & set(command))  # The exit code is then the job's.
    made = [folder for folder in snapshot.parents if not folder.exists()]
    try:
        freeze(run, snapshot)
        _say(f"run directory {run.exp_dir}{_TASK if options.array else ''}, job script {snapshot}/job.sbatch")
        if options.is_dry:
            _say(f"nothing is submitted. Without --dry-run, from {os.getcwd()}:\n  {shlex.join(command)}")
            _say("the job script:")
            print((snapshot / "job.sbatch").read_text(), end="", flush=True)
        check(run, snapshot, environ)
        if options.is_dry:
            return EXIT_DONE
        done = subprocess.run(command, env=dict(environ), stderr=None if waits else subprocess.PIPE, check=False)
        message = (done.stderr or b"").decode(errors="backslashreplace").rstrip()
        _say(message)
        is_kept = not done.returncode or waits or "timed out" in message.lower()  # Then a job may be in the queue.
        if not is_kept:
            _say(f"error: sbatch refused the job with exit code {done.returncode}, see above: nothing was submitted")
        return done.returncode
    finally:
        if not is_kept:
            shutil.rmtree(snapshot, ignore_errors=True)
            with contextlib.suppress(OSError):  # Something else is in one.
                for folder in made:
                    folder.rmdir()


def _say(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    base = environ_outside(os.environ)
    run = read_run(parse(sys.argv[1:] if arguments is None else arguments), base)
    snapshot = run.folder / "snapshot" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        return submit(run, snapshot, environ_of_sbatch(run, base))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    exit_with(main)
