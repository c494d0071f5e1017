"""What is wrong with an environment is told before anything starts, without a traceback."""

from __future__ import annotations

import re
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.ddpg.actor_network import ActorNetwork
from tf_agents.agents.sac import sac_agent
from tf_agents.agents.td3 import td3_agent
from tf_agents.networks.actor_distribution_rnn_network import ActorDistributionRnnNetwork

from tests.support.fakes import CounterEnv, DictEnv, FakeParams, NumberedEnv, OldGymEnv
from tests.support.lanes_for_tests import NumberedLane, vector_of
from tfagents_system.checks.checklist import Check, Checklist
from tfagents_system.envs.contract import check_contract
from tfagents_system.launch import agent_checks, spec_checks
from tfagents_system.launch import environment_checks as checks_module
from tfagents_system.launch.environment_checks import check_environment

MASS = {"iters": [0, 5], "range": [1.0, 2.0]}


def check(env_ctor: Any, curriculum: Any = None, **hooks: Any) -> tuple[list[str], Any]:
    """(errors, specs)."""
    checks, trial = report(env_ctor, curriculum, **hooks)
    return checks.errors, trial and trial.specs


def report(
    env_ctor: Any,
    /,
    curriculum: Any = None,
    horizon: int = 10,
    render: bool = False,
    deterministic: bool = False,
    envs_per_worker: int = 1,
    **hooks: Any,
) -> tuple[Checklist, Any]:
    config = {"horizon": horizon} | ({"curriculum": curriculum} if curriculum else {})
    attributes = {"env_ctor": lambda self, *args, seed=None, **kwargs: env_ctor(*args, **kwargs), **hooks}
    checks = Checklist()
    params = type("TrainParams", (FakeParams,), attributes)(config)
    trial = check_environment(
        params, 0, checks, render=render, deterministic=deterministic, envs_per_worker=envs_per_worker
    )
    return checks, trial


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
    assert len(closed) == 2


def test_constructor_that_raises() -> None:
    def broken() -> Any:
        raise OSError("no robot is connected")

    findings, specs = check(broken)
    assert specs is None
    assert len(findings) == 1
    assert "OSError: no robot is connected (test_checks.py, line " in findings[0]


def test_step_that_raises() -> None:
    findings, _ = check(lambda: CounterEnv(raise_at=3))
    assert "failed in step 3: ZeroDivisionError: the motor is off (fakes.py, line " in findings[0]


def test_actions_of_the_kind_that_the_algorithm_does_not_learn() -> None:
    class Discrete(CounterEnv):
        action_space = gymnasium.spaces.Discrete(3)  # type: ignore[assignment]

    findings, specs = check(Discrete)
    assert specs is not None and len(findings) == 1 and "algorithm=sac learns continuous" in findings[0]


def test_wrong_shape_and_nan() -> None:
    class Wrong(CounterEnv):
        def step(self, action: Any) -> Any:
            return np.full(2, np.nan), 0.0, False, False, {}

    findings, _ = check(Wrong)
    assert "the observation of step() is not finite" in findings[0]


def test_two_environments_that_differ() -> None:
    def either(kind: str = "collect") -> Any:
        return CounterEnv() if kind == "collect" else NumberedEnv()

    findings, _ = check(either, eval_env_args_kwargs=lambda self: (("eval",), {}))
    assert any("observations of the collect and the evaluation environment differ" in finding for finding in findings)


def test_a_policy_that_workers_cannot_seed_anew_is_refused_where_that_is_needed() -> None:
    class Seeing(CounterEnv):
        observation_space = gymnasium.spaces.Box(0, 255, (16, 16, 1), np.uint8)

        def reset(self, *args: Any, **kwargs: Any) -> Any:
            return np.zeros((16, 16, 1), np.uint8), {}

        def step(self, action: Any) -> Any:
            return np.zeros((16, 16, 1), np.uint8), *super().step(action)[1:]

    assert report(CounterEnv, deterministic=True)[0].errors == []
    assert report(Seeing)[0].errors == []
    flat: Any = {"image_encoder_filters": ()}
    for attributes in (flat, {**flat, "frame_stack": 2}):
        assert report(Seeing, deterministic=True, **attributes)[0].errors == []
    [finding] = report(Seeing, deterministic=True)[0].errors
    assert finding.startswith("SAC_DETERMINISTIC=1 needs a policy that workers can run in NumPy, and ")


