"""Played episodes are those of an evaluation; a signal lets a device wait before the program ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_agents.policies import py_policy
from tf_agents.trajectories import policy_step

from tests.support.devices_for_tests import DummyDevice
from tests.support.fakes import FakeParams
from tests.support.tracks_driven import Tracks
from tfagents_system.envs import loading
from tfagents_system.envs.real_time import RealTimeEnvironment, VirtualClock
from tfagents_system.examples.racing import params as racing
from tfagents_system.machine.signals import STOP_SIGNALS
from tfagents_system.playing import play, saved_run


class Params(FakeParams):
    def __init__(self) -> None:
        super().__init__({"horizon": 5})
        self.device = DummyDevice(VirtualClock())
        self.closed = 0

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        self.device.close = self._close  # type: ignore[attr-defined]
        return RealTimeEnvironment(self.device, 0.05, clock=self.device.clock)

    def _close(self) -> None:
        self.closed += 1


class Policy:
    """Sends this process a signal before its action of step 3."""

    description = types.MappingProxyType({"iteration": 0})

    def __init__(self, number: int | None) -> None:
        self._number, self._steps = number, 0
        self.time_step_spec = types.SimpleNamespace(observation=None)

    def get_initial_state(self, batch_size: int) -> tuple[()]:
        return ()

    def action(self, time_step: Any, state: Any) -> Any:
        self._steps += 1
        if self._steps == 3 and self._number is not None:
            os.kill(os.getpid(), self._number)
        return types.SimpleNamespace(action=np.array([0.1, 0.1 * self._steps], np.float32), state=())


def played(
    monkeypatch: pytest.MonkeyPatch,
    number: int | None,
    episodes: int,
    device: DummyDevice | None = None,
    video_dir: Path | None = None,
) -> Params:
    """Plays; a number and a device of one's own end it."""
    params, ends_well = Params(), number is None and device is None
    params.device = device or params.device
    monkeypatch.setattr(play, "_load_policy", lambda path: Policy(number))
    monkeypatch.setattr(play, "check_fit", lambda policy, env: None)
    monkeypatch.setattr("tfagents_system.policies.files._seen", lambda observation, spec: observation)
    monkeypatch.setattr(play, "_apply_curriculum", lambda *args: {})
    if ends_well:
        play.play(params, Path("policy"), episodes, 0, video_dir)
    else:
        with pytest.raises(KeyboardInterrupt):
            play.play(params, Path("policy"), episodes, 0, video_dir)
    return params


class Braking(py_policy.PyPolicy):
    """Of a race."""

    def __init__(self, env: Any) -> None:
        super().__init__(env.time_step_spec(), env.action_spec())

    def _action(self, time_step: Any, policy_state: Any = (), seed: Any = None) -> policy_step.PolicyStep:
        return policy_step.PolicyStep(np.array([0.0, 1.0, 0.0], np.float32), policy_state)


def test_played_episodes_are_those_of_an_evaluation_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracks: list[str] = []

    class Race(racing.TrainParams):
        def env_ctor(self, *args: Any, **kwargs: Any) -> Any:
            return Tracks(super().env_ctor(*args, **kwargs), tracks)

    curriculum = {"friction": {"iters": [0], "range": [0.9, 0.9], "apply_to_eval": True}}
    params = Race({"horizon": 3, "racing": {"observations": ["motion"]}, "curriculum": curriculum})
    with loading.make_play_env(params, 0, render=False) as env:
        policy = Braking(env)
    monkeypatch.setattr(play, "_load_policy", lambda path: policy)
    monkeypatch.setattr(play, "_iteration", lambda params, path, policy: 0)
    episodes = play.play(params, tmp_path, 6, seed=0)
    assert tracks == [f"closed/held_out/{k}" for k in (0, 1, 2, 3, 4, 0)]
    assert len(episodes) == 6


def test_the_python_of_a_run_need_not_be_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAC_ENV_PYTHON", raising=False)
    process = saved_run._process({"start": {"variables": {"env_python": "/nowhere/python"}}})
    assert process is not None and process.python == Path("/nowhere/python")


def test_its_resets_know_of_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    device = played(monkeypatch, None, 2).device
    resets = [options for what, _, options in device.log if what == "reset"]
    assert resets == [{"evaluation": True, "episode": 0}, {"evaluation": True, "episode": 1}]


class Signalled(DummyDevice):
    """This process gets a signal while a method runs, and another one a moment later than those that count once."""

    def __init__(self, method: str, first: int | None, second: int) -> None:
        super().__init__(VirtualClock())
        self._method, self._signals = method, (first, second)
        self.is_interrupted = False

    def _did(self, what: str, value: Any = None, secs: float = 0.0) -> None:
        super()._did(what, value, secs)
        if what == self._method:
            first, second = self._signals
            try:
                if first is not None:
                    os.kill(os.getpid(), first)
                time.sleep(0.4)
                os.kill(os.getpid(), second)
                time.sleep(0.4)
            except KeyboardInterrupt:
                self.is_interrupted = True
                raise


@pytest.mark.parametrize("number", [*STOP_SIGNALS, signal.SIGHUP])
def test_a_signal_ends_it_between_two_steps_and_the_device_waits(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    before = [signal.getsignal(each) for each in (*STOP_SIGNALS, signal.SIGHUP)]
    params = played(monkeypatch, number, 1)
    assert len(params.device.sent()) == 4, "the default action and those of three steps"
    assert params.device.log[-1][0] == "wait" and params.closed == 1
    assert [signal.getsignal(each) for each in (*STOP_SIGNALS, signal.SIGHUP)] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, None])
def test_signals_while_the_device_is_told_to_wait_do_not_end_it(
    monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """Nor is one lost that comes first while it is closed."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")  # Which signals more than once.
    device = Signalled("wait", number, signal.SIGUSR1 if number else signal.SIGTERM)
    params = played(monkeypatch, number, 1, device)
    assert [what for what, _, _ in device.log].count("wait") == 1 and not device.is_interrupted
    assert params.closed == 1


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_ID": "1"}])
def test_a_second_signal_ends_a_reset_that_blocks(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    device = Signalled("reset", signal.SIGTERM, signal.SIGINT)
    params = played(monkeypatch, None, 1, device)
    assert [what for what, _, _ in device.log] == ["reset", "wait"] and device.is_interrupted
    assert params.closed == 1


def test_a_picture_is_finished_after_the_device_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @contextlib.contextmanager
    def recording(env: Any, path: Path) -> Iterator[Any]:
        try:
            yield lambda steps: None
        finally:
            device.log.append(("video", 0.0, None))

    device = DummyDevice(VirtualClock())
    monkeypatch.setattr(play.video, "recording", recording)
    monkeypatch.setattr(play, "_can_be_drawn", lambda env: True)
    played(monkeypatch, signal.SIGTERM, 1, device, tmp_path)
    assert [what for what, _, _ in device.log[-2:]] == ["wait", "video"]
