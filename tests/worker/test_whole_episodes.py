"""`drop_faulty_episodes`: an episode is stored as a whole or not at all; iterations of steps end with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.fakes import NumberedEnv
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.transport.segments import Layout, Segment
from tfagents_system.worker.rollout import Rollout
from tfagents_system.worker.segment_builder import SegmentBuilder, WholeEpisode

HORIZON = 12


class Failing(NumberedEnv):
    """Fails in one step of one of its episodes."""

    def __init__(self, worker: int, length: int, fails: tuple[int, int] | None) -> None:
        super().__init__(worker, length)
        self.fails = fails

    def _step(self, action: Any) -> Any:
        if (self._episode, self._step_of_episode + 1) == self.fails:
            self.fails = None
            raise ZeroDivisionError("the motor is off")
        return super()._step(action)


class Still:
    """Does nothing."""

    def reset(self, env: int) -> None:
        pass

    def action(self, time_step: Any) -> np.ndarray:
        return np.zeros(2, np.float32)

    def actions(self, time_steps: Any) -> dict[int, np.ndarray]:
        return {env: np.zeros(2, np.float32) for env in time_steps}


def rollout_of(
    lengths: Sequence[int], fails: tuple[int, int] | None = None, *, whole: bool = True
) -> tuple[Rollout, list[Segment]]:
    """Environments with episodes of these lengths; environment 0 fails in (episode, step)."""
    inner = [Failing(env, length, fails if env == 0 else None) for env, length in enumerate(lengths)]
    envs = [TrainingEnvironment(env, HORIZON) for env in inner]
    layout = Layout.from_specs(envs[0].observation_spec(), envs[0].action_spec())
    sent: list[Segment] = []

    def answer(env: int, fault: EnvironmentFault) -> None:
        envs[env] = TrainingEnvironment(inner[env], HORIZON)

    def new_builder() -> SegmentBuilder:
        return SegmentBuilder(layout, 4, WholeEpisode(sent.append) if whole else sent.append)

    actor: Any = Still()
    rollout = Rollout(envs, actor, new_builder=new_builder, on_fault=answer, whole_episodes=whole)
    return rollout, sent


def episodes_in(sent: Sequence[Segment]) -> list[tuple[int, int, int]]:
    """(environment, episode, steps) of each episode whose segments were sent one after another."""
    found: list[tuple[int, int, int]] = []
    for segment in sent:
        env, episode, _ = map(int, segment.observation[0][0])
        if segment.starts_episode:
            found.append((env, episode, 0))
        assert found[-1][:2] == (env, episode)
        found[-1] = (env, episode, found[-1][2] + segment.num_steps)
    return found


@pytest.mark.parametrize("step", [1, 5, 10])
def test_an_episode_with_a_fault_is_stored_nowhere(step: int) -> None:
    rollout, sent = rollout_of([10, 7], (1, step))
    episodes = rollout.episodes(5)
    assert len(episodes) == 5
    stored = episodes_in(sent)
    assert (0, 1) not in {each[:2] for each in stored} and all(steps == (10, 7)[env] for env, _, steps in stored)
    assert sum(segment.ends_episode for segment in sent) == len(stored) == 5
    assert [segment.end_of_iteration for segment in sent] == [False] * (len(sent) - 1) + [True]
    _, plain = rollout_of([10, 7], (1, step), whole=False)
    assert not plain
    rollout, plain = rollout_of([10], (1, 6), whole=False)
    rollout.episodes(3)
    assert (0, 1, 5) in episodes_in(plain), "without it the steps before the fault are stored"


def test_an_iteration_of_steps_ends_with_the_episode_that_completes_them() -> None:
    rollout, sent = rollout_of([10, 7])
    ends = []
    for count in (1, 7, 12, 30):
        before = len(sent)
        lengths = [episode.length for episode in rollout.steps(count)]
        new = sent[before:]
        assert sum(lengths) == sum(segment.num_steps for segment in new) >= count > sum(lengths[:-1])
        assert [segment.end_of_iteration for segment in new] == [False] * (len(new) - 1) + [True]
        ends.append(sum(lengths))
    assert ends == [7, 10, 17, 31], "7 | 10 | 7 + 10 | 7 + 7 + 10 + 7: those under way go on in the next one"
    assert len(episodes_in(sent)) == 8


def test_of_episodes_that_end_together_the_last_ends_the_iteration() -> None:
    rollout, sent = rollout_of([4, 4, 4])
    assert [episode.length for episode in rollout.steps(3)] == [4, 4, 4]
    assert [segment.end_of_iteration for segment in sent] == [False, False, True]


def test_a_fault_in_an_iteration_of_steps_costs_its_episode_alone() -> None:
    rollout, sent = rollout_of([10, 7], (0, 9))
    for _ in range(4):
        rollout.steps(10)
    stored = episodes_in(sent)
    assert (0, 0) not in {each[:2] for each in stored} and {env for env, *_ in stored} == {0, 1}
    assert all(steps == (10, 7)[env] for env, _, steps in stored)


def test_a_stop_stores_no_part_of_an_episode() -> None:
    rollout, sent = rollout_of([10, 7])
    steps = 0

    def stop_at_30(more: int) -> None:
        nonlocal steps
        steps += more
        if steps > 30:
            raise KeyboardInterrupt

    rollout._on_step = stop_at_30
    with pytest.raises(KeyboardInterrupt):
        rollout.steps(1000)
    assert episodes_in(sent) == [(1, 0, 7), (0, 0, 10), (1, 1, 7)]