def test_several_actions_need_networks_of_the_users_own() -> None:
    class Arms(CounterEnv):
        action_space = gymnasium.spaces.Dict(  # type: ignore[assignment]
            {"left": gymnasium.spaces.Box(-1, 1, (1,)), "right": gymnasium.spaces.Box(-1, 1, (2,))}
        )

    findings, _ = check(Arms)
    assert len(findings) == 1 and "2 parts (action/left, action/right)" in findings[0]
    findings, _ = check(Arms, agent_ctor=lambda self, *args: None)
    assert findings == ["agent_ctor must return a TFAgent, found None"]


class OwnAgent(sac_agent.SacAgent):
    """Not TF-Agents' own: it is trained by its own `train`."""


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


def gaussian_actor(self: FakeParams, observation_spec: Any, action_spec: Any) -> Any:
    """Not a tanh-squashed one."""
    return ActorDistributionRnnNetwork(
        observation_spec, action_spec, input_fc_layer_params=(4,), lstm_size=(4,), output_fc_layer_params=()
    )


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
        ({"agent_ctor": own_agent(gamma=0.99), "validation_share": 0.1, "n_step": 3}, ""),
        ({"agent_ctor": td3}, ""),
        ({"agent_ctor": td3, "validation_share": 0.1}, "validation_share is not possible, Td3Agent has no losses"),
        ({"agent_ctor": own_agent(gamma=1.0)}, ""),
        ({"agent_ctor": own_agent(gamma=1.0), "n_step": 3}, "agent_ctor has gamma=1.0: they must be the same"),
        (
            {"agent_ctor": own_agent(), "recurrent": True, "recurrent_sequence_length": 3, "recurrent_burn_in": 2},
            "recurrent_burn_in=2 is not possible, OwnAgent is not",
        ),
        (
            {"agent_ctor": own_agent(td_errors_loss_fn=lambda targets, values: 1 / 0)},
            "an update of the agent raised ZeroDivisionError",
        ),
    ],
)
def test_what_an_agent_of_the_users_own_can_not_do_is_told_before_the_start(hooks: dict[str, Any], text: str) -> None:
    findings, _ = check(CounterEnv, **hooks)
    assert len(findings) == bool(text)
    assert text in "".join(findings)


def test_the_makeup_of_an_agent_is_that_of_before_its_first_update() -> None:
    class Lazy(OwnAgent):
        def _train(self, experience: Any, weights: Any = None) -> Any:
            if not made:
                self.extra = tf.keras.layers.Dense(7)
                made.append(self.extra)
            self.extra(tf.zeros((1, 5)))
            return super()._train(experience, weights)

    made: list[Any] = []
    checks, trial = report(CounterEnv, agent_ctor=own_agent(Lazy))
    assert checks.errors == [] and made[0].kernel.shape == (5, 7)
    assert trial.signature["class"] == "Lazy" and "5x7" not in trial.signature


# Curriculum.


def test_parameters_of_the_curriculum_are_tried() -> None:
    assert check(CounterEnv, {"mass": MASS})[0] == []
    assert check(NumberedEnv, {"mass": MASS, "friction": MASS})[0] == []


def test_unknown_parameter_names_those_there_are() -> None:
    findings, _ = check(CounterEnv, {"mas": MASS, "apply_to_eval": True})
    assert len(findings) == 1
    assert "curriculum.mas: CounterEnv has no parameter 'mas'" in findings[0] and "it knows mass" in findings[0]


def test_set_state_that_raises() -> None:
    findings, _ = check(NumberedEnv, {"gravity": MASS})
    assert len(findings) == 1
    assert "set_state({'gravity': 1.0}) of the environment raised KeyError: 'no parameter gravity'" in findings[0]


