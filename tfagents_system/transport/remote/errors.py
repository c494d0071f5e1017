"""What can go wrong between two machines."""

from __future__ import annotations

from tfagents_system.errors import UserError


class ChannelError(Exception):
    """The connection is broken, or what came over it is no frame of ours: it is given up."""


class FrameError(ChannelError):
    """What came is too long, malformed, or of a type that was not declared."""


class CutShortError(ChannelError):
    """A message began, but its rest did not come."""


class GatewayRefusedError(UserError):
    """The gateway has refused this program, and would again; says why.

    Args:
      finding: What it said.
      reason: One word of it, as the gateway counts it.
    """

    def __init__(self, finding: str, reason: str = "refused") -> None:
        super().__init__(finding)
        self.reason = reason
