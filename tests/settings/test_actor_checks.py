"""What is wrong with what an actor is to see is told before a start, with the remedy."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.fakes import CounterEnv, DictEnv, FakeParams
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.launch.spec_checks import actor_findings
from tfagents_system.settings.params_check import check_params


def params_with(**attributes: Any) -> FakeParams:
    return type("TrainParams", (FakeParams,), attributes)({"horizon": 100})


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        (
            {"algorithm": "dqn"},
            r"=\('a',\) does not work with algorithm='dqn', which has no actor.*: set it to None, or choose 'sac_discr",
        ),
        ({"algorithm": "iqn"}, "algorithm='iqn', which has no actor"),
        ({"agent_ctor": lambda *args: None}, "and agent_ctor builds another one: set it to None, or remove the hook"),
        (
            {"actor_observations": ()},
            r"must be a tuple of names such as \(\"proprio\", \"camera\"\), or None, found \(\)",
        ),
        ({"actor_observations": "camera"}, "must be a tuple of names such as .* found 'camera'"),
        ({"actor_observations": (1,)}, "must be a tuple of names"),
    ],
)
def test_it_is_refused(attributes: dict[str, Any], told: str) -> None:
    (finding,) = check_params(params_with(**{"actor_observations": ("a",), **attributes}))
    assert re.search(told, finding), finding


@pytest.mark.parametrize("algorithm", ["dqn", "iqn", "sac_discrete"])
def test_networks_that_learners_of_discrete_actions_do_not_build_are_refused(algorithm: str) -> None:
    hook = {"actor_ctor": lambda *args: None, "critic_ctor": lambda *args: None}
    found = check_params(params_with(algorithm=algorithm, batch_renormalization=True, **hook))
    told = f"does not work with algorithm='{algorithm}', which builds networks of its own that score all actions"
    assert found == [
        f"TrainParams.{name} {told}: {remedy}, or build the whole agent with agent_ctor"
        for name, remedy in (
            ("actor_ctor", "remove the hook"),
            ("critic_ctor", "remove the hook"),
            ("batch_renormalization=True", "set it to None"),
        )
    ]
    assert check_params(params_with(algorithm=algorithm, agent_ctor=lambda *args: None, **hook)) == []
    assert check_params(params_with(algorithm=algorithm, batch_renormalization=False)) == []
    assert check_params(params_with(batch_renormalization=True, **hook)) == []


@pytest.mark.parametrize("attributes", [{}, {"algorithm": "sac_discrete"}, {"actor_ctor": lambda *args: None}])
def test_what_has_an_actor_is_not(attributes: dict[str, Any]) -> None:
    assert check_params(params_with(actor_observations=["a"], **attributes)) == []


def test_parts_that_are_not_there_are_told_with_what_is_meant() -> None:
    env = TrainingEnvironment(DictEnv(), 10, seed=0, action_history=2)
    part, *_ = DictEnv.observation_space.spaces
    for names in ((part,), tuple(DictEnv.observation_space.spaces), (part, "action_history"), None):
        assert list(actor_findings(params_with(actor_observations=names), env)) == []
    near, far = actor_findings(params_with(actor_observations=(part, f"{part}s", "zzz")), env)
    assert f'actor_observations has "{part}s", but the observations have no such part: "{part}" is meant' in near
    assert '"zzz", but the observations have no such part: they have ' in far and part in far


def test_an_observation_without_parts_is_told() -> None:
    env = TrainingEnvironment(CounterEnv(), 10, seed=0)
    (finding,) = actor_findings(params_with(actor_observations=("camera",)), env)
    assert "names parts of the observation, and this one has none, it is observation (" in finding
    assert "give it a Dict space, or set actor_observations to None" in finding
