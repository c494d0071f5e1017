"""Minutes of wall time on two CPUs to a return: half of SBX's with SAC, a third with the best learner.

    python -m benchmarks.minutes [--quick] [--peers_python PYTHON]

Short runs that take turns show how long a start and a step take, evaluations included. The record of learning curves
(learning/results/algorithms.csv) shows after how many steps an evaluation first reaches the return, as the median over
its runs. All tasks of MuJoCo have HalfCheetah's pace: updates take nearly all of the time.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.learning.algorithms import FOLDER, Evaluated, Evaluation, read_record, train
from benchmarks.learning.tasks import OURS, PEERS, TASKS
from benchmarks.outcome import Outcome, parse_args
from benchmarks.processes import end_on_sigterm
from tfagents_system.machine.cpus import allowed_cpus

_N_CPUS = 2
_GOALS = {"pendulum": (-200.0,), "half_cheetah": (4000.0, 6000.0), "hopper": (1000.0,), "walker2d": (1000.0,)}
_RANDOM_STEPS = 1_000  # Those before the first update.
_PACE_STEPS = {"pendulum": 4_000, "half_cheetah": 10_000}  # With two evaluations behind these.
_QUICK_STEPS = 3_000
# Variants of the record, each with those of the same pace.
_SAC, _FAST_SAC, _SBX = "sac, 50 steps", "sac, 50 steps, learning rates 1e-3", "SBX SAC"
_VARIANTS = {_SAC: (_FAST_SAC,), "crossq, 50 steps": (), "xqc": (), _SBX: (), "SB3 SAC": ()}


@dataclasses.dataclass(frozen=True)
class Pace:
    """Seconds of an environment step with its update and its share of the evaluations, and those beside these.

    The latter are those of the start, less those that the random steps save.
    """

    start_secs: float
    step_secs: float

    @classmethod
    def of(cls, evaluations: Sequence[Evaluated]) -> Pace:
        first, *_, last = [e for e in evaluations if e.env_steps > _RANDOM_STEPS]
        step_secs = (last.secs - first.secs) / (last.env_steps - first.env_steps)
        return cls(first.secs - first.env_steps * step_secs, step_secs)

    def minutes(self, steps: float) -> float:
        return (self.start_secs + steps * self.step_secs) / 60.0


def steps_to(goal: float, runs: Sequence[Evaluation]) -> float:
    """Median over a variant's runs of the steps of the first evaluation with such a return, infinity without one."""
    reached = {e.seed: math.inf for e in runs}
    for evaluation in runs:
        if evaluation.eval_return >= goal:
            reached[evaluation.seed] = min(reached[evaluation.seed], evaluation.env_steps)
    return statistics.median(reached.values())


def report(outcome: Outcome, task: str, paces: Mapping[str, Pace], record: Sequence[Evaluation]) -> None:
    """Minutes to each return of a task, where the record has runs of a variant, and SBX's over ours."""
    for goal in _GOALS[task]:
        what, minutes = f"{TASKS[task].environment} to {goal:,.0f}", dict[str, float]()
        for variant, pace in paces.items():
            runs = [e for e in record if (e.task, e.variant) == (task, variant)]
            steps, count = steps_to(goal, runs) if runs else math.inf, len({e.seed for e in runs})
            if math.isfinite(steps):
                minutes[variant] = pace.minutes(steps)
                outcome.row(f"{variant}, {what}: {steps:,.0f} steps (runs: {count})", minutes[variant], "minutes")
            elif runs:
                outcome.note(f"{variant}, {what}: not within {TASKS[task].steps:,} steps in half of its runs ({count})")
        if of_sbx := minutes.get(_SBX):
            best = min(minutes.keys() & OURS.keys(), key=lambda variant: minutes[variant], default=None)
            sac = minutes.get(_FAST_SAC, minutes.get(_SAC))
            if sac is not None and best is not None:
                outcome.ratio(f"SBX's minutes over those of SAC, {what}", of_sbx / sac, 2.0)
                outcome.ratio(
                    f"SBX's minutes over those of {best}, the best learner, {what}", of_sbx / minutes[best], 3.0
                )


def main() -> None:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers_python", type=os.path.abspath, help="Python with SBX; without it, ours alone")
    arguments = parse_args(parser)
    os.sched_setaffinity(0, allowed_cpus()[:_N_CPUS])
    outcome, record = Outcome((__doc__ or "").splitlines()[0]), read_record(FOLDER / "results" / "algorithms.csv")
    paces = dict[str, dict[str, Pace]]()
    for task, steps in _PACE_STEPS.items():
        paces[task] = {}
        for variant, others in _VARIANTS.items():
            is_slow = task != "pendulum" or variant not in (_SAC, _SBX)
            if (arguments.quick and is_slow) or (arguments.peers_python is None and variant in PEERS):
                continue
            shortened = dataclasses.replace(TASKS[task], steps=_QUICK_STEPS if arguments.quick else steps)
            pace = Pace.of(train(shortened, {**OURS, **PEERS}[variant], 0, arguments.peers_python or ""))
            paces[task] |= dict.fromkeys((variant, *others), pace)
            outcome.row(f"{variant}, {TASKS[task].environment}, with evaluations", 1 / pace.step_secs, "steps/s")
    for task in _GOALS:
        report(outcome, task, paces.get(task, paces["half_cheetah"]), record)
    outcome.note("SAC has learning rates of 1e-3; peers and `sac, 50 steps` have 3e-4, on Pendulum all have 1e-3")
    outcome.print()


if __name__ == "__main__":
    main()
