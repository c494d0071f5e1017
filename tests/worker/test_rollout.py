"""Episodes run one after another or side by side: which are run, what is stored of them, who sees them."""

import dataclasses
import functools
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from tf_agents.trajectories import time_step as ts

from tests.support.acting import LaneActor
from tests.support.fakes import NumberedEnv
from tests.support.fed_builder import FedEpisode
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.replay.ring import Ring
from tfagents_system.transport.segments import Column, Layout
from tfagents_system.worker import rollout
from tfagents_system.worker.rollout import EpisodeLogs, Rollout, SegmentBuilder, StepTimes

HORIZON = 12


def make_envs(*lengths):
    """Environments 0, 1, ... whose episodes have these lengths; None: the horizon's."""
    return [TrainingEnvironment(NumberedEnv(env, length), HORIZON) for env, length in enumerate(lengths)]


LAYOUT = Layout.from_specs(make_envs(3)[0].observation_spec(), make_envs(3)[0].action_spec())


class ScriptedActor(LaneActor):
    """Acts as [environment / 10, step / 100] and keeps account."""

    def __init__(self):
        self.resets = []
        self.batches = []

    def begin(self, env):
        self.resets.append(env)

    def action(self, env, time_step):
        worker, _, step = time_step.observation
        assert worker == env, "of its own environment"
        return np.array([worker / 10, step / 100], np.float32)

    def act(self, steps):
        self.batches.append(np.flatnonzero(steps.step_type != ts.StepType.LAST).tolist())
        return super().act(steps)


class WorkerOfRing:
    """Stores segments as the sender and the replay server do."""

    def __init__(self, folder):
        self.ring = Ring.open(folder, LAYOUT, 1000)
        self.segments = []

    def send(self, segment):
        segment.incarnation, segment.number, segment.iteration = 1, len(self.segments), 7
        self.segments.append(segment)
        assert self.ring.append(segment), "refused"

    def new_builder(self):
        return SegmentBuilder(LAYOUT, 5, self.send)

    def transitions(self):
        """All that a minibatch could be drawn from, in the order of the rows."""
        rows = np.flatnonzero(self.ring.steps_left[: self.ring.filled_rows])
        observation, action = self.ring.observation[0], self.ring.action[0]
        return [(*observation[row], *action[row], self.ring.reward[row], *observation[row + 1]) for row in rows]


@pytest.mark.parametrize(("lengths", "count"), [((4,), 3), ((3, None, 7), 8), ((2, 11, 6, 9), 3), ((5, 5), 2)], ids=str)
def test_segments_of_environments_side_by_side_make_up_exactly_the_episodes(tmp_path, lengths, count):
    worker, actor = WorkerOfRing(tmp_path), ScriptedActor()
    episodes = Rollout(make_envs(*lengths), actor, new_builder=worker.new_builder).episodes(count)
    assert len(episodes) == len(actor.resets) == count, "exactly as many as were asked for were started and ended"
    started = {env: actor.resets.count(env) for env in set(actor.resets)}
    expected = [
        np.array([env, episode, step, env / 10, step / 100, step + 1, env, episode, step + 1], np.float32)
        for env, number in started.items()
        for episode in range(number)
        for step in range(lengths[env] or HORIZON)
    ]
    found = np.array(worker.transitions())
    np.testing.assert_array_equal(found[np.lexsort(found.T[::-1])], np.array(expected))
    assert sorted(e.length for e in episodes) == sorted(lengths[env] or HORIZON for env in actor.resets)
    assert sum(segment.starts_episode for segment in worker.segments) == count
    assert sum(segment.ends_episode for segment in worker.segments) == count
    assert [segment.end_of_iteration for segment in worker.segments] == [False] * (len(worker.segments) - 1) + [True]
    assert worker.ring.worker(0).iteration_done == 7


LONG = Layout.from_specs(np.zeros((1024, 1024), np.uint8), np.zeros(2, np.float32))  # 15 steps are a segment.


