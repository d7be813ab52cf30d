"""The checks: each looks at one thing, and says what to do if it is wrong."""

import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from offgrad import kernels
from offgrad._config import blas_config, cpu_name, versions
from offgrad.cli import machine
from offgrad.cli.drive import describe_folder
from offgrad.cli.folders import check_spill_directory
from offgrad.kernels import _bfloat16_tiles, _blas, _openblas, _warmup
from offgrad.kernels._waiting import usable_cpus
from offgrad.memory import format_nbytes

FINE, NOTE, WRONG = "fine", "note", "wrong"

_MIN_FREE_NBYTES = 4 << 30
_MIN_ADDRESS_SPACE_NBYTES = 1 << 30
"""Stacks of threads and free buffers take some hundred MiB besides the tensors."""


class Finding(NamedTuple):
    """What one check has found.

    Attributes:
        topic: what was looked at.
        state: FINE; NOTE, for what could be better; or WRONG.
        text: what is there.
        remedy: what to do; None if nothing is wrong.
    """

    topic: str
    state: str
    text: str
    remedy: str | None = None


def findings(directory: str | None) -> Iterator[Finding]:
    """Check everything, and yield what was found as it is found.

    Args:
        directory: of spill files; None for the default.
    """
    for topic, check in _CHECKS.items():
        yield _guarded(topic, check)
    yield from spill_folder(directory)


