"""What the settings of other libraries are called here, and how their units differ.

`python -m tfagents_system.settings.other_libraries` prints docs/other_libraries.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

SB3, SBX, CLEANRL, TMRL = "Stable-Baselines3", "SBX", "CleanRL", "TMRL"
_BOTH = (SB3, SBX)
_THREE = (SB3, SBX, CLEANRL)


class Setting(NamedTuple):
    """One setting of other libraries.

    Attributes:
      names: What they call it.
      libraries: They.
      ours: What to do here, as the end of a sentence.
    """

    names: tuple[str, ...]
    libraries: tuple[str, ...]
    ours: str


_NO_COUNTERPART = "remove it, there is no such setting here"
SETTINGS: tuple[Setting, ...] = (
    # What is learned, and how fast.
    Setting(("gamma",), _THREE, "set discount"),
    Setting(("GAMMA",), (TMRL,), "set discount"),
    Setting(("learning_rate",), _BOTH, "set actor_learning_rate, critic_learning_rate and alpha_learning_rate"),
    Setting(("policy_lr",), (CLEANRL,), "set actor_learning_rate"),
    Setting(("LR_ACTOR",), (TMRL,), "set actor_learning_rate"),
    Setting(("q_lr",), (CLEANRL,), "set critic_learning_rate, and alpha_learning_rate, which follows it there"),
    Setting(("qf_learning_rate",), (SBX,), "set critic_learning_rate"),
    Setting(("LR_CRITIC",), (TMRL,), "set critic_learning_rate"),
    Setting(("LR_ENTROPY",), (TMRL,), "set alpha_learning_rate"),
    Setting(("tau",), _THREE, "set target_update_tau"),
    Setting(("POLYAK",), (TMRL,), "set target_update_tau = 1 - POLYAK"),
    Setting(("target_update_interval",), _BOTH, "set target_update_period, in updates"),
    Setting(
        ("target_network_frequency",),
        (CLEANRL,),
        "set target_update_period, in updates (there in environment steps, with an update in each)",
    ),
    Setting(("policy_delay",), (SBX,), "set actor_update_period"),
    Setting(
        ("policy_frequency",), (CLEANRL,), "set actor_update_period; the actor then steps once, there so many times"
    ),
    Setting(("REDQ_Q_UPDATES_PER_POLICY_UPDATE",), (TMRL,), "set actor_update_period"),
    Setting(("batch_size",), _THREE, "set train_batch_size"),
    Setting(("BATCH_SIZE",), (TMRL,), "set train_batch_size"),
    Setting(("ALGORITHM",), (TMRL,), "set algorithm, 'sac' or 'redq'"),
    Setting(("n_critics",), _BOTH, "set num_critics"),
    Setting(("REDQ_N",), (TMRL,), "set num_critics"),
    Setting(("REDQ_M",), (TMRL,), "set num_target_critics"),
    Setting(("n_steps",), (SB3,), "set n_step"),
    # Entropy.
    Setting(
        ("ent_coef",),
        _BOTH,
        "set sac_log_alpha = log(ent_coef), and learn_entropy_coef=True for 'auto', False for a number",
    ),
    Setting(("autotune",), (CLEANRL,), "set learn_entropy_coef"),
    Setting(("alpha",), (CLEANRL,), "set sac_log_alpha = log(alpha)"),
    Setting(("ALPHA",), (TMRL,), "set sac_log_alpha = log(ALPHA)"),
    # Networks and optimizers.
    Setting(("net_arch",), _BOTH, "set actor_fc_layer_params and critic_joint_fc_layer_params"),
    Setting(
        ("policy_kwargs",), _BOTH, "set actor_fc_layer_params, critic_joint_fc_layer_params, num_critics and the like"
    ),
    Setting(("activation_fn",), _BOTH, "override actor_ctor and critic_ctor; the default networks have ReLU"),
    Setting(("dropout_rate",), (SBX,), "set critic_dropout"),
    Setting(("layer_norm",), (SBX,), "set critic_layer_norm"),
    Setting(
        ("features_extractor_class", "features_extractor_kwargs"),
        (SB3,),
        "set preprocessing_combiner, or for images image_encoder_filters and image_encoder_features",
    ),
    Setting(("share_features_extractor",), (SB3,), "remove it: actor and critics share the encoder of images"),
    Setting(
        ("optimizer_class", "optimizer_kwargs"), _BOTH, "set actor_optimizer, critic_optimizer and alpha_optimizer"
    ),
    Setting(("OPTIMIZER_ACTOR", "BETAS_ACTOR", "L2_ACTOR"), (TMRL,), "set actor_optimizer (name, betas, weight_decay)"),
    Setting(
        ("OPTIMIZER_CRITIC", "BETAS_CRITIC", "L2_CRITIC"), (TMRL,), "set critic_optimizer (name, betas, weight_decay)"
    ),
    Setting(("normalize", "normalize_kwargs"), (SB3,), "set normalize_observations and normalize_rewards"),
    Setting(("use_sde", "sde_sample_freq", "use_sde_at_warmup", "log_std_init", "use_expln"), _BOTH, _NO_COUNTERPART),
    Setting(("action_noise",), _BOTH, "remove it: SAC's own policy explores"),
    # Experience.
    Setting(
        ("buffer_size",),
        _THREE,
        "set n_episodes_in_buffer: episodes of `horizon` steps, so buffer_size / horizon (there steps)",
    ),
    Setting(
        ("MEMORY_SIZE",),
        (TMRL,),
        "set n_episodes_in_buffer: episodes of `horizon` steps, so MEMORY_SIZE / horizon (there steps)",
    ),
    Setting(
        ("learning_starts",),
        _THREE,
        "set n_buffer_init_episodes: episodes, so learning_starts / steps of an episode (there steps)",
    ),
    Setting(
        ("ENVIRONMENT_STEPS_BEFORE_TRAINING",), (TMRL,), "set n_buffer_init_episodes: episodes in total (there steps)"
    ),
    Setting(
        ("train_freq", "gradient_steps"),
        _BOTH,
        "set updates_per_env_step = gradient_steps / train_freq, of the steps of all workers together",
    ),
    Setting(("MAX_TRAINING_STEPS_PER_ENVIRONMENT_STEP",), (TMRL,), "set asynchronous and max_updates_per_env_step"),
    Setting(("replay_buffer_class", "replay_buffer_kwargs", "optimize_memory_usage"), _BOTH, _NO_COUNTERPART),
    # Length and size of a run.
    Setting(
        ("total_timesteps",),
        _THREE,
        "set num_iter: iterations of n_train_episodes_per_iter episodes of each worker (there environment steps)",
    ),
    Setting(
        ("n_timesteps",),
        (SB3,),
        "set num_iter: iterations of n_train_episodes_per_iter episodes of each worker (there environment steps)",
    ),
    Setting(
        ("MAX_EPOCHS", "ROUNDS_PER_EPOCH", "TRAINING_STEPS_PER_ROUND"),
        (TMRL,),
        "set num_iter and num_steps_per_iter: their product is all updates, as of these three",
    ),
    Setting(("UPDATE_MODEL_INTERVAL", "UPDATE_BUFFER_INTERVAL"), (TMRL,), "set num_steps_per_iter, in updates"),
    Setting(("SAVE_MODEL_EVERY",), (TMRL,), "set checkpoint_period_itrs, in iterations (there updates)"),
    Setting(("RW_MAX_SAMPLES_PER_EPISODE", "ep_max_length"), (TMRL,), 'set "horizon" in the JSON'),
    Setting(("IMG_HIST_LEN",), (TMRL,), "set frame_stack"),
    Setting(("act_buf_len",), (TMRL,), "set action_history"),
    Setting(("n_envs",), (SB3,), "set SAC_NUM_COLLECT_WORKERS and SAC_ENVS_PER_WORKER, whose product it is"),
    Setting(("num_envs",), (CLEANRL,), "set SAC_NUM_COLLECT_WORKERS and SAC_ENVS_PER_WORKER, whose product it is"),
    Setting(("NB_WORKERS",), (TMRL,), "set SAC_MAX_WORKERS"),
    Setting(("seed",), _THREE, "set SAC_SEED"),
    Setting(("device",), _BOTH, "set SAC_TRAIN_GPUS"),
    Setting(("cuda",), (CLEANRL,), "set SAC_TRAIN_GPUS"),
    Setting(("CUDA_TRAINING",), (TMRL,), "set SAC_TRAIN_GPUS"),
    Setting(("torch_deterministic",), (CLEANRL,), "set SAC_DETERMINISTIC"),
    Setting(("policy",), _BOTH, "set network, or recurrent"),
    Setting(("env",), _BOTH, "build it in env_ctor"),
    Setting(("env_id",), (CLEANRL,), "build it in env_ctor"),
    Setting(("RTGYM_INTERFACE",), (TMRL,), "build it in env_ctor"),
    Setting(("exp_name",), (CLEANRL,), "set SAC_EXP_NAME"),
    Setting(("RUN_NAME",), (TMRL,), "set SAC_EXP_NAME"),
    # Watching.
    Setting(("eval_freq",), (SB3,), "set eval_period_itrs, in iterations (there environment steps)"),
    Setting(("log_interval",), _BOTH, "set log_period_itrs, in iterations (there episodes)"),
    Setting(("capture_video",), (CLEANRL,), "set SAC_VIDEO"),
    Setting(("tensorboard_log", "tb_log_name"), _BOTH, "remove it: TensorBoard's files are in the run directory"),
    Setting(("verbose", "progress_bar", "stats_window_size", "reset_num_timesteps"), _BOTH, _NO_COUNTERPART),
    Setting(("track", "wandb_project_name", "wandb_entity"), (CLEANRL,), _NO_COUNTERPART),
)
_BY_NAME = {name: setting for setting in SETTINGS for name in setting.names}


def meant(name: str) -> Setting | None:
    """The setting of another library that has this name; None where none has."""
    return _BY_NAME.get(name)


def in_words(names: Iterable[str]) -> str:
    """`A, B and C`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def documentation() -> str:
    """docs/other_libraries.md."""
    lines = [
        "# Coming from another library",
        "",
        "What the settings of Stable-Baselines3, SBX, CleanRL and TMRL are called here. Such a name in a params file",
        "or behind `--set` is refused with the line of this table, unless your own code reads it. Names that are the",
        "same here (`target_entropy`, `n_eval_episodes`, `frame_stack`) are not in it.",
        "",
        "| there | library | here |",
        "| --- | --- | --- |",
    ]
    for setting in SETTINGS:
        names = ", ".join(f"`{name}`" for name in setting.names)
        lines.append(f"| {names} | {', '.join(setting.libraries)} | {setting.ours} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(documentation(), end="")