def test_value_that_breaks_the_environment() -> None:
    class Fragile(CounterEnv):
        def reset(self, **kwargs: Any) -> Any:
            if self.mass > 2:
                raise ValueError("too heavy")
            return super().reset(**kwargs)

    findings, _ = check(Fragile, {"mass": {"iters": [0], "range": [3.0, 4.0]}})
    assert len(findings) == 1 and "mass = 3.0" in findings[0] and "too heavy" in findings[0]


@pytest.mark.parametrize("bad", [2.0, 4.0], ids=["last", "first"])
def test_the_first_and_the_last_value_of_a_range_are_tried(bad: float) -> None:
    class Fragile(CounterEnv):
        def set_state(self, state: Any) -> None:
            if state["mass"] == bad:
                raise ValueError(f"{bad} kg")

    findings, _ = check(Fragile, {"mass": {"iters": [0, 1, 2], "range": [4.0, 2.0]}})
    assert len(findings) == 1 and f"set_state({{'mass': {bad}}})" in findings[0]


# What is seen of a good environment.


def facts(name: str, *args: Any, **kwargs: Any) -> list[str]:
    checks, _ = report(*args, **kwargs)
    assert checks.errors == []
    return checks[name].facts


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


def test_a_slow_simulator_is_not_stepped_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checks_module, spec_checks):
        monkeypatch.setattr(module, "EPISODE_SECS", 0.1)

    class Slow(CounterEnv):
        def step(self, action: Any) -> Any:
            time.sleep(0.03)
            return super().step(action)

    (end, rate) = facts("episode", Slow, horizon=10**9)
    told = re.fullmatch(r"no end within (\d) steps \(0\.\d s\); horizon=1000000000 ends it at the latest", end)
    assert told and int(told[1]) <= 4, f"{end}: fewer on a busy machine"
    assert 0 < float(rate.removesuffix(" steps/s")) < 34


def test_the_form_of_reset_and_step_is_told() -> None:
    forms = facts("reset and step", CounterEnv)
    assert forms == [
        "reset() gives observation and info, step() 5 values",
        "all observations are one array, written anew: each is copied",
    ]
    assert facts("reset and step", OldGymEnv) == ["reset() gives the observation alone, step() 4 values"]


def test_the_same_seed_gives_the_same_episode_or_a_note() -> None:
    class Seeded(CounterEnv):
        def step(self, action: Any) -> Any:
            result = super().step(action)
            return np.array([self._buffer[0], self.np_random.random()]), *result[1:]

    class Unseeded(CounterEnv):
        def step(self, action: Any) -> Any:
            result = super().step(action)
            return np.array([self._buffer[0], float(np.random.random())]), *result[1:]

    assert facts("seeding", Seeded) == ["the same seed gives the same episode"]
    # Environments that are built otherwise for evaluation are compared with a second one for collecting.
    hooks: Any = {"eval_env_args_kwargs": lambda self: ((), {"terminate_at": 3})}
    assert facts("seeding", Seeded, **hooks) == ["the same seed gives the same episode"]
    for overridden in ({}, hooks):
        checks, _ = report(Unseeded, **overridden)
        assert checks.errors == []
        assert len(checks.notes) == 1 and "the same seed differ in step 1" in checks.notes[0]


def test_a_picture_is_drawn_where_it_is_wanted() -> None:
    assert facts("rendering", CounterEnv, render=True) == ["frames of 41 x 33"]

    class Blind(CounterEnv):
        def render(self) -> Any:
            raise RuntimeError("no screen")

    class ToldWhenBuilt(CounterEnv):
        def __init__(self, mode: str | None) -> None:
            super().__init__()
            self.mode = mode

        def render(self) -> Any:
            assert self.mode == "rgb_array"
            return super().render()

    def with_mode(self: Any, render_mode: str | None = None, **kwargs: Any) -> Any:
        return ToldWhenBuilt(render_mode)

    assert facts("rendering", None, render=True, env_ctor=with_mode) == ["frames of 41 x 33"]

    checks, _ = report(Blind, render=True)
    assert checks.errors == [] and len(checks.notes) == 1
    assert "RuntimeError: no screen" in checks.notes[0] and "training needs no pictures" in checks.notes[0]
    assert "rendering" not in report(Blind)[0]


