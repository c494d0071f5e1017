"""Updates of SBX's SAC in a file, with all that decides them: initial weights, minibatches and noise.

    PEERS_PYTHON -m benchmarks.peers.sac_updates --output FILE.npz --updates 200

Sizes are Hopper-v5's (11 observations, 3 actions), networks and batch those of SAC. Minibatches are random; a tenth of
their transitions end their episodes. Weights are kept after the first, tenth, hundredth and last update.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

OBSERVATION, ACTION, BATCH = 11, 3, 256


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_model(seed: int) -> Any:
    """SBX's SAC with its own defaults; no environment is stepped."""
    import gymnasium
    from sbx import SAC

    class Nothing(gymnasium.Env):
        """Spaces alone."""

        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION,), np.float32)

    return SAC("MlpPolicy", Nothing(), buffer_size=1, seed=seed, device="cpu")


def minibatches(count: int, seed: int) -> dict[str, np.ndarray]:
    """Arrays `[count, BATCH, ...]` float32."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal((count, BATCH, *shape), np.float32)

    observations, changes = normal(OBSERVATION), normal(OBSERVATION)
    return {
        "observations": observations,
        "actions": np.tanh(normal(ACTION)),
        "next_observations": (observations + np.float32(0.1) * changes).astype(np.float32),
        "rewards": (1.0 + normal()).astype(np.float32),
        "dones": (rng.random((count, BATCH)) < 0.1).astype(np.float32),
    }


def noises(key: Any) -> tuple[np.ndarray, np.ndarray]:
    """What SBX's update with this key adds to the next actions and to the actions, `[BATCH, ACTION]` each."""
    import jax
    import jax.numpy as jnp
    from sbx.common.distributions import TanhTransformedDistribution
    from tensorflow_probability.substrates import jax as tfp

    standard = tfp.distributions.MultivariateNormalDiag(jnp.zeros((BATCH, ACTION)), jnp.ones((BATCH, ACTION)))

    def drawn(noise_key: Any) -> np.ndarray:
        noise = standard.sample(seed=noise_key)
        squashed = TanhTransformedDistribution(standard).sample(seed=noise_key)
        np.testing.assert_allclose(np.tanh(noise), squashed, atol=1e-6)
        return np.asarray(noise)

    key, next_key, _, _ = jax.random.split(key, 4)  # As update_critic splits it,
    _, _, action_key = jax.random.split(key, 3)  # and update_actor.
    return drawn(next_key), drawn(action_key)


def weights(model: Any) -> dict[str, np.ndarray]:
    """By name: `actor/...`, `critic/...` and `target/...` with the critics as first axis, and `log_alpha`."""
    import jax

    trees = {
        "actor": model.policy.actor_state.params["params"],
        "critic": next(iter(model.policy.qf_state.params["params"].values())),
        "target": next(iter(model.policy.qf_state.target_params["params"].values())),
        "alpha": model.ent_coef_state.params,
    }
    found = {}
    for part, tree in trees.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            found["/".join([part, *(str(getattr(entry, "key", entry)) for entry in path)])] = np.array(leaf)
    return found


def main() -> None:
    from sbx.common.type_aliases import ReplayBufferSamplesNp

    arguments = parse_arguments()
    model = make_model(arguments.seed)
    batches = minibatches(arguments.updates, arguments.seed)
    saved = {f"before/{name}": value for name, value in weights(model).items()}
    drawn, losses = [], []
    states = model.policy.qf_state, model.policy.actor_state, model.ent_coef_state
    for update in range(arguments.updates):
        batch = {name: value[update] for name, value in batches.items()}
        drawn.append(noises(model.key))
        discounts = np.full(BATCH, model.gamma, np.float32)
        data = ReplayBufferSamplesNp(
            *(batch[name] for name in ("observations", "actions", "next_observations", "dones", "rewards")), discounts
        )
        *states, model.key, measured = model._train(model.tau, model.target_entropy, 1, data, 1, 0, *states, model.key)
        model.policy.qf_state, model.policy.actor_state, model.ent_coef_state = states
        losses.append([float(loss) for loss in measured[:3]])
        if update in (0, 9, 99, arguments.updates - 1):
            saved |= {f"after {update + 1}/{name}": value for name, value in weights(model).items()}
    noise = [np.stack(each) for each in zip(*drawn, strict=True)]
    print("{}")  # run_json reads a result.
    np.savez(arguments.output, losses=np.array(losses), next_noise=noise[0], noise=noise[1], **batches, **saved)


if __name__ == "__main__":
    main()
