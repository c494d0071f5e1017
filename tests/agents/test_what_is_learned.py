"""Every algorithm learns what is known to be right; an update that is wrong in one place does not.

tests/support/learning_checks.py has what is checked, tests/support/learner.py the learner: environments, segments, the
ring, draws and updates of the toolkit, in this process. A new algorithm is one entry of `ALGORITHMS` there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import learning_checks as checks
from tests.support.learning_checks import ALGORITHMS, DISCRETE
from tests.support.tasks_to_learn import CUE_STEPS, Cue, CueImage
from tfagents_system.agents import algorithms
from tfagents_system.hyperparameters import described_by
from tfagents_system.train_params_base import TrainParamsBase

pytestmark = pytest.mark.slow

each_algorithm = pytest.mark.parametrize("attributes", ALGORITHMS.values(), ids=ALGORITHMS)


def test_every_algorithm_is_among_them() -> None:
    assert [*ALGORITHMS, *DISCRETE] == list(algorithms.ALGORITHMS)
    rule = described_by(TrainParamsBase)["algorithm"].rule
    assert rule.words == f"one of {', '.join(map(repr, [*ALGORITHMS, *DISCRETE]))}"


@pytest.mark.parametrize("algorithm", ["dqn", "iqn"])
def test_the_best_arm_and_the_values_of_all(algorithm: str, tmp_path: Path) -> None:
    checks.the_best_arm_and_the_values_of_all_are_known(tmp_path, **DISCRETE[algorithm])


def test_what_ends_and_what_goes_on_with_arms(tmp_path: Path) -> None:
    checks.a_reward_for_ever_is_worth_ten_with_any_arm(tmp_path, 3, **DISCRETE["sac_discrete"])


def test_goals_that_no_episode_was_after(tmp_path: Path) -> None:
    checks.goals_are_walked_to_that_no_episode_was_after(tmp_path)


def test_the_entropy_of_arms_reaches_its_target_and_alpha_decides_their_probabilities(tmp_path: Path) -> None:
    checks.entropy_of_arms_reaches_its_target(tmp_path / "learned")
    checks.arms_have_boltzmanns_probabilities(tmp_path / "fixed")


def test_the_best_action_and_the_values_of_all_with_another_network(tmp_path: Path) -> None:
    checks.the_best_action_and_the_values_of_all_are_known(tmp_path, network="simba")


def test_what_ends_and_what_goes_on(tmp_path: Path) -> None:
    """The server adds up the rewards of several steps, the same for all algorithms.

    REDQ and TQC have SAC's targets, over other critics or quantiles: test_variant_losses.py computes them.
    """
    checks.a_reward_for_ever_is_worth_ten_and_one_that_ends_is_worth_itself(tmp_path, 3, **ALGORITHMS["crossq"])


@each_algorithm
def test_actions_have_boltzmanns_density_and_values_are_those_of_the_rewards(
    attributes: dict[str, Any], tmp_path: Path
) -> None:
    checks.actions_have_boltzmanns_density(tmp_path, **attributes)


def test_values_are_of_scaled_rewards(tmp_path: Path) -> None:
    """They are scaled before any algorithm sees them."""
    checks.values_are_of_scaled_rewards(tmp_path)


@pytest.mark.parametrize("kind", ["burn-in", "frame_stack"])
def test_what_was_seen_at_first_is_remembered(kind: str, tmp_path: Path) -> None:
    assert checks.what_was_seen_at_first_is_remembered(tmp_path, kind) > 0.8


@pytest.mark.parametrize("task", [Cue, CueImage])
def test_without_memory_it_can_not_be(task: type[Cue]) -> None:
    """What is seen after the first step is the same in all episodes, whose best last actions differ."""
    seen, best = set(), set()
    env = task()
    for seed in range(20):
        env.reset(seed=seed)
        observations = [env.step(np.array([(-1.0) ** seed], np.float32))[0] for _ in range(CUE_STEPS - 1)]
        seen.add(np.stack(observations).tobytes())
        best.add(env.step(np.ones(1, np.float32))[1])
    assert len(seen) == 1 and best == {-1.0, 1.0}
