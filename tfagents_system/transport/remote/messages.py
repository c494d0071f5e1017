"""The messages between the two ends of the channel: small typed records, validated strictly.

    client                                gateway
    Hello                ------------>    Welcome | Refused
    Put (with arrays)    ------------>    Done
    Size, Newest         ------------>    SizeIs, NewestIs (with arrays)
    Follow               ------------>    News (with arrays), whenever there is any
    Feed, Take           ------------>    Item (with arrays), as many as requested
    Beat                 ------------>
    Ping                 ------------>    Pong
    Goodbye              ------------>
                         <------------    End: the run is over

They are msgpack, decoded by msgspec into exactly these types; arrays are sent beside them (frames.py).
"""

from __future__ import annotations

import hashlib
import json
import socket
from typing import Any

import msgspec

import tfagents_system
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.overrides import Overrides

PROTOCOL = 4
SLOT_LOST = "slot_lost"  # The reason of a refusal after which a worker's process begins anew.
KINDS = ("collect", "expert", "eval", "test", "trainer", "check")


class ArrayHead(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """An array's dtype and shape; its bytes follow the message."""

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
      worker_id: The requested slot; None takes any.
      token: Random secret of one worker: whoever presents it gets that worker's slot back.
      password: Of SAC_PASSWORD_FILE; only sent inside the encrypted channel.
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
    """The gateway accepts a client.

    Attributes:
      worker_id: The slot; -1 if this kind of client has none.
      max_workers: The run's slots.
      settings: Those of the run that a remote role takes over, see `Settings.shared`.
      run: The run's number in run.json, which another run of the same name does not have.
      gateway: Start of the gateway's process, in ns.
      version: Of its package.
    """

    worker_id: int
    max_workers: int
    settings: dict[str, Any]
    run: int
    gateway: int
    version: str


class Refused(_Message):
    """The gateway ends the connection.

    Attributes:
      reason: One word, as it counts them.
      message: For the user: the rule, both sides' values, the remedy.
      final: Trying again will not help.
    """

    reason: str
    message: str
    final: bool = True


class Put(_WithArrays):
    """One item for one or several tables."""

    id: int
    tables: list[str]


class Done(_Message):
    """The item of this id is in its tables, or is to be sent again."""

    id: int
    ok: bool


class Size(_Message):
    id: int
    table: str


class SizeIs(_Message):
    """Items in a table; None if the replay server does not answer."""

    id: int
    size: int | None


class Newest(_Message):
    id: int
    table: str


class NewestIs(_WithArrays):
    """The newest item of a table, if it has one."""

    id: int
    found: bool


class Follow(_Message):
    """Asks for all new items of a table from now on."""

    table: str


class News(_WithArrays):
    table: str


class Feed(_WithArrays):
    """An item for an empty queue, before it is read (see `Connection.feed_dead_reader`)."""

    table: str


class Take(_Message):
    """The client has room for `credits` more items of a queue; those up to number `seen` have arrived."""

    table: str
    credits: int
    seen: int


class Item(_WithArrays):
    """An item of a queue; each process of the gateway numbers them from 1."""

    table: str
    number: int


class Beat(_Message):
    """The content of a heartbeat file, as JSON."""

    content: str


class Ping(_Message):
    pass


class Pong(_Message):
    pass


class Goodbye(_Message):
    """The client will not return: its slot is free."""


class End(_Message):
    """The run is over: `done`, or `stopped` (it may be resumed later)."""

    why: str


FromClient = Hello | Put | Size | Newest | Follow | Feed | Take | Beat | Ping | Goodbye
FromGateway = Welcome | Refused | Done | SizeIs | NewestIs | News | Item | Pong | End


def identity_of(paths: RunPaths, overrides: Overrides) -> dict[str, str]:
    """SHA-256 of each of a run's inputs by name, for comparison with another machine's."""
    files = {"params": paths.params, "config": paths.config, "specs": paths.specs}
    contents = {name: path.read_bytes() for name, path in files.items()}
    if paths.reward.exists():  # Runs have it where their JSON names one.
        contents["reward"] = paths.reward.read_bytes()
    # Without the variables, each machine's own, and defaults, which workers are told.
    contents["settings"] = json.dumps([overrides.params, overrides.config], sort_keys=True).encode()
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def this_host() -> str:
    return socket.gethostname()[:100]
