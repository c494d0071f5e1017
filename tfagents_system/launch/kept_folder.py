"""The copy of a params file's folder that a run begins with: what is checked is what runs."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.checks.checklist import Check, Checklist, counted
from tfagents_system.run_files import params_folder

_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_NEVER_KEPT = ("exp_dir", "logs_dir", "password_file", "credentials_dir")
_COPY = "sac_params_"  # Folders of that name in the temporary one are ours.


class KeptFolder:
    """Copies the folder of SAC_PARAMS for a run that begins.

    Attributes:
      copy: The temporary copy; None if there is none.
      digests: Digests of its files, by relative path.
    """

    def __init__(self) -> None:
        self.copy: Path | None = None
        self._made: tempfile.TemporaryDirectory[str] | None = None  # Also removed where nobody calls `close`.
        self.digests: dict[str, str] = {}
        self._original = Path()

    def take(self, values: Mapping[str, Any], check: Check) -> None:
        """Copies the folder.

        Args:
          values: The variables that could be read, by field.
          check: Gets what was found.
        """
        params: Path | None = values.get("params")
        if params is None or params_folder.is_kept_otherwise(params):
            return
        left_out = [values[name] for name in _NEVER_KEPT if name in values]
        try:
            files = params_folder.files_of(params.parent, left_out)
            digests = params_folder.digests_of(params.parent, files)
            self._made = tempfile.TemporaryDirectory(prefix=_COPY, ignore_cleanup_errors=True)
            self.copy, self.digests = Path(self._made.name).resolve(), digests
            self._original = params.parent
            params_folder.copy_files(params.parent, digests, self.copy)
            check.facts.append(f"{params.parent}: {counted(len(digests), 'file')} kept for the run")
        except params_folder.TooLargeError as error:
            check.notes.append(f"{error}: {_only_the_file(params)}")
        except OSError as error:
            check.errors.append(self._fault(error))

    def _fault(self, error: OSError) -> str:
        """What could not be read, or not be written: of a full disk, `shutil` names the file that it read."""
        of_copy = self.copy is not None and str(error.filename).startswith(str(self.copy))
        if error.filename is None or of_copy or error.errno in _NOT_WRITTEN:
            where = f" in {self.copy.parent}" if self.copy is not None else ""
            return (
                f"the folder of SAC_PARAMS can't be copied{where} ({error.strerror}): free space there, or set TMPDIR "
                "to another folder"
            )
        return (
            f"{error.filename} in the folder of SAC_PARAMS can't be read ({error.strerror}): the run keeps a copy "
            "of the folder. Make it readable"
        )

    @property
    def copy_and_original(self) -> str:
        """Both folders, as faults.SHOW_TRACES has them."""
        return f"{self.copy}{os.pathsep}{self._original}"

    def told_of_original(self, found: Checklist) -> Checklist:
        """Names the originals in what was found in the copy, and says where the copy may be the reason for an error."""
        if self.copy is None:
            return found
        found.replace(str(self.copy), str(self._original))
        if any(error in text for text in found.errors for error in ("ModuleNotFound", "ImportError", "FileNotFound")):
            found["params folder"].notes.append(
                f"the run has a copy of {self._original} and runs it: what is outside of that folder is not found by "
                "a path that is relative to a file in it. Give an absolute one"
            )
        return found

    def close(self) -> None:
        """Removes the copy."""
        if self._made is not None:
            self._made.cleanup()


def _only_the_file(params: Path) -> str:
    return (
        f"only {params.name} is kept, and an edit of what it imports would change a resumed run. Move it and what it "
        "imports into a folder of their own"
    )
