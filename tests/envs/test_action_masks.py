"""Masks of actions: from observations and from info, of any dtype; what breaks their rule is a fault or refused."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from tests.support.environment_report import report
from tests.support.lanes_for_tests import vector_of
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.worker.actors import RandomActor
from tfagents_system.worker.rollout import Rollout

N = 4
SEEN = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Cards(gymnasium.Env):
    """Step t allows the actions of `masks[t]`; the last of them ends the episode.

    Args:
      dtype: Of the masks.
      in_info: They are in info rather than in the observation.
    """

    metadata: dict[str, Any] = {}
    action_space: Any = spaces.Discrete(N, start=3)

    def __init__(self, masks: Any = ((0, 1, 1, 0), (1, 0, 0, 0), (0, 0, 0, 1)), dtype: Any = np.int8, in_info=False):
        self.masks, self.in_info = [np.array(mask, dtype) for mask in masks], in_info
        space: Any = spaces.MultiBinary(N) if dtype is bool else spaces.Box(0, 1, self.masks[0].shape, dtype)
        if in_info:
            self.action_mask = self.masks[0]  # It says that info has masks.
        self.observation_space = SEEN if in_info else spaces.Dict({"seen": SEEN, "action_mask": space})
        self.terminates, self.resets = True, 0

    def _observation(self) -> tuple[Any, Any]:
        seen, mask = np.zeros(2, np.float32), self.masks[self.t]
        return (seen, {"action_mask": mask}) if self.in_info else ({"seen": seen, "action_mask": mask}, {})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.resets = 0, self.resets + 1
        return self._observation()

    def step(self, action: Any) -> Any:
        assert self.masks[self.t][action - 3], f"invalid action {action}"
        self.t += 1
        is_last = self.t + 1 == len(self.masks)
        observation, info = self._observation()
        return observation, 1.0, is_last and self.terminates, is_last, info


def masks_of(env: TrainingEnvironment, actions: Any) -> list[list[int]]:
    """Those of a reset and of steps."""
    steps = [env.reset(), *(env.step(np.int32(action)) for action in actions)]
    return [step.observation["action_mask"].tolist() for step in steps]


class Undeclared(Cards):
    def __init__(self) -> None:
        super().__init__(in_info=True)
        del self.action_mask


class OfWrapper(gymnasium.Wrapper):
    """As ActionMasker of sb3-contrib."""

    def action_masks(self) -> Any:
        unwrapped: Any = self.unwrapped
        return unwrapped.masks[unwrapped.t] == 1


class ByMethod(Undeclared):
    def action_masks(self) -> Any:
        return self.masks[self.t] == 1


ENVS: Any = {
    "int8": Cards,
    "bool": lambda: Cards(dtype=bool),
    "uint8": lambda: Cards(dtype=np.uint8),
    "info": lambda: Cards(in_info=True),
    "method": ByMethod,
}


@pytest.mark.parametrize("name", ENVS)
def test_masks_are_what_may_be_done_next(name: str) -> None:
    user_env = ENVS[name]()
    env = TrainingEnvironment(user_env, 10, seed=1)
    assert user_env.resets == 0
    assert masks_of(env, [2, 0]) == [[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
    assert env.legal is not None and env.legal.tolist() == [[False] * 3 + [True]]
    wrapped = TrainingEnvironment(OfWrapper(Undeclared()), 10)
    assert masks_of(wrapped, [2, 0]) == [[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
    assert sorted(env.observation_spec()) == ["action_mask", "observation" if user_env.in_info else "seen"]


@pytest.mark.parametrize(("masks", "actions"), [([[1] * N, [0] * N, [1] * N], [1]), ([[0] * N, [1] * N], [])])
def test_a_state_without_legal_actions_is_a_fault(masks: Any, actions: Any) -> None:
    with pytest.raises(EnvironmentFault, match="no legal action: end an episode"):
        masks_of(TrainingEnvironment(Cards(masks), 10), actions)


def test_info_without_the_mask_is_a_fault_unless_the_episode_has_terminated() -> None:
    class Silent(Cards):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:-1], {}

    env = TrainingEnvironment(Silent([[1] * N] * 2, in_info=True), 10)
    assert masks_of(env, [0]) == [[1] * N, [0] * N], "it has terminated"
    with pytest.raises(EnvironmentFault, match="info has no action_mask, which that attribute"):
        masks_of(TrainingEnvironment(Silent([[1] * N] * 3, in_info=True), 10), [0])


@pytest.mark.parametrize("terminates", [False, True])
def test_a_state_without_legal_actions_may_be_the_last_one(terminates: bool) -> None:
    user_env = Cards(((1, 0, 0, 0), (0, 0, 0, 0)))
    user_env.terminates = terminates
    assert masks_of(TrainingEnvironment(user_env, 10), [0])[-1] == [0] * N


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
def test_lanes_get_legal_actions_alone_over_the_ends_of_their_episodes(mode: AutoresetMode) -> None:
    rng = np.random.default_rng(0)
    lanes = [Cards([np.eye(N)[rng.integers(N)] for _ in range(3 + k)]) for k in range(3)]
    for lane in lanes:
        lane.masks[-1][:] = 0  # The game is over.
    env = TrainingEnvironment(vector_of(lanes, mode), 10)
    episodes = Rollout([env], RandomActor(env.action_spec(), rng)).episodes(20)
    assert len(episodes) == 20 and {episode.length for episode in episodes} == {2, 3, 4}
    env.reset()
    assert env.legal is not None and env.step(np.int32(env.legal[0].argmax())) is not None, "as a PyEnvironment"


class Several(Cards):
    action_space = spaces.MultiDiscrete([2, 2])


class Numbers(Cards):
    action_space = spaces.Box(-1.0, 1.0, (N,))

    def step(self, action: Any) -> Any:
        return super().step(3 + int(self.masks[self.t].argmax()))


class Alone(Cards):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"action_mask": spaces.Box(0, 1, (N,), np.int8)})


@pytest.mark.parametrize(
    ("env", "attributes", "told"),
    [
        (Several, {}, r"has a number for each action of one Discrete space, .* the actions are 4 actions of"),
        (lambda: Cards([[1, 1]] * 3), {}, r"its shape is \(2,\) and the actions are 4 actions"),
        (Undeclared, {}, "info has action_mask: return it as a part of the observation, or say"),
        (Alone, {}, "the observation is action_mask alone, which no network sees"),
        (Cards, {"frame_stack": {"action_mask": 2}}, 'stacks "action_mask", of which the newest one alone counts'),
    ],
)
def test_a_mask_that_can_not_be_honoured_is_refused(env: Any, attributes: dict[str, Any], told: str) -> None:
    errors = report(lambda **_: env(), **{"algorithm": "dqn", **attributes})[0].errors
    assert any(re.search(told, error) for error in errors), errors


@pytest.mark.parametrize(
    ("env", "algorithm"),
    [(lambda: vector_of([Cards([[1] * N] * 3, in_info=True)]), "dqn"), (Numbers, "sac")],
)
def test_a_mask_that_rules_out_nothing_is_noted(env: Any, algorithm: str) -> None:
    findings = report(lambda **_: env(), algorithm=algorithm)[0]
    assert findings.errors == [] and any("action_mask rules out no action" in note for note in findings.texts("note"))


@pytest.mark.parametrize("name", ["int8", "info", "method"])
def test_the_trial_takes_legal_actions_alone(name: str) -> None:
    findings, outcome = report(lambda **_: ENVS[name](), algorithm="dqn")
    assert findings.errors == [] and findings.texts("note", "seeding") == []
    assert tree.flatten(outcome.specs[0])[0].name == "observation/action_mask"
