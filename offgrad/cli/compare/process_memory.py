"""What the operating system knows of a process's memory, and how to make it hold a limit."""

import contextlib
import errno
import sys
from pathlib import Path

import psutil

if sys.platform != "win32":
    import resource

HARD_LIMIT_MARGIN = 192 << 20
"""Bytes of address space a hard limit leaves beside tensors: for reuse of buffers, for stacks."""


def peak_rss() -> int:
    """Return the most bytes of physical memory this process has had."""
    # On Linux ru_maxrss lives through exec, and so begins at what the parent had.
    with contextlib.suppress(OSError, ValueError, StopIteration):
        status = Path("/proc/self/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def limit_address_space(limit: int) -> int:
    """Have the operating system refuse memory past what is mapped now, `limit` and a margin.

    Returns:
        The bytes of address space allowed from now on.

    Raises:
        OSError: where the system does not do that.
    """
    if sys.platform == "win32":
        raise OSError("Windows has no RLIMIT_AS")
    # Buffers are rounded up to size classes, at most an eighth, and to huge pages, another.
    allowed = psutil.Process().memory_info().vms + limit + limit // 4 + HARD_LIMIT_MARGIN
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        allowed = min(allowed, hard)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))
    return allowed


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether `error`, or what caused it, is that there is no memory left."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        error = error.__cause__ or error.__context__
    return False
