"""What is wrong, or seldom meant, with several attributes together is told before a start, with the remedy."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import pytest

from tests.support.fakes import CounterEnv, DictEnv, FakeParams
from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.hyperparameters import described_by
from tfagents_system.launch.spec_checks import actor_findings, horizon_time_findings
from tfagents_system.settings.params_check import advice, check_params, without_effect
from tfagents_system.train_params_base import TrainParamsBase


def params_with(**attributes: Any) -> FakeParams:
    return type("TrainParams", (FakeParams,), attributes)({"horizon": 100})


GAMMA = {"points": [[0, 0.9], [100, 1.0]]}


def flat(self: Any, observation: Any) -> float:
    return 0.0


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
            r"mini_race.oversampling=\(40, 5\) is about the times 1 to 30, .*: lower",
        ),
        (
            {"recurrent": True, "potential": flat},
            "potential does not work with recurrent=True",
        ),
        (
            {"action_bounds": (0, 1), "action_table": [[0], [1]]},
            "action_bounds does not work with action_table",
        ),
        *(
            ({"action_bounds": wrong}, r"action_bounds must be a pair \(low, high\) of numbers, or of lists")
            for wrong in (1, (1, 0), (0, 1, 2), ([0, 0], [1]), ([0, 2], 1), (0, float("inf")), ("a", "b"), ((), ()))
        ),
        ({"cut_at_exploration": True, "n_step": 3}, "cut_at_exploration=True does not work with algorithm='sac'"),
        ({"potential": 3.0}, "potential must be a method"),
        ({"hindsight_share": 0.0}, "hindsight_share must be a number above 0 and at most 1, or None"),
        ({"hindsight_share": 0.8, "potential": flat}, "potential does not work with hindsight_share=0.8"),
        ({"hindsight_share": 0.06}, "hindsight_share=0.06 of a minibatch is less than half a sample: raise it"),
        ({"hindsight_share": 0.1, "batch_size": 8, "prior_data": "demos.npz"}, "hindsight_share=0.1 of a minibatch is"),
        (
            {"recurrent": True, "priority_exponent": 0.6},
            r"priority_exponent=0.6 does not work with recurrent=True, .*: set priority_exponent to None, or rec",
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
    ],
    ids=names,
)
def test_it_is_refused(attributes: dict[str, Any], told: str) -> None:
    (finding,) = check_params(params_with(**attributes))
    assert re.search(told, finding), finding


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


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        (
            {"algorithm": "dqn"},
            r"=\('a',\) says what the actors .* see, and algorithm='dqn' has none, .*: set it to None, or choose",
        ),
        ({"agent_ctor": lambda *args: None}, "and agent_ctor builds another one: set it to None, or"),
        (
            {"actor_observations": ()},
            r"must be a tuple of names such as \(\"proprio\", \"camera\"\), or None, found \(\)",
        ),
    ],
)
def test_what_actors_are_to_see_is_refused(attributes: dict[str, Any], told: str) -> None:
    (finding,) = check_params(params_with(**{"actor_observations": ("a",), **attributes}))
    assert re.search(told, finding), finding


@pytest.mark.parametrize("algorithm", ["dqn", "iqn", "sac_discrete"])
def test_networks_that_learners_of_discrete_actions_do_not_build_are_refused(algorithm: str) -> None:
    hook = {"actor_ctor": lambda *args: None, "critic_ctor": lambda *args: None}
    found = check_params(params_with(algorithm=algorithm, batch_renormalization=True, **hook))
    told = f"TrainParams.actor_ctor, critic_ctor, batch_renormalization: not with algorithm='{algorithm}', which builds"
    assert len(found) == 1 and found[0].startswith(told)
    assert check_params(params_with(algorithm=algorithm, agent_ctor=lambda *args: None, **hook)) == []
    assert check_params(params_with(algorithm=algorithm, batch_renormalization=False)) == []
    assert check_params(params_with(batch_renormalization=True, **hook)) == []


def test_parts_that_are_not_there_are_told_with_what_is_meant() -> None:
    env = TrainingEnvironment(DictEnv(), 10, seed=0, action_history=2)
    part, *_ = DictEnv.observation_space.spaces
    for names in ((part,), tuple(DictEnv.observation_space.spaces), (part, "action_history"), None):
        assert list(actor_findings(params_with(actor_observations=names), env)) == []
    (finding,) = actor_findings(params_with(actor_observations=("camera",)), TrainingEnvironment(CounterEnv(), 10))
    assert 'has "camera", but the observations have no such part: they have none. Name one' in finding
    near, far = actor_findings(params_with(actor_observations=(part, f"{part}s", "zzz")), env)
    assert f'actor_observations has "{part}s", but the observations have no such part, {part} is meant: th' in near
    assert '"zzz", but the observations have no such part: they have ' in far and part in far


class Params(TrainParamsBase):
    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        del seed
        return CounterEnv()


def made(**attributes: Any) -> Any:
    return type("TrainParams", (Params,), attributes)({"horizon": 10})


@pytest.mark.parametrize(
    ("attributes", "late", "iterations"),
    [
        ({"num_env_steps": 1500}, "20, 40", 8),
        ({"num_env_steps": 1500, "env_steps_per_iter": 40}, "40", 38),
        ({"num_env_steps": 1500, "num_iter": 5}, "20, 40", 5),
        ({"num_iter": 41}, None, 0),
    ],
)
def test_values_of_a_curriculum_that_never_fall_due_are_noted(
    attributes: dict[str, Any], late: str | None, iterations: int
) -> None:
    config = {"horizon": 100, "curriculum": {"mass": {"iters": [0, 20, 40], "range": [1.0, 3.0]}}}
    params = type("TrainParams", (Params,), {"num_train_episodes_per_iter": 1, **attributes})(config)
    params.compute_config = {"num_collect_workers": 2}
    notes = [note for note in advice(params) if note.startswith("curriculum.")]
    told = f"curriculum.mass.iters: {late} come after the last iteration, so their values never fall due: the run has "
    assert [note.startswith(f"{told}{iterations} iterations") for note in notes] == [True] * (late is not None)


def test_a_run_that_random_actions_fill_is_noted_at_each_start() -> None:
    def told(**attributes: Any) -> list[str]:
        return [note for note in advice(made(**attributes)) if "before the first update" in note]

    horizon = made().horizon
    (note,) = told(num_env_steps=10 * horizon, num_initial_episodes=10)
    assert note.startswith(
        f"num_env_steps={10 * horizon} may be over before the first update: num_initial_episodes=10 come first, "
        f"up to {10 * horizon:,} steps"
    )
    assert told(num_env_steps=10 * horizon + 1, num_initial_episodes=10) == [] == told(num_initial_episodes=10)
    (note,) = told(num_env_steps=200, initial_collect_steps=300)
    assert "initial_collect_steps=300 come first, up to 300 steps" in note


# What has no effect beside others.


def names_told(**attributes: Any) -> set[str]:
    hooks = {"env_ctor": lambda self, *args, seed=None, **kwargs: CounterEnv()}
    params = type("TrainParams", (TrainParamsBase,), {**hooks, **attributes})({"horizon": 100})
    assert check_params(params) == []
    return {note.partition("=")[0].removeprefix("TrainParams.") for note in without_effect(params)}


def test_conditions_are_of_attributes_that_there_are() -> None:
    described = described_by(TrainParamsBase)
    assert {when.attribute for each in described.values() for when in each.acts} <= described.keys()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_defaults_are_never_told(algorithm: str) -> None:
    others: list[dict[str, Any]] = [{}, {"asynchronous": True}, {"updates_per_env_step": 1.0}, {"num_eval_episodes": 0}]
    entropy = [] if algorithm in ("dqn", "iqn") else [{"learn_entropy_coef": False}]
    for attributes in [*others, *entropy]:
        assert names_told(algorithm=algorithm, **attributes) == set()


VALUES = {"double_q": True, "dueling": True, "exploration_epsilon": 0.2}
ACTOR = {"actor_learning_rate": 1e-4, "sac_log_alpha": -1.0, "actor_optimizer": {"name": "sgd"}}
TUNED = {"alpha_learning_rate": 1e-4, "target_entropy": -3.0}
PRIOR = {"prior_data_share": 0.25, "offline_updates": 5}


@pytest.mark.parametrize(
    ("attributes", "with_effect", "others"),
    [
        (VALUES, {"algorithm": "dqn"}, {"algorithm": "sac_discrete"}),
        (ACTOR, {"algorithm": "sac"}, {"algorithm": "iqn"}),
        (TUNED, {"algorithm": "sac_discrete"}, {"learn_entropy_coef": False}),
        ({"target_update_tau": 0.1}, {"algorithm": "tqc"}, {"algorithm": "crossq"}),
        ({"tqc": {"num_quantiles": 13}}, {"algorithm": "tqc"}, {"algorithm": "sac"}),
        ({"normalize_observations": True}, {"network": "mlp"}, {"network": "simba"}),
        (PRIOR, {"prior_data": "demos.npz"}, {}),
        ({"behaviour_cloning_weight": 0.4}, {**PRIOR, "prior_data": "demos.npz"}, {"prior_data": "demos.npz"}),
        ({"min_updates_per_env_step": 0.5, "policy_refresh_steps": 5}, {"asynchronous": True}, {}),
        ({"max_policy_lag": 0}, {}, {"asynchronous": True}),
        ({"eval_period_iters": 3, "best_metric": "success"}, {}, {"num_eval_episodes": 0}),
        ({"keep_policies": False}, {"num_eval_episodes": 0}, {}),
        ({"cut_at_exploration": False}, {"algorithm": "dqn", "n_step": 3}, {"algorithm": "dqn"}),
        # Whatever their number: that they are set decides what an iteration is.
        ({"updates_per_iter": 1000, "num_train_episodes_per_iter": 1}, {}, {"env_steps_per_iter": 50}),
    ],
)
def test_what_has_no_effect_is_told_with_what_leaves_it_so(
    attributes: dict[str, Any], with_effect: dict[str, Any], others: dict[str, Any]
) -> None:
    assert names_told(**attributes, **with_effect) == set()
    assert names_told(**attributes, **others) == attributes.keys()
    hooks: Any = {"agent_ctor": lambda self, *specs: TrainParamsBase.agent_ctor(self, *specs)}
    assert names_told(**attributes, **others, **hooks) == set(), "an agent of one's own may read it"