@pytest.mark.parametrize("history", [0, 2])
def test_an_episode_is_cut_into_full_segments_and_the_rest_of_it(history):
    most = LONG.max_segment_steps(4)
    assert most == 15
    for length in (1, 4, 14, 15, 16, 30, 31, 59):
        segments = []
        builder = SegmentBuilder(LAYOUT, most, segments.append, history=history)
        env = TrainingEnvironment(NumberedEnv(), length)
        time_step = env.reset()
        fed = FedEpisode(builder, time_step)
        for step in range(length):
            time_step = env.step(np.zeros(2, np.float32))
            fed.add(np.full(2, step, np.float32), time_step)
        fed.finish(end_of_iteration=True)
        steps = [len(segment.reward) for segment in segments]
        assert len(segments) == LONG.num_segments(length, 4)
        assert steps[:-1] == [most] * (len(steps) - 1)
        assert 1 <= steps[-1] <= most
        starts = np.cumsum([0, *steps])
        assert starts[-1] == length
        for start, segment in zip(starts, segments, strict=False):
            count = len(segment.reward)
            assert segment.history == min(start, history)
            rows = np.arange(start - segment.history, start + count + 1)
            np.testing.assert_array_equal(segment.observation[0][:, 2], rows)
            np.testing.assert_array_equal(segment.action[0][:, 0], rows[segment.history : -1])
            np.testing.assert_array_equal(segment.reward, 1 + rows[segment.history : -1])


def test_an_environment_whose_episode_has_ended_takes_the_next_and_long_ones_are_waited_for():
    actor = ScriptedActor()
    episodes = Rollout(make_envs(2, 9), actor).episodes(4)
    assert actor.resets == [0, 1, 0, 0]
    assert [episode.length for episode in episodes] == [2, 2, 2, 9]
    assert actor.batches == [[0, 1]] * 6 + [[1]] * 3


@pytest.mark.parametrize("lengths", [(3,), (3, 5)], ids=["one", "two"])
def test_observers_see_whole_episodes_in_order(lengths):
    seen, ended = [], []
    Rollout(make_envs(*lengths), ScriptedActor(), observers=[seen.append], on_episode=ended.append).episodes(4)
    told = [(int(step.observation[0]), int(step.observation[1]), int(step.observation[2])) for step in seen]
    assert [step for *_, step in told] == [step for episode in ended for step in range(episode.length)]
    for trajectory in seen:
        assert bool(trajectory.is_boundary()) is False
    firsts = [index for index, (*_, step) in enumerate(told) if step == 0]
    for first, episode in zip(firsts, ended, strict=True):
        assert len({told[index][:2] for index in range(first, first + episode.length)}) == 1, "of one episode"


def test_steps_before_a_stop_are_kept(tmp_path):
    worker = WorkerOfRing(tmp_path)
    steps = 0

    def stop_at_nine(more):
        nonlocal steps
        if steps + more > 9:
            raise KeyboardInterrupt
        steps += more

    with pytest.raises(KeyboardInterrupt):
        Rollout(make_envs(2, None), ScriptedActor(), new_builder=worker.new_builder, on_step=stop_at_nine).episodes(9)
    assert steps == len(worker.transitions()) == 8
    assert not any(segment.end_of_iteration for segment in worker.segments)
    assert not worker.segments[-1].ends_episode


def too_large(episode):
    raise MemoryError(f"after an episode of {episode.length} steps")


RUNS = {
    "episodes": lambda rollout: rollout.episodes(4),
    "steps": lambda rollout: rollout.steps(20),
    "steps of a longer iteration": lambda rollout: rollout.steps(100),
}


@pytest.mark.parametrize("run", RUNS)
def test_episodes_that_end_together_are_all_handed_over_before_one_of_them_is_told(tmp_path, run):
    """A worker that has grown too large ends there."""
    worker = WorkerOfRing(tmp_path)
    envs = make_envs(5, 5, 5, 5)
    rollout = Rollout(envs, ScriptedActor(), new_builder=worker.new_builder, on_episode=too_large)
    with pytest.raises(MemoryError, match="after an episode of 5 steps"):
        RUNS[run](rollout)
    assert len(worker.transitions()) == 20
    assert sum(segment.ends_episode for segment in worker.segments) == 4
    ends = [segment.end_of_iteration for segment in worker.segments]
    assert ends == [False, False, False, run != "steps of a longer iteration"]


# Faults.


