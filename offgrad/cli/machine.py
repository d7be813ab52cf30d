"""A description of the machine, for results that others compare with theirs."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from offgrad_storage import spill_directory

from offgrad.cli.drive import describe_folder
from offgrad.kernels import _blas, _openblas
from offgrad.kernels._waiting import usable_cpus
from offgrad.profiler import machine

if sys.platform != "win32":
    import resource

VARIABLES = (
    *("OFFGRAD_NUM_THREADS", "OFFGRAD_KERNELS", "OFFGRAD_SPILL_DIR", "NUMBA_CACHE_DIR"),
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY"),
    *("OPENBLAS_CORETYPE", "OPENBLAS_THREAD_TIMEOUT", "MALLOC_ARENA_MAX"),
)
"""The environment variables that change speed or memory."""

_LEVELS = (
    ("AVX-512", ({"X86_V4"}, {"AVX512_SKX"})),
    ("AVX2", ({"X86_V3"}, {"AVX2", "FMA3"})),
    ("NEON", ({"NEON"}, {"ASIMD"})),
    ("SSE4.2", ({"X86_V2"}, {"SSE42"})),
)
_NO_LIMIT = 1 << 60
"""The first version of cgroups writes no limit as a number of this size."""


def describe_machine(directory: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return what decides speed and memory here; sizes in bytes, None where it is unknown.

    Args:
        directory: the folder whose drive is described; None for the spill directory.

    Raises:
        OSError: the folder cannot be made or read.
        ValueError: OFFGRAD_NUM_THREADS or OFFGRAD_KERNELS is invalid.
    """
    return machine.describe_machine() | {
        "simd": simd_level(),
        "cores": psutil.cpu_count(logical=False),
        "usable_threads": usable_cpus(),
        "blas_threads": _blas.blas_threads(),
        "limits": memory_limits(),
        "huge_pages": huge_pages(),
        "blas": blas(),
        "drive": describe_folder(spill_directory(directory)),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def simd_level() -> str | None:
    """Return the widest vector instructions of the processor, such as "AVX2"."""
    features = _openblas.cpu_features()
    for name, sets in _LEVELS:
        if any(each <= features for each in sets):
            return name
    return None


def blas() -> str:
    """Return name and version and, for OpenBLAS, its kernels: speed and bits depend on them."""
    from threadpoolctl import threadpool_info

    found = [each for each in threadpool_info() if each["user_api"] == "blas"]
    text = ", ".join(f"{each['internal_api']} {each['version']}" for each in found)
    library = _openblas.library()
    return text if library is None else f"{text} with kernels for {library.core()}"


def huge_pages() -> str | None:
    """Return the kernel's setting of transparent huge pages: "always", "madvise" or "never"."""
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return None
    return text.partition("[")[2].partition("]")[0] or None


def memory_limits() -> dict[str, int | None]:
    """Return the limits of this process's memory that the system enforces; None for no limit.

    ``address_space`` and ``data`` are RLIMIT_AS and RLIMIT_DATA, ``file_size`` is RLIMIT_FSIZE, and
    ``cgroup`` is the tightest limit of the groups (or container) that this process is in.
    """
    limits: dict[str, int | None] = {"cgroup": _cgroup_limit()}
    if sys.platform != "win32":
        names = {"address_space": "RLIMIT_AS", "data": "RLIMIT_DATA", "file_size": "RLIMIT_FSIZE"}
        for key, name in names.items():
            soft, _ = resource.getrlimit(getattr(resource, name))
            limits[key] = None if soft == resource.RLIM_INFINITY else soft
    return limits


def cpu_quota() -> float | None:
    """Return the processors' worth of time that the system grants this process; None for all."""
    found: list[float] = []
    for text in _cgroup_texts("cpu", ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        quota, _, period = text.partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def _cgroup_limit() -> int | None:
    texts = _cgroup_texts("memory", ("memory.max",), ("memory.limit_in_bytes",))
    found = [int(text) for text in texts if text.isdecimal()]
    return min((each for each in found if each < _NO_LIMIT), default=None)


def _cgroup_texts(
    controller: str, new_names: tuple[str, ...], old_names: tuple[str, ...]
) -> Iterator[str]:
    """Yield what files say about the groups of this process, innermost first.

    Args:
        controller: the resource.
        new_names: of the files in the present version of cgroups.
        old_names: in the first version; what the files say is joined by blanks.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            root, names = Path("/sys/fs/cgroup"), new_names
        elif controller in controllers.split(","):
            root, names = Path("/sys/fs/cgroup") / controller, old_names
        else:
            continue
        # Inside a container the path may be that of the host: the root then has the limit.
        place = Path(group.lstrip("/"))
        for folder in (place, *place.parents):
            with suppress(OSError):
                yield " ".join((root / folder / each).read_text().strip() for each in names)
