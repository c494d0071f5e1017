"""What the settings of other libraries are called here, and how their units differ; docs/coming_from.md has a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Setting(NamedTuple):
    """One setting of other libraries.

    Attributes:
      names: What they call it.
      libraries: Which ones.
      ours: What to do here, as the end of a sentence.
    """

    names: tuple[str, ...]
    libraries: str
    ours: str


# What they call it | who (SB3: Stable-Baselines3) | what to do here. Indented lines continue a row.
_ROWS = """
train_batch_size | earlier editions | set batch_size
env_steps_before_training | earlier editions | set initial_collect_steps
num_iterations | TF-Agents | set num_env_steps, or num_iter
collect_steps_per_iteration | TF-Agents | set env_steps_per_iter, of all workers together
replay_buffer_capacity, replay_capacity, replay_buffer_max_length | TF-Agents | set buffer_size
eval_interval | TF-Agents | set eval_period_env_steps
initial_log_alpha | TF-Agents | set sac_log_alpha
reward_scale_factor | TF-Agents | set normalize_rewards, or scale rewards in env_ctor
# What is learned, and how fast.
gamma | SB3, SBX, CleanRL | set discount
policy_lr | CleanRL | set actor_learning_rate
q_lr | CleanRL | set critic_learning_rate, and alpha_learning_rate, which follows it there
qf_learning_rate | SBX | set critic_learning_rate
tau | SB3, SBX, CleanRL | set target_update_tau
target_update_interval | SB3, SBX | set target_update_period, in updates (there in environment steps for DQN)
target_network_frequency | CleanRL | set target_update_period, in updates (there in environment steps, with one
    update per step in SAC, per train_frequency steps in DQN)
policy_delay | SBX | set actor_update_period
policy_frequency | CleanRL | set actor_update_period; CleanRL's actor then steps that many times, ours once
n_critics | SB3, SBX | set num_critics
n_quantiles | SB3, SBX | set tqc={"num_quantiles": n_quantiles}, with algorithm='tqc'
top_quantiles_to_drop_per_net | SB3, SBX | set tqc={"num_dropped_quantiles": top_quantiles_to_drop_per_net}
n_steps | SB3 | set n_step
# Entropy.
ent_coef | SB3, SBX | set sac_log_alpha = log(ent_coef), and learn_entropy_coef=True for 'auto', False for a number
autotune | CleanRL | set learn_entropy_coef
alpha | CleanRL | set sac_log_alpha = log(alpha)
# Networks and optimizers.
net_arch | SB3, SBX | set actor_fc_layer_params and critic_joint_fc_layer_params
policy_kwargs | SB3, SBX | set actor_fc_layer_params, critic_joint_fc_layer_params, num_critics and the like
activation_fn | SB3, SBX | override actor_ctor and critic_ctor; the default networks have ReLU
dropout_rate | SBX | set critic_dropout
layer_norm | SBX | set critic_layer_norm
features_extractor_class, features_extractor_kwargs | SB3 | set preprocessing_combiner, or for images
    image_encoder_layers and image_encoder_features
share_features_extractor | SB3 | remove it: actor and critics share the encoder of images
optimizer_class, optimizer_kwargs | SB3, SBX | set actor_optimizer, critic_optimizer and alpha_optimizer
max_grad_norm | SB3, SBX | set critic_optimizer={"global_clipnorm": max_grad_norm}
normalize, normalize_kwargs | SB3 | set normalize_observations and normalize_rewards
use_sde, sde_sample_freq, use_sde_at_warmup, log_std_init, use_expln | SB3, SBX | remove it: not supported
action_noise | SB3, SBX | remove it: SAC's own policy explores
exploration_initial_eps, exploration_final_eps | SB3, SBX | set exploration_epsilon, a number or a schedule
start_e, end_e | CleanRL | set exploration_epsilon, a number or a schedule
exploration_fraction | SB3, SBX, CleanRL | set exploration_epsilon={"points": [[0, FIRST], [exploration_fraction *
    num_env_steps, LAST]]}
# Experience.
learning_starts | SB3, SBX, CleanRL | set initial_collect_steps
train_freq, gradient_steps | SB3, SBX | set updates_per_env_step = gradient_steps / train_freq, of all workers' steps
train_frequency | CleanRL | set updates_per_env_step = 1 / train_frequency
n_sampled_goal | SB3 | set hindsight_share = n_sampled_goal / (n_sampled_goal + 1)
goal_selection_strategy | SB3 | set hindsight_strategy
replay_buffer_class, replay_buffer_kwargs, optimize_memory_usage | SB3, SBX | remove it: not supported
# Length and size of a run.
total_timesteps | SB3, SBX, CleanRL | set num_env_steps: of all workers together, random ones included
n_timesteps | SB3 | set num_env_steps: of all workers together, random ones included
n_envs | SB3 | set SAC_NUM_COLLECT_WORKERS and SAC_ENVS_PER_WORKER, whose product it is
num_envs | CleanRL | set SAC_NUM_COLLECT_WORKERS and SAC_ENVS_PER_WORKER, whose product it is
seed | SB3, SBX, CleanRL | set SAC_SEED
device | SB3, SBX | set SAC_TRAIN_GPUS
cuda | CleanRL | set SAC_TRAIN_GPUS
torch_deterministic | CleanRL | set SAC_DETERMINISTIC
policy | SB3, SBX | set network, or recurrent
env | SB3, SBX | build it in env_ctor
env_id | CleanRL | build it in env_ctor
exp_name | CleanRL | set SAC_EXP_NAME
# Watching.
eval_freq | SB3 | set eval_period_env_steps: of all environments together
log_interval | SB3, SBX | set log_period_iters, in iterations (there episodes)
capture_video | CleanRL | set SAC_REPORT
tensorboard_log, tb_log_name | SB3, SBX | remove it: TensorBoard's files are in the run directory
verbose, progress_bar, stats_window_size, reset_num_timesteps | SB3, SBX | remove it: not supported
track, wandb_project_name, wandb_entity | CleanRL | set SAC_WANDB=online, WANDB_PROJECT, WANDB_ENTITY
"""


def _settings() -> Iterator[Setting]:
    for row in _ROWS.replace("\n    ", " ").splitlines():
        if row and not row.startswith("#"):
            names, libraries, ours = row.split(" | ")
            yield Setting(tuple(names.split(", ")), libraries.replace("SB3", "Stable-Baselines3"), ours)


SETTINGS = tuple(_settings())
BY_NAME = {name: setting for setting in SETTINGS for name in setting.names}
