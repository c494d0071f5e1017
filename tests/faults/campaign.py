"""A run, faults at random moments of it, how long it takes to recover, and the balance at its end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.faults import ledger, numbered
from tests.faults.ledger import Balance
from tests.support.launching import UserRun
from tfagents_system.errors import EXIT_DONE, EXIT_RESUMABLE
from tfagents_system.replay.recovery import saved_priorities
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.run_paths import REPLAY, TRAINER, RunPaths, worker_role

WORKERS, HORIZON, UPDATES = 3, 20, 4
ITERATION_SECS = 0.4  # of an iteration while faults are caused
RECOVERY_SECS = 400.0  # after which a run that does not continue is given up
STRAGGLER_SECS = 5.0
_END_SECS = 600.0
_POLL_SECS = 0.05
_GAPS_SECS = (0.2, 3.0)  # between a recovery and the next fault

PARAMS = """
from tests.faults import numbered
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = {iterations}
    updates_per_iter = {updates}
    num_train_episodes_per_iter = 1
    num_initial_episodes = 4
    buffer_size = {steps}
    num_eval_episodes = 4
    eval_period_iters = {eval_period}
    checkpoint_period_iters = 1_000_000
    log_period_iters = 20
    batch_size = 16
    priority_exponent, priority_beta = 0.6, 0.5
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def __init__(self, env_config, compute_config=None):
        super().__init__(env_config, compute_config)
        numbered.watch_the_sender(env_config["journal"])
        numbered.take_way_round(env_config.get("ways", {{}}))

    def env_ctor(self, worker):
        return numbered.NumberedEnv(worker, self.horizon, self.env_config["journal"])

    def collect_env_args_kwargs(self, id):
        return (id,), {{}}

    def eval_env_args_kwargs(self):
        return (-1,), {{}}
"""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault that was caused.

    Attributes:
      kind: One of `KINDS`, or roles with a + between them.
      roles: Whom it struck.
      recovery_secs: Until whoever died was back and training advanced; None if that did not happen in time.
    """

    kind: str
    roles: tuple[str, ...]
    recovery_secs: float | None


class NumberedRun(UserRun):
    """A run whose environments number their steps and keep journals.

    Args:
      folder: Empty folder for all of it.
      iterations: Of the run.
      eval_period: Iterations between two evaluations.
      ways: Ports at which workers find the replay server, by number of the worker, where not SAC_REVERB_PORT.
      **variables: SAC_ variables, without the prefix, in lower case.
    """

    def __init__(
        self,
        folder: Path,
        iterations: int,
        *,
        eval_period: int = 20,
        ways: Mapping[int, int] | None = None,
        **variables: object,
    ) -> None:
        self.iterations = iterations
        self.journal = folder / "journal"
        self.journal.mkdir()
        # Room for all: whatever is missing at the end was lost.
        self._episodes = 2 * WORKERS * iterations + 100
        steps = self._episodes * HORIZON
        params = PARAMS.format(iterations=iterations, updates=UPDATES, steps=steps, eval_period=eval_period)
        ports = {str(worker): port for worker, port in (ways or {}).items()}
        config = {"horizon": HORIZON, "journal": str(self.journal), "ways": ports}
        # Checkpoints by time: the SavedModels that are written with the periodic ones take seconds of a slow CPU.
        own = {"num_collect_workers": WORKERS, "straggler_secs": STRAGGLER_SECS, "checkpoint_minutes": 0.1}
        super().__init__(folder, params, config, **{**own, **variables})
        self.exp_dir = Path(str(variables.get("exp_dir", self.exp_dir)))
        self.paths = RunPaths(self.exp_dir)
        self.output = folder / "output.txt"

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Starts it, with its output in a file: nobody reads a pipe meanwhile."""
        with self.output.open("a") as output:
            return super().start(*arguments, stdout=output, **options)

    def set_pace(self, iteration_secs: float) -> None:
        """How long an iteration takes, at least."""
        beside = self.journal / f".{numbered.PACE}"
        beside.write_text(str(iteration_secs / HORIZON))
        beside.replace(self.journal / numbered.PACE)

    def beat(self, role: str) -> dict[str, Any]:
        """The role's last heartbeat, empty where there is none."""
        return dict(read_heartbeat(self.paths.heartbeat(role)) or {})

    def balance(self) -> Balance:
        """See `ledger.balance`; of a run that has ended."""
        return ledger.balance(ledger.read_journals(self.journal), self._rows(self.exp_dir), HORIZON)

    def balance_so_far(self) -> Balance:
        """The same of a run that may be at work: what is under way counts as lost, but no promise may be broken.

        What workers have been told is read before the ring, and what environments have done after it.
        """
        told = {(start.worker, start.start): start.told for start in ledger.read_journals(self.journal)}
        with tempfile.TemporaryDirectory(prefix="ring_") as folder:
            copy = Path(folder)
            shutil.copy(self.exp_dir / "specs.pbtxt", copy)
            # The header before the rows that it counts: these are in their files before it says so.
            files = sorted((self.exp_dir / "replay").iterdir(), key=lambda path: path.name != "header.bin")
            (copy / "replay").mkdir()
            for path in files:
                if path.is_file():
                    shutil.copy(path, copy / "replay")
            rows = self._rows(copy)
        starts = [
            dataclasses.replace(start, told=told.get((start.worker, start.start), -1))
            for start in ledger.read_journals(self.journal)
        ]
        return ledger.balance(starts, rows, HORIZON)

    def priorities(self) -> np.ndarray:
        """Of the rows that the newest checkpoint has, `[rows]`: 0 of those that were not measured."""
        saved = saved_priorities(RunPaths(self.exp_dir).trainer_checkpoints)
        return np.frombuffer(saved, np.float32, int.from_bytes(saved[:8], "little"), offset=8)

    def _rows(self, exp_dir: Path) -> ledger.Rows:
        return ledger.read_ring(exp_dir, (self._episodes + 1) * (HORIZON + 1))