def unsaveable_combiner() -> Any:
    """Reads a variable that nothing of it holds: TensorFlow can't save that."""
    scale = tf.Variable(1.0)
    return tf.keras.layers.Lambda(lambda observation: observation * scale.read_value())


@pytest.mark.parametrize("render", [False, True])
def test_networks_that_can_not_be_saved_are_told_before_the_start(render: bool) -> None:
    (finding,), _ = check(CounterEnv, render=render, preprocessing_combiner=staticmethod(unsaveable_combiner))
    assert finding.startswith("the agent's policies can't be saved as SavedModels (AssertionError: Tried to export")
    assert finding.endswith("correct agent_ctor, actor_ctor or preprocessing_combiner")


def test_a_start_saves_no_policies_of_the_toolkits_own_networks_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are known to be saved, and it takes seconds."""
    monkeypatch.setattr(agent_checks, "PolicyExport", None)
    assert check(CounterEnv) == ([], check(CounterEnv)[1])
    ((finding,), _) = check(CounterEnv, render=True)
    assert "can't be saved" in finding


def test_sizes_of_agent_and_policy() -> None:
    _, trial = report(CounterEnv)
    # Actor 2-16-2, mean and deviation; two critics 4-16-1 with targets; alpha. Adam has two moments of each.
    actor, critic = (2 * 16 + 16) + (16 * 4 + 4), (4 * 16 + 16) + (16 + 1)
    weights = actor + 4 * critic + 1
    assert trial.policy_bytes == 4 * actor
    assert 0 <= trial.agent_bytes - 4 * 3 * weights < 100  # And counters.


# Bounds of observations.


@pytest.mark.parametrize(
    ("low", "high", "value", "is_outside"),
    [(-1, 1, 1.001, False), (-1, 1, 1.1, True), (-1, 1, -1.1, True), (0, np.inf, -0.0005, False),
     (0, np.inf, -0.1, True), (-np.inf, np.inf, 1e30, False), (0, 1000, 1001, False), (0, 1000, 1003, True)],
)  # fmt: skip
def test_bounds_have_a_little_slack(low: float, high: float, value: float, is_outside: bool) -> None:
    class Env(CounterEnv):
        observation_space = gymnasium.spaces.Box(low, high, (2,), np.float64)

        def reset(self, **kwargs: Any) -> Any:
            return np.full(2, value), {}

        def step(self, action: Any) -> Any:
            return np.full(2, value), 0.0, False, False, {}

    found = Check("contract")
    check_contract(Env(), found)
    assert bool(found.errors) == is_outside
    if is_outside:
        assert f"is {value:.6g} where its space has bounds [{low:.6g}, {high:.6g}]" in found.errors[0]


def test_frames_of_what_is_no_image_can_not_be_stacked() -> None:
    assert check(DictEnv, frame_stack=3, action_history=2)[0] == []
    (finding,), _ = check(CounterEnv, frame_stack=3)
    assert "TrainParams.frame_stack=3 stacks images, but the observations hold none" in finding and "to 1" in finding


def test_a_stacked_part_that_is_not_there_is_told_with_what_is_meant() -> None:
    parts = [name for name in DictEnv.observation_space.spaces]
    assert check(DictEnv, frame_stack={parts[0]: 3})[0] == []
    (near,), _ = check(DictEnv, frame_stack={parts[0] + "s": 3})
    assert f'frame_stack stacks "{parts[0]}s", but the observations have no such part: "{parts[0]}" is meant' in near
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
        ((17, 14, 3), (4, 4, 4, 4), "observation is flattened: smaller than 15 x 15 pixels"),
        ((3, 16, 16), (4, 4), "observation is flattened: smaller than 7 x 7 pixels"),
        ((17, 17, 3), (), "observation is flattened: image_encoder_filters=()"),
        ((33, 50, 3), LINESIGHT, "observation is flattened: smaller than 34 x 34 pixels"),
        ((34, 50, 3), LINESIGHT, "observation is encoded"),
        ((17, 17, 3), {"image_encoder_layers": ()}, "observation is flattened: image_encoder_layers=()"),
    ],
)
def test_what_becomes_of_an_image_is_told(shape: Any, filters: Any, text: str) -> None:
    given = filters if isinstance(filters, dict) else {"image_encoder_filters": filters}
    checks, _ = report(observing(shape), **given)
    assert (checks.errors, checks.notes) == ([], [])
    assert text in checks["environment"].facts


FLAT: Any = {"image_encoder_filters": ()}
OWN: Any = {"critic_ctor": lambda self, *specs: FakeParams.critic_ctor(self, *specs)}
OWN_AGENT: Any = {"agent_ctor": lambda self, *specs: FakeParams.agent_ctor(self, *specs)}


@pytest.mark.parametrize(
    ("shape", "hooks", "is_refused"),
    [
        ((3, 20, 18), {}, True),
        ((12, 20, 18), {}, True),
        ((5, 20, 18), {}, False),
        ((3, 20, 16), {}, False),
        ((16, 32, 20), {}, False),
        ((20, 18, 3), {"frame_stack": 3}, False),
        ((3, 20, 18), FLAT, False),
        ((3, 20, 18), {**FLAT, "frame_stack": 3}, True),
        ((3, 20, 18), OWN, False),
        ((3, 20, 18), OWN_AGENT, False),
        ((3, 20, 18), {**OWN, "frame_stack": 3}, True),
        ((3, 20, 18), {**OWN, "image_augmentation_pixels": 2}, True),
    ],
)
def test_images_with_channels_first_are_refused_where_it_matters(shape: Any, hooks: Any, is_refused: bool) -> None:
    errors, _ = check(observing(shape), **{"image_encoder_filters": (4, 4, 4, 4), **hooks})
    text = f"images are [height, width, channels], and observation {shape} has its channels first: transpose it"
    assert [error.startswith(text) for error in errors] == [True] * is_refused


@pytest.mark.parametrize(
    ("shape", "dtype"), [((17, 17, 3), np.float32), ((2, 17, 17, 3), np.uint8), ((17, 17), np.uint8), ((9, 9, 1), int)]
)
def test_what_may_be_meant_as_an_image_and_is_none_is_noted(shape: Any, dtype: Any) -> None:
    checks, _ = report(observing(shape, dtype))
    (note,) = checks.notes
    told = f"observation {shape} {np.dtype(dtype)} is flattened, images are uint8 of shape [height, width, channels]"
    assert note.startswith(told) and checks.errors == []
    assert report(observing(shape, dtype), **OWN)[0].notes == []
    assert report(observing((17,), dtype))[0].notes == []


@pytest.fixture
def unsaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether policies can be saved takes seconds, and has tests of its own."""
    monkeypatch.setattr(checks_module, "try_saving", lambda *arguments: None)


