"""Removes what runs have left behind and nobody needs any more.

    python -m tfagents_system.launch.clean RUN_DIRECTORY... [--rings] [--yes]

Shows all of it, asks, and removes it: snapshots of submissions that no queued or running job needs, nor a run whose
params are in it; environments that were unpacked on this machine (SAC_PACKED_ENV) and have not been used for a day;
with --rings the experience of finished runs, too. Whatever is less than an hour old stays.

Needs nothing but Python's own library, 3.6 or later: ./submit.sh calls it on login nodes with --unasked, which removes
snapshots and environments without a question.
"""

import argparse
import fcntl
import glob
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

_YOUNG_SECS = 3600.0  # A submission that is under way has no job yet.
_UNUSED_SECS = 24 * 3600.0
_SQUEUE_SECS = 10.0
_SNAPSHOT = re.compile(r"\d{8}-\d{6}-\d+")  # As submit.sh names them.
_RING = "replay"


class Leftover:
    """A folder that may go.

    Attributes:
      path: Of the folder.
      what: It is, in words.
    """

    def __init__(self, path: str, what: str) -> None:
        self.path, self.what = path, what

    def num_bytes(self) -> int:
        """What it takes on the disk; files that are gone meanwhile count nothing."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
                except OSError:
                    pass
        return total

    def remove(self) -> bool:
        """Whether nothing is left of it. It is renamed first: who comes meanwhile finds all of it, or nothing."""
        aside = f"{self.path}.removed_{os.getpid()}"
        try:
            os.rename(self.path, aside)
        except OSError:
            return False
        shutil.rmtree(aside, ignore_errors=True)
        return not os.path.lexists(aside)


# Snapshots.


def scripts_of_jobs() -> Optional[str]:
    """The commands of all queued and running jobs of this user, a line each; None where SLURM does not say."""
    try:
        done = subprocess.run(
            ["squeue", "--noheader", f"--user={os.getuid()}", "--format=%o"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            universal_newlines=True,
            timeout=_SQUEUE_SECS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def snapshots_below(directory: str) -> List[str]:
    """Old enough ones of this user in a run directory (or an array's), and of workers that were added to its run."""
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
      scripts: As `scripts_of_jobs` gives them.
    """
    snapshots = snapshots_below(directory)
    sources = sources_of_runs(directory) if snapshots else set()
    for path in snapshots:
        name = os.path.basename(path)
        # The queue of another cluster is not asked. By its last parts a script is known however its path is written.
        if name in sources or _asks_for_another_cluster(path) or f"/snapshot/{name}/" in scripts:
            continue
        yield Leftover(path, "snapshot of a submission")


def _asks_for_another_cluster(snapshot: str) -> bool:
    try:
        with open(os.path.join(snapshot, "job.sbatch")) as file:
            return re.search(r"^#SBATCH.*\s\"?(-M|--clusters?\b)", file.read(), re.MULTILINE) is not None
    except OSError:
        return False


# Unpacked environments of this machine.


def unused_environments() -> Iterator[Leftover]:
    """Those of this user that no program has been started in for a day, and none runs in."""
    tops = {os.environ.get(name) for name in ("SLURM_TMPDIR", "TMPDIR")} | {"/tmp"}
    found = [
        path
        for top in tops
        if top
        for path in glob.glob(f"{glob.escape(top)}/sac_env_{os.getuid()}_*")
        if _is_own(path, _UNUSED_SECS) and _is_own(os.path.join(path, ".lock"), _UNUSED_SECS, stat.S_ISREG)
    ]
    in_use = _environs_of_processes() if found else []
    for path in sorted(found):
        marker = os.fsencode(path) + b"/"
        if not any(marker in environ for environ in in_use) and not _is_locked(os.path.join(path, ".lock")):
            yield Leftover(path, "unpacked environment, unused for a day")


def _environs_of_processes() -> List[bytes]:
    environs = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                environs.append(file.read())
        except OSError:
            pass  # It is gone, or another user's.
    return environs


# Rings.


def rings_of_finished_runs(directory: str) -> Iterator[Leftover]:
    """The experience of a run that is done, and that nobody goes on with now."""
    status = _read_json(os.path.join(directory, "status.json"))
    ring = os.path.join(directory, _RING)
    is_done = status.get("run", {}).get("state") == "done" if isinstance(status.get("run"), dict) else False
    if is_done and _is_own(ring, _YOUNG_SECS) and not _is_locked(os.path.join(directory, "run.lock")):
        yield Leftover(ring, "experience of a finished run")


def _is_locked(path: str) -> bool:
    try:
        with open(path, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


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
    scripts = scripts_of_jobs() if any(snapshots_below(directory) for directory in directories) else ""
    if scripts is None:
        notes.append("squeue does not say what is queued: all snapshots stay")
    for directory in directories:
        if scripts is not None:
            found += unneeded_snapshots(directory, scripts)
        if rings:
            found += rings_of_finished_runs(directory)
    return found + list(unused_environments()), notes


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Remove what runs have left behind and nobody needs any more.")
    parser.add_argument("directories", nargs="*", metavar="RUN_DIRECTORY", help="such as logs/*")
    parser.add_argument(
        "--rings", action="store_true", help="the experience of finished runs, too: they can't be extended then"
    )
    parser.add_argument("--yes", action="store_true", help="show and remove without a question")
    parser.add_argument("--unasked", action="store_true", help="remove, and tell only how much")
    args = parser.parse_args(arguments)
    directories = sorted({os.path.abspath(path) for path in args.directories if os.path.isdir(path)})
    found, notes = find_leftovers(directories, rings=args.rings)
    if args.unasked:
        removed = sum(leftover.remove() for leftover in found)
        if removed:
            print(
                "note: removed {} that no job needs any more".format(_count(removed, "earlier snapshot or environment"))
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
    stays = [leftover.path for leftover in found if not leftover.remove()]
    for path in stays:
        print(f"error: {path} could not be removed: look at its permissions", file=sys.stderr)
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
