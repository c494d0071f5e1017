"""Shared by the three role programs: where they run, their settings, and how they are stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import functools
import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from absl import flags, logging

from tfagents_system.envs.env_process import ProcessSettings
from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_RESUMABLE, UserError, print_findings
from tfagents_system.machine.signals import StopFlag, die_with_parent, end_as_orphan
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.heartbeat import Heartbeat, read_heartbeat, read_status
from tfagents_system.run_files.run_paths import REPLAY, TRAINER, RunPaths, is_worker, worker_role
from tfagents_system.settings.load_params import compute_config_of, load_env_config, load_params
from tfagents_system.settings.resolved import Settings
from tfagents_system.settings.variables import RunVariables
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport import tunnel
from tfagents_system.transport.connection import Connection, ServerUnreachableError, StoppedError
from tfagents_system.transport.tunnel import Tunnel

_START_SECS = 900.0  # Of a start: each wait in it has a deadline of 600 s.
_HUNG_SECS = 300.0  # After such a deadline: the wait itself hangs.
_ORPHAN_SECS = 10.0  # Beside the deadline for saving: for all that comes before and after it.


def _end_after(secs: float) -> None:
    """Ends the process after that time, with where each thread is in its log; also while it blocks in C++."""
    faulthandler.dump_traceback_later(secs, exit=True, file=2)


@contextlib.contextmanager
def _ended_after(secs: float) -> Iterator[None]:
    """Of a block that hangs: see `_end_after`."""
    _end_after(secs)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@dataclasses.dataclass
class Role:
    """One role process of a run.

    Attributes:
      name: `replay`, `trainer` or `worker_<i>`.
      paths: The run directory.
      settings: Of the run and of this start.
      params: The user's TrainParams.
      stop: Set when the role is told to stop.
      heartbeat: Reports the role's state to the supervisor.
      joined: Its place in the run that it joined; None if the run started it.
    """

    name: str
    paths: RunPaths
    settings: Settings
    params: TrainParamsBase
    stop: StopFlag
    heartbeat: Heartbeat
    joined: Tunnel | None = None

    @classmethod
    @_ended_after(_START_SECS)
    def of_run(cls, name: str) -> Role:
        """Reads the settings of the run in SAC_EXP_DIR, and loads its own copies of params and config.

        Raises:
          UserError: The params file or the configuration can't be loaded, or the run to join refuses this worker.
        """
        die_with_parent()
        stop = StopFlag.of_role()
        flags.FLAGS.mark_as_parsed()  # There are none; absl's logging asks.
        logging.use_absl_handler()
        logging.set_verbosity(logging.INFO)
        paths = RunPaths(Path(os.environ["SAC_EXP_DIR"]))
        heartbeat = Heartbeat(paths.heartbeat(name), name)
        heartbeat.beat("starting")
        settings, joined = Settings.read(paths.run_json), None
        end_as_orphan(settings.variables.save_deadline_secs + _ORPHAN_SECS)
        here = {"SAC_EXP_DIR": str(paths.exp_dir)}  # The directory may have been moved since its start.
        os.environ.update(settings.variables.to_environ() | here)  # For users' code.
        if (server := _server_to_join(name, settings.variables)) is not None:

            def say(why: str) -> None:
                _end_after(_START_SECS)  # From now on.
                heartbeat.beat("starting", doing=f"waiting for {server}: {why}")

            joined = tunnel.join(name, server, stop.is_set, settings, paths, say)
            settings = joined.settings
            os.environ.update(settings.variables.to_environ() | here)
        if is_worker(name):
            number = _number(name, joined)
            os.environ.update(SLURM_PROCID=str(number), SAC_WORKER_ROLE=settings.variables.kind_of(number))
        params = load_params(
            paths.params,
            settings.overrides.merged(load_env_config(paths.config)),
            origin=run_directory.origin_of_run(paths),
            compute_config=compute_config_of(vars(settings.variables)),
            attributes=settings.overrides.attributes,
            process=ProcessSettings.of(vars(settings.variables)),
        )
        return cls(name, paths, settings, params, stop, heartbeat, joined)

    @property
    def variables(self) -> RunVariables:
        return self.settings.variables

    @property
    def worker_id(self) -> int:
        """Of a worker: its number, which is its slot."""
        return _number(self.name, self.joined)

    @property
    def kind(self) -> str:
        """Of a worker: one of claims.KINDS."""
        return self.variables.kind_of(self.worker_id)

    @property
    def deterministic(self) -> bool:
        """The seed alone determines what the role does."""
        return self.variables.deterministic

    @property
    def server_address(self) -> str:
        """Where the replay server listens."""
        return _server_to_join(self.name, self.variables) or f"127.0.0.1:{self.variables.reverb_port}"

    def connect(self, stop: Callable[[], bool]) -> Connection:
        """To the replay server; `stop` ends every wait."""
        if self.joined is None:
            return Connection(self.server_address, stop)
        self.joined.connection.stop = stop
        return self.joined.connection

    def wait_until_up(self, connection: Connection, deadline_secs: float) -> None:
        """Waits for the replay server; no longer than the deadline after it has last said what its start is at.

        Raises:
          StoppedError, ServerUnreachableError: See `Waiting.check`.
        """
        with self.heartbeat.during("starting"):
            while True:
                try:
                    with _ended_after(deadline_secs + _HUNG_SECS):
                        return connection.wait_until_up(deadline_secs)
                except ServerUnreachableError:
                    beat = read_heartbeat(self.paths.heartbeat(REPLAY)) or {}
                    if not beat.get("doing") or time.time() - beat.get("time", 0.0) > deadline_secs:
                        raise

    @property
    def is_far(self) -> bool:
        """Whether this is a trainer that has a run directory of its own, not that of the replay server."""
        return self.joined is not None and self.name == TRAINER

    def is_stopped(self) -> bool:
        """Whether it is told to stop, or has joined as a far trainer a run that ends where its replay server is."""
        return self.stop.is_set() or (self.is_far and self.joined is not None and self.joined.ended() is not None)

    def is_server_gone(self) -> bool:
        """Whether the run ends without its replay server, which is not started again then."""
        server = ((read_status(self.paths.status_json) or {}).get("roles") or {}).get(REPLAY, {})
        return self.stop.is_set() and server.get("alive") is False

    def has_left(self, worker_id: int) -> bool:
        """Whether a worker that joined says that it has stopped. Those that the run has started itself will be back.

        One that is neither planned nor heard of since the run was started has left before that: the run may have had
        more workers then. The answer lags a worker by seconds.
        """
        slots = self.variables.slots
        if worker_id < slots.local or worker_id in slots.beside:
            return False
        if beat := read_heartbeat(self.paths.heartbeat(worker_role(worker_id))):
            return beat.get("state") == "stopped"
        return worker_id >= slots.beside.stop and not self.is_far  # Whose heartbeats are elsewhere.

    @functools.cached_property
    def run_id(self) -> int:
        """The run's number in run.json, which another run of the same name does not have."""
        return int(run_directory.read_run_json(self.paths).get("id", 0))

    def derived_seed(self, *stream: int) -> int:
        """A 32-bit seed for one stream of random numbers, derived from the run's seed."""
        return int(np.random.SeedSequence([self.variables.seed, *stream]).generate_state(1)[0])


