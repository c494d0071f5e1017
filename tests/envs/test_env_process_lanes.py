"""Vector environments under another Python: the same numbers, lane by lane, as in the worker's own process."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest

from tests.support.user_environments import Folder, pid_of
from tests.support.waiting import gone
from tfagents_system.envs import env_process, env_server, loading
from tfagents_system.envs.env_process import EnvProcess
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.training_environment import StepColumns, StepNews, TrainingEnvironment
from tfagents_system.worker.rollout import EpisodeLogs

KEYS = {"log/action", "log/first", "log/large", "is_success", "record/zone", "record/at", "record/track"}


def driven(env: TrainingEnvironment, steps: int, seed: int = 0) -> tuple[StepColumns, list[StepNews], list[Any]]:
    """Its columns, news and first observations of the episodes that began, with the same actions for the same seed."""
    rng, columns, news, first = np.random.default_rng(seed), env.new_columns(steps), list[StepNews](), []
    env.reset_lanes(columns)
    for _ in range(steps):
        action = rng.uniform(-1.0, 1.0, (env.num_lanes, 2)).astype(np.float32)
        news.append(env.step_lanes([action], columns))
        columns.row += 1
        began = news[-1].began
        first.append(None if began is None else [leaf[began].tolist() for leaf in news[-1].first])
    return columns, news, first


@pytest.mark.parametrize(
    ("mode", "is_async"), [("NextStep", False), ("SameStep", True), ("SameStep", False), ("Disabled", False)]
)
def test_episodes_are_those_of_the_workers_own_process(each_user: Folder, mode: str, is_async: bool) -> None:
    there = each_user.make("lanes", mode=mode, is_async=is_async)
    with loading.make_collect_env(each_user.params("lanes", mode=mode), 3, 11) as here:
        assert isinstance(there.user_env, EnvProcess) and there.num_lanes == 3
        assert repr(there.observation_spec()) == repr(here.observation_spec())
        assert repr(there.environment_action_spec) == repr(here.environment_action_spec)
        for env in (here, there):
            env.set_state({"mass": 2.5})
        for seed in (5, 6):
            (ours, our_news, our_first), (columns, news, first) = driven(here, 25, seed), driven(there, 25, seed)
            for leaf, expected in zip(columns.observation, ours.observation, strict=True):
                np.testing.assert_array_equal(leaf, expected)
            np.testing.assert_array_equal(columns.reward, ours.reward)
            np.testing.assert_array_equal(columns.discount, ours.discount)
            assert [step.ended for step in news] == [step.ended for step in our_news] and first == our_first
            our_logs, logs = EpisodeLogs(3), EpisodeLogs(3)
            for step, our_step in zip(news, our_news, strict=True):
                logs.add_infos(step.infos)
                our_logs.add_infos(our_step.infos)
                for lane in range(3):
                    told, our_told = step.info_of(lane), our_step.info_of(lane)
                    for key in KEYS & our_told.keys():
                        np.testing.assert_array_equal(told[key], our_told[key])
                    assert not (told.keys() - our_told.keys())
            assert [logs.episode(lane) for lane in range(3)] == [our_logs.episode(lane) for lane in range(3)]
            assert sum(len(step.ended) for step in news) > 10 and columns.discount.min() == 0.0
            assert (columns.observation[1][:, :, 1] == 2.5).all(), "the parameter of every lane"
            for env in (here, there):
                env.reseed(7)
        assert is_async or (there.render_frame() == here.render_frame()).all()


def test_observations_and_actions_pass_through_shared_memory_and_what_has_no_room_beside_it(
    user: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = user.make("lanes")
    memory = env.user_env._memory
    assert memory._size == 8 * 3 * (2 * (2 + 6 + 1 + 2 + 1) + 2 + 5)
    columns, _, _ = driven(env, 4)
    drawn: np.ndarray = np.ndarray((3, 2), np.float64, memory.buffer, 0)
    np.testing.assert_array_equal(drawn.astype(np.float32), columns.observation[1][4])
    monkeypatch.setattr(memory, "_size", 0)  # Of this side: actions go into the message.
    np.testing.assert_array_equal(driven(env, 3)[0].observation[0][3, 0], np.full((2, 3, 1), 30))
    small = env_server.SharedMemory(env.user_env._memory_fd, 24)
    packed = env_server.pack((np.arange(2), np.arange(3.0)), small)
    assert packed[0][2] == 0 and packed[1][2] == np.arange(3.0).tobytes(), "16 of 24 bytes are used"
    np.testing.assert_array_equal(env_server.unpack(packed, small)[1], [0, 1, 2])


@pytest.mark.parametrize(
    ("does", "text"),
    [
        ("raise", r"step 3 of its 3 lanes: ZeroDivisionError: the motor is off \(my_envs.py, line"),
        ("exit", r"its process ended with exit code 7 in step\(\)"),
        ("hang", r"step\(\) has not returned for 1 s .* \(my_envs.py, line .*: its process was killed"),
    ],
)
def test_a_fault_of_a_lane_is_one_of_the_whole_environment(user: Folder, does: str, text: str) -> None:
    env = user.make("lanes", does=does, mode="SameStep")
    columns = env.new_columns(3)
    env.reseed(1)  # No lane ends in three steps.
    env.reset_lanes(columns)
    with pytest.raises(EnvironmentFault, match=text):
        for step in range(3):
            if step == 2 and does == "hang":
                env.user_env._timeout_secs = 1.0
            env.step_lanes([np.zeros((3, 2), np.float32)], columns)
    env.close()
    assert gone(pid_of(env), 10.0)


def test_lanes_in_processes_of_their_own_end_with_their_environment(
    user: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_process, "_CLOSE_SECS", 0.5)  # AsyncVectorEnv waits for the lane that has gone.
    env = user.make("lanes", is_async=True, does="exit")
    children = [child.pid for child in psutil.Process(pid_of(env)).children(recursive=True)]
    assert len(children) >= 3
    with pytest.raises(EnvironmentFault, match="EOFError"):
        driven(env, 25)
    env.close()
    assert all(gone(pid, 10.0) for pid in [pid_of(env), *children])
