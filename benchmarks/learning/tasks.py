"""What is learned, and by which algorithm with which attributes: the rows of the record of learning curves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

PENDULUM_PIXELS = "Pendulum-v1 from pixels"  # As tfagents_system/examples/pendulum_pixels/params.py sees it.


@dataclasses.dataclass(frozen=True)
class ValueSettings:
    """How the values of discrete actions are learned on a task, the same for learners of ours and of peers.

    Stable-Baselines3 copies the target while it collects, not between the updates of an iteration.

    Attributes:
      steps_per_iter, updates_per_iter: Environment steps, and the updates after them.
      learning_rate, batch_size: Of Adam.
      copy_steps: Environment steps after which the target is copied anew.
      exploration_steps, last_epsilon: Epsilon falls from 1 in a straight line.
    """

    steps_per_iter: int
    updates_per_iter: int
    learning_rate: float
    batch_size: int
    copy_steps: int
    exploration_steps: int
    last_epsilon: float

    @property
    def ours(self) -> dict[str, Any]:
        """Attributes of TrainParams."""
        updates_per_step = self.updates_per_iter / self.steps_per_iter
        return {
            "env_steps_per_iter": self.steps_per_iter,
            "log_period_iters": max(1, 1000 // self.steps_per_iter),
            "updates_per_env_step": updates_per_step,
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "n_step": 1,
            "exploration_epsilon": {"points": [[0, 1.0], [self.exploration_steps, self.last_epsilon]]},
            "target_update_tau": 1.0,
            "target_update_period": round(max(self.copy_steps, self.steps_per_iter) * updates_per_step),
        }

    def peers(self, steps: int) -> dict[str, Any]:
        """Arguments of Stable-Baselines3's algorithms, in a run of so many steps."""
        return {
            "train_freq": self.steps_per_iter,
            "gradient_steps": self.updates_per_iter,
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "n_step": 1,
            "target_update_interval": self.copy_steps,
            "exploration_fraction": self.exploration_steps / steps,
            "exploration_final_eps": self.last_epsilon,
        }


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment and how long it is trained, the same for everybody.

    Attributes:
      environment: Gymnasium's name, or PENDULUM_PIXELS; with the module that registers it, `module:name`.
      horizon: Steps of an episode, at most.
      steps: Environment steps of a run, the random ones included.
      eval_steps: Environment steps between two evaluations, about.
      learning_rate: Of actor, critics and alpha, for everybody; None: each variant's.
      random_episodes: Before the first update; about 1000 steps.
      attributes: Of TrainParams, for every variant of ours.
      values: Where its actions are discrete, what learners of their values have.
      goals: Whether it has goals: peers then have HER with four of five goals replaced.
      peer_options: For every peer, as of Variant.
      expert: The task whose expert demonstrates, or is fine-tuned where the environment is another one; see experts.py.
      expert_steps: Of the run that makes an expert of this task; None: as many as any.
    """

    environment: str
    horizon: int
    steps: int
    eval_steps: int
    random_episodes: int
    learning_rate: float | None = None
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    values: ValueSettings | None = None
    goals: bool = False
    peer_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    expert: str = ""
    expert_steps: int | None = None


@dataclasses.dataclass(frozen=True)
class Variant:
    """An algorithm of ours, or of a peer.

    Attributes:
      attributes: Of TrainParams, where it is ours.
      library, algorithm, options: Of a peer; see benchmarks/peers/learning.py.
      updates_per_step: Updates for each environment step.
      learning_rate: Of actor, critics and alpha, where it is ours and the task has none; peers then have their
        library's, for SAC the same 3e-4. None: the algorithm's own.
      discrete: Whether its actions are.
      values: Whether it learns their values as the task's settings say.
      demonstrations: Episodes of the task's expert that are its prior data.
      is_fine_tuned: It begins with the agent of the task's expert.
      initializer: Of the weights that SAC begins with, by Keras' name.
    """

    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    library: str = ""
    algorithm: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    updates_per_step: int = 1
    learning_rate: float | None = 3e-4
    discrete: bool = False
    values: bool = False
    demonstrations: int = 0
    is_fine_tuned: bool = False
    initializer: str = ""

    def fits(self, task: Task) -> bool:
        """Whether the algorithm has the task's kind of actions, and the task has what the variant leaves out."""
        switched_off = {"hindsight_share", "normalize_observations"} & set(self.attributes)
        scales_rewards = self.attributes.get("algorithm") in ("xqc", "flash_sac")  # Not those of other goals.
        is_of_kind, of_expert = self.discrete == (task.values is not None), TASKS.get(task.expert)
        has_changed = of_expert is not None and of_expert.environment != task.environment
        is_shown = of_expert is not None and not has_changed
        has_expert = (has_changed or not self.is_fine_tuned) and (is_shown or not self.demonstrations)
        if scales_rewards and task.attributes.get("hindsight_share"):
            return False
        return is_of_kind and has_expert and switched_off <= {name for name, value in task.attributes.items() if value}


