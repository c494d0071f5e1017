"""Which keys of config.json are not what a run began with: its start is refused in TMRL's words.

Beside a run directory NAME there is NAME+began.json, with the values by path that the run began with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.rules import is_kept
from tfagents_system.errors import UserError
from tfagents_system.launch.tmrl_data import Loaded
from tfagents_system.machine.files import write_atomically
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.run_directory import MAY_CHANGE
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.grid import by_name
from tfagents_system.settings.overrides import Overrides
from tfagents_system.settings.tmrl_keys import KEYS, as_json
from tfagents_system.settings.tmrl_rows import ROWS, Given
from tfagents_system.settings.tmrl_translation import translate


def remember(paths: RunPaths, loaded: Loaded) -> None:
    """Writes what a run begins with now."""
    shared = {path: loaded.given[path] for path in _shared()}
    paths.exp_dir.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(_file(paths), json.dumps(shared, indent=2).encode() + b"\n")


def refuse_changes(paths: RunPaths, loaded: Loaded, *, may_edit: bool) -> None:
    """Looks for changes that a run that has begun does not take.

    Args:
      may_edit: An option says what becomes of an edited environment.

    Raises:
      UserError: There are some, each with the values before and now. What can't be compared, the launcher refuses.
    """
    before = _before(paths, loaded)
    if before is None:
        return
    now = loaded.given
    attributes, environment = _meaning(now, loaded.has_game)
    findings, changed = list[str](), [path for path in _shared() if now[path] != before[path]]

    def look(path: str, old: Given) -> None:
        """Whether a key matters: with it, or with all that were changed, as it was."""
        old_attributes, old_environment = _meaning(old, loaded.has_game)
        if old_attributes != attributes:
            findings.append(_finding(paths, path, before[path], now[path]))
        elif old_environment != environment and not may_edit:
            options = f"give --keep to go on with {as_json(before[path])}", f"--take_edits with {as_json(now[path])}"
            findings.append(_finding(paths, path, before[path], now[path], options))

    for path in changed:
        look(path, {**now, path: before[path]})
    if not findings:  # Each of several keys may have no effect while the others are as they are now.
        together = _least(changed, before, now, loaded.has_game)
        for path in together:
            look(path, {**now, **{each: before[each] for each in together}})
    if findings:
        raise UserError(*findings)


def _least(changed: Sequence[str], before: Given, now: Given, has_game: bool) -> list[str]:
    """Those of the changed keys that must be set back for all to mean what they did."""
    meant, needed = _meaning(before, has_game), list(changed)
    for path in changed:
        others = [each for each in needed if each != path]
        if _meaning({**now, **{each: before[each] for each in others}}, has_game) == meant:
            needed = others
    return needed


def _finding(paths: RunPaths, path: str, before: Any, now: Any, options: Sequence[str] = ()) -> str:
    *ways, last = (
        "set it back",
        "choose another RUN_NAME",
        "set RESET_TRAINING to true for a new agent",
        *options,
        "--fresh to start over" if options else "give --fresh to start over",
    )
    return (
        f"{path} is {as_json(now)}, and {paths.exp_dir.name} began with {as_json(before)}: {', '.join(ways)}, or {last}"
    )


def _file(paths: RunPaths) -> Path:
    return paths.exp_dir.with_name(f"{paths.exp_dir.name}+began.json")


def _shared() -> Iterator[str]:
    """The keys that are the same on all machines of a run."""
    return (row.path for row in ROWS if not row.of_machine)


def _before(paths: RunPaths, loaded: Loaded) -> Given | None:
    """What the run began with; None where that is not known, or the file is of a start that was refused."""
    kept = read_json(_file(paths)) or {}
    if any(path not in kept or not is_kept(KEYS[path].rule, kept[path]) for path in _shared()):
        return None
    before = {**loaded.given, **kept}
    began = _lasting(Overrides.read(paths.overrides).params), read_json(paths.config)
    return before if _meaning(before, loaded.has_game) == began else None


def _meaning(given: Given, has_game: bool) -> tuple[dict[str, Any], Any]:
    """The attributes that a run keeps, and the JSON."""
    to = translate(given, has_game=has_game)
    return _lasting(to.attributes), json.loads(json.dumps(to.env_config))


def _lasting(attributes: Mapping[str, Any]) -> dict[str, Any]:
    names = by_name(dict(attributes), {}, {})
    return {name: value for name, value in names.items() if name.partition(".")[0] not in MAY_CHANGE}
