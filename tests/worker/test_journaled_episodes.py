"""A deterministic run's worker that starts again continues in its episodes as if it had never stopped."""

import dataclasses
import functools
import os
import types

import gymnasium
import numpy as np
import pytest
from tf_agents.specs import tensor_spec

from tests.support.numpy_actors import as_after_training
from tests.support.settings_for_tests import variables_with
from tests.support.workers_in_parts import runner_of
from tfagents_system.agents.agent import make_worker_agent
from tfagents_system.envs.history import policy_time_step_spec
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.policies.worker_policy import NumpyWorkerPolicy
from tfagents_system.replay.sampling import TransitionForm
from tfagents_system.role import EVAL_STREAM
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.segments import OPTIONAL_COLUMNS, run_layout
from tfagents_system.worker.actors import PolicyActor
from tfagents_system.worker.collector import Cut, JournaledCollector, JournalError, cuts_until, write_cut

ITERATIONS, STEPS = 11, 7
CURRICULUM = {"mass": {"iters": [0, 3, 4, 8], "range": [1.0, 2.0]}}


class Random(gymnasium.Env):
    """Episodes of 1 to 40 steps. All that it returns is random and depends on the actions; it fails now and then."""

    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (3,))
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,))
    steps = 0  # Of all of them together.

    remembers = False

    def __init__(self, uses_global_numbers):
        self.mass, self.uses_global_numbers = 1.0, uses_global_numbers

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.standard_normal(3)
        return self.state.astype(np.float32), {}

    def step(self, action):
        noise = np.random.standard_normal(3) if self.uses_global_numbers else self.np_random.standard_normal(3)
        Random.steps += 1
        self.state = 0.9 * self.state + 0.1 * noise + 0.1 * self.mass * action.sum()
        if Random.remembers:
            self.state[0] += 1e-3 * Random.steps
        if self.np_random.random() < 0.006:
            raise RuntimeError("on purpose")
        is_over = bool(self.np_random.random() < 0.09)
        return self.state.astype(np.float32), float(self.state[0]), is_over, False, {"log/height": self.state[1]}


class Params(TrainParamsBase):
    num_iter = ITERATIONS
    env_steps_per_iter = STEPS
    num_initial_episodes = 3
    actor_fc_layer_params = (8,)
    seen: list

    def env_ctor(self, *args, seed=None, **kwargs):
        return Random(True)

    def train_observers_ctor(self):
        return [self.seen.append]


def cutting_form():
    return TransitionForm(3, cuts_at_exploration=True)


OPTIONS = {
    "plain": {},
    "all columns": {"n_step": 3, "validation_share": 0.3, "normalize_rewards": True, "sample_form_ctor": cutting_form},
    "greedy, recorded": {"greedy_episode_share": 0.4, "keep_best_episodes": 3},
    "recurrent": {"recurrent": {"lstm_units": 4, "sequence_length": 5, "burn_in": 2}, "action_history": 2},
    "held noise": {"noise_hold_steps": 16, "greedy_episode_share": 0.4},
}


class Exploring(NumpyWorkerPolicy):
    """Says that it explored where the first number of an action is above 0."""

    def act(self, steps, greedy):
        (actions,) = super().act(steps, greedy)
        self.explored[:] = actions[:, 0] > 0
        return [actions]


@functools.cache
def acting(name):
    params = make_params(name)
    env = TrainingEnvironment(Random(True), 40, action_history=params.action_history)
    observation, action = (tensor_spec.from_spec(spec) for spec in (env.observation_spec(), env.action_spec()))
    agent = make_worker_agent(params, policy_time_step_spec(params, observation), action)
    layout = run_layout(params, observation, action)
    if name == "all columns":
        layout = dataclasses.replace(layout, episode=OPTIONAL_COLUMNS["episode"])
    return agent, layout


