"""RealTimeEnvironment: every branch of the elastic rule, rtgym beside it, and what a run asks of them."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pytest import approx
from tf_agents.specs import array_spec

from tests.support.devices_for_tests import DummyDevice, Forwarding, OwnDevice
from tests.support.waiting import until
from tfagents_system.envs import real_time
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.gym_driver import gym_layers, set_evaluation_episode
from tfagents_system.envs.real_time import Device, MonotonicClock, RealTimeEnvironment, VirtualClock, device_of
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.transport.episode_reports import TRAIN, Report

MICROSECOND = 1e-6
DEFAULT = DummyDevice.default.tolist()


def make(clock: VirtualClock, device: DummyDevice | None = None, **settings: Any) -> tuple[Any, DummyDevice]:
    device = device or DummyDevice(clock)
    return RealTimeEnvironment(device, 0.05, clock=clock, **settings), device


def about(times: list[float]) -> Any:
    return approx(times, abs=MICROSECOND)


def action(number: float) -> np.ndarray:
    return np.array([number, -number], np.float32)


def test_a_step_returns_what_was_captured_under_the_action_before() -> None:
    clock = VirtualClock()
    env, device = make(clock, start_obs_capture=0.04)
    first, info = env.reset(seed=3)
    assert first[0].tolist() == [0, *DEFAULT] and info == {}
    seen = []
    for k in range(3):
        clock.advance(0.01)  # Inference.
        observation, reward, terminated, truncated, told = env.step(action(0.1 * (k + 1)))
        assert (reward, terminated, truncated, told["count"]) == (k + 1, False, False, k + 1)
        seen.append(observation[0])
    assert np.array(seen) == approx(np.array([[1, 0.25, -0.5], [2, 0.1, -0.1], [3, 0.2, -0.2]]))
    assert device.calls("capture") == about([0.04, 0.09, 0.14])
    assert device.calls("send") == about([0.0, 0.05, 0.10, 0.15])
    assert env.late_steps == 0


def test_an_action_within_the_elasticity_does_not_move_the_clock() -> None:
    clock = VirtualClock()
    env, device = make(clock, time_step_timeout_factor=1.0)
    env.reset()
    clock.advance(0.05 + 0.049999)
    env.step(action(0.1))
    assert env.time_step_start == approx(0.05, abs=MICROSECOND) and env.late_steps == 0
    env.step(action(0.2))  # Catches up: the second time step has 1 us left.
    assert device.calls("send") == about([0.0, 0.099999, 0.1])
    assert device.calls("capture") == about([0.05, 0.1])


def test_an_action_at_the_end_of_the_elasticity_is_late_and_begins_the_clock_anew() -> None:
    clock = VirtualClock()
    env, device = make(clock, time_step_timeout_factor=1.0)
    env.reset()
    clock.advance(0.05 + 0.05 + 2e-6)
    env.step(action(0.1))
    assert env.late_steps == 1 and env.time_step_start == approx(0.100002, abs=1e-9)
    env.step(action(0.2))
    assert device.calls("send") == about([0.0, 0.100002, 0.150002]) and env.late_steps == 1


def test_a_capture_may_last_beyond_its_time_step() -> None:
    clock = VirtualClock()
    device = DummyDevice(clock, capture_secs=0.03)
    env, _ = make(clock, device, start_obs_capture=0.04)
    env.reset()
    for k in range(3):
        env.step(action(0.1 * k))
    # Each is captured 40 ms after its time step's begin and sent 20 ms after its end, which is within the elasticity.
    assert device.calls("capture") == about([0.04, 0.09, 0.14])
    assert device.calls("send") == about([0.0, 0.07, 0.12, 0.17]) and env.late_steps == 0


def test_a_reset_may_take_any_time_and_is_never_late() -> None:
    clock = VirtualClock()
    device = DummyDevice(clock, reset_secs=1.5, terminate_at=2)
    env, _ = make(clock, device)
    for _ in range(2):
        env.reset()
        env.step(action(0.1))
        env.step(action(0.2))
    # From the second reset on, which comes at 1.6 s and takes 1.5 s.
    assert device.calls("send") == about([1.5, 1.55, 3.1, 3.15]) and env.late_steps == 0


@pytest.mark.parametrize("waits", [False, True])
def test_after_an_episode_has_ended_nothing_is_sent(waits: bool) -> None:
    clock = VirtualClock()
    env, device = make(clock, DummyDevice(clock, terminate_at=2), wait_on_done=waits)
    env.reset()
    env.step(action(0.1))
    assert env.step(action(0.9))[2]
    assert device.sent() == [DEFAULT, approx([0.1, -0.1])]
    assert device.calls("wait") == about([0.1] if waits else [])
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(action(0.3))


def test_waiting_in_the_middle_of_an_episode_loses_nothing_and_is_not_late() -> None:
    clock = VirtualClock()
    env, device = make(clock)
    env.reset()
    env.step(action(0.1))
    clock.advance(0.01)
    env.wait()
    env.wait()
    clock.advance(30.0)
    assert device.calls("wait") == about([0.1])
    observation = env.step(action(0.2))[0]
    assert observation[0] == approx([2, 0.1, -0.1])
    assert env.late_steps == 0 and env.time_step_start == approx(30.1, abs=MICROSECOND)
    env.step(action(0.3))
    assert device.calls("send") == about([0.0, 0.05, 30.1, 30.15])


def test_a_pause_is_not_the_policys_time() -> None:
    clock = VirtualClock()
    env, _ = make(clock)
    env.reset()
    for pause_secs in (None, 30.0, None):
        clock.advance(0.01)
        if pause_secs is not None:
            env.wait()
            clock.advance(pause_secs)
        env.step(action(0.1))
    assert env.take_times()["inference"] == approx([0.01, 0.01], abs=MICROSECOND)


def test_an_observation_that_fails_is_told_by_the_step_and_the_device_waits_at_the_end() -> None:
    clock = VirtualClock()
    env, device = make(clock)
    env.reset()
    env.interface.get_obs_rew_terminated_info = lambda: 1 / 0
    env.wait()
    with pytest.raises(ZeroDivisionError):
        env.step(action(0.1))
    env.reset()
    assert device.log[-1][0] == "send"
    env.close()
    assert device.log[-1][0] == "wait"


@pytest.mark.parametrize("delay", [1, 3])
def test_the_action_history_has_the_actions_that_are_still_to_act(delay: int) -> None:
    """A device with a delay of d steps acts by the action d + 1 before the newest of the history."""
    clock = VirtualClock()
    device, _ = make(clock, DummyDevice(clock, delay_steps=delay))
    env = TrainingEnvironment(device, horizon=100, action_history=delay + 2)
    history = env.reset().observation["action_history"]
    assert history.tolist() == DEFAULT * (delay + 2), "filled with the default action"
    for k in range(8):
        observed = env.step(action(0.1 * (k + 1))).observation
        history = observed["action_history"].reshape(-1, 2)
        assert history[-1] == approx(action(0.1 * (k + 1))), "a_t included"
        acting = tree_leaf(observed)[1:]
        assert acting == approx(history[0]), k


def tree_leaf(observed: Any) -> np.ndarray:
    return next(value for name, value in observed.items() if name != "action_history")[0]


def test_the_default_action_is_scaled_as_actions_are() -> None:
    class Wide(DummyDevice):
        def get_action_space(self) -> Any:
            import gymnasium

            return gymnasium.spaces.Box(np.array([0.0, -2.0], np.float32), np.array([1.0, 2.0], np.float32))

    clock = VirtualClock()
    env = TrainingEnvironment(make(clock, Wide(clock))[0], horizon=9, action_history=1)
    assert env.reset().observation["action_history"].tolist() == [-0.5, -0.25]


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"start_obs_capture": 0.11}, "start_obs_capture=0.11 must be from 0 to time_step_duration=0.05 plus its elas"),
        ({"start_obs_capture": 0.06, "time_step_timeout_factor": 0.0}, "start_obs_capture=0.06 must be from 0"),
        ({"time_step_timeout_factor": -1.0}, "time_step_timeout_factor=-1 must be at least 0"),
    ],
)
def test_impossible_time_steps_are_refused(settings: Any, rule: str) -> None:
    with pytest.raises(UserError, match=rule):
        make(VirtualClock(), **settings)


def test_a_device_that_lacks_methods_is_refused_with_all_of_them() -> None:
    class Device(DummyDevice):
        get_default_action: Any = None
        send_control: Any = None

        def send_contrl(self, control: Any) -> None:
            """Misspelt."""

    with pytest.raises(UserError) as raised:
        RealTimeEnvironment(Device(VirtualClock()))
    (finding,) = raised.value.findings
    assert (
        finding
        == "Device has no send_control(), get_default_action(): add them (send_control() is meant by send_contrl?)"
    )


def test_durations_have_rtgyms_meaning() -> None:
    clock = VirtualClock()
    env, _ = make(clock, DummyDevice(clock, send_secs=0.001, capture_secs=0.002), start_obs_capture=0.04)
    env.reset()
    for _ in range(3):
        clock.advance(0.01)
        env.step(action(0.1))
    times = {name: np.mean(values) for name, values in env.take_times().items()}
    expected = {"time_step": 0.05, "inference": 0.01, "send_control": 0.001, "retrieve_obs": 0.002}
    assert {name: times[name] for name in expected} == approx(expected, abs=1e-3 / 3 + 1e-9)
    assert times["step"] == approx(times["join"] + 0.001, abs=MICROSECOND)
    assert env.take_times()["step"] == []


def test_metrics_are_of_the_steps_since_the_last_call() -> None:
    clock = VirtualClock()
    env, _ = make(clock)
    env.reset()
    for late_secs in (0.0, 0.12, 0.0, 0.15):
        clock.advance(0.01)
        clock.advance(late_secs)
        env.step(action(0.1))
    assert env.take_metrics() == approx({"late_steps": 2.0, "step_ms_p99": 160.0, "inference_ms_p99": 160.0})
    assert env.take_metrics() == {"late_steps": 0.0, "step_ms_p99": 0.0, "inference_ms_p99": 0.0}


# What a run asks of a device.


def test_within_a_wrapper_that_forwards_attributes_it_knows_of_evaluations_and_of_the_horizon() -> None:
    clock = VirtualClock()
    device = DummyDevice(clock)
    env = TrainingEnvironment(Forwarding(Forwarding(RealTimeEnvironment(device, 0.05, clock=clock))), horizon=2)
    assert env.device is not None
    env.evaluation_episode = 3
    env.reset()
    assert device.log[0] == ("reset", 0.0, {"evaluation": True, "episode": 3})
    assert [env.step(np.zeros(2, np.float32)).is_last() for _ in range(2)] == [False, True]
    assert len(device.sent()) == 2, "after the last step nothing is sent"


def test_without_a_default_action_it_is_tried_with_the_middle_of_its_bounds_where_there_is_one() -> None:
    device = Device(OwnDevice())
    box = array_spec.BoundedArraySpec((1,), np.float32, 2.0, 4.0, "action")
    continuous = actions_of(box)
    assert continuous.to_environment(device.trial_action(continuous)).tolist() == [3.0]
    for one_of_n in (
        actions_of(array_spec.BoundedArraySpec((), np.int64, 0, 2, "action")),
        actions_of(box, [[2.0], [4.0]]),
    ):
        with pytest.raises(UserError, match="does not say which of them is harmless: give it a default_action or"):
            device.trial_action({"gas": one_of_n, "steer": continuous})


def test_its_numbers_are_those_that_a_report_can_have(caplog: pytest.LogCaptureFixture) -> None:
    """NumPy's could not be sent, and a report with NaN is refused by the trainer as a whole."""
    odd = {"nan": float("nan"), "inf": np.inf, "text": "slow", "array": np.zeros(2), "none": None}
    fine = {"x_ms_p99": np.float32(1.5), "p99": np.percentile([1.0, 2.0], 50), "count": np.int64(3), "is_warm": True}
    device = Device(OwnDevice({**fine, **odd}))
    metrics = device.take_metrics()
    assert metrics == {"x_ms_p99": 1.5, "p99": 1.5, "count": 3.0, "is_warm": 1.0}
    assert {type(value) for value in metrics.values()} == {float}
    report = Report(TRAIN, 0, 0, 0, 0, 0, [], device=metrics)
    assert Report.from_wire(report.to_wire()).device == metrics
    assert [record.message.split(": ")[1].split(" ")[0] for record in caplog.records] == sorted(odd)
    device.take_metrics()
    assert len(caplog.records) == len(odd), "each is told once"


