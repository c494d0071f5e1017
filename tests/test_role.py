"""What a role knows of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.settings_for_tests import variables_with
from tfagents_system.role import Role
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import Settings


def test_which_workers_have_left(tmp_path: Path) -> None:
    """Slots 0 and 1 are the run's own, 2 and 3 planned for others, 4 an expert's, 5 to 9 of any that join."""
    settings = Settings(variables_with(num_collect_workers=4, local_workers=2, expert_workers=1, max_workers=10))
    rest: dict[str, Any] = dict.fromkeys(("params", "stop", "heartbeat"))
    role = Role(name="replay", paths=RunPaths(tmp_path), settings=settings, **rest)
    role.paths.heartbeats.mkdir()
    for number, state in {1: "stopped", 3: "stopped", 4: "stopped", 5: "stopped", 6: "collecting"}.items():
        role.paths.heartbeat(f"worker_{number}").write_text(json.dumps({"state": state}))
    # 2 has not joined yet, and the run waits for it; 7 to 9 were there before the run was started, if ever.
    assert [number for number in range(10) if role.has_left(number)] == [3, 5, 7, 8, 9]
