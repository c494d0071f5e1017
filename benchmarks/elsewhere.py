"""Experience of 1,000,000 steps stays at a reset within 1 s, and comes from a ring in 10 s and from Minari in 60 s.

    python -m benchmarks.elsewhere [--quick]

28 numbers an observation and 8 an action, in episodes of 1000 steps, each one segment: a reset that adds or drops a
column, for which there is no limit, computes two checksums a segment and takes longer with shorter ones. Draws of a
minibatch of 256 from two rings, half of it from each, are compared with draws from one, in turns. Times are CPU time
of this process, so that other programs count little; waiting for the disk does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.outcome import Outcome, parse_args

STEPS, EPISODE, OBSERVATION, ACTION, BATCH, MINIBATCHES = 1_000_000, 1000, 28, 8, 256, 100
RESET_SECS, RING_SECS, MINARI_SECS, OF_ONE_RING = 1.0, 10.0, 60.0, 0.9
_SET = "minari:benchmarks/elsewhere-v0"
PARAMS = """
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    def env_ctor(self, *args, seed=None, **kwargs):
        raise AssertionError("not built here")
"""


@contextlib.contextmanager
def measured(times: list[float]) -> Iterator[None]:
    """Adds the CPU seconds of a block."""
    began = time.process_time()
    yield
    times.append(time.process_time() - began)


def resets(folder: Path, steps: int, rounds: int) -> dict[str, float]:
    """CPU seconds until the ring of a run is open for another agent, with its columns and with others."""
    from benchmarks.replay import make_layout, make_segment
    from tfagents_system.replay.recovery import RingFolders, open_ring
    from tfagents_system.transport.layout import OPTIONAL_COLUMNS

    places = RingFolders(folder / "replay", folder / "replay", folder / "checkpoints")
    plain, segment_steps = make_layout(), min(EPISODE, steps)
    cutting = dataclasses.replace(plain, explored=OPTIONAL_COLUMNS["explored"])
    found: dict[str, list[float]] = {"a reset": [], "a reset that adds or drops a column": []}
    ring, _ = open_ring(places, plain, steps + steps // segment_steps, None)
    segment, count = make_segment(segment_steps), ring.num_rows // (segment_steps + 1)
    for segment.number in range(count):
        ring.append(segment)
    epoch = 1
    for number in range(rounds):
        for name, times in found.items():
            epoch += 1
            has_other = name != "a reset"
            layout = cutting if (number + has_other) % 2 else plain
            with measured(times):
                again, _ = open_ring(places, layout, ring.capacity_rows, None, epoch=epoch, counts_kept_steps=True)
            assert again.ring_steps == ring.ring_steps and again.epoch == epoch
    return {name: statistics.median(times) for name, times in found.items()}


def ring_import(folder: Path, steps: int, rounds: int) -> float:
    """CPU seconds of filling a new run's ring from another one, as SAC_REPLAY_FROM does."""
    from benchmarks.replay import full_ring
    from tfagents_system.replay.filling import fill
    from tfagents_system.replay.ring import Ring

    source, times = full_ring(folder / "source" / "replay", steps), list[float]()
    for number in range(rounds):
        run = folder / f"new_{number}"
        ring = Ring.open(run / "replay", source.layout, source.capacity_rows)
        with measured(times):
            fill(ring, [folder / "source"], run / "replay", run / "checkpoints")
        assert ring.ring_steps == source.ring_steps
        shutil.rmtree(run)
    return statistics.median(times)


