"""A device that is played: it knows of an evaluation, and a signal lets it wait before the program ends."""

from __future__ import annotations

import os
import signal
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.devices_for_tests import DummyDevice
from tests.support.fakes import FakeParams
from tfagents_system.envs.clocks import VirtualClock
from tfagents_system.envs.real_time import RealTimeEnvironment
from tfagents_system.playing import play


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


def played(monkeypatch: pytest.MonkeyPatch, number: int | None, episodes: int) -> Params:
    params = Params()
    monkeypatch.setattr(play, "_load_policy", lambda path: Policy(number))
    monkeypatch.setattr(play, "check_fit", lambda policy, env: None)
    monkeypatch.setattr(
        "tfagents_system.policies.parts_of_observation.parts_for", lambda observation, spec: observation
    )
    monkeypatch.setattr(play, "_apply_curriculum", lambda *args: {})
    try:
        play.play(params, Path("policy"), episodes, 0)
    except KeyboardInterrupt:
        assert number is not None
    return params


def test_its_resets_know_of_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    device = played(monkeypatch, None, 2).device
    resets = [options for what, _, options in device.log if what == "reset"]
    assert resets == [{"evaluation": True, "episode": 0}, {"evaluation": True, "episode": 1}]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_between_two_steps_and_the_device_waits(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    params = played(monkeypatch, number, 1)
    assert len(params.device.sent()) == 4, "the default action and those of three steps"
    assert params.device.log[-1][0] == "wait" and params.closed == 1
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before
