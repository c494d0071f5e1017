"""With a ring of 1,000,000 steps, checkpoints cost less than 2 % of training time and a run resumes within 20 s.

    python -m benchmarks.saving [--quick]

`./run_script.sh` with an environment that takes no time, 28 numbers to observe and 8 to act. The ring is full;
SavedModels and a checkpoint are written after every 5 iterations of 1,000 updates, ten times as often as by default.
Then the run is stopped, and killed with all its processes, and the same command is given again.
"""

from __future__ import annotations

import signal

from benchmarks.outcome import Outcome, parse_args
from benchmarks.processes import ROOT, end_on_sigterm
from benchmarks.real_run import RealRun
from benchmarks.saving_params import TrainParams
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.train_params_base import TrainParamsBase

_HORIZON = 1000
_DEADLINE_SECS = 600.0
_TARGET_SHARE, _TARGET_RESUME_SECS = 0.02, 20.0


def _updates(run: RealRun) -> int:
    return int(run.heartbeat("trainer").get("train_step") or 0)


def _resume_secs(run: RealRun, number: signal.Signals) -> float:
    """From the command to the first update, of a run that was ended by a signal."""
    before = run.heartbeat("trainer").get("pid")
    run.interrupt(number)

    def updates_again() -> bool:
        beat = run.heartbeat("trainer")
        return beat.get("pid") != before and (beat.get("train_step") or 0) > beat.get("resumed_at_step", float("inf"))

    return run.wait_until(updates_again, "the first update after it was resumed", _DEADLINE_SECS)


def main() -> None:
    args = parse_args()
    end_on_sigterm()
    episodes, updates, checkpoints = (20, 50, 1) if args.quick else (1000, 1000, 3)
    outcome = Outcome(__doc__.splitlines()[0])
    config = {"horizon": _HORIZON, "step_ms": 0.0, "episodes": episodes, "updates": updates}
    variables = {"SAC_NUM_COLLECT_WORKERS": 1}
    with RealRun(ROOT / "benchmarks" / "saving_params.py", config, variables) as run:
        run.wait_until(lambda: _updates(run) > 0, "the first update", _DEADLINE_SECS)
        until = (checkpoints * TrainParams.checkpoint_period_iters + 1) * updates
        run.wait_until(lambda: _updates(run) > until, f"update {until}", _DEADLINE_SECS)
        beat = run.heartbeat("trainer")
        share = beat["time_shares"].get("saving", 0.0)
        outcome.row("steps in the ring", run.heartbeat("replay")["env_steps"], "steps")
        outcome.row("updates meanwhile", beat["train_step"], "updates")
        outcome.row("share of training time in updates", beat["time_shares"]["updates"], "")
        outcome.row("share of training time in checkpoints", share, "")
        by_default = share * TrainParams.checkpoint_period_iters / TrainParamsBase.checkpoint_period_iters
        outcome.row(f"the same, every {TrainParamsBase.checkpoint_period_iters} iterations (default)", by_default, "")
        newest = kept_checkpoints.newest_complete(run.paths.trainer_checkpoints)
        assert newest is not None
        num_bytes = sum(path.stat().st_size for path in newest.folder.rglob("*") if path.is_file())
        outcome.row("a checkpoint beside the ring", num_bytes / 1e6, "MB")
        resumes = {
            "stopped by SIGTERM": _resume_secs(run, signal.SIGTERM),
            "killed with all processes": _resume_secs(run, signal.SIGKILL),
        }
    for what, secs in resumes.items():
        outcome.row(f"{what}: from the command to the next update", secs, "s")
    outcome.ratio("2 % over the share of checkpoints by default", _TARGET_SHARE / max(by_default, 1e-5), 1.0)
    outcome.ratio("20 s over the slower resume", _TARGET_RESUME_SECS / max(resumes.values()), 1.0)
    outcome.print()


if __name__ == "__main__":
    main()
