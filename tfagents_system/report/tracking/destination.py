"""What metrics are sent to, as the tracker sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tfagents_system.report.tracking.rows import Sent


class Destination(Protocol):
    """Weights & Biases, or MLflow.

    Any method may raise anything, and may take as long as the network does.

    Attributes:
      name: For messages.
    """

    name: str

    def begin(self, resolved: Mapping[str, Any]) -> Sent:
        """Begins the run there, or goes on with it, and says what of it is there.

        Args:
          resolved: The run's settings, see told_settings.
        """

    def send(self, row: Mapping[str, float]) -> None:
        """One row; it may wait for `flush`."""

    def flush(self) -> None:
        """All rows so far are on their way when this returns."""

    def finish(self, is_done: bool) -> None:
        """The run has ended there, or is to go on later."""

    def has_refused(self, error: Exception) -> bool:
        """Whether a method has raised this because what was sent is not accepted there, though it is reached."""

    def where(self) -> str:
        """For the user: where it is to be seen, or the command that sends it there."""
