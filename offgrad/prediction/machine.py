"""Machine: the rates of a drive and of memory, and what a session takes."""

import os
import platform
from dataclasses import dataclass, replace
from typing import Self

from offgrad import memory


@dataclass(frozen=True)
class Machine:
    """What stores cost on this machine. Rates are in bytes per second.

    Attributes:
        write_rate, read_rate: of the drive, with the threads of a default store.
        write_seconds, read_seconds: for each array, besides its bytes.
        write_latency, read_latency: more for an array while nothing else is under way.
        write_factor, read_factor: how many times as long they take beside computing.
        write_load, read_load: seconds that computing beside them takes longer, for each byte.
        copy_rate: of copies in memory.
        pack_seconds, unpack_seconds: that a session takes for each tensor that it does not keep.
        evict_seconds: that it takes more for each tensor that a budget evicts.
    """

    write_rate: float = 1e9
    read_rate: float = 1e9
    write_seconds: float = 2e-4
    read_seconds: float = 2e-4
    write_latency: float = 0.0
    read_latency: float = 0.0
    write_factor: float = 1.0
    read_factor: float = 1.0
    write_load: float = 0.0
    read_load: float = 0.0
    copy_rate: float = 6e9
    pack_seconds: float = 6e-5
    unpack_seconds: float = 4e-5
    evict_seconds: float = 1e-4

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
    if isinstance(rate, bool) or not isinstance(rate, (int, float)):
        raise TypeError(f"a bandwidth is a number or text, got {type(rate).__name__}")
    if not 0 < rate < float("inf"):
        raise ValueError(f"a bandwidth is positive, got {rate:g} bytes per second")
    return float(rate)


def machine_facts() -> dict[str, str]:
    """Return facts of this machine, as text."""
    return {"system": platform.platform(terse=True), "cores": str(os.cpu_count())}
