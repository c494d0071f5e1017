"""`matmul_precision = "auto"`: measured at a run's first start, kept by those after it."""

import types

import pytest

from tfagents_system.trainer import learner as learner_module
from tfagents_system.trainer.learner import Learner
from tfagents_system.trainer.state import TrainerState


def choice(wanted, state, monkeypatch, fast):
    """What a start chooses on a CPU whose bfloat16 products are fast, or are not; and how often it measured."""
    measured, warnings = [], []

    def choose(wanted):
        if wanted == "float32":
            return "float32", ""
        measured.append(wanted)
        return ("bfloat16", "") if fast else ("float32", "slow")

    monkeypatch.setattr(learner_module, "choose_precision", choose)
    monkeypatch.setattr(learner_module.logging, "warning", lambda *args: warnings.append(args))
    learner = Learner.__new__(Learner)
    learner._role = types.SimpleNamespace(params=types.SimpleNamespace(matmul_precision=wanted))
    learner.state = state
    return learner._choose_precision(), len(measured), len(warnings)


@pytest.mark.parametrize("fast", [True, False])
def test_auto_takes_what_is_faster_without_a_warning_and_records_it(monkeypatch, fast):
    state = TrainerState()
    expected = "bfloat16" if fast else "float32"
    assert choice("auto", state, monkeypatch, fast) == (expected, 1, 0)
    assert state.matmul_precision == expected


def test_a_resumed_run_in_bfloat16_goes_on_in_float32_only_with_a_warning(monkeypatch):
    state = TrainerState(matmul_precision="bfloat16")
    assert choice("auto", state, monkeypatch, fast=True) == ("bfloat16", 1, 0)
    assert choice("auto", state, monkeypatch, fast=False) == ("float32", 1, 1)
    assert state.matmul_precision == "bfloat16"