@pytest.fixture
def untried(unsaved: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """So has what an update says."""
    monkeypatch.setattr(checks_module, "try_update", lambda *arguments: None)


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    ("env", "hooks", "told"),
    [
        (lambda: CounterEnv(terminate_at=6), {}, None),
        (lambda: CounterEnv(terminate_at=5), {}, "an episode ends after 5 steps, and those shorter than "),
        (lambda: CounterEnv(truncate_at=5), {}, "_length=6 are never trained on by the agent of agent_ctor"),
        (lambda: CounterEnv(terminate_at=5), {"recurrent": False}, None),
    ],
)  # fmt: skip
def test_episodes_that_are_too_short_for_an_agent_of_the_users_own_are_noted(
    env: Any, hooks: Any, told: str | None
) -> None:
    hooks = {"recurrent": True, "recurrent_sequence_length": 6, **hooks}
    checks, _ = report(env, agent_ctor=own_agent(), **hooks)
    assert [told in note for note in checks.notes] == [True] if told else checks.notes == []
    if told:
        assert report(env, **hooks)[0].notes == [], "the toolkit's own agents learn from them"


@pytest.mark.usefixtures("unsaved")
@pytest.mark.parametrize(
    ("hooks", "length", "is_refused"),
    [
        ({"agent_ctor": own_agent()}, 11, True),
        ({"agent_ctor": own_agent()}, 10, False),
        ({"actor_ctor": gaussian_actor}, 11, True),  # Our own SacAgent, whose train is called as well.
        ({"actor_ctor": gaussian_actor}, 10, False),
        ({}, 11, False),
    ],
)
def test_sequences_longer_than_any_episode_are_refused_where_only_whole_ones_are_learned_from(
    hooks: Any, length: int, is_refused: bool
) -> None:
    checks, _ = report(CounterEnv, recurrent=True, recurrent_sequence_length=length, **hooks)
    told = f"TrainParams.recurrent_sequence_length={length} is longer than any episode (horizon=10)"
    assert [error.startswith(told) for error in checks.errors] == [True] * is_refused, checks.errors


