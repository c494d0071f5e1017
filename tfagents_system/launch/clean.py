"""Removes leftovers of runs that nobody needs any more.

    python -m tfagents_system.launch.clean RUN_DIRECTORY... [--rings] [--yes]

Shows all of it, asks, and removes it: snapshots of submissions that no queued or running job needs, nor a run with
its params in it; environments that this machine has unpacked (SAC_PACKED_ENV) and not used for a day; temporary folders
of starts and checks that were killed; with --rings the experience of finished runs, too. Whatever is less than an hour
old stays.

Needs only Python's own library, 3.6 or later: ./submit.sh calls it on login nodes, and each job on its node,
with --unasked, which removes all but rings without a question.
"""

import argparse
import contextlib
import fcntl
import functools
import glob
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

_YOUNG_SECS = 3600.0  # An unfinished submission has no job yet.
_UNUSED_SECS = 24 * 3600.0
_SQUEUE_SECS = 10.0
_SNAPSHOT = re.compile(r"\d{8}-\d{6}-\d+")  # As submit.sh names them.
_RING = "replay"
_REMOVED = ".removed_"
_ASIDE = re.compile(re.escape(_REMOVED) + r"\d+$")
_TEMPORARY = ("sac_check_*", "sac_params_*", "sac_prior_*")


class Leftover:
    """A folder that may go.

    Attributes:
      path: The folder.
      what: Its kind, in words.
    """

    def __init__(self, path: str, what: str, lock: str = "", may_go: Callable[[], bool] = lambda: True) -> None:
        """`lock` is the file that users of the folder lock; `may_go` looks once more, with that lock held."""
        self.path, self.what = path, what
        self._lock, self._may_go = lock, may_go

    def num_bytes(self) -> int:
        """Its size on the disk; files that disappear meanwhile do not count."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
                except OSError:
                    pass
        return total

    def remove(self) -> str:
        """Removes it; returns why it stays, or nothing if it is gone, even by another clean-up.

        It is renamed first: others find all of it meanwhile, or nothing. The next clean-up finds
        what an interrupted one has renamed.
        """
        aside = self.path if _ASIDE.search(self.path) else f"{self.path}{_REMOVED}{os.getpid()}"
        with _locked(self._lock) as is_free:
            if not is_free or not self._may_go():
                return "it is in use again" if os.path.lexists(self.path) else ""
            try:
                os.rename(self.path, aside)
            except FileNotFoundError:
                return ""
            except OSError as error:
                return f"it can't be renamed ({error.strerror})"
        shutil.rmtree(aside, ignore_errors=True)
        return f"{aside} can't be removed: look at its permissions" if os.path.lexists(aside) else ""


@contextlib.contextmanager
def _locked(path: str) -> Iterator[bool]:
    """Whether nobody else has locked a file; nobody else can meanwhile. A missing file is free."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        yield isinstance(error, FileNotFoundError)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = True
    except OSError:
        is_free = False
    try:
        yield is_free
    finally:
        os.close(descriptor)


def half_removed(pattern: str) -> Iterator[Leftover]:
    """Folders of a glob pattern that interrupted clean-ups have renamed."""
    for path in sorted(glob.glob(pattern + _REMOVED + "*")):
        if _ASIDE.search(path) and _is_own(path, 0.0):
            yield Leftover(path, "rest of an interrupted clean-up")


# Snapshots.