def processes_of(exp_dir: Path) -> Iterator[psutil.Process]:
    """Processes that work in a run directory: its supervisor, roles and what those have started."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("SAC_EXP_DIR") == str(exp_dir):
                yield process


class Campaign:
    """Causes faults in one run and measures the recoveries.

    Args:
      run: The run.
      seed: Decides moments and victims.
      say: Told of each fault.

    Attributes:
      faults: Those that were caused.
      violations: What should not have happened, in words.
    """

    def __init__(self, run: NumberedRun, seed: int, say: Callable[[str], None] = lambda text: None) -> None:
        self.run = run
        self.faults: list[Fault] = []
        self.violations: list[str] = []
        self._random = random.Random(seed)
        self._say = say
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> float:
        """Starts the run, with further arguments, and waits until it trains; returns the seconds that took."""
        began, earlier = time.monotonic(), self.run.beat(TRAINER).get("pid")
        self._process = self.run.start(*arguments)
        if self.wait_until(lambda: self.run.beat(TRAINER).get("pid") != earlier and self._is_training()) is None:
            raise RuntimeError(f"the run did not start:\n{self.run.output.read_text()[-3000:]}\n{self.run.logs()}")
        return time.monotonic() - began

    def cause(self, kind: str) -> Fault:
        """Causes a fault and waits until the run has recovered from it.

        Args:
          kind: One of `KINDS`, or roles with a + between them, which are killed at once.
        """
        roles, recovery_secs = _CAUSES[kind](self) if kind in _CAUSES else self._kill(kind.split("+"))
        fault = Fault(kind, tuple(roles), recovery_secs)
        self.faults.append(fault)
        took = "no recovery" if recovery_secs is None else f"recovered after {recovery_secs:.1f} s"
        self._say(f"{kind} ({', '.join(roles)}): {took}")
        if recovery_secs is None:
            self.violations.append(
                f"after {kind} of {', '.join(roles)} the run did not continue for {RECOVERY_SECS:.0f} s"
            )
        elif (threads := psutil.Process(self.process.pid).num_threads()) != 1:
            self.violations.append(f"after {kind} the supervisor, which forks, has {threads} threads")
        return fault

    def cause_many(self, kinds: Sequence[str], *, secs: float, count: int) -> None:
        """Causes faults until the time is over, there were `count`, or the run is about to end.

        Each kind comes once before any comes again.
        """
        deadline = time.monotonic() + secs
        order: list[str] = []
        for _ in range(count):
            time.sleep(self._random.uniform(*_GAPS_SECS))
            if time.monotonic() >= deadline or not self._has_far_to_go() or self.violations:
                return
            order = order or self._random.sample(list(kinds), len(kinds))
            self.cause(order.pop())

    def cause_each(self, kinds: Sequence[str], longest_gap_secs: float = 1.0) -> None:
        """Causes all of these faults in this order, and after each has the ledger looked at."""
        for kind in kinds:
            time.sleep(self._random.uniform(_GAPS_SECS[0], longest_gap_secs))
            assert self._has_far_to_go(), f"no iterations left for {kind}: the run is too short"
            self.cause(kind)
            self.violations += [f"after {kind}: {text}" for text in self.run.balance_so_far().violations]

    def finish(self, timeout_secs: float = _END_SECS) -> int:
        """Lets the run go to its end, at full speed; returns its exit code."""
        self.run.set_pace(0.0)
        try:
            code = self.process.wait(timeout_secs)
        except subprocess.TimeoutExpired:
            self.violations.append(f"the run did not end within {timeout_secs:.0f} s")
            return self._end()
        trainer, asked = self.run.trainer(), self.run.iterations
        if code != EXIT_DONE:
            self.violations.append(f"the run ended with exit code {code}:\n{self.run.output.read_text()[-2000:]}")
        if (trainer.get("train_step"), trainer.get("iteration")) != (asked * UPDATES, asked):
            self.violations.append(
                f"{trainer.get('train_step')} updates in {trainer.get('iteration')} iterations instead of "
                f"{asked * UPDATES} in {asked}"
            )
        self.check_nothing_left()
        return code

    @property
    def process(self) -> subprocess.Popen[str]:
        """The supervisor."""
        assert self._process is not None
        return self._process

    def close(self) -> None:
        """Ends whatever is left of the run."""
        if self._process is not None and self._process.poll() is None:
            self._end()
        for process in list(processes_of(self.run.exp_dir)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    # Seeing how it is.

    def pid(self, role: str) -> int | None:
        """The process of a role that is alive."""
        pid = self.run.beat(role).get("pid")
        return pid if pid is not None and pid in {process.pid for process in processes_of(self.run.exp_dir)} else None

    def iteration_of(self, role: str) -> int:
        """The iteration that a role was last heard to be in."""
        return int(self.run.beat(role).get("iteration") or 0)

    def _is_training(self) -> bool:
        beat = self.run.beat(TRAINER)
        return (beat.get("train_step") or 0) > (beat.get("resumed_at_step") or 0)

    def _has_far_to_go(self) -> bool:
        return self.iteration_of(TRAINER) < self.run.iterations - 20

    def wait_until(self, condition: Callable[[], bool], timeout_secs: float = RECOVERY_SECS) -> float | None:
        """Seconds until the condition held; None if it did not in time, or the run ended."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > timeout_secs or self._process is None or self._process.poll() is not None:
                return None
            time.sleep(_POLL_SECS)
        return time.monotonic() - began

    def until_it_goes_on(self, before: Mapping[str, int | None] | None = None) -> float | None:
        """Seconds until these roles, killed just now, are at work again, and the trainer updates.

        Args:
          before: The process of each that was killed.
        """
        trainer, killed = self.run.beat(TRAINER), before or {}

        def goes_on() -> bool:
            beats = {role: self.run.beat(role) for role in killed}
            is_back = all(
                beat.get("pid") != killed[role] and beat.get("state") != "starting" for role, beat in beats.items()
            )
            now = self.run.beat(TRAINER)
            is_same = now.get("pid") == trainer.get("pid")
            base = trainer.get("train_step") if is_same else now.get("resumed_at_step")
            return is_back and (now.get("train_step") or 0) > (base or 0)

        return self.wait_until(goes_on)

    # Faults: each returns whom it struck, and the seconds until the run went on.

    def _kill(self, roles: Sequence[str]) -> tuple[list[str], float | None]:
        before = {role: self.pid(role) for role in roles}
        for pid in before.values():
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        return list(roles), self.until_it_goes_on(before)

    def _a_worker(self) -> str:
        return worker_role(self._random.randrange(WORKERS))

    def _kill_worker(self) -> tuple[list[str], float | None]:
        return self._kill([self._a_worker()])

    def _kill_two(self) -> tuple[list[str], float | None]:
        return self._kill(self._random.sample([TRAINER, REPLAY, *map(worker_role, range(WORKERS))], 2))

    def _kill_everything(self) -> tuple[list[str], float | None]:
        while processes := list(processes_of(self.run.exp_dir)):
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait(_END_SECS)
        return ["everything"], self._start_again()

    def _kill_supervisor(self) -> tuple[list[str], float | None]:
        self.process.kill()
        self.process.wait(_END_SECS)
        return ["supervisor"], self._start_again()

    def _stop(self) -> tuple[list[str], float | None]:
        number = self._random.choice([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
        self.signal(number)
        return [f"the run with {number.name}"], self._start_again()

    def _interrupt_twice(self) -> tuple[list[str], float | None]:
        self.process.send_signal(signal.SIGINT)
        time.sleep(0.5)  # Signals within a moment count once.
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.expect_end({1, EXIT_RESUMABLE}, timeout_secs=10.0)
        return ["the run with SIGINT twice"], self._start_again()

    def _pause_worker(self) -> tuple[list[str], float | None]:
        """Longer than the others wait for it; the time is until they continue, and it must work again afterwards."""
        worker = self._a_worker()
        pid = self.pid(worker)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0)  # What was collected already is still trained on.
        recovery_secs = self.until_it_goes_on()
        iteration = self.iteration_of(worker)
        os.kill(pid, signal.SIGCONT)
        joins = self.wait_until(lambda: self.iteration_of(worker) > iteration)
        return [worker], None if recovery_secs is None or joins is None else recovery_secs + 1.0

    # Ending.

    def signal(self, number: signal.Signals) -> float:
        """Stops the run with a signal and checks how it ends; returns the seconds that took."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.expect_end({EXIT_RESUMABLE}, timeout_secs=60.0)
        return time.monotonic() - began

    def expect_end(self, codes: set[int], timeout_secs: float) -> None:
        try:
            code = self.process.wait(timeout_secs)
        except subprocess.TimeoutExpired:
            self.violations.append(f"it did not end within {timeout_secs:.0f} s")
            self._end()
            return
        if code not in codes:
            self.violations.append(f"exit code {code} instead of {codes}: {self.run.output.read_text()[-500:]}")
        self.check_nothing_left()

    def _start_again(self) -> float | None:
        try:
            return self.start()
        except RuntimeError as error:
            self.violations.append(str(error))
            return None

    def _end(self) -> int:
        self.process.kill()
        return self.process.wait()

    def check_nothing_left(self) -> None:
        left = [process.pid for process in processes_of(self.run.exp_dir)]
        if left:
            self.violations.append(f"processes {left} outlived the run")


_CAUSES: dict[str, Callable[[Campaign], tuple[list[str], float | None]]] = {
    "worker": Campaign._kill_worker,
    "two": Campaign._kill_two,
    "everything": Campaign._kill_everything,
    "supervisor": Campaign._kill_supervisor,
    "pause": Campaign._pause_worker,
    "stop": Campaign._stop,
    "interrupt": Campaign._interrupt_twice,
}
KINDS = {
    "worker": "kill -9 of a worker",
    REPLAY: "kill -9 of the replay server",
    TRAINER: "kill -9 of the trainer",
    "two": "kill -9 of two roles at once",
    "everything": "kill -9 of everything, then the same command",
    "supervisor": "kill -9 of the supervisor, then the same command",
    "pause": "SIGSTOP of a worker until the others continue, then SIGCONT",
    "stop": "a stop signal, exit code 75, then the same command",
    "interrupt": "SIGINT twice, then the same command",
}
