"""The car in wall time: it drives on by itself, commands and observations come late and in order."""

from __future__ import annotations

import json
import os
import signal
import threading
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from pytest import approx

from tests.support.waiting import until
from tfagents_system.envs import real_time
from tfagents_system.envs.real_time import VirtualClock
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.examples.racing import recorder as program
from tfagents_system.examples.racing.car import STEP_SECS
from tfagents_system.examples.racing.car_process import Car, Line, serve
from tfagents_system.examples.racing.environment import RacingEnvironment, RacingSettings
from tfagents_system.examples.racing.real_time import make_real_time_race

ROOT = Path(__file__).parents[3]
GAS, BRAKE = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)
RACE = RacingSettings(track="closed/train/3", observations=("motion", "progress"))


def car(command_delay: Any = (0.0, 0.0), observation_delay: Any = (0.0, 0.0)) -> Car:
    return Car(RacingEnvironment(RACE), command_delay, observation_delay, np.random.default_rng(0))


def speed(seen: Any) -> float:
    return float(seen.observation["motion"][0])


def test_what_is_sent_arrives_in_order_within_the_bounds_of_its_delay() -> None:
    line = Line((0.01, 0.04), np.random.default_rng(1))
    sent = {k: 0.005 * k for k in range(200)}
    arrived: dict[int, float] = {}
    for tick in range(2000):
        now = 0.001 * tick
        for k in [k for k, when in sent.items() if when <= now and k not in arrived and when > now - 0.001]:
            line.send(now, k)
        for k in line.arrived(now):
            arrived[k] = now
    assert list(arrived) == sorted(arrived) and len(arrived) == 200
    delays = [arrived[k] - sent[k] for k in arrived]
    assert 0.009 <= min(delays) < 0.02 and 0.03 < max(delays) <= 0.042


def test_it_does_not_wait_for_commands() -> None:
    here = car()
    here.reset(10.0, 0)
    here.control(10.01, GAS)
    here.advance(10.0 + 20.5 * STEP_SECS)
    assert here.step_at == approx(10.0 + 21 * STEP_SECS)
    seen = here.observe(11.1)
    alone = RacingEnvironment(RACE)
    alone.reset(seed=0)
    rewards = [alone.step(GAS)[1] for _ in range(20)]
    assert speed(seen) > 1.0 and seen.reward == approx(sum(rewards)), "all that it got since the last observation"
    again = here.observe(11.1)
    assert again.reward == 0.0 and speed(again) == speed(seen)


@pytest.mark.parametrize("phase", [0.0, 0.01, 0.02])
def test_no_place_is_lost_however_observations_arrive(phase: float) -> None:
    """Two may arrive within a time step, or none: their paths are joined, or there is the last position alone."""
    here = car(observation_delay=(0.005, 0.03))
    here.reset(0.0, 0)
    here.control(0.0, GAS)
    paths = []
    for step in range(80):
        here.advance(now := phase + STEP_SECS * step)
        seen = here.observe(now)
        paths.append(seen.info["path"])
        assert paths[-1][-1] == seen.info["position"]
    assert {len(path) for path in paths[2:]} == ({1, 5, 10} if phase else {5})
    alone = RacingEnvironment(RACE)
    driven = list(alone.reset(seed=0)[1]["path"])
    while driven[-1] != paths[-1][-1]:
        driven += alone.step(GAS)[4]["path"]
    seen_places = [place for path in paths for place in path]
    assert [place for k, place in enumerate(seen_places) if place not in seen_places[:k]] == driven
    assert len(seen_places) == len(driven) - 1 + sum(len(path) == 1 for path in paths)


def test_a_command_acts_when_it_has_arrived_and_is_seen_later() -> None:
    here = car(command_delay=(0.12, 0.12), observation_delay=(0.07, 0.07))
    here.reset(0.0, 0)
    here.control(0.0, GAS)
    speeds = []
    for tick in range(1, 60):
        here.advance(0.01 * tick)
        speeds.append(speed(here.observe(0.01 * tick)))
    moving = next(k for k, value in enumerate(speeds, 1) if value > 0.0)
    assert 0.01 * moving == approx(0.15 + 0.07, abs=0.0101), "the first step behind 0.12 s, and 0.07 s for its picture"


