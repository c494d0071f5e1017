"""Other libraries' names train nothing here: they are refused with ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfagents_system.errors import UserError
from tfagents_system.settings import other_libraries, params_check
from tfagents_system.settings.load_params import load_params
from tfagents_system.train_params_base import TrainParamsBase

# Every argument of their SAC that says how, or how long, is trained; those that only say where files go are left out.
STABLE_BASELINES3 = """
    policy env learning_rate buffer_size learning_starts batch_size tau gamma train_freq gradient_steps
    action_noise replay_buffer_class replay_buffer_kwargs optimize_memory_usage n_steps ent_coef
    target_update_interval target_entropy use_sde sde_sample_freq use_sde_at_warmup stats_window_size
    tensorboard_log policy_kwargs verbose seed device net_arch activation_fn log_std_init use_expln
    features_extractor_class features_extractor_kwargs optimizer_class optimizer_kwargs n_critics
    share_features_extractor total_timesteps log_interval progress_bar n_envs n_timesteps normalize frame_stack
    eval_freq num_eval_episodes
    exploration_fraction exploration_initial_eps exploration_final_eps max_grad_norm
    top_quantiles_to_drop_per_net n_quantiles
"""
SBX = """
    policy env learning_rate qf_learning_rate buffer_size learning_starts batch_size tau gamma train_freq
    gradient_steps policy_delay action_noise replay_buffer_class replay_buffer_kwargs ent_coef target_entropy
    use_sde sde_sample_freq use_sde_at_warmup stats_window_size tensorboard_log policy_kwargs verbose seed device
    net_arch dropout_rate layer_norm n_critics total_timesteps log_interval progress_bar
"""
CLEANRL = """
    exp_name seed torch_deterministic cuda track wandb_project_name wandb_entity capture_video env_id
    total_timesteps num_envs buffer_size gamma tau batch_size learning_starts policy_lr q_lr policy_frequency
    target_network_frequency alpha autotune start_e end_e exploration_fraction train_frequency
"""
PARAMS = """
from tfagents_system.train_params_base import TrainParamsBase

class TrainParams(TrainParamsBase):
{body}
    def env_ctor(self, *args, seed=None, **kwargs):
        return {environment}
"""


def loaded(folder: Path, body: str, environment: str = "None", **attributes: Any) -> TrainParamsBase:
    path = folder / "params.py"
    path.write_text(PARAMS.format(body=body, environment=environment))
    return load_params(path, {"horizon": 100}, attributes=attributes)


@pytest.mark.parametrize("name", sorted({*f"{STABLE_BASELINES3} {SBX} {CLEANRL}".split()}))
def test_every_setting_of_theirs_is_ours_or_refused_with_ours(name: str, tmp_path: Path) -> None:
    params = loaded(tmp_path, f"    {name} = 0.5\n")
    if not hasattr(TrainParamsBase, name):
        (finding,) = params_check.check_params(params)
        assert finding.startswith((f"TrainParams.{name}=0.5 is a setting of ", f"TrainParams.{name} is not known: "))
        assert finding.partition(": ")[2]  # The remedy.


def test_what_is_meant_is_an_attribute_a_variable_or_a_hook_of_ours() -> None:
    known = {*dir(TrainParamsBase), *(f"{part}_optimizer" for part in ("actor", "critic", "alpha"))}
    for setting in other_libraries.SETTINGS:
        wanted = setting.ours.removeprefix("set ").split("=")[0].split()[0].rstrip(",:;")
        if setting.ours.startswith("set ") and not wanted.startswith(("SAC_", '"')):
            assert wanted in known, setting


def test_a_setting_of_this_run_is_told_in_the_same_words(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gamma is a setting of .*: set discount"):
        loaded(tmp_path, "    discount = 0.9\n", gamma=0.95)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("train_batch_size", "batch_size"),
        ("env_steps_before_training", "initial_collect_steps"),
        ("num_iterations", "num_"),
    ],
)
def test_earlier_names_and_those_of_tf_agents_are_told_with_ours(name: str, meant: str, tmp_path: Path) -> None:
    (finding,) = params_check.check_params(loaded(tmp_path, f"    {name} = 5\n"))
    assert f"set {meant}" in finding


def test_what_is_plainly_the_users_own_passes(tmp_path: Path) -> None:
    params = loaded(tmp_path, "    _gamma = 1\n    wind = 0.3\n    policy = object()\n")
    assert params_check.check_params(params) == [] == params_check.advice(params)


def test_no_name_is_in_the_table_twice_or_ours() -> None:
    names = [name for setting in other_libraries.SETTINGS for name in setting.names]
    assert len(names) == len(set(names))
    assert not [name for name in names if hasattr(TrainParamsBase, name)]
