"""A SLURM of its own on this machine: a controller, the nodes n1 (with a GPU on paper) and n2, and n3 for itself.

with SlurmCluster(folder) as cluster:
    job = cluster.run("sbatch", "--parsable", "job.sh").stdout
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import psutil

from tfagents_system.machine.claims import Claims

_DAEMONS = ("munged", "slurmctld", "slurmd")
_CLIENTS = ("sbatch", "srun", "scontrol", "scancel", "squeue", "sinfo")
_UP_SECS = 30.0
_END_SECS = 10.0
_POLL_SECS = 0.1
_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
NODES = ("n1", "n2", "n3")

_CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd_%n.pid
SlurmdLogFile={folder}/slurmd_%n.log
SlurmdSpoolDir={folder}/spool_%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
MaxArraySize=101
SlurmdTimeout=10
KillWait={kill_wait_secs}
MinJobAge=600
InactiveLimit=0
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} RealMemory=100000 Gres=gpu:1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} RealMemory=100000
NodeName=n3 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} CPUs={cpus} RealMemory=100000
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=0 OverSubscribe=YES:8
PartitionName=lonely Nodes=n3 MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=0 OverSubscribe=NO
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 OverSubscribe=NO PreemptMode=OFF
"""


def why_not() -> str | None:
    """Why there can be no cluster here; None where there can be one."""
    if os.geteuid() != 0:
        return "a SLURM of its own needs root"
    missing = [name for name in (*_DAEMONS, *_CLIENTS) if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"{', '.join(missing)} not installed (apt-get install slurm-wlm munge)"
    return None


class SlurmCluster:
    """Three nodes on this machine, ended by their pids.

    Args:
      folder: Of its configuration, state and logs; its path must be short enough for a unix socket.
      kill_wait_secs: Between SIGTERM and SIGKILL, when a job is ended by force.
      cpus: That each node claims to have. Many more than there are leave jobs without any; jobs that are to run side
        by side are submitted with --oversubscribe.
    """

    def __init__(self, folder: Path, *, kill_wait_secs: int = 30, cpus: int = 8) -> None:
        self.folder = folder
        self._kill_wait_secs, self._cpus = kill_wait_secs, cpus
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._claims = Claims()
        self.environ = {
            "PATH": _PATH,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "MUNGE_SOCKET": f"{folder}/munge.socket",
        }

    def __enter__(self) -> SlurmCluster:
        try:
            self._configure()
            self._start_munge()
            self._start("slurmctld", "slurmctld", "-D", "-c", "-i")
            for node in NODES:
                self.start_node(node)
            self.wait_until(self._is_up, _UP_SECS, "all nodes are idle")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self, *command: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None, timeout_secs: float = 90
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program as a user of this cluster."""
        base = {name: value for name, value in os.environ.items() if not name.startswith(("SAC_", "SLURM_", "SBATCH_"))}
        return subprocess.run(
            list(command),
            env={**base, **(environ or {}), **self.environ},
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_secs,
        )

    def job(self, job_id: str) -> dict[str, str]:
        """What `scontrol show job` says of a job (of an array, its first task), by name; empty if it is unknown."""
        text = self.run("scontrol", "--oneliner", "show", "job", job_id).stdout.partition("\n")[0]
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def state(self, job_id: str) -> str:
        """Such as PENDING, RUNNING, COMPLETED; empty for a job that is unknown."""
        return self.job(job_id).get("JobState", "")

    def wait_until(self, condition: Callable[[], bool], timeout_secs: float, what: str) -> None:
        """Waits for a condition.

        Raises:
          AssertionError: It did not come within `timeout_secs`; with the ends of the logs.
        """
        deadline = time.monotonic() + timeout_secs
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout_secs} s: {what}\n{self.logs()}")
            time.sleep(_POLL_SECS)

    def wait_for_state(self, job_id: str, states: tuple[str, ...], timeout_secs: float) -> str:
        """Waits until a job is in one of these states, and returns it."""
        self.wait_until(lambda: self.state(job_id) in states, timeout_secs, f"job {job_id} is {' or '.join(states)}")
        return self.state(job_id)

    def start_node(self, node: str) -> None:
        """Starts the daemon of one node."""
        (self.folder / f"spool_{node}").mkdir(exist_ok=True)
        self._start(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """What happens when a node loses its power: its daemon and all of its jobs die without a signal."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait(_END_SECS)
        self._kill_jobs_of(node)

    def logs(self) -> str:
        """The ends of the daemons' logs, for messages."""
        return "\n".join(
            f"== {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("slurm*.log"))
        )

    def close(self) -> None:
        """Ends all jobs, then all daemons."""
        if "slurmctld" in self._daemons:
            with contextlib.suppress(subprocess.TimeoutExpired, OSError):
                self.run("scancel", "--user=root", timeout_secs=_END_SECS)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(_END_SECS)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        for node in NODES:
            self._kill_jobs_of(node)  # What still waits to tell its controller.
        self._claims.release_all()

    def _configure(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "state").mkdir(exist_ok=True)
        conf = _CONF.format(
            host=socket.gethostname().partition(".")[0],
            ports=_free_ports(self._claims),
            folder=self.folder,
            kill_wait_secs=self._kill_wait_secs,
            cpus=self._cpus,
        )
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "gres.conf").write_text("NodeName=n1 Name=gpu File=/dev/null\n")

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self._start(
            "munged", "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}",
            f"--log-file={self.folder}/munged.log", f"--pid-file={self.folder}/munged.pid",
            f"--seed-file={self.folder}/munged.seed", "--num-threads=1",
        )  # fmt: skip
        self.wait_until((self.folder / "munge.socket").exists, _UP_SECS, "munged has made its socket")

    def _start(self, name: str, *command: str) -> None:
        with open(self.folder / f"{name}.out", "ab") as out:
            program = shutil.which(command[0], path=_PATH)
            assert program is not None, command
            environ = {**os.environ, **self.environ}
            self._daemons[name] = subprocess.Popen(
                [program, *command[1:]], env=environ, cwd=self.folder, stdout=out, stderr=out, start_new_session=True
            )

    def _is_up(self) -> bool:
        for name, daemon in self._daemons.items():
            assert daemon.poll() is None, f"{name} has ended with {daemon.returncode}:\n{self.logs()}"
        return (
            self.run("sinfo", "--noheader", "--partition=urgent", "--format=%D %t").stdout.split("\n")[0]
            == f"{len(NODES)} idle"
        )

    def _kill_jobs_of(self, node: str) -> None:
        """Each step of a job has a process slurmstepd, which outlives the node's daemon and shares its log."""
        log = str(self.folder / f"slurmd_{node}.log")
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.name() == "slurmstepd" and log in [file.path for file in process.open_files()]:
                    # In this order: a step whose program dies tells the controller.
                    for each in (process, *process.children(recursive=True)):
                        each.kill()


def _free_ports(claims: Claims) -> list[int]:
    """Four neighbours that nobody listens on; they are claimed.

    Until its daemons listen, and while one of them is started again, a cluster of another process finds them free.
    """
    for first in range(21000, 29000, 10):
        if not claims.take(f"slurm_of_tests/{first}"):
            continue
        sockets = []
        try:
            for port in range(first, first + 4):
                sockets.append(socket.socket())
                sockets[-1].bind(("", port))
            return list(range(first, first + 4))
        except OSError:
            claims.release(f"slurm_of_tests/{first}")
        finally:
            for each in sockets:
                each.close()
    raise AssertionError("no four free ports next to each other")
