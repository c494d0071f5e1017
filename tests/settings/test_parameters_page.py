"""`sac parameters`: what users have who have installed the package without docs/."""

from __future__ import annotations

import pytest

from tfagents_system.errors import UserError
from tfagents_system.hyperparameters import described_by
from tfagents_system.settings.parameters_page import in_lines, main
from tfagents_system.train_params_base import TrainParamsBase

DESCRIBED = described_by(TrainParamsBase)


def test_all_attributes_are_listed_with_what_may_change() -> None:
    heads = [line for line in in_lines([], 80) if not line.startswith("    ")][1:]
    names = [head.partition(" = ")[0] for head in heads]
    assert names == [f"{name}{'*' * each.may_change}" for name, each in DESCRIBED.items()]
    assert max(map(len, in_lines([], 80))) <= 80


def test_a_word_chooses_attributes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discount"]) == 0
    head, first, *text = capsys.readouterr().out.splitlines()
    assert head.startswith("*: --set may change") and first.startswith("discount* = 0.99")
    told = " ".join(line.strip() for line in text)
    assert told.startswith(DESCRIBED["discount"].rule.words)
    with pytest.raises(UserError, match=r"no attribute has nosuch or b4 in its name: .* lists them all"):
        in_lines(["discount", "nosuch", "b4"], 80)
