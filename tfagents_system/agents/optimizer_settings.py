"""Settings in `critic_optimizer`, `actor_optimizer` and `alpha_optimizer` of TrainParams. Imports no TensorFlow."""

from __future__ import annotations

from typing import Any

from tfagents_system.agents import algorithms

PARTS = ("critic", "actor", "alpha")
_OF_ALL, _ADAM = ("name", "weight_decay", "global_clipnorm"), ("beta_1", "beta_2", "epsilon")
_SETTINGS = {"adam": (*_OF_ALL, *_ADAM), "adamw": (*_OF_ALL, *_ADAM), "sgd": (*_OF_ALL, "momentum")}
_ADAMW_DECAY = 0.01  # As AdamW has it in PyTorch and in SimBa.


def optimizer_settings(params: Any, part: str) -> dict[str, Any]:
    """Settings of TrainParams for `critic`, `actor` or `alpha` that act, all filled in, by name."""
    settings = algorithms.value(params, f"{part}_optimizer")
    if settings["weight_decay"] is None:
        settings["weight_decay"] = _ADAMW_DECAY if settings["name"] == "adamw" else 0.0
    if settings["beta_1"] is None:
        settings["beta_1"] = 0.9 if part == "alpha" else algorithms.ALGORITHMS[params.algorithm].adam_beta_1
    return {name: settings[name] for name in _SETTINGS[settings["name"]]}


def optimizer_findings(params: Any) -> list[str]:
    """Settings that do not fit the optimizer or the part, one sentence each; each is right by itself."""
    findings = []
    for part in PARTS:
        where, given = f"TrainParams.{part}_optimizer", getattr(params, f"{part}_optimizer")
        name = given.get("name", "adam")
        findings += [
            f'{where}["{key}"] is no setting of {name}: remove it, or choose another name'
            for key in given
            if key not in _SETTINGS[name]
        ]
        if part == "alpha" and optimizer_settings(params, part)["weight_decay"]:
            findings.append(
                f"{where} has a weight decay, which would pull log(alpha) to 0 whatever the entropy is: use adam or "
                'sgd with "weight_decay": 0'
            )
    return findings
