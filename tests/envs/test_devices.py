"""What a run asks of a device: the layer that is one, and what that says of its steps."""

from __future__ import annotations

import numpy as np
import pytest
from tf_agents.specs import array_spec

from tests.support.devices_for_tests import DummyDevice, Forwarding, OwnDevice
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.clocks import VirtualClock
from tfagents_system.envs.devices import Device
from tfagents_system.envs.real_time import RealTimeEnvironment
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.transport.episode_reports import TRAIN, Report


def test_within_a_wrapper_that_forwards_attributes_it_knows_of_evaluations_and_of_the_horizon() -> None:
    clock = VirtualClock()
    device = DummyDevice(clock)
    real_time = RealTimeEnvironment(device, 0.05, clock=clock)
    env = TrainingEnvironment(Forwarding(Forwarding(real_time)), horizon=2)
    assert env.device is not None
    env.device.set_evaluation(True)
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
    assert device.left_out == set(odd)
    assert [record.message.split(": ")[1].split(" ")[0] for record in caplog.records] == sorted(odd)
    device.take_metrics()
    assert len(caplog.records) == len(odd), "each is told once"