def _guarded(topic: str, check: Callable[[], Finding]) -> Finding:
    """Return what `check` finds; an invalid setting is a finding, too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return check()
    except (ValueError, ImportError, OSError) as error:
        text = " ".join(str(error).split())
        return Finding(topic, WRONG, text, _setting_to_unset(text))


def _setting_to_unset(text: str) -> str:
    named = [name for name in machine.VARIABLES if name in text]
    return f"correct or unset {named[0]}" if named else "correct what the message names"


def _versions() -> Finding:
    found = {"python": platform.python_version(), **versions()}
    text = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
    for name in ("numba", "zarr", "numcodecs", "ml_dtypes"):
        try:
            import_module(name)
        except ImportError as error:
            return Finding(
                "Versions", WRONG, f"{text}; {name} cannot be imported: {error}", _reinstall(name)
            )
    return Finding("Versions", FINE, text)


def _reinstall(name: str) -> str:
    if name == "numba":
        return "pip install numba; without it kernels run on NumPy, several times slower"
    # A release of zfpy replaces NumPy's and breaks all that numcodecs imports.
    return f"pip install --force-reinstall {name}; pip uninstall zfpy if it is 1.0.1.post0"


def _cpu() -> Finding:
    cores, level = psutil.cpu_count(logical=False), machine.simd_level()
    text = f"{cpu_name()}; {cores} cores, {psutil.cpu_count()} threads; {level}"
    if level not in ("AVX2", "AVX-512", "NEON"):
        return Finding("CPU", NOTE, text, "none: kernels run, but without wide vectors")
    return Finding("CPU", FINE, text)


def _blas_library() -> Finding:
    remedy = blas_config().get("remedy")
    if _openblas.library() is None:
        return Finding(
            "BLAS",
            NOTE,
            f"{machine.blas() or 'unknown'}; offgrad can neither see its kernels nor choose them",
            "pip install numpy (from PyPI it comes with OpenBLAS), if products are slow",
        )
    return Finding("BLAS", WRONG if remedy else FINE, machine.blas(), remedy)


def thread_counts() -> Finding:
    """Compare the threads of kernels and BLAS with the processors that are granted."""
    usable, quota = usable_cpus(), machine.cpu_quota()
    count, products = kernels.get_num_threads(), _blas.blas_threads()
    set_ = [
        f"{name}={os.environ[name]}"
        for name in machine.VARIABLES
        if "THREADS" in name and name in os.environ
    ]
    text = f"{count} in kernels, {products} in BLAS, {usable} usable"
    text += f" ({quota:g} by the cgroup)" if quota is not None else ""
    text += f"; {', '.join(set_)}" if set_ else ""
    if quota is not None and count > max(1.0, quota):
        return Finding("Threads", WRONG, text, f"set OFFGRAD_NUM_THREADS={max(1, int(quota))}")
    if max(count, products or 1) > usable:
        remedy = f"set OFFGRAD_NUM_THREADS={usable}: more threads than processors wait for another"
        return Finding("Threads", WRONG, text, remedy)
    if min(count, products or count) < usable:
        return Finding(
            "Threads", NOTE, text, f"set OFFGRAD_NUM_THREADS={usable}, unless that is intended"
        )
    return Finding("Threads", FINE, text)


def _kernels() -> Finding:
    backend = kernels.backend()
    if backend == "numpy":
        remedy = "unset OFFGRAD_KERNELS" if "OFFGRAD_KERNELS" in os.environ else "install numba"
        text = "NumPy: several times slower than compiled kernels"
        return Finding("Kernels", WRONG, text, remedy)
    products = _bfloat16_tiles.instructions().upper() or "float32"
    return Finding("Kernels", FINE, f"compiled by Numba; products of bfloat16 in {products}")


def _cache() -> Finding:
    if kernels.backend() == "numpy":
        return Finding("Cache", FINE, "not needed: nothing is compiled")
    cached, loops, folder = _warmup.cache()
    if folder is None:
        return Finding(
            "Cache",
            WRONG,
            "compiled kernels cannot be cached, so each process compiles them again",
            "set NUMBA_CACHE_DIR to a folder that can be written to",
        )
    text = f"{cached} of {loops} kernels in {folder}"
    if cached < loops:
        remedy = "offgrad warmup; else the others are compiled at their first use"
        return Finding("Cache", NOTE, text, remedy)
    return Finding("Cache", FINE, text)


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    text = f"{format_nbytes(memory.total)}, {format_nbytes(memory.available)} available"
    limit = machine.memory_limits()["cgroup"]
    if limit is not None and limit < memory.total:
        text += f"; the cgroup (container) allows {format_nbytes(limit)}"
        return Finding(
            "Memory",
            NOTE,
            text,
            f"train with a limit below that, such as offgrad run --memory-limit "
            f"{limit * 3 // 4 >> 20}MiB: past it the system kills the process",
        )
    return Finding("Memory", FINE, text)


def _limits() -> Finding:
    limits = machine.memory_limits()
    names = {"address_space": "RLIMIT_AS", "data": "RLIMIT_DATA", "file_size": "RLIMIT_FSIZE"}
    text = ", ".join(
        f"{name} {format_nbytes(limit)}"
        for key, name in names.items()
        if (limit := limits.get(key)) is not None
    )
    remedy = None
    used = psutil.Process().memory_info().vms
    for key, option in (("address_space", "-v"), ("data", "-d")):
        limit = limits.get(key)
        if limit is not None and limit - used < _MIN_ADDRESS_SPACE_NBYTES:
            remedy = f"raise it (ulimit {option}): {format_nbytes(used)} are mapped already"
    size = limits.get("file_size")
    if size is not None and size < _MIN_FREE_NBYTES:
        remedy = "raise it (ulimit -f): spill files grow up to it and no further"
    return Finding("Limits", WRONG if remedy else FINE, text or "none", remedy)


def _huge_pages() -> Finding:
    setting = machine.huge_pages()
    if setting == "never":
        return Finding(
            "Huge pages",
            WRONG,
            "never: large tensors cost many page faults, and direct writes half the speed",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    known = sys.platform == "linux" and setting is not None
    return Finding("Huge pages", FINE if known else NOTE, setting or "unknown", None)


def spill_folder(directory: str | None) -> Iterator[Finding]:
    """Check the folder, its drive, its free space, and whether O_DIRECT works."""
    other = "--directory" if directory is not None else "OFFGRAD_SPILL_DIR"
    try:
        folder = check_spill_directory(directory)
    except ValueError as error:
        yield Finding("Spill folder", WRONG, str(error), f"set {other} to a folder on a drive")
        return
    drive = describe_folder(folder)
    yield _drive(folder, drive, other)
    yield _free_space(drive, other)
    if drive["is_memory"]:
        return
    if drive["direct_io"]:
        yield Finding("Direct I/O", FINE, "O_DIRECT works: writes pass by the page cache")
    else:
        yield Finding(
            "Direct I/O",
            NOTE,
            f"no O_DIRECT on {drive['file_system']}: writes fill the page cache and slow computing",
            f"set {other} to a folder on ext4 or xfs",
        )


def _drive(folder: Path, drive: dict[str, Any], other: str) -> Finding:
    text = f"{folder}: {drive['file_system']} on {drive['drive']}"
    if drive["is_memory"]:
        return Finding(
            "Spill folder",
            WRONG,
            f"{text}: what is spilled there still takes memory",
            f"set {other} to a folder on a drive, such as /var/tmp",
        )
    if drive["drive"].startswith(("network", "folder of the host")):
        return Finding("Spill folder", NOTE, text, f"set {other} to a folder on a local drive")
    if drive["drive"].startswith("rotating"):
        return Finding("Spill folder", NOTE, text, f"set {other} to a folder on an SSD")
    return Finding("Spill folder", FINE, f"{text}; its rates: offgrad bench-storage {folder}")


def _free_space(drive: dict[str, Any], other: str) -> Finding:
    free = drive["free_nbytes"]
    text = f"{format_nbytes(free)} of {format_nbytes(drive['total_nbytes'])} free"
    if free < _MIN_FREE_NBYTES:
        return Finding("Free space", WRONG, text, f"free some, or set {other} to another folder")
    return Finding("Free space", FINE, text)


_CHECKS: dict[str, Callable[[], Finding]] = {
    "Versions": _versions,
    "CPU": _cpu,
    "BLAS": _blas_library,
    "Threads": thread_counts,
    "Kernels": _kernels,
    "Cache": _cache,
    "Memory": _memory,
    "Limits": _limits,
    "Huge pages": _huge_pages,
}
