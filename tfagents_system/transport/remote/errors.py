"""What can go wrong between two machines."""

from __future__ import annotations

from tfagents_system.errors import UserError


class ChannelError(Exception):
    """The connection is broken, or carried something that is not a frame of ours: it is closed."""


class FrameError(ChannelError):
    """A frame is too long, malformed, or of an undeclared type."""


class CutShortError(ChannelError):
    """A message began, but its rest did not arrive."""


class GatewayRefusedError(UserError):
    """The gateway has refused this program for good; says why.

    Args:
      finding: What it said.
      reason: One word of it, as the gateway counts it.
    """

    def __init__(self, finding: str, reason: str = "refused") -> None:
        super().__init__(finding)
        self.reason = reason


class SlotLostError(Exception):
    """While this worker was out of reach its slot was given to another one: a new process of it gets another slot."""
