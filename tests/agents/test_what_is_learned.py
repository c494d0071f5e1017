"""Every algorithm learns what is known to be right; an update that is wrong in one place does not.

tests/support/learning_checks.py has what is checked, tests/support/learner.py the learner: environments, segments, the
ring, draws and updates of the toolkit, in this process. A new algorithm is one entry of `ALGORITHMS` there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support import learning_checks as checks
from tests.support.learning_checks import ALGORITHMS, DISCRETE, NETWORKS
from tests.support.tasks_to_learn import CUE_STEPS, Cue, CueImage, Echo
from tfagents_system.agents import algorithms, fused_update, sac_discrete, value_update
from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.agents.fused_update import FusedUpdate
from tfagents_system.checks.hyperparameters import described_by
from tfagents_system.envs.goals import GoalFunctions
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.policies import weights
from tfagents_system.replay.draw_settings import DrawSettings
from tfagents_system.replay.mini_races import Experience
from tfagents_system.train_params_base import TrainParamsBase

pytestmark = pytest.mark.slow

each_algorithm = pytest.mark.parametrize("attributes", ALGORITHMS.values(), ids=ALGORITHMS)
each_discrete = pytest.mark.parametrize("attributes", DISCRETE.values(), ids=DISCRETE)


def test_every_algorithm_is_among_them() -> None:
    assert [*ALGORITHMS, *DISCRETE] == list(algorithms.ALGORITHMS)
    rule = described_by(TrainParamsBase)["algorithm"].rule
    assert rule.words == f"one of {', '.join(map(repr, [*ALGORITHMS, *DISCRETE]))}"


@each_discrete
def test_the_best_arm_and_the_values_of_all(attributes: dict[str, Any], tmp_path: Path) -> None:
    checks.the_best_arm_and_the_values_of_all_are_known(tmp_path, **attributes)


@pytest.mark.parametrize(("algorithm", "n_step"), [("dqn", 1), ("dqn", 3), ("iqn", 3), ("sac_discrete", 3)])
def test_what_ends_and_what_goes_on_with_arms(algorithm: str, n_step: int, tmp_path: Path) -> None:
    checks.a_reward_for_ever_is_worth_ten_with_any_arm(tmp_path, n_step, **DISCRETE[algorithm])


def test_a_bootstrap_factor_without_gamma_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the test above: the server leaves gamma out, and values grow beyond 10."""
    whole = DrawSettings

    def without(**settings: Any) -> Any:
        return whole(**{**settings, "whole_bootstrap": False})

    monkeypatch.setattr("tfagents_system.replay.server.DrawSettings", without)
    with pytest.raises(AssertionError):
        checks.a_reward_for_ever_is_worth_ten_with_any_arm(tmp_path, 1, **DISCRETE["dqn"])


def test_goals_that_no_episode_was_after(tmp_path: Path) -> None:
    checks.goals_are_walked_to_that_no_episode_was_after(tmp_path)


@pytest.mark.parametrize("wrong", ["no hindsight", "rewards as recorded", "terminations as recorded"])
def test_what_is_not_hindsight_is_noticed(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share = None if wrong == "no hindsight" else 0.8
    if wrong == "rewards as recorded":
        monkeypatch.setattr(GoalFunctions, "rewards", lambda self, achieved, desired: np.full(len(achieved), -1.0))
    elif wrong == "terminations as recorded":
        monkeypatch.setattr(GoalFunctions, "terminated", lambda self, achieved, desired: None)
    with pytest.raises(AssertionError):
        checks.goals_are_walked_to_that_no_episode_was_after(tmp_path, hindsight_share=share)


def test_the_entropy_of_arms_reaches_its_target_and_alpha_decides_their_probabilities(tmp_path: Path) -> None:
    checks.entropy_of_arms_reaches_its_target(tmp_path / "learned")
    checks.arms_have_boltzmanns_probabilities(tmp_path / "fixed")


def test_frozen_targets_of_arms_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_update, "move_targets", lambda parts: None)
    with pytest.raises(AssertionError):
        checks.a_reward_for_ever_is_worth_ten_with_any_arm(tmp_path, 1, **DISCRETE["dqn"])


def test_the_wrong_sign_of_alphas_gradient_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = sac_discrete.SacDiscreteUpdate._missing_entropy
    monkeypatch.setattr(sac_discrete.SacDiscreteUpdate, "_missing_entropy", lambda self, log_pi: -right(self, log_pi))
    with pytest.raises(AssertionError):
        checks.entropy_of_arms_reaches_its_target(tmp_path)


@pytest.mark.parametrize("attributes", [{}, *NETWORKS.values()], ids=["sac", *NETWORKS])
def test_the_best_action_and_the_values_of_all(attributes: dict[str, Any], tmp_path: Path) -> None:
    """Other algorithms know values and densities, see below."""
    checks.the_best_action_and_the_values_of_all_are_known(tmp_path, **attributes)


@pytest.mark.parametrize(("algorithm", "n_step"), [("sac", 1), ("sac", 5), ("redq", 5), ("tqc", 5), ("crossq", 1)])
def test_what_ends_and_what_goes_on(algorithm: str, n_step: int, tmp_path: Path) -> None:
    """The server adds up the rewards of several steps, the same for all algorithms; DroQ's targets are REDQ's."""
    checks.a_reward_for_ever_is_worth_ten_and_one_that_ends_is_worth_itself(tmp_path, n_step, **ALGORITHMS[algorithm])


@pytest.mark.parametrize("algorithm", ["sac", "crossq"])
def test_entropy_reaches_its_target(algorithm: str, tmp_path: Path) -> None:
    """Alpha steps are the same for all algorithms (test_variant_losses.py); CrossQ's actor has normalisation, too."""
    checks.entropy_reaches_its_target(tmp_path, **ALGORITHMS[algorithm])


