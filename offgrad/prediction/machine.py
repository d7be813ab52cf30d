"""Machine: the rates of a drive and of memory, measured once for each device and remembered."""

import json
import os
import platform
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from offgrad_storage import DiskStore
from offgrad_storage.files.spill_directory import spill_directory

from offgrad import memory
from offgrad.session.named_stores import INFLIGHT_NBYTES, THREADS

_VERSION = 1
_NBYTES = 128 << 20  # written and read to measure a drive
_LARGE_NBYTES, _SMALL_NBYTES = 4 << 20, 1 << 20
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


@dataclass(frozen=True)
class Machine:
    """What stores cost on this machine. Rates are in bytes per second.

    Attributes:
        write_rate, read_rate: of the drive, with the threads of a default store.
        write_seconds, read_seconds: for each array, besides its bytes.
        copy_rate: of copies in memory.
        pack_seconds, unpack_seconds: that a session takes for each tensor that it does not keep.
        slowdown: how much longer computing takes while the drive is busy: 0.05 for 5%.
    """

    write_rate: float = 1e9
    read_rate: float = 1e9
    write_seconds: float = 2e-4
    read_seconds: float = 2e-4
    copy_rate: float = 6e9
    pack_seconds: float = 6e-5
    unpack_seconds: float = 4e-5
    slowdown: float = 0.0

    def with_bandwidth(self, rate: float) -> Self:
        """Return the same machine with a drive of that rate, for writes and reads."""
        return replace(self, write_rate=rate, read_rate=rate)


def parse_rate(rate: float | str) -> float:
    """Return bytes per second, given as a number or as text, such as ``"1GB/s"``.

    Raises:
        ValueError: if it is no rate, or not positive.
        TypeError: if it is neither a number nor text.
    """
    if isinstance(rate, str):
        text = rate.strip().lower().removesuffix("/s").strip()
        try:
            rate = float(text)
        except ValueError:
            try:
                rate = float(memory.parse_nbytes(text if text.endswith("b") else f"{text}B"))
            except ValueError:
                raise ValueError(f"a bandwidth is text such as '1GB/s', got {rate!r}") from None
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise TypeError(f"a bandwidth is a number or text, got {type(rate).__name__}")
    if not 0 < rate < float("inf"):
        raise ValueError(f"a bandwidth is positive, got {rate:g} bytes per second")
    return float(rate)


def machine_facts() -> dict[str, str]:
    """Return facts of this machine, as text."""
    return {"system": platform.platform(terse=True), "cores": str(os.cpu_count())}


def measured(directory: str | os.PathLike[str] | None = None, *, again: bool = False) -> Machine:
    """Return the machine with the drive of `directory`: as remembered, or measured now.

    Measuring takes about a second, and writes 128 MiB.

    Args:
        directory: where stores write; None for their default.
        again: measure also what is remembered.

    Raises:
        StoreError: the drive cannot be used.
    """
    key = _device_of(directory)
    known = _load()
    if not again and key in known:
        return known[key]
    machine = measure(directory)
    _save({**known, key: machine})
    return machine


def remembered(directory: str | os.PathLike[str] | None = None) -> Machine | None:
    """Return the machine with the drive of `directory`; None if that was never measured."""
    try:
        return _load().get(_device_of(directory))
    except (OSError, ValueError):  # no such folder: a store will say so
        return None


def measure(directory: str | os.PathLike[str] | None = None) -> Machine:
    """Measure the drive of `directory`, and copies in memory, with a store of a session's kind."""
    with DiskStore(
        directory,
        allocate=memory.empty,
        hold=memory.empty,
        inflight_nbytes=INFLIGHT_NBYTES,
        threads=THREADS,
        max_pack_nbytes=0,
    ) as store:
        _transfer(store, _LARGE_NBYTES)  # the file gets its space
        large_write, large_read = _transfer(store, _LARGE_NBYTES)
        small_write, small_read = _transfer(store, _SMALL_NBYTES)
    write_seconds, write_rate = _fit(large_write, small_write)
    read_seconds, read_rate = _fit(large_read, small_read)
    return Machine(
        write_rate=write_rate,
        read_rate=read_rate,
        write_seconds=write_seconds,
        read_seconds=read_seconds,
        copy_rate=_copy_rate(),
    )


def _transfer(store: Any, nbytes: int) -> tuple[float, float]:
    """Return the seconds for each array to write and to read arrays of a size."""
    count = _NBYTES // 2 // nbytes
    source = memory.empty((nbytes,), np.uint8)
    source[...] = np.arange(nbytes, dtype=np.uint32).astype(np.uint8)
    began = time.perf_counter()
    handles = [store.put(source) for _ in range(count)]
    store.flush()
    written = time.perf_counter()
    ahead = 4
    for index, handle in enumerate(handles):
        for later in handles[index : index + ahead]:
            later.prefetch()
        handle.get()
    return (written - began) / count, (time.perf_counter() - written) / count


def _fit(large: float, small: float) -> tuple[float, float]:
    """Return the seconds for an array and the rate that explain the times of both sizes."""
    rate = (_LARGE_NBYTES - _SMALL_NBYTES) / max(large - small, large / 8)
    return max(0.0, large - _LARGE_NBYTES / rate), rate


def _copy_rate() -> float:
    source = memory.zeros((_LARGE_NBYTES,), np.uint8)
    target = memory.zeros((_LARGE_NBYTES,), np.uint8)
    seconds = []
    for _ in range(8):
        began = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - began)
    return _LARGE_NBYTES / max(min(seconds), 1e-9)


def _device_of(directory: str | os.PathLike[str] | None) -> str:
    """Return a key of the device that holds a directory."""
    folder = spill_directory(directory)
    return f"{platform.node()} {os.stat(folder).st_dev}"


def cache_file() -> Path:
    """Return where measurements are remembered: in the user's folder for caches."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(base) if base else Path.home() / ".cache"
    return folder / "offgrad" / "machines.json"


def _load() -> dict[str, Machine]:
    """Return what is remembered; nothing if the file is missing, damaged or of another version."""
    names = {each.name for each in fields(Machine)}
    try:
        content = json.loads(cache_file().read_text())
        if content["version"] != _VERSION:
            return {}
        return {
            key: Machine(**{name: float(each[name]) for name in names})
            for key, each in content["machines"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return {}


def _save(machines: dict[str, Machine]) -> None:
    """Remember measurements, if the folder for caches can be written."""
    content = {
        "version": _VERSION,
        "machines": {key: asdict(each) for key, each in machines.items()},
    }
    with suppress(OSError, RuntimeError):
        path = cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text(json.dumps(content, indent=1) + "\n")
        own.replace(path)
