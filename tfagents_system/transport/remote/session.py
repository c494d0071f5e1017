"""One authenticated client of the gateway: its messages are checked and carried out."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from absl import logging

from tfagents_system.machine.files import write_json
from tfagents_system.run_files.heartbeat import MOST_BYTES, parse_beat
from tfagents_system.run_files.run_paths import TRAINER, worker_role
from tfagents_system.transport import tables
from tfagents_system.transport.remote import messages
from tfagents_system.transport.remote.errors import ChannelError, CutShortError, FrameError
from tfagents_system.transport.remote.frames import Arrays, Limits
from tfagents_system.transport.remote.stream import Transport

if TYPE_CHECKING:
    from tfagents_system.transport.remote.gateway import Gateway

IDLE_SECS = 30.0  # Clients say something every few seconds.
_ALIVE_SECS = 5.0  # Clients give a silent gateway up after 30 s.
_PUT_SECS = 5.0


class Session:
    """One authenticated client.

    Args:
      gateway: It belongs to.
      transport: To the client.
      hello: What it said.
      peer: Its address.

    Attributes:
      kind: One of messages.KINDS.
      worker_id: Its slot; -1 where it has none.
    """

    def __init__(self, gateway: Gateway, transport: Transport, hello: messages.Hello, peer: str) -> None:
        facts = gateway.facts
        body_bytes = {"trainer": facts.max_trainer_bytes, "check": 0}.get(hello.kind, facts.max_worker_bytes)
        self.limits = Limits(MOST_BYTES, body_bytes)
        self.transport = transport
        self.peer = peer
        self.token = hello.token
        self.kind, self.worker_id = hello.kind, -1
        self._gateway = gateway
        self.wished = hello.worker_id
        self.host = hello.host[:100]
        self._has_said_goodbye = False
        self._alive_at = 0.0

    @property
    def name(self) -> str:
        """Name of the role in logs and heartbeats."""
        return {"trainer": TRAINER, "check": "check"}.get(self.kind) or worker_role(self.worker_id)

    def run(self) -> None:
        """Serves the client until it or the connection ends; `end` must follow."""
        try:
            while not self._has_said_goodbye:
                self._alive_at = time.monotonic() + _ALIVE_SECS
                message, arrays = self.transport.receive(
                    messages.FromClient, self.limits, IDLE_SECS, on_part=self._say_alive
                )
                self._answer(message, arrays)
        except FrameError as error:
            self._gateway.refusals.add("frame", f"{self.name} at {self.peer}", str(error))
            with contextlib.suppress(ChannelError):
                self.transport.send(messages.Refused("frame", str(error)))
        except CutShortError as error:
            self._gateway.refusals.add("truncated", f"{self.name} at {self.peer}", str(error))
        except ChannelError as error:
            logging.info("%s at %s: %s", self.name, self.peer, error)

    def end(self) -> None:
        """Releases everything it holds; also works before `run` has begun."""
        self.transport.shut()
        self._gateway.sharing.forget(self, self.send_item)
        if self.worker_id >= 0:
            self._gateway.slots.leave(self.worker_id, self, for_good=self._has_said_goodbye)

    def tell_end(self, why: str) -> None:
        """Tells the client that the run is over."""
        with contextlib.suppress(ChannelError):
            self.transport.offer(messages.End(why))

    def send_news(self, arrays: Arrays) -> None:
        """Raises: ChannelError."""
        self.transport.offer(messages.News(tables.news(self.worker_id)), arrays)

    def send_item(self, table: str, number: int, arrays: Arrays) -> None:
        """Raises: ChannelError."""
        self.transport.send(messages.Item(table, number), arrays)

    def _say_alive(self) -> None:
        """Called while a message arrives: its sender takes a gateway that is silent for long for a dead one."""
        if time.monotonic() >= self._alive_at:
            self._alive_at = time.monotonic() + _ALIVE_SECS
            self.transport.send_unless_busy(messages.Pong())

    def _answer(self, message: messages.FromClient, arrays: Arrays) -> None:
        sharing, send = self._gateway.sharing, self.transport.send
        match message:
            case messages.Ping():
                self.transport.send_unless_busy(messages.Pong())
            case messages.Put():
                self._put(message, arrays)
            case messages.Newest():
                newest = sharing.newest(message.table)
                send(messages.NewestIs(message.id, newest is not None), newest or ())
            case messages.Size():
                send(messages.SizeIs(message.id, sharing.connection.size(message.table)))
            case messages.Follow():
                sharing.news.add(self)
            case messages.Feed():
                sharing.feed(message.table, arrays)
            case messages.Take():
                sharing.queue(message.table).take(self.send_item, message.credits, message.seen)
            case messages.Beat():
                self._beat(message.content)
            case messages.Goodbye():
                self._has_said_goodbye = True
            case _:
                raise FrameError("a second hello")

    def _put(self, message: messages.Put, arrays: Arrays) -> None:
        ok = self._gateway.sharing.connection.try_put(message.tables, arrays, _PUT_SECS)
        self.transport.send(messages.Done(message.id, ok))

    def _beat(self, text: str) -> None:
        """Stores the client's heartbeat as if written here: we name its role, and its times are by our clock."""
        beat = parse_beat(text.encode(errors="replace"))
        if beat is None:
            raise FrameError("a heartbeat that is no JSON object with a state")
        if self.kind == "check":
            return
        now = time.time()
        ago = beat.get("time", 0.0) - beat.get("since", 0.0) if {"time", "since"} <= beat.keys() else 0.0
        ours = {"role": self.name, "host": self.host, "remote": True, "time": now}
        content = {**beat, **ours, "since": min(now, max(0.0, now - ago))}
        with contextlib.suppress(OSError):  # As with a heartbeat here, a full disk is no error.
            write_json(self._gateway.facts.paths.heartbeat(self.name), content)