class FaultyEnv(NumberedEnv):
    """Does in certain steps, counted over all its environments of a kind, what an environment must not do.

    Args:
      worker: First number of every observation.
      terminate_at: As of NumberedEnv.
      wrong: What to do, by (episode, step); step 0 is the reset.
    """

    def __init__(self, worker, terminate_at, wrong):
        super().__init__(worker, terminate_at)
        self.wrong = wrong

    def _reset(self):
        return self._spoilt(super()._reset())

    def _step(self, action):
        return self._spoilt(super()._step(action))

    def _spoilt(self, time_step):
        spoil = self.wrong.pop((self._episode, self._step_of_episode), None)
        return spoil(time_step) if spoil else time_step


def raises(time_step):
    raise ZeroDivisionError("the motor is off")


WRONG = {
    "raises": raises,
    "nan": lambda time_step: time_step._replace(observation=np.array([1.0, np.nan, 1.0], np.float32)),
    "reward nan": lambda time_step: time_step._replace(reward=np.float32(np.nan)),
    "discount nan": lambda time_step: time_step._replace(discount=np.float32(np.nan)),
    "discount above 1": lambda time_step: time_step._replace(discount=np.float32(1.5)),
    "discount below 0": lambda time_step: time_step._replace(discount=np.float32(-0.5)),
}


def collect(tmp_path, lengths, count, wrong, on_fault=True):
    """Collects with environments that fail in the given (environment, episode, step)s; faults are answered."""
    worker, actor, faults = WorkerOfRing(tmp_path), ScriptedActor(), []
    by_env = [{(e, s): what for (env, e, s), what in wrong.items() if env == own} for own in range(len(lengths))]

    def build(env, first_episode=0):
        inner = FaultyEnv(env, lengths[env], by_env[env])
        inner._episode = first_episode - 1
        return TrainingEnvironment(inner, HORIZON)

    envs = [build(env) for env in range(len(lengths))]

    def answer(env, fault):
        faults.append((env, fault.episode, fault.step))
        envs[env] = build(env, envs[env].user_env._episode + 1)

    episodes = Rollout(envs, actor, new_builder=worker.new_builder, on_fault=answer if on_fault else None).episodes(
        count
    )
    return worker, episodes, faults


@pytest.mark.parametrize(("lengths", "what"), [*(((4,), what) for what in WRONG), ((4, 6, 5), "raises")], ids=str)
def test_no_step_of_a_fault_or_after_it_reaches_the_ring_and_the_iteration_is_whole(tmp_path, lengths, what):
    worker, episodes, faults = collect(tmp_path, lengths, 6, {(0, 1, 3): WRONG[what]})
    assert faults == [(0, 2, 3)], "the second episode of environment 0, in its third step"
    (failed,) = [episode for episode in episodes if episode.has_failed]
    assert (failed.length, failed.episode_return) == (2, 1.0 + 2.0), "up to the fault, which counts"
    assert {episode.length for episode in episodes if not episode.has_failed} == set(lengths)
    assert len(episodes) == 6, "as many episodes as were asked for"
    ended = [segment.end_of_iteration for segment in worker.segments]
    assert ended == [False] * (len(ended) - 1) + [True], "which the last of them ends"
    assert sum(segment.ends_episode for segment in worker.segments) == 6
    transitions = np.array(worker.transitions())
    assert np.isfinite(transitions).all()
    # Everything that was stored is what a good environment observes: [env, episode, step], rewarded by its step.
    observation, reward, after = transitions[:, :3], transitions[:, 5], transitions[:, 6:]
    np.testing.assert_array_equal(after, observation + [0, 0, 1])
    np.testing.assert_array_equal(reward, after[:, 2])
    of_env_0 = observation[observation[:, 0] == 0]
    assert [int(step) for _, episode, step in of_env_0 if episode == 1] == [0, 1], "the two true steps before it"
    (piece,) = [s for s in worker.segments if s.starts_episode and s.ends_episode and s.reward.size == 2]
    assert piece.discount.tolist() == [1.0, 1.0], "truncated, not terminated"
    assert worker.ring.worker(0).iteration_done == 7
    assert worker.ring.env_steps == len(transitions) == sum(episode.length for episode in episodes)


