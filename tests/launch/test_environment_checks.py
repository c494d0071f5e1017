"""What is wrong with an environment or an agent is told before anything starts, without a traceback."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.ddpg.actor_network import ActorNetwork
from tf_agents.agents.sac import sac_agent
from tf_agents.agents.td3 import td3_agent

from tests.support.environment_report import check, report
from tests.support.fakes import CounterEnv, DictEnv, FakeParams, NumberedEnv, OldGymEnv


@pytest.mark.parametrize("kind", [CounterEnv, NumberedEnv, DictEnv])
def test_good_environments_have_no_finding(kind: Any) -> None:
    findings, specs = check(kind)
    assert findings == []
    assert specs is not None and specs[1].name == "action"


def test_environments_are_closed() -> None:
    closed = []

    class Closing(CounterEnv):
        def close(self) -> None:
            closed.append(self)

    assert check(Closing)[0] == []
    assert len(closed) == 3, "to collect, to evaluate, to compare seeds"


# What is seen of a good environment.


def facts(name: str, *args: Any, **kwargs: Any) -> list[str]:
    findings, _ = report(*args, **kwargs)
    assert findings.errors == []
    return findings.texts("ok", name)


@pytest.mark.parametrize(
    ("env", "horizon", "text"),
    [
        (lambda: CounterEnv(terminate_at=4), 10, "terminates, with random actions after 4 steps"),
        (lambda: CounterEnv(truncate_at=7), 10, "ends by a time limit of its own after 7 steps"),
        (CounterEnv, 10, "ends by a time limit (horizon=10) after 10 steps"),
        (lambda: NumberedEnv(terminate_at=3), 10, "terminates, with random actions after 3 steps"),
    ],
)
def test_the_end_of_an_episode_is_told(env: Any, horizon: int, text: str) -> None:
    episode = facts("episode", env, horizon=horizon)
    assert episode[0] == text and episode[1].endswith(" steps/s")


def test_the_form_of_reset_and_step_is_told() -> None:
    forms = facts("reset and step", CounterEnv)
    assert forms == [
        "reset() gives observation and info, step() 5 values",
        "all observations are one array, written anew: each is copied",
    ]
    assert facts("reset and step", OldGymEnv) == ["reset() gives the observation alone, step() 4 values"]


def test_the_same_seed_gives_the_same_episode_or_a_note() -> None:
    class Random(CounterEnv):
        def __init__(self, is_seeded: bool) -> None:
            super().__init__()
            self._is_seeded = is_seeded

        def step(self, action: Any) -> Any:
            rng: Any = self.np_random if self._is_seeded else np.random
            return np.array([0.0, rng.random()]), *super().step(action)[1:]

    assert facts("seeding", lambda: Random(True)) == ["the same seed gives the same episode"]
    findings, _ = report(lambda: Random(False))
    assert findings.errors == []
    assert len(findings.notes) == 1 and "the same seed differ in step 1" in findings.notes[0]
    assert "Draw random numbers from self.np_random" in findings.notes[0]

    class Unseeded(Random):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    findings, _ = report(lambda: Unseeded(False))
    assert [note.partition("repeated exactly. ")[2][:24] for note in findings.notes] == ["reset() takes no seed: w"]


def test_a_picture_is_drawn_where_it_is_wanted() -> None:
    class ToldWhenBuilt(CounterEnv):
        def __init__(self, mode: str | None) -> None:
            super().__init__()
            self.mode = mode

        def render(self) -> Any:
            if self.mode != "rgb_array":
                raise RuntimeError("no screen")
            return super().render()

    def with_mode(self: Any, render_mode: str | None = None, **kwargs: Any) -> Any:
        return ToldWhenBuilt(render_mode)

    assert facts("rendering", None, render=True, env_ctor=with_mode) == ["frames of 41 x 33"]
    checks, _ = report(lambda: ToldWhenBuilt(None), render=True)
    assert checks.errors == [] and len(checks.notes) == 1
    assert "RuntimeError: no screen" in checks.notes[0] and "training needs no pictures" in checks.notes[0]
    assert "rendering" not in report(lambda: ToldWhenBuilt(None))[0].report()


# Agents.


def test_several_actions_need_networks_of_the_users_own() -> None:
    class Arms(CounterEnv):
        action_space = gymnasium.spaces.Dict(  # type: ignore[assignment]
            {"left": gymnasium.spaces.Box(-1, 1, (1,)), "right": gymnasium.spaces.Box(-1, 1, (2,))}
        )

    findings, _ = check(Arms)
    assert len(findings) == 1
    parts = "2 parts (action/left: (1,) in [-1, 1], action/right: (2,) in [-1, 1])"
    assert parts in findings[0] and "join them in one Box" in findings[0]


@pytest.mark.parametrize("algorithm", ["sac", "dqn"])
@pytest.mark.parametrize("hook", [{}, {"actor_ctor": lambda self, *specs: None}])
def test_actions_of_both_kinds_get_one_error(algorithm: str, hook: Any) -> None:
    choice: Any = gymnasium.spaces.Discrete(3)
    numbers = gymnasium.spaces.Box(-1, 1, (2,))
    for space, one, way in (
        ((choice, numbers), "one Box, of which a number makes the choice", "agent_ctor"),
        ((numbers, gymnasium.spaces.MultiBinary(2)), "one Box, of which a number makes the choice", "agent_ctor"),
        ((choice, choice), "one MultiDiscrete", "actor_ctor and critic_ctor"),
    ):
        if hook and one == "one MultiDiscrete":
            continue  # The user's own networks may have several parts.
        kinds = type("Hybrid", (CounterEnv,), {"action_space": gymnasium.spaces.Tuple(space)})
        findings, _ = check(kinds, algorithm=algorithm, **hook)
        assert len(findings) == 1 and "2 parts (action/0: " in findings[0]
        assert f"join them in {one}, and take it apart in a wrapper, or override {way}" in findings[0]


class OwnAgent(sac_agent.SacAgent):
    """It is trained by its own `train`."""


def own_agent(cls: Any = OwnAgent, **options: Any) -> Any:
    def agent_ctor(self: FakeParams, time_step_spec: Any, action_spec: Any, train_step: Any) -> Any:
        specs = time_step_spec.observation, action_spec
        return cls(
            time_step_spec,
            action_spec,
            actor_network=self.actor_ctor(*specs),
            critic_network=self.critic_ctor(*specs),
            **{f"{part}_optimizer": tf.keras.optimizers.legacy.Adam() for part in ("actor", "critic", "alpha")},
            train_step_counter=train_step,
            **options,
        )

    return agent_ctor


def td3(self: FakeParams, time_step_spec: Any, action_spec: Any, train_step: Any) -> Any:
    observation_spec = time_step_spec.observation
    return td3_agent.Td3Agent(
        time_step_spec,
        action_spec,
        actor_network=ActorNetwork(observation_spec, action_spec, fc_layer_params=(8,)),
        critic_network=self.critic_ctor(observation_spec, action_spec),
        actor_optimizer=tf.keras.optimizers.legacy.Adam(),
        critic_optimizer=tf.keras.optimizers.legacy.Adam(),
        train_step_counter=train_step,
    )


@pytest.mark.parametrize(
    ("hooks", "text"),
    [
        ({"agent_ctor": td3, "validation_share": 0.1}, "validation_share is not possible, Td3Agent has no losses"),
        (
            {"agent_ctor": own_agent(), "recurrent": {"sequence_length": 3, "burn_in": 2}},
            "recurrent.burn_in=2 is not possible, OwnAgent is trained by its own train: leave it out, or",
        ),
        (
            {"agent_ctor": own_agent(td_errors_loss_fn=lambda targets, values: 1 / 0)},
            "an update of the agent raised ZeroDivisionError",
        ),
    ],
)
def test_what_an_agent_of_the_users_own_can_not_do_is_told_before_the_start(hooks: dict[str, Any], text: str) -> None:
    (finding,), _ = check(CounterEnv, agent=True, **hooks)
    assert text in finding


def unsaveable_combiner() -> Any:
    """Reads a variable that nothing of it holds: TensorFlow can't save that."""
    scale = tf.Variable(1.0)
    return tf.keras.layers.Lambda(lambda observation: observation * scale.read_value())


def test_networks_that_can_not_be_saved_are_told_before_the_start() -> None:
    (finding,), _ = check(CounterEnv, agent=True, preprocessing_combiner=staticmethod(unsaveable_combiner))
    assert finding.startswith("saving the agent's policy as a SavedModel raised AssertionError: Tried to export")
    assert finding.endswith("correct the hook of TrainParams")
