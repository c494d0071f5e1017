"""What is wrong, or seldom meant, with several attributes together is told before a start, with the remedy."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import pytest

from tests.support.fakes import CounterEnv, DictEnv, FakeParams
from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.checks.findings import Findings
from tfagents_system.checks.hyperparameters import IMAGES, described_by
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.launch.environment_checks import EnvironmentTrial
from tfagents_system.launch.spec_checks import actor_findings, horizon_time_findings
from tfagents_system.replay.hindsight import Hindsight
from tfagents_system.replay.sample_forms import TransitionForm
from tfagents_system.settings import params_check
from tfagents_system.settings.params_check import check_params
from tfagents_system.settings.rules import advice, without_effect
from tfagents_system.train_params_base import TrainParamsBase


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
def test_what_actors_are_to_see_is_refused(attributes: dict[str, Any], told: str) -> None:
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


class Params(TrainParamsBase):
    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        del seed
        return CounterEnv()


def made(**attributes: Any) -> Any:
    return type("TrainParams", (Params,), attributes)({"horizon": 10})


@pytest.mark.parametrize(
    ("attributes", "late", "length"),
    [
        ({"num_env_steps": 1500}, "20, 40", "num_env_steps=1500, which are 8 iterations of full-length episodes"),
        ({"num_env_steps": 1500, "env_steps_per_iter": 40}, "40", "num_env_steps=1500, which are 38 iterations"),
        ({"num_env_steps": 1500, "num_iter": 5}, "20, 40", "5 iterations"),
        ({"num_iter": 40}, "40", "40 iterations"),
        ({"num_iter": 41}, None, ""),
    ],
)
def test_values_of_a_curriculum_that_never_fall_due_are_noted(
    attributes: dict[str, Any], late: str | None, length: str
) -> None:
    config = {"horizon": 100, "curriculum": {"mass": {"iters": [0, 20, 40], "range": [1.0, 3.0]}}}
    params = type("TrainParams", (Params,), {"num_train_episodes_per_iter": 1, **attributes})(config)
    params.compute_config = {"num_collect_workers": 2}
    notes = [note for note in advice(params) if note.startswith("curriculum.")]
    told = f"curriculum.mass.iters: {late} come after the last iteration, so their values never fall due: the run has "
    assert [note.startswith(f"{told}{length}, counted from 0. Lower") for note in notes] == [True] * (late is not None)


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


# One that is right, and not the default, of each attribute that does not always act.
SET: dict[str, Any] = {
    "alpha_learning_rate": 1e-4,
    "target_update_tau": 0.01,
    "target_update_period": 2,
    "target_entropy": -3.0,
    "tqc": {"num_quantiles": 13},
    "actor_learning_rate": 1e-4,
    "learn_entropy_coef": True,
    "sac_log_alpha": -1.0,
    "actor_fc_layer_params": (32,),
    "actor_optimizer": {"name": "sgd"},
    "double_q": True,
    "dueling": True,
    "value_head_units": 64,
    "exploration_epsilon": 0.2,
    "boltzmann_epsilon": 0.2,
    "iqn": {"huber_kappa": 1.0},
    "image_encoder_layers": ((8, 4, 2),),
    "image_encoder_features": 20,
    "image_augmentation_pixels": 2,
    "alpha_optimizer": {"name": "sgd"},
    "priority_beta": 0.5,
    "prior_data_share": 0.25,
    "offline_updates": 5,
    "behaviour_cloning_weight": 0.4,
    "normalize_observations": True,
    "updates_per_iter": 7,
    "num_train_episodes_per_iter": 3,
    "max_policy_lag": 0,
    "min_updates_per_env_step": 0.5,
    "num_initial_episodes": 3,
    "publish_period_updates": 5,
    "policy_refresh_steps": 5,
    "cut_at_exploration": False,
    "hindsight_strategy": "final",
    "eval_period_iters": 3,
    "best_metric": "success",
}
SAMPLES = {"cut_at_exploration", "hindsight_strategy", "priority_beta"}
VALUES = {"double_q", "dueling", "value_head_units", "exploration_epsilon", "boltzmann_epsilon"}
ACTOR = {"actor_learning_rate", "sac_log_alpha", "actor_fc_layer_params", "actor_optimizer"}
TUNED = {"alpha_learning_rate", "alpha_optimizer", "target_entropy"}
PRIOR = {"prior_data_share", "offline_updates"}
TARGETS = {"target_update_tau", "target_update_period"}
ASYNCHRONOUS = {
    "min_updates_per_env_step",
    "publish_period_updates",
    "policy_refresh_steps",
}


def of_default_agent(**attributes: Any) -> TrainParamsBase:
    hooks = {"env_ctor": lambda self, *args, seed=None, **kwargs: CounterEnv()}
    return type("TrainParams", (TrainParamsBase,), {**hooks, "prior_data": "demos.npz", **attributes})({"horizon": 100})


def names_told(images: bool | None = None, **attributes: Any) -> set[str]:
    params = of_default_agent(**attributes)
    assert params_check.check_params(params) == []
    return {note.partition("=")[0].removeprefix("TrainParams.") for note in without_effect(params, images)}


def test_conditions_are_of_attributes_that_there_are_and_all_are_looked_at_here() -> None:
    described = described_by(TrainParamsBase)
    assert {each.name for each in described.values() if each.acts} == {*SET, "eval_period_env_steps", "keep_policies"}
    assert {when.attribute for each in described.values() for when in each.acts} <= {*described, IMAGES}


def test_without_evaluations_their_period_and_what_they_compare_have_no_effect() -> None:
    given: dict[str, Any] = {"eval_period_iters": 3, "best_metric": "success"}
    assert names_told(**given) == set() and names_told(**given, num_eval_episodes=0) == set(given)
    assert names_told(eval_period_env_steps=500, num_eval_episodes=0) == {"eval_period_env_steps"}
    assert names_told(keep_policies=False, num_eval_episodes=0) == set()
    assert names_told(keep_policies=False) == {"keep_policies"}


def test_what_is_said_of_prior_data_has_no_effect_without_any() -> None:
    given: dict[str, Any] = {name: SET[name] for name in PRIOR}
    assert names_told(**given, prior_data=None) == PRIOR
    assert names_told(behaviour_cloning_weight=0.4) == {"behaviour_cloning_weight"}, "without offline updates"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_defaults_are_never_told(algorithm: str) -> None:
    others: list[dict[str, Any]] = [{}, {"asynchronous": True}, {"updates_per_env_step": 1.0}]
    entropy = [] if algorithm in ("dqn", "iqn") else [{"learn_entropy_coef": False}]
    for attributes in [*others, *entropy]:
        assert names_told(False, algorithm=algorithm, **attributes) == set()


@pytest.mark.parametrize(
    ("algorithm", "without"),
    [
        ("sac", VALUES | {"tqc", "iqn"}),
        ("redq", VALUES | {"tqc", "iqn"}),
        ("droq", VALUES | {"tqc", "iqn"}),
        ("tqc", VALUES | {"iqn"}),
        ("crossq", TARGETS | VALUES | {"tqc", "iqn"}),
        ("dqn", ACTOR | TUNED | {"tqc", "iqn", "behaviour_cloning_weight"}),
        ("iqn", ACTOR | TUNED | {"tqc", "behaviour_cloning_weight"}),
        ("sac_discrete", VALUES | {"tqc", "iqn", "behaviour_cloning_weight"}),
    ],
)
def test_of_all_attributes_those_without_effect_are_told(algorithm: str, without: set[str]) -> None:
    plain = without | SAMPLES
    assert names_told(True, algorithm=algorithm, **SET) == plain | ASYNCHRONOUS
    assert names_told(True, algorithm=algorithm, asynchronous=True, **SET) == plain | {"max_policy_lag"}
    images = {name for name in SET if name.startswith("image_")}
    assert names_told(False, algorithm=algorithm, **SET) == plain | ASYNCHRONOUS | images
    tuned = {"alpha_learning_rate", "alpha_optimizer", "target_entropy"}
    found = names_told(True, algorithm=algorithm, **{**SET, "learn_entropy_coef": False})
    entropy = {"learn_entropy_coef"} if algorithm in ("dqn", "iqn") else set()
    assert found == plain | ASYNCHRONOUS | tuned | entropy


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        (
            {"updates_per_iter": 7, "updates_per_env_step": 2.0},
            "updates_per_iter=7 has no effect with updates_per_",
        ),
        ({"max_policy_lag": 0, "asynchronous": True}, "max_policy_lag=0 has no effect with asynchronous=True: remove"),
        (
            {"target_update_tau": 0.1, "algorithm": "crossq"},
            "tau=0.1 has no effect with algorithm='crossq': remove it,",
        ),
        (
            {"normalize_observations": True, "network": "simba"},
            "has no effect with network='simba': remove it, or chan",
        ),
    ],
)
def test_a_note_says_what_leaves_it_without_effect(attributes: dict[str, Any], told: str) -> None:
    (note,) = advice(of_default_agent(**attributes))
    assert told in note


def test_what_a_users_own_agent_may_read_is_not_told() -> None:
    hooks: Any = {"agent_ctor": lambda self, *specs: TrainParamsBase.agent_ctor(self, *specs)}
    assert names_told(False, **SET, **hooks) == ASYNCHRONOUS | SAMPLES


def test_what_acts_on_images_alone_is_told_when_the_environment_is_known() -> None:
    params, checks = of_default_agent(image_augmentation_pixels=2, dueling=True), Findings()
    assert advice(params) == ["TrainParams.dueling=True has no effect with algorithm='sac': remove it, or change that"]
    assert EnvironmentTrial(params, 0, checks).run() is not None
    (note,) = checks.notes
    told = "TrainParams.image_augmentation_pixels=2 has no effect with observations without images: remove it"
    assert note == told


@pytest.mark.parametrize("name, value", [("updates_per_iter", 1000), ("updates_per_iter", 500)])
def test_whole_episodes_beside_iterations_of_steps_are_told_whatever_their_number(name: str, value: int) -> None:
    given: dict[str, Any] = {"env_steps_per_iter": 50, name: value}
    assert names_told(**given) == {name}
    assert names_told(env_steps_per_iter=50) == set()


def test_episodes_beside_steps_are_told_too() -> None:
    default = TrainParamsBase.num_train_episodes_per_iter
    assert names_told(env_steps_per_iter=50, num_train_episodes_per_iter=default) == {"num_train_episodes_per_iter"}
