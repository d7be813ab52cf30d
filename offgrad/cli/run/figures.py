"""Memory and I/O of this process so far: all sessions and threads together."""

import time
from typing import NamedTuple

from offgrad_storage.files.spill_directory import RAM, file_system_of, spill_directory

from offgrad import memory
from offgrad.cli.compare.process_memory import peak_rss
from offgrad.memory import format_nbytes
from offgrad.memory.allocator import counter
from offgrad.session.named_stores import Traffic, traffic


class Figures(NamedTuple):
    """One look.

    Attributes:
        seconds: since the process began to measure.
        allocated_nbytes: tensor memory now.
        peak_nbytes: its maximum; `offgrad.memory.reset_peak` of the program does not change it.
        traffic: of the stores on disk.
    """

    seconds: float
    allocated_nbytes: int
    peak_nbytes: int
    traffic: Traffic

    def line(self, before: "Figures") -> str:
        """Return the line shown while the program runs, with rates since `before`."""
        seconds = max(self.seconds - before.seconds, 1e-9)
        now, then = self.traffic, before.traffic
        # A wait that lasted longer than the interval ends in it.
        stall = min(1.0, (now.stall_seconds - then.stall_seconds) / seconds)
        return (
            f"memory {format_nbytes(self.allocated_nbytes)}, peak "
            f"{format_nbytes(self.peak_nbytes)} | writing "
            f"{_rate(now.written_nbytes - then.written_nbytes, seconds)}, reading "
            f"{_rate(now.read_nbytes - then.read_nbytes, seconds)}, stalled {stall:.0%} | "
            f"{duration(self.seconds)}"
        )

    def summary(self) -> str:
        """Return the line shown at the end."""
        written, read, stall = self.traffic
        where = ""
        if written and file_system_of(spill_directory()) in RAM:
            where = f" ({spill_directory()} is memory, not a drive)"
        return (
            f"peak {format_nbytes(self.peak_nbytes)} of tensors, {format_nbytes(peak_rss())} of "
            f"the process; {format_nbytes(written)} written{where}, {format_nbytes(read)} read; "
            f"stalled {stall:.2f} s of {duration(self.seconds)}"
        )


class Meter:
    """Takes the figures, from its making on."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def read(self) -> Figures:
        """Return the figures now."""
        return Figures(
            time.perf_counter() - self._began, memory.allocated(), counter.highest, traffic()
        )


def duration(seconds: float) -> str:
    """Return a time as text: ``"4.2 s"``, ``"3:05"``, ``"1:02:03"``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _rate(nbytes: int, seconds: float) -> str:
    return f"{format_nbytes(nbytes / seconds)}/s"