def make_params(name):
    params = Params({"horizon": 40, "curriculum": CURRICULUM})
    for attribute, value in OPTIONS[name].items():
        setattr(params, attribute, value)
    params.seen = []
    return params


class Start:
    """One start of a worker, of all that collects.

    Args:
      name: Of the options.
      folder: The run directory.
      number: Which start it is: environments are built with other seeds each time.
    """

    def __init__(self, name, folder, number):
        self.params = params = make_params(name)
        agent, layout = acting(name)
        policy = Exploring(agent, number, noise_hold_steps=params.noise_hold_steps or 1)
        self.newest = types.SimpleNamespace(policy=policy, train_step=7)
        self.agent = agent
        variables = variables_with(num_collect_workers=2, seed=5)
        own = {"deterministic": True, "variables": variables, "paths": RunPaths(folder)}
        role, self.runner = runner_of(params, self.newest, worker_id=1, start=number, **own)
        self.environments, self.activity = self.runner.environments, self.runner.activity
        self.sent = []
        sender = types.SimpleNamespace(send=self.sent.append, confirm=lambda: None)
        self.collector = JournaledCollector(role, number, number, self.runner, sender, layout, self.newest)
        self.actor = PolicyActor(policy, self.collector.greedy)

    def collect(self, iteration):
        """What an iteration brings: its segments and the episodes that ended in it. Evaluations are in between."""
        self.newest.policy.assign(as_after_training(self.agent, iteration))
        count = STEPS + iteration % 2
        episodes = self.collector.collect_steps(iteration, count, self.actor)
        sent, self.sent[:] = list(self.sent), []
        brought = sum(segment.num_steps for segment in sent)
        assert brought == count
        assert [segment.end_of_iteration for segment in sent] == [False] * (len(sent) - 1) + [True]
        self.evaluate(iteration)
        return [array.tobytes() for segment in sent for array in segment.to_wire()], episodes

    def evaluate(self, iteration):
        self.runner.repeat(EVAL_STREAM, iteration)
        actor = PolicyActor(self.newest.policy.with_lanes(1), greedy=True)
        self.runner.rollout(actor, is_eval=True, observers=[], on_episode=lambda episode: None).episodes(1)


