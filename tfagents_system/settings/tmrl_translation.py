"""A config.json of TMRL in the toolkit's own words. What each key becomes is in tmrl_rows.py.

`python -m tfagents_system.settings.tmrl_translation` prints the table of docs/how_to/tmrl.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.settings.tmrl_keys import KEYS, in_json_words
from tfagents_system.settings.tmrl_rows import ROWS, Given, Translation


def translate(given: Given, *, has_game: bool = False, has_gpu: bool = False) -> Translation:
    """Translates the values of a config.json.

    Args:
      given: All keys, from `read_keys`.
      has_game: The package `tmrl` is installed: its interface of the game is used, else the car of envs/racing.
      has_gpu: This machine has a GPU for the trainer.
    """
    to = Translation()
    to.put_json("horizon", min(given["RW_MAX_SAMPLES_PER_EPISODE"], given["ENV.RTGYM_CONFIG.ep_max_length"]))
    to.put_json("tmrl", {"interface": given["ENV.RTGYM_INTERFACE"], "game": has_game})
    for row in ROWS:
        if row.with_game or not has_game:
            row.put(given, to)
    if has_game:
        to.put_json("tmrl.rtgym", _rtgym(given))
        to.put_json("tmrl.interface_kwargs", _game_kwargs(given))
    if given["CUDA_TRAINING"] and has_gpu:
        to.variables["SAC_TRAIN_GPUS"] = "1"
    elif given["CUDA_TRAINING"]:
        to.lines.append("CUDA_TRAINING is true, and this machine shows no GPU: a trainer here uses its CPUs")
    return to


def _rtgym(given: Given) -> dict[str, Any]:
    """RTGYM_CONFIG as rtgym takes it, for TMRL's own interface."""
    prefix = "ENV.RTGYM_CONFIG."
    names = [path.removeprefix(prefix) for path in KEYS if path.startswith(prefix)]
    return {name: given[prefix + name] for name in names if name != "interface_kwargs"}


def _game_kwargs(given: Given) -> dict[str, Any]:
    """Arguments of TMRL's interface: those of interface_kwargs, and the keys that only the game knows."""
    own = {
        "gamepad": given["VIRTUAL_GAMEPAD"],
        "img_hist_len": given["ENV.IMG_HIST_LEN"],
    }
    if given["ENV.RTGYM_INTERFACE"] == "TM20FULL":
        own |= {
            "grayscale": given["ENV.IMG_GRAYSCALE"],
            "resize_to": [given["ENV.IMG_WIDTH"], given["ENV.IMG_HEIGHT"]],
        }
    return {**own, **given["ENV.RTGYM_CONFIG.interface_kwargs"]}


def server_of(given: Given, role: str) -> str:
    """`host:port` at which a trainer or worker reaches the server.

    Args:
      given: The values of config.json.
      role: `TRAINER` or `WORKER`, as LOCALHOST_ has it.

    Raises:
      UserError: PUBLIC_IP_SERVER is none that can be reached.
    """
    if given[f"LOCALHOST_{role}"]:
        return f"127.0.0.1:{given['PORT']}"
    if given["PUBLIC_IP_SERVER"] == KEYS["PUBLIC_IP_SERVER"].default:
        raise UserError(
            f"LOCALHOST_{role} is false, so PUBLIC_IP_SERVER must be the server's address, found "
            f"{given['PUBLIC_IP_SERVER']!r}: set it, or set LOCALHOST_{role} to true on the server's machine"
        )
    return f"{given['PUBLIC_IP_SERVER']}:{given['PORT']}"


def _in_table(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def table() -> Iterator[str]:
    """The table of docs/how_to/tmrl.md, by lines."""
    yield "| key | must be | default | here |"
    yield "| --- | --- | --- | --- |"
    for row in ROWS:
        key = KEYS[row.path]
        words = in_json_words(key.rule.words)
        star = "" if row.of_machine else " \\*"
        yield f"| `{row.path}`{star} | {words} | {_in_table(key.default)} | {row.here} |"


if __name__ == "__main__":
    print("\n".join(table()))
