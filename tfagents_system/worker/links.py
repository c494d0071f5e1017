"""What connects a worker with the replay server and with its supervisor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tfagents_system.envs import specs
from tfagents_system.envs.devices import Device
from tfagents_system.role import Role
from tfagents_system.transport.connection import Connection
from tfagents_system.transport.run_layout import run_layout
from tfagents_system.worker.activity import Beats
from tfagents_system.worker.background import (
    AnyConnection,
    AnySender,
    BackgroundConnection,
    BackgroundHeartbeat,
    BackgroundSender,
    Chore,
)
from tfagents_system.worker.progress import ProgressReader
from tfagents_system.worker.sender import SegmentSender


@dataclasses.dataclass(frozen=True)
class Links:
    """Of one worker. In real time nothing of it blocks.

    Attributes:
      connection: To the replay server.
      sender: Sends segments.
      progress: Of the trainer.
      heartbeat: Takes heartbeats.
      look: Calls a function that only looks at something, now or in a thread.
      call: Calls a function that makes something and sends it through the connection that it is called with, now or
        in the sender's thread.
      is_real_time: The worker steps a device, which does not wait.
    """

    connection: AnyConnection
    sender: AnySender
    progress: ProgressReader
    heartbeat: Beats
    look: Callable[[Callable[[], None]], None]
    call: Callable[[Callable[[Connection], None]], None]
    is_real_time: bool


def make_links(
    role: Role, worker_id: int, connection: Connection, incarnation: int, straggler_secs: float, device: Device | None
) -> Links:
    """Of a worker whose connection is up; arguments as of SegmentSender and ProgressReader.

    Args:
      device: That it steps. A deterministic run's does not run by a real clock.
    """
    sender = SegmentSender(
        connection,
        worker_id,
        incarnation,
        is_patient=role.deterministic,
        max_bundle_rows=_max_bundle_rows(role),
    )
    if device is None or role.deterministic:
        progress = ProgressReader(connection, worker_id, straggler_secs)
        return Links(
            connection, sender, progress, role.heartbeat, _at_once, lambda function: function(connection), False
        )
    params = role.params
    outgoing = BackgroundSender(sender, params.max_unsent_mb, is_lockstep=not params.asynchronous)
    unblocked = BackgroundConnection(connection, outgoing)
    progress = ProgressReader(unblocked, worker_id, straggler_secs)
    heartbeat = BackgroundHeartbeat(role.heartbeat)

    def call(function: Callable[[Connection], None]) -> None:
        outgoing.call(lambda: function(connection))  # `unblocked` would have it wait once more, behind what came since.

    return Links(unblocked, outgoing, progress, heartbeat, Chore("look").begin, call, True)


def _at_once(function: Callable[[], None]) -> None:
    function()


def _max_bundle_rows(role: Role) -> int:
    """Short segments of an iteration of steps go together: at most as many rows as the longest segment has."""
    if role.params.env_steps_per_iter is None:
        return 0
    layout = run_layout(role.params, *specs.load_specs(role.paths.specs))
    return layout.max_segment_steps(role.params.sample_form_ctor().sequence_length)
