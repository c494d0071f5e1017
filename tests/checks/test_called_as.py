"""Messages in the words of who has called."""

import json

import pytest

from tfagents_system.checks.called_as import in_arguments
from tfagents_system.errors import TERMS, in_callers_terms


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("SAC_SEED=-1 is no seed: set SAC_SEED", "seed=-1 is no seed: set seed"),
        ("--set num_iter=2: unset SAC_NUM_COLLECT_WORKERS", "attributes num_iter=2: unset workers"),
        ("/a/SAC_SEED/p.py and run@SAC_SEED stay", "/a/SAC_SEED/p.py and run@SAC_SEED stay"),
        ("SAC_SEEDD is not a known variable", "SAC_SEEDD is not a known variable"),
        ("set SAC_EXP_DIR to a larger disk", "set SAC_EXP_DIR to a larger disk"),
    ],
)
def test_a_caller_from_python_reads_of_arguments(message: str, told: str) -> None:
    assert in_arguments(message) == told


def test_a_front_has_its_own_words_and_paths_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TERMS, json.dumps({"SAC_EXP_NAME": "RUN_NAME"}))
    assert in_callers_terms("another SAC_EXP_NAME, /SAC_EXP_NAME/x") == "another RUN_NAME, /SAC_EXP_NAME/x"