@each_algorithm
def test_actions_have_boltzmanns_density_and_values_are_those_of_the_rewards(
    attributes: dict[str, Any], tmp_path: Path
) -> None:
    checks.actions_have_boltzmanns_density(tmp_path, **attributes)


@pytest.mark.parametrize("algorithm", ["sac", "crossq"])
def test_noise_is_not_taken_for_value(algorithm: str, tmp_path: Path) -> None:
    """Those two whose minimum is over all critics, each of which learns by itself."""
    checks.noise_is_not_taken_for_value(tmp_path, **ALGORITHMS[algorithm])


def test_values_are_of_scaled_rewards(tmp_path: Path) -> None:
    """They are scaled before any algorithm sees them."""
    checks.values_are_of_scaled_rewards(tmp_path)


@pytest.mark.parametrize("kind", ["lstm", "burn-in", "frame_stack", "action_history"])
def test_what_was_seen_at_first_is_remembered(kind: str, tmp_path: Path) -> None:
    assert checks.what_was_seen_at_first_is_remembered(tmp_path, kind) > 0.8


@pytest.mark.parametrize("task", [Cue, CueImage, Echo])
def test_without_memory_it_can_not_be(task: type[Cue | Echo]) -> None:
    """What is seen after the first step is the same in all episodes, whose best last actions differ."""
    seen, best = set(), set()
    env = task()
    for seed in range(20):
        env.reset(seed=seed)
        observations = [env.step(np.array([(-1.0) ** seed], np.float32))[0] for _ in range(CUE_STEPS - 1)]
        seen.add(np.stack(observations).tobytes())
        best.add(env.step(np.ones(1, np.float32))[1])
    assert len(seen) == 1 and best == {-1.0, 1.0}


# Learners that are wrong in one place.


def maximum(patch: pytest.MonkeyPatch) -> None:
    """The higher critic instead of the lower."""
    patch.setattr(fused_update, "lowest", lambda values: tf.reduce_max(tf.stack(list(values)), axis=0))


def no_discount(patch: pytest.MonkeyPatch) -> None:
    """Gamma is left out of the targets."""
    right = FusedUpdate._td_targets

    def wrong(self: Any, *arguments: Any) -> Any:
        parts, self._parts = self._parts, dataclasses.replace(self._parts, gamma=1.0)
        try:
            return right(self, *arguments)
        finally:
            self._parts = parts

    patch.setattr(FusedUpdate, "_td_targets", wrong)


def frozen_targets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fused_update, "move_targets", lambda parts: None)


def one_gamma_for_n_steps(patch: pytest.MonkeyPatch) -> None:
    """The value after n steps is discounted as after one."""
    right = Experience.transition

    def wrong(self: Any) -> Any:
        reward, discount = right(self)
        return reward, (discount > 0.0).astype(np.float32)

    patch.setattr(Experience, "transition", wrong)


def no_noise(patch: pytest.MonkeyPatch) -> None:
    """Learning sees the middle of each distribution only."""
    right = fused_update.sample

    def wrong(distributions: Any, action_spec: Any, noise: Any) -> Any:
        return right(distributions, action_spec, [tf.zeros(()) for _ in tf.nest.flatten(action_spec)])

    patch.setattr(fused_update, "sample", wrong)


def stale_weights(patch: pytest.MonkeyPatch) -> None:
    """Workers keep the policy that they began with: what is sent is what was read first."""
    right, first = weights.read_weights, list[Any]()

    def wrong(variables: Any) -> Any:
        first.append(right(variables))
        return first[0]

    patch.setattr(weights, "read_weights", wrong)


def forgotten_scale(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockUpdate, "_scaled", lambda self, reward: reward)


def truncation_is_termination(patch: pytest.MonkeyPatch) -> None:
    right = TrainingEnvironment._advance

    def wrong(self: Any, action: Any) -> Any:
        step = right(self, action)
        return step._replace(discount=np.float32(0.0)) if step.is_last() else step

    patch.setattr(TrainingEnvironment, "_advance", wrong)


def alphas_sign(patch: pytest.MonkeyPatch) -> None:
    right = FusedUpdate._alpha_loss

    def wrong(self: Any, *arguments: Any) -> Any:
        loss, gradient = right(self, *arguments)
        return -loss, -gradient

    patch.setattr(FusedUpdate, "_alpha_loss", wrong)


def one_critic_twice(patch: pytest.MonkeyPatch) -> None:
    right = FusedUpdate._evaluate

    def wrong(self: Any, *arguments: Any) -> Any:
        predictions, next_values = right(self, *arguments)
        return [predictions[0]] * len(predictions), next_values

    patch.setattr(FusedUpdate, "_evaluate", wrong)


def for_ever(n_step: int = 1) -> Callable[[Path], None]:
    return lambda folder: checks.a_reward_for_ever_is_worth_ten_and_one_that_ends_is_worth_itself(folder, n_step)


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], Callable[[Path], None]] = {
    maximum: checks.noise_is_not_taken_for_value,
    no_discount: for_ever(),
    frozen_targets: for_ever(),
    one_gamma_for_n_steps: for_ever(n_step=5),
    no_noise: checks.actions_have_boltzmanns_density,
    stale_weights: checks.the_best_action_and_the_values_of_all_are_known,
    forgotten_scale: checks.values_are_of_scaled_rewards,
    truncation_is_termination: for_ever(),
    alphas_sign: checks.entropy_reaches_its_target,
    one_critic_twice: checks.the_best_action_and_the_values_of_all_are_known,
}
"""Each with a check that it fails; the tests above have shown that the right learner passes it."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_learner_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        MUTANTS[mutant](tmp_path)
