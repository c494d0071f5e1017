"""A policy as a SavedModel that is written again and again: its graph is built once, afterwards its weights alone."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorflow.python.saved_model import fingerprinting_utils
from tensorflow.python.saved_model import save as saved_model_save
from tf_agents.policies import policy_saver

_VARIABLES = "variables"
_FINGERPRINT = "fingerprint.pb"  # Of the graph and the weights.


class SavedModelWriter:
    """Writes what `saver.save` writes. Building its graph takes half a second of CPU time, its weights milliseconds.

    Args:
      saver: Of the policy.
    """

    def __init__(self, saver: policy_saver.PolicySaver) -> None:
        self._saver = saver
        self._weights: Any = None  # TrackableSaver, with the names that the graph has for them.
        self._files: list[Path] = []  # Of the SavedModel, without those that depend on the weights.
        self._newest = Path()

    def save(self, folder: Path) -> None:
        """Writes the policy with its present weights into an empty folder.

        Raises:
          OSError, tf.errors.OpError: It can't be written.
        """
        if self._weights is None or not all((self._newest / file).exists() for file in self._files):
            with _weights_saver_kept() as kept:
                self._saver.save(str(folder))
            files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
            self._files = [file for file in files if file.parts[0] not in (_VARIABLES, _FINGERPRINT)]
            (self._weights,) = kept
            return
        for file in self._files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._newest / file, folder / file)
        self._weights.save(str(folder / _VARIABLES / _VARIABLES))
        fingerprinting_utils.write_fingerprint(str(folder))

    def moved_to(self, folder: Path) -> None:
        """Where the newest one is now: the next takes its graph from there."""
        self._newest = folder


@contextlib.contextmanager
def _weights_saver_kept() -> Iterator[list[Any]]:
    """Yields a list that gets the TrackableSaver of each SavedModel written in the block: TensorFlow drops them."""
    build, kept = saved_model_save._build_meta_graph, list[Any]()

    def build_and_keep(*args: Any, **kwargs: Any) -> Any:
        built = build(*args, **kwargs)
        kept.append(built[2])
        return built

    saved_model_save._build_meta_graph = build_and_keep
    try:
        yield kept
    finally:
        saved_model_save._build_meta_graph = build
