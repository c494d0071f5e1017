"""How programs end, and in whose words."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.launching import ROOT
from tfagents_system.errors import TERMS, in_callers_terms


@pytest.mark.parametrize(("lines", "code"), [(1, 0), (100_000, 1)])
def test_behind_head_a_program_ends_without_a_traceback(lines: int, code: int) -> None:
    program = f"from tfagents_system.errors import exit_with; exit_with(lambda: print('word\\\\n' * {lines}) or 0)"
    script = f'"{sys.executable}" -c "{program}" | {{ exec <&-; sleep 0.3; }}; exit "${{PIPESTATUS[0]}}"'
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_a_front_has_its_own_words_and_paths_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TERMS, json.dumps({"SAC_EXP_NAME": "RUN_NAME"}))
    assert in_callers_terms("another SAC_EXP_NAME, /SAC_EXP_NAME/x") == "another RUN_NAME, /SAC_EXP_NAME/x"