def queued_jobs(form: str = "%o", each_task: bool = False) -> Optional[str]:
    """All queued and running jobs of this user, a line each; None if SLURM does not say.

    Args:
      form: What is told of each, as squeue's `--format`: its command.
      each_task: A line for each task of an array.
    """
    tasks = ["--array"] if each_task else []
    # A user's own SQUEUE_STATES, SQUEUE_PARTITION and such would leave jobs out.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        done = subprocess.run(
            # All: in hidden partitions, too.
            ["squeue", "--noheader", "--all", f"--user={os.getuid()}", f"--format={form}", *tasks],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            universal_newlines=True,
            timeout=_SQUEUE_SECS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def snapshots_below(directory: str) -> List[str]:
    """This user's old enough snapshots in a run directory (or an array's), and of workers added to its run."""
    found = glob.glob(os.path.join(glob.escape(directory), "snapshot", "*"))
    found += glob.glob(os.path.join(glob.escape(directory), "joined", "snapshot", "*"))
    return [
        path for path in sorted(found) if _SNAPSHOT.fullmatch(os.path.basename(path)) and _is_own(path, _YOUNG_SECS)
    ]


def sources_of_runs(directory: str) -> Set[str]:
    """Names of the snapshots that runs have their params from: modules beside those are imported from there."""
    base = re.sub("_array$", "", os.path.abspath(directory))
    runs = [base] + glob.glob(glob.escape(base) + "_task_*")
    sources = (str(_read_json(os.path.join(run, "run.json")).get("params_source")) for run in runs)
    return {part for source in sources for part in source.split(os.sep) if _SNAPSHOT.fullmatch(part)}


def unneeded_snapshots(directory: str, scripts: str) -> Iterator[Leftover]:
    """Those that may go.

    Args:
      directory: A run's, or an array's.
      scripts: As `queued_jobs` gives them.
    """
    snapshots = snapshots_below(directory)
    sources = sources_of_runs(directory) if snapshots else set()
    for path in snapshots:
        name = os.path.basename(path)
        # The queue of another cluster is not asked. A script's last parts identify it, however its path is written.
        if name in sources or _asks_for_another_cluster(path) or f"/snapshot/{name}/" in scripts:
            continue
        yield Leftover(path, "snapshot of a submission")


def _asks_for_another_cluster(snapshot: str) -> bool:
    try:
        with open(os.path.join(snapshot, "job.sbatch")) as file:
            return re.search(r"^#SBATCH.*\s\"?(-M|--clusters?\b)", file.read(), re.MULTILINE) is not None
    except OSError:
        return False


# On this machine.


def scratch_folders() -> List[str]:
    """Where environments are unpacked, and temporary folders made."""
    return sorted({top for top in (os.environ.get("SLURM_TMPDIR"), os.environ.get("TMPDIR"), "/tmp") if top})


def unused_environments(top: str) -> Iterator[Leftover]:
    """This user's environments in which no program runs, and none has been started for a day.

    Each machine unpacks its own, with its name in the folder's. Those of others, on a shared file system, are left to
    them: what runs there can't be seen from here.
    """
    ours = f"sac_env_{os.getuid()}_????????????_" + glob.escape(os.uname().nodename)
    for path in sorted(glob.glob(os.path.join(glob.escape(top), ours))):
        lock = os.path.join(path, ".lock")
        if _is_unused(path) and _is_free(lock):
            yield Leftover(path, "unpacked environment, unused for a day", lock, functools.partial(_is_unused, path))


def _is_unused(environment: str) -> bool:
    lock = os.path.join(environment, ".lock")
    marker = os.fsencode(environment) + b"/"
    return (
        _is_own(environment, _UNUSED_SECS)
        and _is_own(lock, _UNUSED_SECS, stat.S_ISREG)
        and not any(marker in environ for environ in _environs_of_processes())
    )


def _environs_of_processes() -> List[bytes]:
    environs = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                environs.append(file.read())
        except OSError:
            pass  # It is gone, or another user's.
    return environs


def old_temporary_folders(top: str) -> Iterator[Leftover]:
    """Temporary folders of starts and checks that were killed before they could remove them."""
    for name in _TEMPORARY:
        for path in sorted(glob.glob(os.path.join(glob.escape(top), name))):
            if not _ASIDE.search(path) and _is_own(path, _UNUSED_SECS):
                yield Leftover(path, "temporary folder of a start or check")


