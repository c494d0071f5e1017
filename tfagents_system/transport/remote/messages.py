"""What the two ends of the channel say to each other: small typed records, read strictly.

    client                                gateway
    Hello                ------------>    Welcome | Refused
    Put (with arrays)    ------------>    Done
    Size, Newest         ------------>    SizeIs, NewestIs (with arrays)
    Follow               ------------>    News (with arrays), whenever there are
    Feed, Take           ------------>    Item (with arrays), as many as were asked for
    Beat, Log            ------------>
    Ping                 ------------>    Pong
    Goodbye              ------------>
                         <------------    End: the run is over

They are msgpack, decoded by msgspec into exactly these types; arrays travel beside them (frames.py).
"""

from __future__ import annotations

import hashlib
import json
import socket

import msgspec

import tfagents_system
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.overrides import Overrides

PROTOCOL = 2
KINDS = ("collect", "expert", "eval", "test", "trainer", "check")


class ArrayHead(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What an array is; its bytes come after the message."""

    dtype: str
    shape: list[int]


class _Message(msgspec.Struct, tag=True, array_like=True, forbid_unknown_fields=True):
    pass


class _WithArrays(_Message, kw_only=True):
    """A message that arrays follow."""

    arrays: list[ArrayHead] = []


class Hello(_Message):
    """The first message of a client.

    Attributes:
      kind: One of KINDS.
      identity: SHA-256 of the inputs that both sides must share, by name (see `identity_of`); a check may leave it out.
      worker_id: The wished slot; None takes any.
      token: Random, of one worker: whoever says it gets the slot that it had.
      password: Of SAC_PASSWORD_FILE; sent inside the encrypted channel alone.
    """

    kind: str
    identity: dict[str, str] = {}
    worker_id: int | None = None
    token: str = ""
    password: str = ""
    protocol: int = PROTOCOL
    version: str = tfagents_system.__version__
    host: str = ""

    def __repr__(self) -> str:  # Never the password or the token: this ends up in logs.
        return f"Hello({self.kind!r}, worker_id={self.worker_id}, version={self.version!r}, host={self.host!r})"


class Welcome(_Message):
    """The gateway takes a client in.

    Attributes:
      worker_id: The slot; -1 where the kind of client has none.
      seed: Of the run.
      num_collect_workers: The run's planned workers.
      max_workers: Its slots.
      settings: SAC_ variables of the run that a remote role takes over.
      run: The run's run.json, as text.
      gateway: Start of the gateway's process, in ns.
      version: Of its package.
      max_frame_bytes: Of the arrays of one message to it.
    """

    worker_id: int
    seed: int
    num_collect_workers: int
    max_workers: int
    settings: dict[str, str]
    run: str
    gateway: int
    version: str
    max_frame_bytes: int


class Refused(_Message):
    """The gateway ends the connection.

    Attributes:
      reason: One word, as it counts them.
      message: For the user: the rule, both sides' values, the remedy.
      final: Trying again is in vain.
    """

    reason: str
    message: str
    final: bool = True


class Put(_WithArrays):
    """One item for one or several tables. What is not waited for has ids below 0, which count up: see `Done`."""

    id: int
    tables: list[str]


class Done(_Message):
    """The item of this id is in its tables, or is to be sent again; below 0: all up to it, or all from it on."""

    id: int
    ok: bool


class Size(_Message):
    id: int
    table: str


class SizeIs(_Message):
    """Items in a table; None where the replay server does not answer."""

    id: int
    size: int | None


class Newest(_Message):
    id: int
    table: str


class NewestIs(_WithArrays):
    """The newest item of a table, unless it has none."""

    id: int
    found: bool


class Follow(_Message):
    """Send me what is new in a table, from now on."""

    table: str


class News(_WithArrays):
    table: str


class Feed(_WithArrays):
    """An item for an empty queue, before it is read (see `Connection.feed_dead_reader`)."""

    table: str


class Take(_Message):
    """I have room for `credits` more items of a queue; those up to number `seen` have arrived."""

    table: str
    credits: int
    seen: int


class Item(_WithArrays):
    """An item of a queue; they are numbered from 1 by each process of the gateway."""

    table: str
    number: int


class Beat(_Message):
    """The content of a heartbeat file, as JSON."""

    content: str


class Log(_Message):
    """Lines of a log, for the run's own logs."""

    name: str
    text: str


class Ping(_Message):
    pass


class Pong(_Message):
    pass


class Goodbye(_Message):
    """The client will not come back: its slot is free."""


class End(_Message):
    """The run is over: `done`, or `stopped` (it may go on later)."""

    why: str


FromClient = Hello | Put | Size | Newest | Follow | Feed | Take | Beat | Log | Ping | Goodbye
FromGateway = Welcome | Refused | Done | SizeIs | NewestIs | News | Item | Pong | End


def identity_of(paths: RunPaths) -> dict[str, str]:
    """What a run's inputs are, to be compared with another machine's: SHA-256 by name."""
    files = {"params": paths.params, "config": paths.config, "specs": paths.specs}
    contents = {name: path.read_bytes() for name, path in files.items()}
    overrides = Overrides.read(paths.overrides)  # Without the variables, which are each machine's own.
    contents["settings"] = json.dumps([overrides.params, overrides.config], sort_keys=True).encode()
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def this_host() -> str:
    return socket.gethostname()[:100]
