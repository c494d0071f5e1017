"""What is wrong with what samples are is told before a start, with the remedy."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import pytest

from tests.support.fakes import FakeParams
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.launch.spec_checks import horizon_time_findings
from tfagents_system.replay.hindsight import Hindsight
from tfagents_system.replay.sample_forms import TransitionForm
from tfagents_system.settings.params_check import advice, check_params


def params_with(**attributes: Any) -> FakeParams:
    return type("TrainParams", (FakeParams,), attributes)({"horizon": 100})


GAMMA = {"points": [[0, 0.9], [100, 1.0]]}


def flat(self: Any, observation: Any) -> float:
    return 0.0


def form(*args: Any, **options: Any) -> Any:
    """A `sample_form_ctor` of a user's own."""
    return lambda self: TransitionForm(*args, **options)


def names(value: Any) -> str:
    return " ".join(value) if isinstance(value, dict) else ""


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        (
            {"n_step": 5, "mini_race": {"steps": 5, "oversampling": (0, 0)}},
            "mini_race.steps=5 must be above n_step=5, .*: raise it, or",
        ),
        (
            {"mini_race": {"steps": 30}},
            r"mini_race.oversampling=\(40, 5\) is about the times 1 to 30, .* below 30: lower",
        ),
        ({"mini_race": {"steps": 140}, "recurrent": True}, "mini_race does not work with recurrent=True"),
        (
            {"recurrent": True, "potential": flat},
            "potential does not work with recurrent=True",
        ),
        ({"cut_at_exploration": True, "n_step": 3}, "cut_at_exploration=True does not work with algorithm='sac'"),
        ({"potential": 3.0}, "potential must be a method"),
        ({"hindsight_share": 0.0}, "hindsight_share must be a number above 0 and at most 1, or None"),
        ({"hindsight_share": 1.1}, "hindsight_share must be a number above 0 and at most 1, or None"),
        (
            {"hindsight_share": 0.8, "hindsight_strategy": "random"},
            "hindsight_strategy must be one of 'future', 'final'",
        ),
        ({"hindsight_share": 0.8, "recurrent": True}, "hindsight_share=0.8 does not work with recurrent=True"),
        ({"hindsight_share": 0.8, "mini_race": {"steps": 50}}, "hindsight_share=0.8 does not work with mini_race"),
        ({"hindsight_share": 0.8, "potential": flat}, "hindsight_share=0.8 does not work with TrainParams.potential"),
        (
            {"hindsight_share": 1, "normalize_rewards": True},
            "hindsight_share=1 does not work with normalize_rewards=True",
        ),
        ({"hindsight_share": 0.06}, "hindsight_share=0.06 of 8 samples is less than half a sample: raise it"),
        (
            {"hindsight_share": 0.1, "batch_size": 8, "prior_data": "demos.npz"},
            "hindsight_share=0.1 of 4 samples is less",
        ),
        (
            {"sample_form_ctor": form(hindsight=Hindsight(0.5)), "normalize_rewards": True},
            "the hindsight of sample_form_ctor, share 0.5, does not work with normalize_rewards=True",
        ),
        (
            {"sample_form_ctor": form(hindsight=Hindsight(0.5)), "hindsight_share": 0.01, "potential": flat},
            "share 0.5, does not work with TrainParams.potential, .*: remove it, or return a form without hindsight",
        ),
        (
            {"sample_form_ctor": form(), "hindsight_share": 0.8},
            "hindsight_share=0.8 has no effect, the form that sample_form_ctor returns has no hindsight: pass it one",
        ),
        (
            {"recurrent": True, "priority_exponent": 0.6},
            r"priority_exponent=0.6 does not work with recurrent=True, .*: set it to None, or recurrent to False",
        ),
        (
            {"mini_race": {"steps": 40}, "priority_exponent": 0.6},
            r"priority_exponent=0.6 does not work with mini_race.steps=40, the last 40 steps .*: raise that, or set",
        ),
        (
            {"discount": GAMMA},
            "discount as a schedule does not work with algorithm='sac', .*: set a number, or choose dqn",
        ),
        (
            {"algorithm": "dqn", "discount": GAMMA, "normalize_rewards": True},
            "discount as a schedule does not work with normalize_rewards=True, .*: set a number, or normalize_rewards",
        ),
        ({"algorithm": "dqn", "discount": {"points": [[0, 1.5]]}}, "TrainParams.discount"),
        ({"priority_exponent": 0}, "priority_exponent must be a number above 0 and at most 1, or None"),
        ({"priority_exponent": 0.5, "priority_beta": 1.5}, r"priority_beta must be a number in \[0, 1\]"),
    ],
    ids=names,
)
def test_it_is_refused(attributes: dict[str, Any], told: str) -> None:
    (finding,) = check_params(params_with(**attributes))
    assert re.search(told, finding), finding