def test_faults_in_the_reset_in_the_first_step_in_the_last_one_and_in_several_at_once(tmp_path):
    wrong = {(0, 0, 0): raises, (0, 1, 1): raises, (0, 2, 4): raises, (1, 0, 1): raises, (2, 0, 1): raises}
    worker, episodes, faults = collect(tmp_path, (4, 4, 4), 6, wrong)
    assert sorted(faults) == [(0, 1, 0), (0, 1, 1), (0, 1, 4), (1, 1, 1), (2, 1, 1)]
    assert [episode.length for episode in episodes if episode.has_failed] == [3], "without a step none counts"
    assert len(episodes) == 6 and [episode.length for episode in episodes].count(4) == 5
    assert [segment.end_of_iteration for segment in worker.segments].count(True) == 1
    assert worker.segments[-1].end_of_iteration
    assert len(worker.transitions()) == 5 * 4 + 3


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_where_every_episode_ends_with_a_fault_an_iteration_comes_to_its_end(tmp_path, lanes):
    wrong = {(env, episode, 3): raises for env in range(lanes) for episode in range(9)}
    worker, episodes, faults = collect(tmp_path, (4,) * lanes, 6, wrong)
    assert [(episode.length, episode.has_failed) for episode in episodes] == [(2, True)] * 6
    assert len(faults) == 6 and worker.ring.env_steps == 12
    ended = [segment.end_of_iteration for segment in worker.segments]
    assert ended == [False] * 5 + [True] and worker.ring.worker(0).iteration_done == 7


def test_environments_beside_a_fault_are_stepped_with_the_actions_chosen_for_them():
    class Counting(ScriptedActor):
        """Knows how often it has acted for each environment, as a recurrent policy does."""

        def __init__(self):
            super().__init__()
            self.acted = {}

        def begin(self, env):
            super().begin(env)
            self.acted[env] = 0

        def action(self, env, time_step):
            assert time_step.observation[2] == self.acted[env], "one step for each action"
            self.acted[env] += 1
            return super().action(env, time_step)

    envs = [TrainingEnvironment(FaultyEnv(env, 5, {(0, 2): raises} if env == 1 else {}), HORIZON) for env in range(3)]

    def answer(env, fault):
        envs[env] = TrainingEnvironment(FaultyEnv(env, 5, {}), HORIZON)

    assert len(Rollout(envs, Counting(), on_fault=answer).episodes(6)) == 6


def test_without_an_answer_a_fault_ends_all_and_what_was_true_is_stored(tmp_path):
    with pytest.raises(EnvironmentFault, match="step 3 of episode 1: ZeroDivisionError"):
        collect(tmp_path, (6, 6), 4, {(1, 0, 3): raises}, on_fault=False)
    ring = Ring.open(tmp_path, LAYOUT, 1000)
    assert ring.env_steps == 3 + 2