def test_resting_brakes_at_once_and_is_no_part_of_the_race() -> None:
    here = car(command_delay=(0.5, 0.5))
    here.reset(0.0, 0)
    here.control(0.0, GAS)
    here.rest()
    here.advance(2.0)
    assert speed(here.observe(2.0)) == 0.0, "what was under way is lost"
    here.control(2.0, GAS)
    here.advance(4.0)
    fast = here.observe(4.0)
    here.rest()
    here.advance(6.0)
    stood = here.observe(6.0)
    assert speed(fast) > 5.0 and speed(stood) == 0.0 and stood.reward > 0.0, "braking takes its way"
    steps = here.environment._steps
    here.advance(600.0)
    pause = here.observe(600.0)
    assert not pause.terminated and pause.reward == 0.0 and here.environment._steps == steps
    here.control(600.0, GAS)
    here.advance(602.0)
    assert speed(here.observe(602.0)) > 5.0, "it continues"


def test_an_episode_that_is_over_stays_so() -> None:
    here = car()
    here.reset(0.0, 0)
    here.control(0.0, BRAKE)
    here.advance(7.0)
    seen = here.observe(7.0)
    assert seen.terminated and seen.info["end"] == "stuck"
    here.advance(70.0)
    assert here.observe(70.0).reward == 0.0 and here.environment._steps <= 5.0 / STEP_SECS + 1


def test_the_process_answers_and_tells_what_went_wrong() -> None:
    ours, theirs = Pipe()
    thread = threading.Thread(target=serve, args=(theirs, car()), daemon=True)
    thread.start()
    ours.send(("set_state", {"weight": 1}))
    kind, text = ours.recv()
    assert kind == "error" and text.startswith("UserError: the car has no parameter 'weight'")
    ours.send(("reset", 3))
    kind, (observation, info) = ours.recv()
    assert kind == "ok" and set(observation) == {"motion", "progress"} and info["track"] == "closed/train/3"
    ours.close()
    thread.join(20.0)
    assert not thread.is_alive(), "it ends with the other side"


def test_a_device_is_evaluated_on_held_out_tracks() -> None:
    env = make_real_time_race({"racing": {"observations": ["motion"], "train_tracks": 1}}, 0)
    tracks = []
    try:
        for number in (None, 3, 0, 5, None):
            if number is not None:
                env.set_evaluation_episode(number)
            tracks.append(env.reset()[1]["track"])
    finally:
        env.close()
    assert tracks == ["closed/train/0", *(f"closed/held_out/{k}" for k in (3, 0, 0)), "closed/train/0"]


def test_a_device_drives_in_its_own_process_and_ends_with_it() -> None:
    config = {"racing": {"track": "closed/train/3", "observations": ["motion"]}, "real_time": {"wait_on_done": False}}
    env = make_real_time_race(config, 0)
    device = env.interface
    training = TrainingEnvironment(env, horizon=20, seed=0)  # 1 s: after 4 s of full gas it leaves the track.
    assert training.device is not None and training.device.has_real_clock
    training.set_state({"friction": 0.9})
    with pytest.raises(UserError, match="the car has no parameter 'weight'"):
        training.set_state({"weight": 1.0})
    training.reset()
    os.kill(device.pid, signal.SIGTERM)  # As SLURM does with all processes of a job.
    speeds = []
    for _ in range(20):
        step = training.step(np.array(GAS, np.float32))
        speeds.append(float(step.observation["motion"][0]))
    assert speeds[-1] > 1.0 and step.is_last()
    training.close()
    until(lambda: not psutil.pid_exists(device.pid), 20.0, "the car's process to end")


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"comand_delay": [0, 1]}, "real_time.comand_delay is not known: command_delay is meant"),
        ({"command_delay": [0.2, 0.1]}, "real_time.command_delay must be two numbers from 0 on"),
        ({"start_obs_capture": 0.2}, "start_obs_capture=0.2 must be from 0 to time_step_duration=0.05"),
    ],
)
def test_impossible_settings_are_refused(section: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        make_real_time_race({"racing": {"observations": ["motion"]}, "real_time": section}, 0)


def test_the_benchmark_prints_the_parts_of_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_time, "MonotonicClock", VirtualClock)  # Without what a busy machine takes.
    config = tmp_path / "config.json"
    shipped = json.loads((ROOT / "tfagents_system/examples/racing_real_time/config.json").read_text())
    config.write_text(json.dumps({**shipped, "horizon": 15, "racing": {"observations": ["motion"]}}))
    params = ROOT / "tfagents_system/examples/racing_real_time/params.py"
    assert program.main(["benchmark", "--params", str(params), "--config", str(config), "--steps", "20"]) == 0
    head, *rows, _ = capsys.readouterr().out.splitlines()
    times = {row.split()[0]: float(row.split()[1]) for row in rows}
    assert "mean abs. deviation" in head
    waits, computes = ("time_step", "step", "join"), ("inference", "send_control", "retrieve_obs", "send_delay")
    assert times.pop("reset") > 0.0, "by the machine's clock"
    assert times == approx({**dict.fromkeys(waits, 50.0), **dict.fromkeys(computes, 0.0)})
