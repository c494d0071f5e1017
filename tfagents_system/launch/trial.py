"""The trial of a user's own code, in a fork: a crash or a hang becomes a finding beside the others."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tfagents_system.envs.env_process import DEFAULT_STEP_TIMEOUT_SECS, build_timeout_secs
from tfagents_system.errors import UserError
from tfagents_system.launch import forks
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.inspection import PARAMS, Inspection, Inspector
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.run_settings import FOLDER
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files.run_paths import TRAINER
from tfagents_system.settings.load_params import load_env_config
from tfagents_system.settings.variables import read_variables

_SPEAK_SECS = 20.0


def run_trial(
    environ: Mapping[str, str],
    vars_file: Path | None,
    work: LongWork,
    *,
    render: bool,
    plan: CpuPlan | None = None,
    in_fork: bool = True,
) -> Inspection:
    """Loads params and configuration, builds the environment and tries it: all that runs a user's own code.

    Args:
      work: Is told what the trial does.
      render: Whether a picture is drawn.
      plan: Where updates are measured; None: they are not.
      in_fork: False: in this process, which a crash ends and a hang stops.
    """
    if not in_fork:
        return Inspector(environ, vars_file).run(render, plan)
    values, _ = read_variables(environ, vars_file=vars_file, root=ROOT)
    if _can_be_read(values):  # Else that is reported at once, without TensorFlow.
        work.doing = "importing TensorFlow"
        try:
            forks.import_all(work.look)
        except ImportError as error:
            found = Inspection()
            found.checks["packages"].errors.append(f"{error}: install what is missing, as ./setup.sh does")
            return found
    if plan is not None:  # Updates are measured with the trainer's threads.
        threads = plan.thread_environ(TRAINER)
        environ = {**environ, **{name: count for name, count in threads.items() if name.startswith("TF_")}}
    watch = _Watch(float(values.get("step_timeout_secs", DEFAULT_STEP_TIMEOUT_SECS)), environ.get(FOLDER), work)
    try:
        inspection: Inspection = forks.call(
            lambda tell: Inspector(environ, vars_file, tell).run(render, plan), "sac_check", environ, watch
        )
        return inspection
    except forks.CallDiedError as error:
        return watch.ended_early(None if watch.is_hung else str(error))


def _can_be_read(values: Mapping[str, object]) -> bool:
    if not values.keys() >= {"exp_dir", "params", "config"}:
        return False
    params, config = Path(str(values["params"])), Path(str(values["config"]))
    try:
        load_env_config(config)
        compile(params.read_bytes(), params, "exec")
    except (UserError, SyntaxError, ValueError, OSError):
        return False
    return True


class _Watch:
    """Whether a trial's current activity takes too long; says at intervals what it waits for.

    Args:
      step_timeout_secs: Limit of a step or a reset; all else may take longer.
      copy: The temporary copy of the params' folder, whose name means nothing to the user; None: there is none.
      work: Is told what the trial does.
    """

    def __init__(self, step_timeout_secs: float, copy: str | None, work: LongWork) -> None:
        self._step_timeout_secs, self._copy, self._work = step_timeout_secs, copy, work
        self._told: Inspection | None = None
        self._since = self._spoke = time.monotonic()
        self.is_hung = False

    def __call__(self, told: Inspection | None) -> bool:
        self._work.look()
        now = time.monotonic()
        if told is not self._told:
            assert told is not None
            self._told, self._since, self._spoke = told, now, now
            self._work.doing = told.doing.replace(f"{self._copy}/", "") if self._copy else told.doing
        elif told is not None and told.doing and now - self._spoke >= min(_SPEAK_SECS, self._step_timeout_secs):
            self._spoke, limit_secs = now, self._limit_secs(told.doing)
            self.is_hung = now - self._since >= limit_secs
            if not self.is_hung:
                waited = f"{told.doing} takes {now - self._since:.0f} s, of at most {limit_secs:g} s"
                print(f"note: check: {waited}", flush=True)
        return self.is_hung

    def _limit_secs(self, doing: str) -> float:
        """The same limit as workers have."""
        return self._step_timeout_secs if _is_step(doing) else build_timeout_secs(self._step_timeout_secs)

    def ended_early(self, died_with: str | None) -> Inspection:
        """The findings before the user's code ended the process, or hung (None), and the finding that it did."""
        so_far = self._told or Inspection()
        doing = so_far.doing or "the check of params and environment"
        if died_with is None:
            fault = f"{doing} has not returned for {self._limit_secs(doing):g} s: correct it"
            if _is_step(doing):
                fault += ", or raise SAC_STEP_TIMEOUT_SECS"
        else:
            fault = f"the process died with {died_with} in {doing}: see above, and correct it"
        if doing == "rendering":
            so_far.checks["rendering"].notes.append(f"{fault}; training needs no pictures")
        else:
            so_far.checks[PARAMS if so_far.num_iter is None else "environment"].errors.append(fault)
        return so_far


def _is_step(doing: str) -> bool:
    return "step()" in doing or "reset()" in doing