def minari_import(folder: Path, steps: int) -> float:
    """CPU seconds of the import of a Minari data set."""
    from tf_agents.specs import array_spec

    from tfagents_system.envs.actions import actions_of
    from tfagents_system.envs.specs import save_specs
    from tfagents_system.experience import minari_sets, transfer
    from tfagents_system.experience.conversion import NamedEpisode
    from tfagents_system.replay.stored_ring import StoredRing
    from tfagents_system.run_files.run_paths import RunPaths
    from tfagents_system.transport.layout import Layout

    os.environ["MINARI_DATASETS_PATH"] = str(folder / "sets")
    observation = array_spec.ArraySpec((OBSERVATION,), "float32", "observation")
    action = array_spec.BoundedArraySpec((ACTION,), "float32", -1.0, 1.0, "action")
    rng, horizon = np.random.default_rng(0), min(EPISODE, steps)
    episode = NamedEpisode(
        {"": rng.standard_normal((horizon + 1, OBSERVATION), np.float32)},
        {"": rng.uniform(-1, 1, (horizon, ACTION)).astype(np.float32)},
        rng.standard_normal(horizon, np.float32),
        is_terminated=False,
    )
    layout = Layout.from_specs(observation, action)
    minari_sets.write(
        _SET.removeprefix(minari_sets.PREFIX), [episode] * (steps // horizon), layout, [actions_of(action)]
    )
    run, times = RunPaths(folder / "run"), list[float]()
    run.exp_dir.mkdir()
    run.params.write_text(PARAMS)
    run.config.write_text(f'{{"horizon": {horizon}}}')
    save_specs(run.specs, observation, action, None)
    with measured(times):
        transfer.import_into(_SET, folder / "imported", str(run.exp_dir), None, None, lambda text: None)
    assert StoredRing(folder / "imported").steps == steps
    return times[0]


def draws(folder: Path, steps: int, rounds: int) -> dict[str, list[float]]:
    """Minibatches a CPU second from one ring and from two, round by round."""
    from benchmarks.replay import full_ring
    from tfagents_system.replay import sampling
    from tfagents_system.replay.draw_settings import DrawSettings, PriorData
    from tfagents_system.replay.sample_forms import TransitionForm

    ring, rng = full_ring(folder / "own", steps), np.random.default_rng(0)
    one = DrawSettings(BATCH, TransitionForm(), MINIBATCHES, seed=0)
    prior = PriorData(full_ring(folder / "prior", steps), BATCH // 2)
    kinds = {"one ring": one, "two rings": dataclasses.replace(one, prior=prior)}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, settings in kinds.items():
            times = list[float]()
            with measured(times):
                for _ in range(5):
                    sampling.draw(ring, rng, settings, MINIBATCHES)
            found[name].append(5 * MINIBATCHES / times[0])
    return found


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("SAC_REPLAY_DIR")) as folder:
        yield Path(folder)


def main() -> None:
    args = parse_args(argparse.ArgumentParser(description=__doc__))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    outcome = Outcome((__doc__ or "").splitlines()[0])
    steps, rounds = (20_000, 1) if args.quick else (STEPS, 5)
    with scratch() as folder:
        secs = resets(folder, steps, rounds)
    for name, value in secs.items():
        outcome.row(f"{name}, {steps:,} steps", value, "CPU s")
    outcome.ratio(f"{RESET_SECS:g} s over a reset", RESET_SECS / secs["a reset"], 1.0)
    with scratch() as folder:
        value = ring_import(folder, steps, rounds)
    outcome.row(f"import of a ring, {steps:,} steps", value, "CPU s")
    outcome.ratio(f"{RING_SECS:g} s over the import of a ring", RING_SECS / value, 1.0)
    if importlib.util.find_spec("minari") is None:
        outcome.note("Minari is not installed: its import was not measured")
    else:
        with scratch() as folder:
            value = minari_import(folder, steps)
        outcome.row(f"import of a Minari data set, {steps:,} steps", value, "CPU s")
        outcome.ratio(f"{MINARI_SECS:g} s over the import of a Minari data set", MINARI_SECS / value, 1.0)
    with scratch() as folder:
        speeds = draws(folder, steps, 3 * rounds)
    for name, found in speeds.items():
        outcome.row(f"draws from {name}, {steps:,} steps each", statistics.median(found), "minibatches/CPU s")
    ratios = [two / one for one, two in zip(*speeds.values(), strict=True)]
    outcome.ratio("draws from two rings over draws from one", statistics.median(ratios), OF_ONE_RING)
    outcome.print()


if __name__ == "__main__":
    main()