# The machine's clock.


def test_a_call_is_made_at_its_time_though_nobody_waits() -> None:
    clock = MonotonicClock()
    made: list[float] = []
    start = clock.now()

    def make() -> int:
        made.append(time.monotonic())
        return 7

    call = clock.call_at(start + 0.05, make)
    until(lambda: made, 30.0, "the call")
    assert made[0] - start >= 0.05 and call.result() == 7 and len(made) == 1
    with pytest.raises(ZeroDivisionError):
        clock.call_at(clock.now() + 0.01, lambda: 1 / 0).result()
    clock.close()


def test_a_picture_is_not_drawn_while_an_observation_is_captured() -> None:
    begun, may_end = threading.Event(), threading.Event()
    drawn: list[bool] = []

    class Slow(DummyDevice):
        def get_obs_rew_terminated_info(self) -> Any:
            begun.set()
            assert may_end.wait(20.0)
            return super().get_obs_rew_terminated_info()

        def render(self) -> np.ndarray:
            drawn.append(may_end.is_set())
            return super().render()

    env = RealTimeEnvironment(Slow(), 0.02, 0.0)
    env.reset()
    assert begun.wait(20.0)
    thread = threading.Thread(target=env.render)
    thread.start()
    time.sleep(0.1)
    may_end.set()
    thread.join(20.0)
    assert drawn == [True]
    env.close()


