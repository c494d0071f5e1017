"""Causes faults in a real run and says what they cost.

    python -m tests.faults --minutes 10 [--kills 50] [--kinds worker,replay,two] [--seed 7]

The run's environments number their steps, so that at its end every step is accounted for. Exit code 0: every promise
of docs/explanations/reliability.md was kept.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.campaign import ITERATION_SECS, KINDS, UPDATES, Campaign, Fault, NumberedRun
from tests.faults.ledger import Balance

_SECS_A_FAULT = 12.0  # of training: how long a run must be for so many faults


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Reading the ring's layout needs TensorFlow.
    faults = args.kills or 10_000
    training_secs = min(args.minutes * 60.0, faults * _SECS_A_FAULT)
    with contextlib.ExitStack() as stack:
        folder = args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults_")))
        folder.mkdir(parents=True, exist_ok=True)
        run = NumberedRun(folder, iterations=int(training_secs / ITERATION_SECS) + 50)
        campaign = Campaign(run, args.seed, say=lambda text: print(f"{time.strftime('%H:%M:%S')} {text}", flush=True))
        stack.callback(campaign.close)
        run.set_pace(ITERATION_SECS)
        print(f"{run.iterations} iterations in {run.exp_dir}, seed {args.seed}", flush=True)
        print(f"started after {campaign.start():.1f} s", flush=True)
        campaign.cause_many(args.kinds, secs=args.minutes * 60.0, count=faults)
        code = campaign.finish()
        balance = run.balance()
        violations = campaign.violations + balance.violations
        print(table(campaign.faults))
        print(summary(run, balance, code))
    for violation in violations:
        print(f"VIOLATION: {violation}")
    print("every promise was kept" if not violations else f"{len(violations)} promises were broken")
    return 1 if violations else 0


def table(faults: Sequence[Fault]) -> str:
    """Faults, recoveries and recovery times by kind."""
    rows = [("fault", "times", "recovered", "median s", "longest s")]
    for kind, meaning in KINDS.items():
        ours = [fault for fault in faults if fault.kind == kind]
        secs = [fault.recovery_secs for fault in ours if fault.recovery_secs is not None]
        if ours:
            times = (f"{statistics.median(secs):.1f}", f"{max(secs):.1f}") if secs else ("-", "-")
            rows.append((meaning, str(len(ours)), str(len(secs)), *times))
    rows.append(("all", str(len(faults)), str(sum(fault.recovery_secs is not None for fault in faults)), "", ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def summary(run: NumberedRun, balance: Balance, code: int) -> str:
    """What became of every step, and how the run ended."""
    trainer = run.trainer()
    tails = sorted(balance.tails)
    lines = [
        f"steps collected   {balance.collected:,}",
        f"steps stored      {balance.stored + balance.evicted:,}, {balance.evicted:,} of them evicted by newer ones",
        f"steps duplicated  {balance.duplicated}",
        *(f"steps lost        {steps} {reason}" for reason, steps in balance.lost.items()),
        f"lost at once      {f'median {statistics.median(tails):.0f}, most {tails[-1]}' if tails else 'nothing'}",
        f"updates           {trainer.get('train_step')} of {run.iterations * UPDATES}",
        f"iterations        {trainer.get('iteration')} of {run.iterations}",
        f"exit code         {code}",
    ]
    return "\n".join(lines)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    kinds = "\n".join(f"  {kind:12} {meaning}" for kind, meaning in KINDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Causes faults in a real run and says what they cost.",
        epilog=f"kinds of faults:\n{kinds}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults are caused, at most (10)")
    parser.add_argument("--kills", type=int, help="how many, at most (no limit)")
    parser.add_argument("--kinds", type=_kinds, default=list(KINDS), help="which, with commas between them (all)")
    parser.add_argument("--seed", type=int, default=0, help="decides moments and victims (0)")
    parser.add_argument("--folder", type=Path, help="an empty folder that is kept (a temporary one)")
    return parser.parse_args(argv)


def _kinds(text: str) -> list[str]:
    kinds = text.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(KINDS)}")
    return kinds


if __name__ == "__main__":
    sys.exit(main())