@pytest.mark.parametrize(
    "attributes",
    [
        {"mini_race": {"steps": 100}, "n_step": 3, "discount": 1.0},
        {"mini_race": {"steps": 31}},
        {"mini_race": {"steps": 3, "oversampling": (0, 0)}},
        {"algorithm": "sac_discrete", "cut_at_exploration": True, "n_step": 3},
        {"algorithm": "iqn", "mini_race": {"steps": 100}, "n_step": 3, "potential": flat},
        {"algorithm": "dqn", "hindsight_share": 1.0, "hindsight_strategy": "final", "n_step": 3},
        {"hindsight_share": 0.8, "normalize_observations": True, "prior_data": "demos.npz"},
        {"sample_form_ctor": form(hindsight=Hindsight(0.5))},
        {"sample_form_ctor": form(), "normalize_rewards": True},
        {"mini_race": {"steps": 41}, "priority_exponent": 1, "priority_beta": {"points": [[0, 0.4], [9, 1]]}},
        {"priority_exponent": 0.6, "validation_share": 0.1, "frame_stack": 2},
    ],
    ids=names,
)
def test_it_is_right(attributes: dict[str, Any]) -> None:
    assert check_params(params_with(**attributes)) == []


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"discount": 1.0}, "discount=1 without mini_race"),
        ({"discount": GAMMA, "algorithm": "iqn"}, "discount=1 without mini_race"),
        ({"discount": GAMMA, "algorithm": "iqn", "mini_race": {"steps": 50}}, ""),
        ({"mini_race": {"steps": 101}}, "mini_race.steps=101 is more than the horizon of 100 steps"),
        ({"mini_race": {"steps": 100}, "discount": 1.0}, ""),
    ],
)
def test_notes(attributes: dict[str, Any], told: str) -> None:
    notes = [note for note in advice(params_with(**attributes)) if "mini_race" in note]
    assert [told in note for note in notes] == [True] * bool(told)


BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,))


class Timed(gymnasium.Env):
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, **spaces: gymnasium.Space[Any]) -> None:
        self.observation_space = gymnasium.spaces.Dict({"speed": BOX, **spaces})


@pytest.mark.parametrize("space", [BOX, gymnasium.spaces.Dict({"left": BOX})], ids=["a number", "with parts"])
def test_an_observation_with_a_time_of_its_own_is_refused_where_there_are_mini_races(space: Any) -> None:
    env = TrainingEnvironment(Timed(horizon_time=space), 100)
    assert list(horizon_time_findings(params_with(), env)) == []
    (finding,) = horizon_time_findings(params_with(mini_race={"steps": 50}), env)
    assert 'has a part "horizon_time" of its own' in finding and "rename it in env_ctor" in finding
    elsewhere = TrainingEnvironment(Timed(clock=gymnasium.spaces.Dict({"horizon_time": BOX})), 100)
    assert list(horizon_time_findings(params_with(mini_race={"steps": 50}), elsewhere)) == []
