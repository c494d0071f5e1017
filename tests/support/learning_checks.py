"""What a learner must have learned after a few seconds, in numbers that are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.learner import Learner
from tests.support.tasks_to_learn import (
    CUE_STEPS,
    Arms,
    Bandit,
    Cue,
    CueImage,
    IndifferentBandit,
    Steady,
    SteadyArms,
    Walk,
    marked,
)

UPDATES = 700


def falling(updates: int) -> dict[str, Any]:
    """A rate that falls to almost nothing: what is measured is where it ends, not how it is shaken."""
    return {"points": [[0, 3e-3], [updates // 2, 1.5e-3], [9 * updates // 10, 1e-4]], "by": "train_steps"}


SMALL = {
    "actor_fc_layer_params": (32, 32),
    "critic_joint_fc_layer_params": (32, 32),
    "batch_size": 64,
    "learning_rate": falling(UPDATES),
    "alpha_learning_rate": 3e-2,
    "target_update_tau": 0.1,
    "num_iter": 1,
    "updates_per_iter": UPDATES,
}
NO_ENTROPY = {"learn_entropy_coef": False, "sac_log_alpha": -7.0}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "sac": {},
    "redq": {"algorithm": "redq", "num_critics": 4, "actor_update_period": 1},
    "droq": {"algorithm": "droq", "actor_update_period": 1},
    "tqc": {"algorithm": "tqc", "num_critics": 3},
    "crossq": {
        "algorithm": "crossq",
        "actor_update_period": 1,
        "batch_renormalization": {"warmup_steps": 300},
        "batch_size": 128,
    },
}
"""Each algorithm of continuous actions, small enough for seconds."""
DISCRETE: dict[str, dict[str, Any]] = {
    "dqn": {"algorithm": "dqn"},
    "iqn": {"algorithm": "iqn", "value_head_units": 32, "iqn": {"huber_kappa": 1.0}},
    "sac_discrete": {"algorithm": "sac_discrete", **NO_ENTROPY},
}
"""Each algorithm of discrete actions."""
ARMS = (-0.5, 0.6, 0.1)

_OBSERVATIONS = np.random.default_rng(3).uniform(-1.0, 1.0, (20, 2)).astype(np.float32)
_GOES_ON, _OTHER = ([marked(observation, kind) for observation in _OBSERVATIONS] for kind in (1.0, -1.0))
_ACTIONS = np.linspace(-1.0, 1.0, 41)[:, None]


def learner(folder: Path, env_ctor: Callable[[], Any], horizon: int, episodes: int, **attributes: Any) -> Learner:
    """One that has trained on episodes of random actions."""
    learner = Learner(folder / "ring", env_ctor, horizon, **{**SMALL, **attributes})
    learner.collect(episodes)
    learner.train(learner.params.updates_per_iter)
    return learner


def q_values(learner: Learner, observations: Sequence[np.ndarray] = tuple(_OBSERVATIONS)) -> np.ndarray:
    """`[observations, critics, actions]` of all actions at observations, which say nothing unless given."""
    actions = np.tile(_ACTIONS, (len(observations), 1))
    values = learner.q_of_each(np.repeat(observations, len(_ACTIONS), axis=0), actions)
    return values.reshape(len(values), len(observations), -1).swapaxes(0, 1)


def the_best_action_and_the_values_of_all_are_known(folder: Path, **attributes: Any) -> None:
    """The worker's greedy action, and each critic's root of the mean squared error."""

    def reward(action: Any) -> Any:
        return -((action - 0.3) ** 2)

    trained = learner(folder, lambda: Bandit(reward), 1, 1000, **{**NO_ENTROPY, **attributes})
    errors = np.sqrt(np.mean((q_values(trained) - reward(_ACTIONS[:, 0])) ** 2, axis=(0, 2)))
    assert np.all(errors < 0.05), errors
    greedy = float(np.mean([trained.greedy_action(observation) for observation in _OBSERVATIONS]))
    assert abs(greedy - 0.3) < 0.05, greedy


def action_values(learner: Learner, observations: Sequence[np.ndarray] = tuple(_OBSERVATIONS)) -> np.ndarray:
    """`[observations, critics, actions]` of a learner of discrete actions."""
    return np.stack([critic.acting_values(np.stack(observations)).numpy() for critic in learner.agent.critics], axis=1)


def the_best_arm_and_the_values_of_all_are_known(folder: Path, **attributes: Any) -> None:
    """The worker's greedy action, and each critic's root of the mean squared error."""
    trained = learner(folder, lambda: Arms(ARMS), 1, 600, **attributes)
    errors = np.sqrt(np.mean((action_values(trained) - np.array(ARMS)) ** 2, axis=(0, 2)))
    assert np.all(errors < 0.05), errors
    assert [trained.greedy_choice(observation) for observation in _OBSERVATIONS] == [1] * len(_OBSERVATIONS)


def a_reward_for_ever_is_worth_ten_with_any_arm(folder: Path, n_step: int, **attributes: Any) -> None:
    """As with continuous actions: the whole bootstrap factor comes with the minibatch."""
    settings = {"discount": 0.9, "n_step": n_step, **attributes}
    _are_worth(learner(folder, SteadyArms, 5, 400, **settings), action_values)


def a_reward_for_ever_is_worth_ten_and_one_that_ends_is_worth_itself(
    folder: Path, n_step: int, **attributes: Any
) -> None:
    """With gamma 0.9, sum_k 0.9^k = 10: an episode that a time limit cuts goes on, one that terminated does not."""
    settings = {**NO_ENTROPY, "discount": 0.9, "n_step": n_step, **attributes}
    _are_worth(learner(folder, Steady, 5, 400, **settings), q_values)


def _are_worth(trained: Learner, values: Callable[[Learner, Sequence[np.ndarray]], np.ndarray]) -> None:
    for observations, wanted in ((_GOES_ON, 10.0), (_OTHER, 8.0)):
        found = values(trained, observations).mean(axis=(0, 2))
        assert np.all(np.abs(found - wanted) < 0.05 * wanted), (found, wanted)


def values_are_of_scaled_rewards(folder: Path, **attributes: Any) -> None:
    """Where rewards are normalised: 10 times the reward by the standard deviation of returns."""
    settings = {**NO_ENTROPY, "discount": 0.9, "normalize_rewards": True, **attributes}
    trained = learner(folder, lambda: Steady(100.0, None), 5, 200, **settings)
    returns = [100.0 * sum(0.9**k for k in range(steps)) for steps in range(1, 6)]
    wanted = 1000.0 / np.std(returns)
    found = q_values(trained, _GOES_ON).mean()
    assert abs(found - wanted) < 0.05 * wanted, (found, wanted)


def goals_are_walked_to_that_no_episode_was_after(folder: Path, **attributes: Any) -> None:
    """From random walks alone: the choice towards every goal within three places, and its value, by DQN."""
    gamma, more = 0.9, {"updates_per_iter": 1500, "learning_rate": falling(1500)}
    settings = {**DISCRETE["dqn"], "discount": gamma, "hindsight_share": 0.8, **more}
    trained = learner(folder, Walk, 12, 200, **{**settings, **attributes})
    for place in range(-3, 4):
        for away in (-3, -2, -1, 1, 2, 3):
            seen = Walk.at(place, place + away)
            values = np.mean(
                [critic.acting_values(batched(seen))[0].numpy() for critic in trained.agent.critics], axis=0
            )
            exact = -sum(gamma**k for k in range(abs(away) - 1))
            assert trained.greedy_choice(seen) == (away > 0), (place, away, values)
            assert abs(values.max() - exact) < 0.35, (place, away, values, exact)


def batched(observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: leaf[None] for name, leaf in observation.items()}


def probabilities(learner: Learner) -> np.ndarray:
    """Of an actor of discrete actions, `[observations, actions]`."""
    logits = learner.agent.acting.network.acting_values(_OBSERVATIONS).numpy()
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponents / exponents.sum(axis=1, keepdims=True)


def entropy_of_arms_reaches_its_target(folder: Path) -> None:
    """With arms of unequal reward, so that alpha has to be found: neither 0 nor without limit."""
    wanted = 0.7
    learned = {**DISCRETE["sac_discrete"], "learn_entropy_coef": True, "sac_log_alpha": -3.0, "target_entropy": wanted}
    chances = probabilities(learner(folder, lambda: Arms(ARMS), 1, 600, **learned))
    found = -np.sum(chances * np.log(chances), axis=1)
    assert abs(found.mean() - wanted) < 0.05, found  # Alpha is one for all observations.


def arms_have_boltzmanns_probabilities(folder: Path) -> None:
    """pi(a) = exp(r(a) / alpha) / sum_a exp(r(a) / alpha) where an episode has one step."""
    alpha = 0.5
    fixed = {**DISCRETE["sac_discrete"], "sac_log_alpha": float(np.log(alpha))}
    found = probabilities(learner(folder, lambda: Arms(ARMS), 1, 600, **fixed))
    exact = np.exp(np.array(ARMS) / alpha)
    np.testing.assert_allclose(found, np.broadcast_to(exact / exact.sum(), found.shape), atol=0.04)


def entropy(learner: Learner, observations: Sequence[np.ndarray] = tuple(_OBSERVATIONS)) -> float:
    """In nats, of the policy that workers have: by the histogram of its actions."""
    drawn = _drawn(learner, observations)
    density, edges = np.histogram(drawn, bins=40, range=(-1.0, 1.0), density=True)
    return float(-np.sum(density * np.log(np.maximum(density, 1e-12))) * (edges[1] - edges[0]))


def actions_have_boltzmanns_density(folder: Path, **attributes: Any) -> None:
    """pi(a) ~ exp(r(a) / alpha) (Haarnoja et al., arXiv 1812.05905, equation 4), as near as a tanh-Gaussian comes.

    Where there is no reward, all actions are alike, with entropy log 2. Critics know the rewards of these single steps.
    """
    alpha = 0.5
    settings = {**attributes, "learn_entropy_coef": False, "sac_log_alpha": float(np.log(alpha))}
    trained = learner(folder, IndifferentBandit, 1, 1000, **settings)
    for observations, rewards in ((_GOES_ON, _ACTIONS[:, 0]), (_OTHER, 0.0)):
        errors = np.sqrt(np.mean((q_values(trained, observations) - rewards) ** 2, axis=(0, 2)))
        assert np.all(errors < 0.08), errors
    drawn = _drawn(trained, _GOES_ON)
    exact = 1.0 / np.tanh(1.0 / alpha) - alpha
    assert abs(drawn.mean() - exact) < 0.05, (drawn.mean(), exact)
    second = 1.0 - 2.0 * alpha * exact  # E a^2 of that density.
    assert abs(np.mean(drawn**2) - second) < 0.05, (np.mean(drawn**2), second)
    without = entropy(trained, _OTHER)
    assert abs(without - np.log(2.0)) < 0.1, without


def _drawn(learner: Learner, observations: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([learner.sampled_actions(observation, 1000) for observation in observations[:10]])


def what_was_seen_at_first_is_remembered(folder: Path, kind: str, **attributes: Any) -> float:
    """The mean return of greedy episodes: nearly 1 where the cue of the first step is known in the last one."""
    fewer = {
        "updates_per_iter": 250,
        "learning_rate": falling(250),
    }  # Each has as many losses as its sequences have steps.
    tasks: dict[str, tuple[Any, dict[str, Any]]] = {
        "burn-in": (
            Cue,
            {
                "recurrent": {"lstm_units": 16, "sequence_length": 2, "burn_in": 5},
                **fewer,
            },
        ),
        "frame_stack": (CueImage, {"frame_stack": CUE_STEPS, "image_encoder_layers": ()}),
    }
    task, settings = tasks[kind]
    trained = learner(folder, task, CUE_STEPS, 500, **{**NO_ENTROPY, "discount": 0.95, **settings, **attributes})
    return trained.play(40)