# Rings.


def rings_of_finished_runs(directory: str) -> Iterator[Leftover]:
    """The experience of a run that is done, and that nobody continues now."""
    ring, lock = os.path.join(directory, _RING), os.path.join(directory, "run.lock")
    if _is_done(directory) and _is_own(ring, _YOUNG_SECS) and _is_free(lock):
        yield Leftover(ring, "experience of a finished run", lock, functools.partial(_is_done, directory))


def _is_done(directory: str) -> bool:
    run = _read_json(os.path.join(directory, "status.json")).get("run")
    return isinstance(run, dict) and run.get("state") == "done"


def _is_free(lock: str) -> bool:
    with _locked(lock) as is_free:
        return is_free


def _is_own(path: str, age_secs: float, is_kind: Any = stat.S_ISDIR) -> bool:
    """Whether it is this user's, no link, and was not changed for so long."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return is_kind(found.st_mode) and found.st_uid == os.getuid() and time.time() - found.st_mtime > age_secs


def _read_json(path: str) -> Dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def find_leftovers(directories: Sequence[str], *, rings: bool) -> Tuple[List[Leftover], List[str]]:
    """What may go, and what the user should know."""
    found = []  # type: List[Leftover]
    notes = []  # type: List[str]
    scripts = queued_jobs() if any(snapshots_below(directory) for directory in directories) else ""
    if scripts is None:
        notes.append("squeue does not say what is queued: all snapshots stay")
    for directory in directories:
        if scripts is not None:
            found += unneeded_snapshots(directory, scripts)
        if rings:
            found += rings_of_finished_runs(directory)
        for parts in (("snapshot", "[0-9]*"), ("joined", "snapshot", "[0-9]*"), (_RING,)):
            found += half_removed(os.path.join(glob.escape(directory), *parts))
    for top in scratch_folders():
        found += [*unused_environments(top), *old_temporary_folders(top)]
        for name in (f"sac_env_{os.getuid()}_*", *_TEMPORARY):
            found += half_removed(os.path.join(glob.escape(top), name))
    return found, notes


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Remove leftovers of runs that nobody needs any more.")
    parser.add_argument("directories", nargs="*", metavar="RUN_DIRECTORY", help="such as logs/*")
    parser.add_argument(
        "--rings", action="store_true", help="the experience of finished runs, too: those that go on later collect anew"
    )
    parser.add_argument("--yes", action="store_true", help="show and remove without a question")
    parser.add_argument("--unasked", action="store_true", help="remove, and report only how much")
    args = parser.parse_args(arguments)
    directories = sorted({os.path.abspath(path) for path in args.directories if os.path.isdir(path)})
    found, notes = find_leftovers(directories, rings=args.rings)
    if args.unasked:
        removed = sum(not leftover.remove() for leftover in found)
        if removed:
            print(
                "note: removed {} of earlier runs and jobs that nobody needs any more".format(_count(removed, "folder"))
            )
        return 0
    for note in notes:
        print("note: " + note)
    total = 0
    for leftover in found:
        num_bytes = leftover.num_bytes()
        total += num_bytes
        print(f"{num_bytes / 2**20:>9.1f} MiB  {leftover.path}  ({leftover.what})")
    if not found:
        print("nothing to remove")
        return 0
    print("{:>9.1f} MiB  in {}".format(total / 2**20, _count(len(found), "folder")))
    if not args.yes and not _agrees("Remove them? [y/N] "):
        print("nothing was removed")
        return 0
    stays = [(leftover.path, why) for leftover in found for why in [leftover.remove()] if why]
    for path, why in stays:
        print(f"error: {path} stays: {why}", file=sys.stderr)
    return 1 if stays else 0


def _agrees(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def _count(number: int, what: str) -> str:
    return "{} {}{}".format(number, what, "" if number == 1 else "s")


if __name__ == "__main__":
    sys.exit(main())