def test_a_clock_runs_around_policy_and_simulator_only(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tfagents_system.worker.rollout.perf_counter", lambda: now[0])

    class SlowEnv(NumberedEnv):
        def _step(self, action):
            now[0] += 2.0
            return super()._step(action)

    class SlowActor(ScriptedActor):
        def action(self, env, time_step):
            now[0] += 1.0
            return super().action(env, time_step)

    times = StepTimes()
    Rollout([TrainingEnvironment(SlowEnv(0, 10), HORIZON)], SlowActor(), times=times).episodes(2)
    assert times.take() == (20.0, 40.0) and times.take() == (0.0, 0.0)


def test_a_log_takes_means_of_numbers_and_the_last_success():
    logs = EpisodeLogs(1)

    def add(reward, info):
        logs.add(np.array([[reward]], np.float32))
        logs.add_infos([(info, 0)])

    add(1.0, {"log/height": 1.0, "log/text": "no", "other": 3, "is_success": True})
    add(2.0, {"log/height": np.float32(2.0), "log/text": 5.0, "other": 3, "is_success": False, 7: 1})
    episode = logs.episode(0)
    assert (episode.episode_return, episode.length, episode.success) == (3.0, 2, False)
    assert episode.logs == {"height": 1.5, "text": 5.0}


class Tensor:
    """Like one of torch or JAX on another device: no array of NumPy."""

    def __init__(self, number):
        self.number = number

    def __array__(self, dtype=None):
        raise TypeError("can't convert a cuda tensor to numpy")

    def __float__(self):
        return self.number


NUMBERS = [np.array(2.0), np.array([2]), np.array([[2.0]]), [2.0], (2,), Tensor(2.0), Decimal(2), Fraction(4, 2), "2"]


def test_a_log_takes_one_number_of_any_type_and_tells_once_of_what_is_none(monkeypatch):
    lines = []
    monkeypatch.setattr(rollout, "_left_out", set())
    monkeypatch.setattr(rollout.logging, "warning", lambda text, *args: lines.append(text % args))
    logs = EpisodeLogs(1)
    logs.add_infos([({f"log/{number}": value for number, value in enumerate(NUMBERS)} | {"log/true": np.True_}, 0)])
    assert logs.episode(0).logs == {str(number): 2.0 for number in range(len(NUMBERS))} | {"true": 1.0}
    assert lines == []
    for value in ("landing", None, np.array([1.0, 2.0]), float("nan"), 1j, -1e39):
        rollout._left_out.clear()
        logs = EpisodeLogs(1)
        logs.add_infos([({"log/x": value, "success": np.array([True])}, 0), ({"log/x": value, "success": value}, 0)])
        assert (logs.episode(0).logs, logs.episode(0).success) == ({}, True), "what is no truth value says nothing"
    assert len(lines) == 6 * 2, "of each key once"
    logs.add_infos([({f"log/{number}": number for number in range(1002)}, 0)])
    assert len(logs.episode(0).logs) == 1000, "a report has no more"
    assert lines[0] == "info['log/x'] is 'landing', no number up to 3.40282e+38: left out of metrics"


def test_a_log_takes_what_is_meant_of_each_lane():
    logs = EpisodeLogs(3)
    meant = np.array([True, True, False])
    told = {"log/height": np.array([1.0, np.nan, 5.0]), "log/speed": np.array([1, 2, 3]), "log/all": 4.0}
    logs.add_infos([(told | {"_log/speed": np.array([False, True, True]), "log/words": ["a", "b", "c"]}, meant)])
    logs.add_infos([({"log/height": np.array([2.0, 4.0, 6.0]), "is_success": True}, meant)])
    logs.add_infos([({"success": np.array([True, False, False])}, None)])
    logs.add_infos(
        [({"log/row": np.array([[1.0], [2.0], [3.0]]), "log/kind": np.array([None, Fraction(1, 2), 1])}, meant)]
    )
    first = {"height": 1.5, "all": 4.0, "row": 1.0}
    second = {"height": 4.0, "all": 4.0, "row": 2.0, "speed": 2.0, "kind": 0.5}
    assert [logs.episode(lane).logs for lane in range(3)] == [first, second, {}]
    assert [logs.episode(lane).success for lane in range(3)] == [True, False, False]
    logs.begin(0)
    logs.begin(1)
    assert logs.episode(0).success is None and logs.episode(1).logs == {}
    logs.add_infos([({"is_success": True}, meant)])
    assert [logs.episode(lane).success for lane in range(3)] == [True, True, False], "one says it of all lanes"


@pytest.mark.parametrize("num_envs", [1, 3])
def test_returns_go_on_from_segment_to_segment_and_begin_anew_with_each_episode(tmp_path, num_envs):
    """R_t = gamma R_(t-1) + r_t in every environment of a worker, whose segments alternate."""
    segments = []
    layout = dataclasses.replace(LAYOUT, returns=Column("return", (), "float32"))
    envs = make_envs(*[None] * num_envs)
    Rollout(envs, ScriptedActor(), new_builder=lambda: SegmentBuilder(layout, 5, segments.append, gamma=0.9)).episodes(
        4
    )
    assert any(not segment.starts_episode for segment in segments)
    rewards, returns = {}, {}
    for segment in segments:
        env, episode = map(int, segment.observation[0][0, :2])
        rewards.setdefault((env, episode), []).extend(segment.reward)
        returns.setdefault((env, episode), []).extend(segment.returns)
    assert len(rewards) == 4
    for key, each in rewards.items():
        expected = [sum(0.9 ** (t - k) * each[k] for k in range(t + 1)) for t in range(len(each))]
        np.testing.assert_allclose(returns[key], expected, rtol=1e-5)


def test_returns_that_float32_can_not_hold_are_cut():
    sent = []
    layout = dataclasses.replace(LAYOUT, returns=Column("return", (), "float32"))
    builder = SegmentBuilder(layout, 5, sent.append)
    fed = FedEpisode(builder, ts.restart(np.zeros(3, np.float32)))
    for _ in range(3):
        fed.add(np.zeros(2, np.float32), ts.transition(np.zeros(3, np.float32), np.float32(3e38)))
    fed.finish(end_of_iteration=True)
    assert np.isfinite(sent[0].returns).all() and sent[0].returns.dtype == np.float32


@pytest.mark.parametrize("counts", [(1,) * 40, (5, 3, 11, 1, 20)], ids=str)
@pytest.mark.parametrize("lengths", [(4,), (2, 11, None)], ids=str)
def test_steps_go_on_in_the_same_episodes_and_exactly_so_many_are_handed_over(tmp_path, lengths, counts):
    worker, actor = WorkerOfRing(tmp_path), ScriptedActor()
    rollout = Rollout(make_envs(*lengths), actor, new_builder=worker.new_builder)
    episodes, total = [], 0
    for count in counts:
        before = len(worker.segments)
        episodes += rollout.steps(count)
        total += count
        assert worker.ring.env_steps == total, "all are handed over"
        ends = [segment.end_of_iteration for segment in worker.segments[before:]]
        assert ends == [False] * (len(ends) - 1) + [True], "the last segment ends the iteration"
    steps = [0] * len(lengths)
    for env, _, _, _, _, _, *_ in worker.transitions():
        steps[int(env)] += 1
    assert max(steps) - min(steps) <= 1 + len(lengths), "in turn, whatever is left over"
    expected = [
        np.array([env, step // length, step % length, env / 10, step % length / 100, step % length + 1, env])
        for env, length in enumerate(length or HORIZON for length in lengths)
        for step in range(steps[env])
    ]
    found = np.array(worker.transitions())[:, :7]
    np.testing.assert_allclose(found[np.lexsort(found.T[::-1])], np.array(expected), rtol=1e-6)
    whole = [steps[env] // (length or HORIZON) for env, length in enumerate(lengths)]
    assert len(episodes) == sum(whole) == sum(segment.ends_episode for segment in worker.segments)
    assert sorted(episode.length for episode in episodes) == sorted(
        length or HORIZON for length, count in zip(lengths, whole, strict=True) for _ in range(count)
    ), "an episode's statistics are those of the whole episode"
    assert len(actor.resets) == sum(segment.starts_episode for segment in worker.segments)


@pytest.mark.parametrize("lengths", [(None,), (3, 7), (2, 11, None)], ids=str)
@pytest.mark.parametrize("count", [3, 25])
def test_where_no_steps_follow_samples_start_at_all_of_them(tmp_path, lengths, count):
    starts = {}
    for goes_on in (True, False):
        worker = WorkerOfRing(tmp_path / str(goes_on))
        builder = functools.partial(SegmentBuilder, LAYOUT, 30, worker.send, look_ahead=4)
        Rollout(make_envs(*lengths), ScriptedActor(), new_builder=builder).steps(count, goes_on=goes_on)
        assert worker.ring.env_steps == count and worker.segments[-1].end_of_iteration
        starts[goes_on] = sum(segment.num_starts for segment in worker.segments)
    assert starts[True] < starts[False] == count


def test_a_fault_costs_none_of_the_steps_that_are_to_be_collected(tmp_path):
    worker, faults = WorkerOfRing(tmp_path), []
    wrong = {(0, 2): raises, (1, 0): raises, (2, 5): raises}
    envs = [TrainingEnvironment(FaultyEnv(0, 9, wrong), HORIZON), *make_envs(0, 4)[1:]]
    rollout = Rollout(
        envs, ScriptedActor(), new_builder=worker.new_builder, on_fault=lambda env, fault: faults.append(env)
    )
    for total in range(5, 45, 5):
        rollout.steps(5)
        assert worker.ring.env_steps == total
    assert faults == [0, 0, 0]
    assert [segment.end_of_iteration for segment in worker.segments].count(True) == 8