# rtgym.


def rtgym_env(monkeypatch: pytest.MonkeyPatch, clock: VirtualClock, device: Any, **settings: Any) -> Any:
    """RTgym's own environment on a virtual clock: its thread alone lets time pass, while the test waits for it."""
    from rtgym.envs import real_time_env

    class Time:
        perf_counter = staticmethod(clock.now)
        sleep = staticmethod(clock.advance)

    monkeypatch.setattr(real_time_env, "time", Time)
    config = {**real_time_env.DEFAULT_CONFIG_DICT, "interface": lambda: device, "time_step_duration": 0.05, **settings}
    return real_time_env.RealTimeEnv({**config, "act_in_obs": False})


def test_one_of_rtgym_whose_steps_would_all_be_late_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    fits = rtgym_env(monkeypatch, clock, DummyDevice(clock), start_obs_capture=0.1)
    assert device_of(gym_layers(fits)) is not None
    env = rtgym_env(monkeypatch, clock, DummyDevice(clock), start_obs_capture=0.11)
    with pytest.raises(
        UserError, match="start_obs_capture=0.11 must be from 0 to time_step_duration=0.05 plus its ela"
    ):
        TrainingEnvironment(env, horizon=5)


LATENESS = (0.0, 0.0, 0.03, 0.0, 0.0455, 0.0, 0.0, 0.0515, 0.0, 0.2, 0.0, 0.0)
"""Seconds from the end of a time step to the next step()."""


