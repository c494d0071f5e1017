"""The gateway's limit of a message lets through the largest that a worker of the run sends."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tests.support.fakes import FakeParams
from tests.support.fed_builder import FedEpisode
from tests.support.settings_for_tests import write_run_json
from tests.support.tiny_agents import ACTION, OBSERVATION
from tfagents_system.envs.specs import load_specs, save_specs
from tfagents_system.report.episodes import EVAL, TRAIN, Episode, Report, summarize
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.sac_gateway import run_facts
from tfagents_system.transport.remote import frames, messages
from tfagents_system.transport.remote.gateway import RunFacts
from tfagents_system.transport.run_layout import run_layout
from tfagents_system.transport.segments import Segment
from tfagents_system.worker.segment_builder import segment_builder

EPISODE_STEPS = 1000


def facts_of(folder: Path, params: Any, observation: tf.TensorSpec) -> RunFacts:
    paths = RunPaths(folder)
    save_specs(paths.specs, observation, ACTION)
    paths.params.write_text("")
    paths.config.write_text("{}")
    settings = write_run_json(paths)
    role: Any = types.SimpleNamespace(params=params, paths=paths, settings=settings, run_id=7, max_workers=4)
    return run_facts(role)


def body_bytes(arrays: list[np.ndarray], limit: int) -> int:
    """Bytes of the arrays of a message to a gateway with this limit. Raises FrameError where it is longer."""
    head = bytes(frames.encode(messages.Put(-1, ["segments"]), arrays)[0])[: frames.HEAD_BYTES]
    return frames.read_head(head, frames.Limits(2**20, limit))[1]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"frame_stack": 4},
        {"n_step": 20},
        {"recurrent": True},
        {"recurrent": {"burn_in": 40}},
        {"recurrent": {"sequence_length": 200}},
    ],
    ids=str,
)
def test_segments_from_within_a_long_episode_pass(tmp_path: Path, settings: dict[str, Any]) -> None:
    params = type("TrainParams", (FakeParams,), settings)({"horizon": EPISODE_STEPS})
    facts = facts_of(tmp_path, params, tf.TensorSpec((128, 128, 3), tf.uint8, "observation"))
    sizes: list[tuple[int, int]] = []

    def send(segment: Segment) -> None:
        sizes.append((segment.num_rows, body_bytes(segment.to_wire(), facts.max_worker_bytes)))

    layout = run_layout(params, *load_specs(RunPaths(tmp_path).specs))
    builder = segment_builder(params, layout, send, held_out=False)
    image = np.zeros((128, 128, 3), np.uint8)
    fed = FedEpisode(builder, ts.restart(image))
    for _ in range(EPISODE_STEPS):
        fed.add(np.zeros(2, np.float32), ts.transition(image, reward=1.0))
    fed.finish(end_of_iteration=True)
    rows, largest = max(sizes)
    assert len(sizes) >= 3 and rows == builder.most_rows
    assert largest > facts.max_worker_bytes - 2**20 - 32 * rows, "what the limit has beyond is a MiB"


def many_episodes(count: int, num_logs: int) -> list[Episode]:
    """Without values of `log/...` at first, then with so many."""
    logs = {f"distance_to_the_wall_{number}": 1 / 3 + number for number in range(num_logs)}
    return [Episode(number / 7, 10, number % 2 == 0, logs if number > count / 2 else {}) for number in range(count)]


@pytest.mark.parametrize("num_logs", [0, 40])
def test_reports_pass_whatever_the_number_of_their_episodes(tmp_path: Path, num_logs: int) -> None:
    limit = facts_of(tmp_path, FakeParams({"horizon": 10}), OBSERVATION).max_worker_bytes
    episodes = many_episodes(20_000, num_logs)
    report = Report(TRAIN, 0, 1, 3, 7, 2, episodes, {"laps": 2.5}, {"mass": 0.5}, {"late_steps": 3.0})
    assert len(report.to_wire()[0]) > limit, "in one message it would not pass"
    wires = [part.to_wire() for part in report.parts()]
    assert all(body_bytes(wire, limit) for wire in wires)
    parts = [Report.from_wire(wire) for wire in wires]
    assert [episode for part in parts for episode in part.episodes] == episodes
    assert summarize(TRAIN, parts) == summarize(TRAIN, [report])
    assert all(part.curriculum == {"mass": 0.5} for part in parts), "the last one's are in the row"


def test_the_report_of_an_evaluation_passes_as_a_whole(tmp_path: Path) -> None:
    params = type("TrainParams", (FakeParams,), {"num_eval_episodes": 2000})({"horizon": 10})
    limit = facts_of(tmp_path, params, OBSERVATION).max_worker_bytes
    assert body_bytes(Report(EVAL, 1, 1, 3, 7, 2, many_episodes(2000, 60)).to_wire(), limit) > 2**20


def test_a_report_without_episodes_is_one_part() -> None:
    report = Report(TRAIN, 0, 1, 3, 7, 2, [], {"laps": 2.5})
    assert report.parts() == [report]