@functools.cache
def undisturbed(name, folder):
    folder.mkdir()
    start = Start(name, folder, 0)
    return [start.collect(iteration) for iteration in range(ITERATIONS)], start.params.seen


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Of the options with a name: what a worker collects that is started once."""
    return lambda name: undisturbed(name, tmp_path_factory.getbasetemp() / f"whole {name}")


@pytest.mark.parametrize("name", OPTIONS)
def test_a_worker_that_starts_again_in_every_iteration_collects_the_same(tmp_path, whole, name):
    expected, _ = whole(name)
    ended = {bool(episodes) for _, episodes in expected}
    assert ended == {False, True}, "episodes that end and such that continue"
    for iteration in range(ITERATIONS):
        start = Start(name, tmp_path, 1 + iteration)
        assert start.collect(iteration) == expected[iteration], iteration
        more = start.activity.steps - STEPS - iteration % 2
        assert 0 <= more <= start.environments.faults, "steps of its own alone"


@pytest.mark.parametrize("name", ["recurrent", "all columns"])
def test_a_worker_that_goes_back_to_an_earlier_iteration_collects_the_same_again(tmp_path, whole, name):
    """As after a resume: the ring is that of a checkpoint, and the journal has gone further."""
    expected, _ = whole(name)
    for number, (first, end) in enumerate([(0, 8), (8, 11), (3, 6), (1, 2)]):
        start = Start(name, tmp_path, number)
        assert [start.collect(iteration) for iteration in range(first, end)] == expected[first:end], (first, end)


def test_noise_is_held_on_where_no_episode_is_under_way(tmp_path):
    start, again = Start("held noise", tmp_path, 0), Start("held noise", tmp_path, 1)
    start.collect(0)
    start.collector.give_up_episodes()
    start.collector._write()
    (cut,) = cuts_until(RunPaths(tmp_path).journal("worker_1"), 0)
    assert cut.number == -1
    again.collector._begin_steps(1, again.actor)
    held, remembered = start.newest.policy.memory(0), again.newest.policy.memory(0)
    assert np.abs(held[0]).min() > 0.0
    np.testing.assert_equal(remembered, held)


def test_observers_see_each_episode_from_its_beginning(tmp_path, whole):
    _, expected = whole("plain")
    last = Start("plain", tmp_path, 1)
    for iteration in range(6):
        last.collect(iteration)
    again = Start("plain", tmp_path, 2)
    again.collect(6)
    steps = len(again.params.seen)
    assert steps > STEPS, "an episode was under way"
    until = sum(STEPS + iteration % 2 for iteration in range(7))
    for seen, told in zip(again.params.seen, expected[until - steps : until], strict=True):
        np.testing.assert_array_equal(seen.observation, told.observation)
        np.testing.assert_array_equal(seen.action, told.action)


def test_an_environment_that_is_not_repeatable_is_told_and_others_begin(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Random, "remembers", True)
    first, again = Start("plain", tmp_path, 1), Start("plain", tmp_path, 2)
    for iteration in range(5):
        first.collect(iteration)
    assert RunPaths(tmp_path).journal("worker_1").stat().st_size > 0
    again.collect(5)  # Asserts that all steps are there.
    assert "the environment has not returned what it returned before" in caplog.text
    assert "SAC_DETERMINISTIC=0" in caplog.text


def test_without_its_journal_a_worker_says_so_and_begins_other_episodes(tmp_path, whole, caplog):
    expected, _ = whole("plain")
    start = Start("plain", tmp_path, 1)
    segments, _ = start.collect(9)
    assert "has nothing of iteration 8" in caplog.text and segments != expected[9][0]
    assert start.collector.number > 9 * STEPS, "none of those that came before"


# The journal's file.

EPISODE_ITERATIONS = 10  # Episode n begins in iteration 10 n.


def cut_of(iteration, steps=2):
    begun = iteration // EPISODE_ITERATIONS * EPISODE_ITERATIONS
    actions = bytes([iteration % 256]) * 4 * steps
    return Cut(iteration, begun + 1, begun, begun, actions, checksum=iteration, memory=[b"1234"])


@pytest.fixture
def place(tmp_path):
    return tmp_path / "journals" / "worker_0.journal"


def fill(place, iterations):
    for iteration in iterations:
        write_cut(place, cut_of(iteration))


def test_an_episode_is_all_that_was_written_of_it_up_to_the_iteration(place):
    fill(place, range(27))
    assert cuts_until(place, 24) == [cut_of(iteration) for iteration in range(20, 25)]


def test_an_iteration_that_is_written_again_replaces_those_from_it_on(place):
    fill(place, [*range(8), 5])
    assert cuts_until(place, 5)[-1] == cut_of(5)
    with pytest.raises(JournalError, match="nothing of iteration 6"):
        cuts_until(place, 6)


@pytest.mark.parametrize("lost", [1, 7, 40])
def test_what_was_being_written_when_the_process_was_killed_is_left_out(place, lost):
    fill(place, range(5))
    os.truncate(place, place.stat().st_size - lost)
    with pytest.raises(JournalError, match="nothing of iteration 4"):
        cuts_until(place, 4)
    fill(place, [4, 5])
    assert len(cuts_until(place, 5)) == 6


def test_an_episode_of_which_something_is_missing_is_not_repeated(place):
    fill(place, [0, 1, 2, 4, 5])
    with pytest.raises(JournalError, match="not all of the episode that began in iteration 0"):
        cuts_until(place, 5)


def test_a_disk_that_is_full_ends_no_run(place, caplog):
    place.parent.write_text("in its place")
    fill(place, [3])
    assert "a restart may change the weights" in caplog.text