# As in RL Baselines3 Zoo's settings of HER for Fetch; a step of the target in each update, as there.
_GOALS = {"hindsight_share": 0.8, "discount": 0.95, "target_update_tau": 0.05}
# Goals of Fetch are at 1.34 +- 0.15 m and the like: not normalised, a network hardly tells them apart at first.
_FETCH = {**_GOALS, "normalize_observations": True}
_PEER_GOALS = {"gamma": 0.95, "tau": 0.05}
_REACH = Task(
    "tfagents_system.examples.reach.environment:Reach-v0",
    50,
    10_000,
    1_000,
    20,
    1e-3,
    _GOALS,
    goals=True,
    peer_options=_PEER_GOALS,
)

TASKS = {
    "pendulum": Task("Pendulum-v1", 200, 10_000, 1_000, 5, 1e-3),
    "double_pendulum": Task("InvertedDoublePendulum-v5", 1000, 50_000, 5_000, 140, expert_steps=20_000),
    # Dropped quantiles are TQC's alone; its paper has these.
    "hopper": Task("Hopper-v5", 1000, 100_000, 5_000, 45, attributes={"tqc": {"num_dropped_quantiles": 5}}),
    "half_cheetah": Task("HalfCheetah-v5", 1000, 100_000, 5_000, 1, attributes={"tqc": {"num_dropped_quantiles": 0}}),
    "walker2d": Task("Walker2d-v5", 1000, 100_000, 5_000, 45),
    "pendulum_pixels": Task(
        PENDULUM_PIXELS,
        200,
        10_000,
        1_000,
        5,
        1e-3,
        {"frame_stack": 3, "batch_size": 128, "image_encoder_layers": (16, 16, 16, 16)},
    ),
    # From 20 demonstrations of the expert of the same environment, beside from nothing.
    "double_pendulum_demos": Task("InvertedDoublePendulum-v5", 1000, 10_000, 1_000, 140, expert="double_pendulum"),
    # Hindsight is the expert's alone: random actions hardly ever reach a goal.
    "reach_demos": dataclasses.replace(
        _REACH, attributes={**_GOALS, "hindsight_share": None}, goals=False, peer_options={}, expert="reach"
    ),
    "hopper_demos": Task("Hopper-v5", 1000, 50_000, 5_000, 45, expert="hopper"),
    # Other masses than those that the expert was trained with (changed_mass.py).
    "heavy_pendulum": Task(
        "benchmarks.learning.changed_mass:HeavyPendulum-v0", 200, 6_000, 500, 5, 1e-3, expert="pendulum"
    ),
    "heavy_hopper": Task("benchmarks.learning.changed_mass:HeavyHopper-v0", 1000, 50_000, 5_000, 45, expert="hopper"),
    # Learners of values: RL Baselines3 Zoo's settings of QR-DQN; those of its DQN take 150,000 to 200,000 steps.
    "cartpole": Task(
        "CartPole-v1", 500, 50_000, 2_560, 45, values=ValueSettings(256, 128, 2.3e-3, 64, 10, 8_000, 0.04)
    ),
    "acrobot": Task("Acrobot-v1", 500, 40_000, 2_000, 2, values=ValueSettings(4, 4, 6.3e-4, 128, 250, 12_000, 0.1)),
    "reach": _REACH,
    # gymnasium-robotics 1.4.2, which needs mujoco 3.3.7 and so an interpreter of its own: --env_python.
    "fetch_reach": Task(
        "gymnasium_robotics:FetchReach-v4", 50, 20_000, 1_000, 20, 1e-3, _FETCH, goals=True, peer_options=_PEER_GOALS
    ),
    "fetch_push": Task(
        "gymnasium_robotics:FetchPush-v4", 50, 500_000, 10_000, 20, 1e-3, _FETCH, goals=True, peer_options=_PEER_GOALS
    ),
}

_STEPS = {"env_steps_per_iter": 50, "log_period_iters": 20}
_OPTIMIZERS, _EPSILON = ("critic_optimizer", "actor_optimizer", "alpha_optimizer"), {"epsilon": 1e-9}
_SAC_DISCRETE = {"algorithm": "sac_discrete", **_STEPS, "learning_rate": 3e-4, "batch_size": 256, "n_step": 1} | {
    f"{part}_fc_layer_params": (256, 256) for part in ("actor", "critic_joint")
}