@pytest.mark.parametrize("settings", [{"start_obs_capture": 0.05}, {"start_obs_capture": 0.02, "wait_on_done": True}])
@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.filterwarnings("ignore:Time-step timed out")
def test_it_does_what_rtgym_does(monkeypatch: pytest.MonkeyPatch, settings: Any, delay: int) -> None:
    """Observations, actions that act, and when everything happens: the same, whatever is late."""
    told = []
    for kind in ("ours", "rtgym"):
        clock = VirtualClock()
        device = DummyDevice(clock, send_secs=0.001, capture_secs=0.003, delay_steps=delay, terminate_at=len(LATENESS))
        if kind == "ours":
            env: Any = RealTimeEnvironment(device, 0.05, clock=clock, **settings)
            capture = settings["start_obs_capture"] + device.capture_secs
            finish = lambda: clock.sleep_until(env.time_step_start + max(0.05, capture))  # noqa: E731, B023
        else:
            env = rtgym_env(monkeypatch, clock, device, **settings)
            finish = lambda: env._join_thread()  # noqa: E731, B023
        seen = []
        for episode in range(2):
            seen.append(env.reset(seed=None)[0][0].tolist())
            for k, late_secs in enumerate(LATENESS):
                finish()
                clock.advance(late_secs)
                observation, reward, terminated, truncated, _ = env.step(action(0.01 * (k + 1 + 20 * episode)))
                seen.append((observation[0].tolist(), reward, terminated, truncated))
        told.append((seen, [(name, round(when, 6), value) for name, when, value in device.log]))
    assert told[0][0] == told[1][0], "pairs of observation and applied action"
    assert told[0][1] == told[1][1], "calls and their times"


@pytest.mark.filterwarnings("ignore:Time-step timed out")
def test_rtgyms_own_environment_counts_late_steps_and_is_told_of_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it counts is what RealTimeEnvironment counts, with the same device and the same caller."""
    for kind in ("ours", "rtgym"):
        clock = VirtualClock()
        device = DummyDevice(clock, send_secs=0.001, capture_secs=0.003, terminate_at=len(LATENESS))
        if kind == "ours":
            env: Any = RealTimeEnvironment(device, 0.05, clock=clock)
            finish = lambda: clock.sleep_until(env.time_step_start + 0.053)  # noqa: E731, B023
        else:
            env = rtgym_env(monkeypatch, clock, device)
            monkeypatch.setattr(real_time, "time", SimpleNamespace(perf_counter=clock.now))
            finish = lambda: env._join_thread()  # noqa: E731, B023
        followed = device_of(gym_layers(env))
        assert followed is not None
        for episode in (None, 4, None):
            if episode is not None:
                set_evaluation_episode(gym_layers(env), episode)
            clock.advance(0.3)  # The action of reset() is never late.
            env.reset()
            for late_secs in LATENESS:
                finish()
                clock.advance(late_secs)
                env.step(action(0.1))
        env.reset()
        followed.wait()
        clock.advance(30.0)
        env.step(action(0.1))
        followed.wait()
        options = [value for name, _, value in device.log if name == "reset"]
        assert options == [None, {"evaluation": True, "episode": 4}, None, None]
        assert [followed.take_metrics()["late_steps"] for _ in range(2)] == [3 * 2, 0], kind
