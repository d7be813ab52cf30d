"""The memory of a process by the operating system: its peak, and a limit for it."""

import contextlib
import errno
import sys
from pathlib import Path

import psutil

if sys.platform != "win32":
    import resource

HARD_LIMIT_MARGIN = 192 << 20
"""Bytes of address space that a hard limit allows besides tensors: free buffers, stacks."""


def peak_rss() -> int:
    """Return the maximum bytes of physical memory that this process has used."""
    # On Linux ru_maxrss survives exec, so it includes the peak of the parent before it.
    with contextlib.suppress(OSError, ValueError, StopIteration):
        status = Path("/proc/self/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def limit_address_space(limit: int) -> int:
    """Limit the address space to the bytes mapped now, plus `limit` and a margin.

    Returns:
        The bytes of address space allowed from now on.

    Raises:
        OSError: on a system without RLIMIT_AS.
    """
    if sys.platform == "win32":
        raise OSError("Windows has no RLIMIT_AS")
    # Size classes round buffers up by at most an eighth, huge pages by another eighth.
    allowed = psutil.Process().memory_info().vms + limit + limit // 4 + HARD_LIMIT_MARGIN
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        allowed = min(allowed, hard)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))
    return allowed


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether `error`, or an exception that caused it, reports lack of memory."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        error = error.__cause__ or error.__context__
    return False