OURS = {
    "sac": Variant(),
    "sac, no lag": Variant({"max_policy_lag": 0}),
    "sac, no hindsight": Variant({"hindsight_share": None}),
    "sac, raw observations": Variant({"normalize_observations": False}),
    "sac, 50 steps": Variant(_STEPS),
    # Initial weights and an Adam as SBX has them.
    "sac, 50 steps, LeCun": Variant({**_STEPS, **dict.fromkeys(_OPTIMIZERS, _EPSILON)}, initializer="LecunNormal"),
    # As in the runs of SAC that SimBaV2's and XQC's authors publish.
    "sac, 50 steps, orthogonal": Variant(_STEPS, initializer="Orthogonal"),
    "sac, 50 steps, learning rates 1e-3": Variant(_STEPS, learning_rate=1e-3),
    # As defaults have it.
    "sac, 200 steps, learning rates 1e-3": Variant(
        {"env_steps_per_iter": 200, "log_period_iters": 5}, learning_rate=1e-3
    ),
    "sac, 50 steps, layer norm": Variant({**_STEPS, "critic_layer_norm": True}),
    # Layer normalisation and half of each minibatch, as in RLPD, with SAC's two critics and an update for each step.
    "sac, 50 steps, layer norm, 20 demonstrations": Variant({**_STEPS, "critic_layer_norm": True}, demonstrations=20),
    "sac, 50 steps, fine-tuned": Variant({**_STEPS, "initial_collect_steps": 0}, is_fine_tuned=True),
    "tqc": Variant({"algorithm": "tqc"}),
    # The paper's critics are 2048 units wide, those of the peers 1024: two cores have time for the width of SAC's.
    "crossq": Variant({"algorithm": "crossq"}, learning_rate=1e-3),
    "crossq, 50 steps": Variant({"algorithm": "crossq", **_STEPS}, learning_rate=1e-3),
    "xqc": Variant({"algorithm": "xqc", **_STEPS}, learning_rate=None),
    "flash_sac": Variant({"algorithm": "flash_sac", **_STEPS}, learning_rate=None),
    "crossq x2": Variant({"algorithm": "crossq"}, updates_per_step=2, learning_rate=1e-3),
    "crossq 1024": Variant({"algorithm": "crossq", "critic_joint_fc_layer_params": (1024, 1024)}, learning_rate=1e-3),
    # Both papers make 20 updates for each step: a day for 100,000 steps here.
    "droq x5": Variant({"algorithm": "droq"}, updates_per_step=5),
    "droq x10": Variant({"algorithm": "droq"}, updates_per_step=10),
    "redq x5": Variant({"algorithm": "redq"}, updates_per_step=5),
    "redq x10": Variant({"algorithm": "redq"}, updates_per_step=10),
    "simba": Variant(
        {
            "network": "simba",
            # The paper's critics are 512 units wide: on two cores an update of these takes a third of a second.
            "actor_fc_layer_params": (64,),
            "critic_joint_fc_layer_params": (128, 128),
            "actor_optimizer": {"name": "adamw", "weight_decay": 0.01},
            "critic_optimizer": {"name": "adamw", "weight_decay": 0.01},
        },
    ),
    "dqn": Variant({"algorithm": "dqn"}, discrete=True, values=True),
    # Returns are in the hundreds here: the quadratic part of a loss is as wide as the papers', not as Linesight's.
    "iqn": Variant(
        {"algorithm": "iqn", "value_head_units": 512, "critic_joint_fc_layer_params": (256, 256)},
        discrete=True,
        values=True,
    ),
    "sac_discrete": Variant(_SAC_DISCRETE, discrete=True),
    # The paper's target, 0.98 of the most there is, is out of reach of a policy that balances: alpha then only grows.
    "sac_discrete, target entropy 0.35": Variant({**_SAC_DISCRETE, "target_entropy": 0.35}, discrete=True),
}

_PEER_WIDTH = {"net_arch": [256, 256]}

PEERS = {
    "SBX SAC": Variant(library="sbx", algorithm="sac"),
    "SBX SAC, 50 steps": Variant(library="sbx", algorithm="sac", options={"train_freq": 50, "gradient_steps": 50}),
    "SBX TQC": Variant(library="sbx", algorithm="tqc"),
    "SBX CrossQ": Variant(library="sbx", algorithm="crossq"),
    "SB3 SAC": Variant(library="sb3", algorithm="sac"),
    "SB3-contrib TQC": Variant(library="contrib", algorithm="tqc"),
    "SB3-contrib CrossQ": Variant(library="contrib", algorithm="crossq"),
    "SB3 DQN": Variant(
        library="sb3", algorithm="dqn", options={"policy_kwargs": _PEER_WIDTH}, discrete=True, values=True
    ),
    "SB3-contrib QR-DQN": Variant(
        library="contrib",
        algorithm="qrdqn",
        options={"policy_kwargs": {**_PEER_WIDTH, "n_quantiles": 25}},
        discrete=True,
        values=True,
    ),
}
