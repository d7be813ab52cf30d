"""A memory cgroup for a process: Linux counts its page cache, too, and kills it beyond the limit.

A group can be made where this process may write its own group's folder: mostly as root, in the
first version of cgroups, or in the second one where processes are in groups of their own.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Self

_FILES = {  # the peak's by the limit's, of both versions of cgroups
    "memory.limit_in_bytes": "memory.max_usage_in_bytes",
    "memory.max": "memory.peak",
}


class MemoryCgroup:
    """A group inside that of this process. It ends with the ``with`` block, after its processes.

    Args:
        nbytes: its limit.

    Raises:
        OSError: if no group can be made here; the message says why.
    """

    def __init__(self, nbytes: int) -> None:
        self._folder = _own_folder() / f"offgrad-{os.getpid()}-{id(self)}"
        self._folder.mkdir()
        try:
            limit = next((each for each in _FILES if (self._folder / each).exists()), None)
            if limit is None:
                raise OSError(f"{self._folder.parent} does not control the memory of its groups")
            (self._folder / limit).write_text(f"{nbytes}")
            self._peak = self._folder / _FILES[limit]
        except BaseException:
            self._folder.rmdir()
            raise

    def add(self, process: int) -> None:
        """Move a process into the group: what it allocates from now on counts."""
        (self._folder / "cgroup.procs").write_text(f"{process}")

    @property
    def peak_nbytes(self) -> int | None:
        """The maximum of what has counted, page cache included; None if the kernel is too old."""
        return int(self._peak.read_text()) if self._peak.exists() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):  # a process is left
            self._folder.rmdir()


def _own_folder() -> Path:
    """Return the folder of this process's memory group."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / group.lstrip("/")
        if not controllers and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            return Path("/sys/fs/cgroup") / group.lstrip("/")
    raise OSError("the system has no memory cgroups")
