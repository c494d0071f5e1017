"""The same car learns to race as Linesight's does: 15 actions, IQN, and the next seven seconds as all that counts."""

from __future__ import annotations

from tfagents_system.examples.racing.params import TrainParams as Racing

_PEDALS = ((1.0, -1.0), (-1.0, -1.0), (-1.0, 1.0))  # Gas and brake; below 0 nothing is pressed.
_STEER = (-1.0, -0.35, 0.0, 0.35, 1.0)


class TrainParams(Racing):
    """400 iterations of 1000 steps, with an update for each fourth step."""

    algorithm = "iqn"
    value_head_units = 512
    critic_joint_fc_layer_params = (256, 256)
    batch_size = 256
    iqn = {"huber_kappa": 0.005}
    action_table = [[gas, brake, steer] for gas, brake in _PEDALS for steer in _STEER]

    # The value of an observation is the reward of the next 140 steps, 7 s: metres.
    discount = 1.0
    mini_race = {"steps": 140}
    n_step = 3
    validation_share = 0.05

    learning_rate = {"points": [[0, 1e-3], [400_000, 5e-5]], "interpolation": "exponential"}
    critic_optimizer = {"global_clipnorm": 30.0}
    target_update_tau = 0.02
    target_update_period = 4
    exploration_epsilon = {"points": [[0, 1.0], [20_000, 0.1], [200_000, 0.03]], "interpolation": "exponential"}
    boltzmann_epsilon = {"points": [[0, 0.15], [200_000, 0.03]]}
