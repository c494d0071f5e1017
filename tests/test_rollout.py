"""Episodes run one after another or side by side: which are run, what is stored of them, who sees them."""

import numpy as np
import pytest

from tests.fakes import NumberedEnv
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.segments import Layout
from tfagents_system.rollout import EpisodeLog, SegmentBuilder, StepTimes, run_episodes

HORIZON = 12


def make_envs(*lengths):
    """Environments 0, 1, ... whose episodes have these lengths; None: the horizon's."""
    return [TrainingEnvironment(NumberedEnv(env, length), HORIZON) for env, length in enumerate(lengths)]


LAYOUT = Layout.from_specs(make_envs(3)[0].observation_spec(), make_envs(3)[0].action_spec())


class ScriptedActor:
    """Acts as [environment / 10, step / 100] and keeps account."""

    def __init__(self):
        self.resets = []
        self.batches = []

    def reset(self, env):
        self.resets.append(env)

    def action(self, time_step):
        worker, _, step = time_step.observation
        return np.array([worker / 10, step / 100], np.float32)

    def actions(self, time_steps):
        self.batches.append(sorted(time_steps))
        for env, time_step in time_steps.items():
            assert time_step.observation[0] == env, "of its own environment"
        return {env: self.action(time_step) for env, time_step in time_steps.items()}


class WorkerOfRing:
    """Stores segments as the sender and the replay server do."""

    def __init__(self, folder):
        self.ring = Ring.open(folder, LAYOUT, 1000)
        self.segments = []

    def send(self, segment):
        segment.incarnation, segment.number = 1, len(self.segments)
        self.segments.append(segment)
        assert self.ring.append(segment), "refused"

    def new_builder(self):
        return SegmentBuilder(LAYOUT, 7, 5, self.send)

    def transitions(self):
        """All that a minibatch could be drawn from, in the order of the rows."""
        rows = np.flatnonzero(self.ring.steps_left[: self.ring.filled_rows])
        observation, action = self.ring.observation[0], self.ring.action[0]
        return [(*observation[row], *action[row], self.ring.reward[row], *observation[row + 1]) for row in rows]


@pytest.mark.parametrize(("lengths", "count"), [((4,), 3), ((3, None, 7), 8), ((2, 11, 6, 9), 3), ((5, 5), 2)], ids=str)
def test_segments_of_environments_side_by_side_make_up_exactly_the_episodes(tmp_path, lengths, count):
    worker, actor = WorkerOfRing(tmp_path), ScriptedActor()
    episodes = run_episodes(make_envs(*lengths), actor, count, new_builder=worker.new_builder)
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


def test_an_environment_whose_episode_has_ended_takes_the_next_and_long_ones_are_waited_for():
    actor = ScriptedActor()
    episodes = run_episodes(make_envs(2, 9), actor, 4)
    assert actor.resets == [0, 1, 0, 0]
    assert [episode.length for episode in episodes] == [2, 2, 2, 9]
    assert actor.batches == [[0, 1]] * 6 + [[1]] * 3


def test_the_return_is_the_episodes_own():
    episodes = run_episodes(make_envs(2, 3), ScriptedActor(), 2)
    assert [episode.episode_return for episode in episodes] == [1.0 + 2.0, 1.0 + 2.0 + 3.0]


@pytest.mark.parametrize("lengths", [(3,), (3, 5)], ids=["one", "two"])
def test_observers_see_whole_episodes_in_order(lengths):
    seen, ended = [], []
    run_episodes(make_envs(*lengths), ScriptedActor(), 4, observers=[seen.append], on_episode=ended.append)
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
        run_episodes(make_envs(2, None), ScriptedActor(), 9, new_builder=worker.new_builder, on_step=stop_at_nine)
    assert steps == len(worker.transitions()) == 8
    assert not any(segment.end_of_iteration for segment in worker.segments)
    assert not worker.segments[-1].ends_episode


def test_a_clock_runs_around_policy_and_simulator_only():
    class SlowEnv(NumberedEnv):
        def _step(self, action):
            busy_until(0.002)
            return super()._step(action)

    class SlowActor(ScriptedActor):
        def action(self, time_step):
            busy_until(0.001)
            return super().action(time_step)

    def busy_until(seconds):
        import time

        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    times = StepTimes()
    run_episodes([TrainingEnvironment(SlowEnv(0, 10), HORIZON)], SlowActor(), 2, times=times)
    policy, simulator = times.take()
    assert policy >= 0.020 and simulator >= 0.040
    assert times.take() == (0.0, 0.0)


def test_a_log_takes_means_of_numbers_and_the_last_success():
    log = EpisodeLog()
    log.add(1.0, {"log/height": 1.0, "log/text": "no", "other": 3, "is_success": True})
    log.add(2.0, {"log/height": np.float32(2.0), "log/text": 5.0, "other": 3, "is_success": False, 7: 1})
    episode = log.episode()
    assert (episode.episode_return, episode.length, episode.success) == (3.0, 2, False)
    assert episode.logs == {"height": 1.5, "text": 5.0}
