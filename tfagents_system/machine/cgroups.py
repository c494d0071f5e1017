"""The cgroups of a process on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path


def groups(
    controller: str, membership: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")
) -> Iterator[tuple[bool, Sequence[Path]]]:
    """For each hierarchy with a controller: (whether it is version 2, folders of the group and of its ancestors)."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tops = (mounts / controllers, mounts / controller) if controllers else ()
        top = next((folder for folder in tops if folder.is_dir()), mounts)
        own = top / group.strip("/")
        # Inside a container the path may be the host's, which is missing here: the container's own group is the top.
        yield not controllers, (own, *(folder for folder in own.parents if folder.is_relative_to(top)))
