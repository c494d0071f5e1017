"""Bounds, stacks and images: what observations are taken for is told before anything starts."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.support.environment_report import check, report
from tests.support.fakes import CounterEnv, DictEnv, FakeParams
from tfagents_system.checks.findings import Findings
from tfagents_system.envs.observations import ObservationWriter, check_contract
from tfagents_system.envs.specs import observation_spec_of

# Bounds of observations.


@pytest.mark.parametrize(
    ("low", "high", "value", "is_outside"),
    [(-1, 1, 1.001, False), (-1, 1, 1.1, True), (-1, 1, -1.1, True), (0, np.inf, -0.0005, False),
     (0, np.inf, -0.1, True), (-np.inf, np.inf, 1e30, False), (0, 1000, 1009, False), (0, 1000, 1011, True)],
)  # fmt: skip
def test_beyond_its_bounds_an_observation_is_kept_and_told_of_once_an_element_or_a_fault(
    low: float, high: float, value: float, is_outside: bool, caplog: pytest.LogCaptureFixture
) -> None:
    space = gymnasium.spaces.Box(low, high, (3,), np.float64)
    spec, inside = observation_spec_of(space), np.clip(0.0, low, high)
    writer = ObservationWriter(spec, space, "worker 2: environment 0", is_strict=False)
    one, out = np.zeros(3, np.float32), np.zeros((2, 3), np.float32)
    for _ in range(2):
        writer.write([inside, value, inside], [one])
        np.testing.assert_array_equal(one, np.array([inside, value, inside], np.float32))
        writer.write(np.array([[inside] * 3, [inside, value, value]]), [out])
    np.testing.assert_array_equal(out[1], np.array([inside, value, value], np.float32))
    told = [record.getMessage() for record in caplog.records]
    elements = [f"worker 2: environment 0: observation[{element}]" for element in (1, 2)]
    assert [line.split(" is ")[0] for line in told] == elements * is_outside
    assert writer.outside.startswith("observation[1] is ") == is_outside
    text = r"observation\[1\] is .*: correct the observation, or widen the bound"
    if is_outside:
        with pytest.raises(ValueError, match=text):
            ObservationWriter(spec, space).write([inside, value, inside], [one])
        with pytest.raises(ValueError, match=text):
            ObservationWriter(spec, space).write(np.array([[inside] * 3, [inside, value, value]]), [out])


def test_a_check_notes_observations_beyond_their_bounds() -> None:
    class Env(CounterEnv):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float64)

        def reset(self, **kwargs: Any) -> Any:
            return np.zeros(2), {}

        def step(self, action: Any) -> Any:
            return np.full(2, 7.0), 0.0, False, False, {}

    checks, _ = report(Env)
    assert not checks.errors
    assert any("observation[0] is 7, above its high of 1" in note and "strict" in note for note in checks.notes)
    (error,), _ = check(Env, strict_observation_bounds=True)
    assert "observation[0] is 7, above its high of 1" in error


@pytest.mark.parametrize(("dtype", "high"), [(np.int64, np.inf), (np.int64, 10), (np.int32, np.inf)])
def test_integers_may_be_bounded_on_one_side(dtype: Any, high: float) -> None:
    """The largest of 64 bits is no float64: as one it became the smallest, and nothing was within the bounds."""
    space = gymnasium.spaces.Box(0, high, (2,), dtype)
    spec = observation_spec_of(space)
    writer, one, out = ObservationWriter(spec, space), np.zeros(2, dtype), np.zeros((1, 2), dtype)
    for value in (0, 7):
        writer.write(np.full(2, value, dtype), [one])
        assert one.tolist() == [value, value]
        writer.write(np.full((1, 2), value, dtype), [out])
        assert out.tolist() == [[value, value]]
    for wrong in (-1, 11) if high == 10 else (-1,):
        with pytest.raises(ValueError, match=f"is {wrong}, (below its low of 0|above its high of 10)"):
            writer.write(np.full(2, wrong, dtype), [one])
        with pytest.raises(ValueError, match=f"lane 0: .* is {wrong}, "):
            writer.write(np.full((1, 2), wrong, dtype), [out])


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_a_number_alone_may_be_bounded(dtype: Any) -> None:
    space = gymnasium.spaces.Box(0, 10, (), dtype)
    writer, one = ObservationWriter(observation_spec_of(space), space), np.zeros((), dtype)
    writer.write(7, [one])
    assert one == 7
    with pytest.raises(ValueError, match="observation is 11, above its high of 10"):
        writer.write(11, [one])


def test_a_part_that_the_space_does_not_have_is_a_fault() -> None:
    class Pair(CounterEnv):
        observation_space: Any = gymnasium.spaces.Dict(a=gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3)] * 2))

        def reset(self, **kwargs: Any) -> Any:
            return {"a": (1, 2, 0)}, {}

    found = Findings()
    check_contract(Pair(), found)
    assert found.errors == [
        'the observation of reset() at "a" has more parts than the 2 of its space: correct one or the other'
    ]


def test_frames_of_what_is_no_image_can_not_be_stacked() -> None:
    assert check(DictEnv, frame_stack=3, action_history=2)[0] == []
    (finding,), _ = check(CounterEnv, frame_stack=3)
    assert "TrainParams.frame_stack=3 stacks images, but the observations hold none" in finding and "to 1" in finding


def test_a_stacked_part_that_is_not_there_is_told_with_what_is_meant() -> None:
    parts = [name for name in DictEnv.observation_space.spaces]
    assert check(DictEnv, frame_stack={parts[0]: 3})[0] == []
    (near,), _ = check(DictEnv, frame_stack={parts[0] + "s": 3})
    assert f'frame_stack stacks "{parts[0]}s", but the observations have no such part, {parts[0]} is meant: ' in near
    (far,), _ = check(CounterEnv, frame_stack={"zzz": 3})
    assert "no such part: they have observation. Name one of these" in far
    assert check(CounterEnv, frame_stack={"observation": 3})[0] == []
    assert check(CounterEnv, action_history="two") == ([], None), "told by the check of TrainParams"


def observing(shape: tuple[int, ...], dtype: Any = np.uint8) -> Any:
    class Observing(CounterEnv):
        observation_space = gymnasium.spaces.Box(0, 255, shape, dtype)

        def reset(self, **kwargs: Any) -> Any:
            super().reset(**kwargs)
            return np.zeros(shape, dtype), {}

        def step(self, action: Any) -> Any:
            return np.zeros(shape, dtype), *super().step(action)[1:]

    return Observing


LINESIGHT: Any = {"image_encoder_layers": ((16, 4, 2), (32, 4, 2), (64, 3, 2), (32, 3, 1))}


@pytest.mark.parametrize(
    ("shape", "filters", "text"),
    [
        ((15, 17, 3), (4, 4, 4, 4), "observation is encoded"),
        ((17, 14, 3), (4, 4, 4, 4), "observation is flattened"),
        ((17, 17, 3), (), "observation is flattened"),
        ((33, 50, 3), LINESIGHT, "observation is flattened"),
        ((34, 50, 3), LINESIGHT, "observation is encoded"),
        ((17, 17, 3), {"image_encoder_layers": ()}, "observation is flattened"),
    ],
)
def test_what_becomes_of_an_image_is_told(shape: Any, filters: Any, text: str) -> None:
    given = filters if isinstance(filters, dict) else {"image_encoder_layers": filters}
    checks, _ = report(observing(shape), **given)
    assert (checks.errors, checks.notes) == ([], [])
    assert text in checks.texts("ok", "environment")


FLAT: Any = {"image_encoder_layers": ()}


OWN: Any = {"critic_ctor": lambda self, *specs: FakeParams.critic_ctor(self, *specs)}


OWN_AGENT: Any = {"agent_ctor": lambda self, *specs: FakeParams.agent_ctor(self, *specs)}


@pytest.mark.parametrize(
    ("shape", "hooks", "is_refused"),
    [
        ((12, 20, 18), {}, True),
        ((5, 20, 18), {}, False),
        ((3, 20, 16), {}, False),
        ((20, 18, 3), {"frame_stack": 3}, False),
        ((3, 20, 18), FLAT, False),
        ((3, 20, 18), {**FLAT, "frame_stack": 3}, True),
        ((3, 20, 18), OWN_AGENT, False),
        ((3, 20, 18), {**OWN, "image_augmentation_pixels": 2}, True),
    ],
)
def test_images_with_channels_first_are_refused_where_it_matters(shape: Any, hooks: Any, is_refused: bool) -> None:
    errors, _ = check(observing(shape), **{"image_encoder_layers": (4, 4, 4, 4), **hooks})
    text = f"images are [height, width, channels], and observation {shape} has its channels first: transpose it"
    assert [error.startswith(text) for error in errors] == [True] * is_refused


def test_steps_of_faults_count_from_the_episode_s_start() -> None:
    class Late(CounterEnv):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, np.nan if len(self.actions) == 3 else reward, *rest

    found = Findings()
    check_contract(Late(truncate_at=2), found)
    assert found.errors == ["the reward of step 1 must be a finite number, found nan: correct what computes it"]