@pytest.mark.usefixtures("untried")
def test_an_episode_that_is_cut_off_by_the_check_says_nothing_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checks_module, spec_checks):
        monkeypatch.setattr(module, "EPISODE_SECS", 0.0)
    hooks: Any = {"recurrent": True, "recurrent_sequence_length": 6, "agent_ctor": own_agent()}
    assert report(CounterEnv, **hooks)[0].notes == []


def three_lanes(**kwargs: Any) -> Any:
    return vector_of([NumberedLane(lane, (4, 2), **kwargs) for lane in range(3)])


def test_a_good_vector_environment_has_no_finding() -> None:
    checks, trial = report(three_lanes, env_steps_per_iter=75, n_train_episodes_per_iter=None)
    assert checks.errors == [] and trial.specs[0].shape == (3,), "the spec of one lane"
    assert "3 lanes, the first episode ends after 2 steps" in checks["reset and step"].facts
    assert checks["reset and step"].notes == []


def test_idle_lanes_are_noted() -> None:
    checks, _ = report(three_lanes, n_train_episodes_per_iter=1)
    (note,) = checks["reset and step"].notes
    assert "2 of its 3 lanes have nothing to do: set env_steps_per_iter" in note


def test_what_needs_single_environments_is_refused_for_lanes_all_at_once() -> None:
    asked: dict[str, Any] = {"greedy_episode_share": 0.25, "drop_faulty_episodes": True, "keep_best_episodes": 3}
    checks, _ = report(three_lanes, env_steps_per_iter=50, n_train_episodes_per_iter=None, **asked)
    assert len(checks.errors) == 3
    for error, (name, value) in zip(checks.errors, asked.items(), strict=True):
        assert f"TrainParams.{name}={value} does not work with a vector environment" in error
        assert "SAC_ENVS_PER_WORKER=3" in error


def test_vector_environments_that_can_not_be_used_are_refused() -> None:
    def without_mode() -> Any:
        env = three_lanes()
        env.metadata = {}
        return env

    assert "autoreset mode can't be told" in check(without_mode)[0][0]
    (error,) = check(lambda: three_lanes(fails=(0, 3)), horizon=9)[0]
    assert "ZeroDivisionError: the motor is off" in error
    lanes = [NumberedLane(0, (9,)), NumberedLane(1, (9,), fails=(0, 2))]
    assert any("the motor is off" in error for error in check(lambda: vector_of(lanes))[0]), "in another lane"
    (error,) = check(three_lanes, envs_per_worker=4)[0]
    assert "SAC_ENVS_PER_WORKER=4, but env_ctor returns a vector environment of 3 lanes" in error


def test_what_can_not_be_repeated_is_refused_where_runs_are_deterministic() -> None:
    steps: Any = {"env_steps_per_iter": 50, "n_train_episodes_per_iter": None}
    (error,) = report(three_lanes, deterministic=True, **steps)[0].errors
    assert "set n_train_episodes_per_iter instead of env_steps_per_iter, or return single environments" in error
    assert report(three_lanes, deterministic=True, n_train_episodes_per_iter=3)[0].errors == []
    assert report(CounterEnv, deterministic=True, **steps)[0].errors == []