def _number(name: str, joined: Tunnel | None) -> int:
    return int(name.removeprefix("worker_")) if joined is None else joined.worker_id


def _server_to_join(name: str, variables: RunVariables) -> str | None:
    """Of a worker that joins, and of a trainer that is elsewhere than its replay server."""
    return variables.server or (variables.trainer_server if name == TRAINER else None)


# Streams for `derived_seed`.
COLLECT_STREAM, EVAL_STREAM, NOISE_STREAM, TRAIN_STREAM, HELD_OUT_STREAM, EPISODE_STREAM = 10, 11, 12, 13, 14, 15
RESET_STREAM, GREEDY_STREAM, GOAL_STREAM = 17, 18, 19


class _Log(io.FileIO):
    """Output of a role to its log file: what does not fit on a full disk is dropped without an error."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def run_role(name: str, main: Callable[[Role], int]) -> NoReturn:
    """Runs a role's program and ends the process with its exit code.

    A UserError ends it with 2, any other exception with 1 and a traceback in the role's log.
    """
    code = EXIT_FAILED
    sys.stdout, sys.stderr = streams = tuple(
        io.TextIOWrapper(_Log(descriptor, "w", closefd=False), errors="backslashreplace", write_through=True)
        for descriptor in (1, 2)
    )
    try:
        try:
            code = main(Role.of_run(name))
        finally:
            sys.stdout, sys.stderr = streams  # A user's code may have set others, None even.
    except UserError as error:
        print_findings(error.findings)
        code = EXIT_BAD_INPUT
    except StoppedError:
        code = EXIT_RESUMABLE
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads that read from Reverb block in C++ and would abort the interpreter's own shutdown.
    os._exit(code)
