"""The clock of an estimate: computing takes time, the drive works meanwhile, some calls wait."""

import math
from collections.abc import Callable
from typing import NamedTuple

from offgrad.prediction.estimate_queue import Transfer


class Times(NamedTuple):
    """What a clock shows."""

    now: float
    compute_seconds: float
    write_stall_seconds: float
    read_stall_seconds: float


class Clock:
    """The time that a step has taken so far, in seconds.

    Attributes:
        now: since the start.
        compute_seconds: the part of it in which the program computed.
        write_stall_seconds, read_stall_seconds: the part of it in which computing waited for a
            store.
        listeners: called after each change.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.write_stall_seconds = self.read_stall_seconds = 0.0
        self.compute_seconds = 0.0
        self.listeners: list[Callable[[], None]] = []

    def times(self) -> Times:
        """Return what it shows now."""
        return Times(
            self.now, self.compute_seconds, self.write_stall_seconds, self.read_stall_seconds
        )

    def spend(self, seconds: float) -> None:
        """Compute for so long."""
        self.compute_seconds += seconds
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        for each in self.listeners:
            each()

    def wait_until(self, end: float, *, reading: bool = False) -> None:
        """Wait for a store, if `end` is to come."""
        seconds = max(0.0, end - self.now)
        if reading:
            self.read_stall_seconds += seconds
        else:
            self.write_stall_seconds += seconds
        self._pass(seconds)


class Drive:
    """A drive that writes and reads one array after the other.

    Attributes:
        transfers: so far.

    Args:
        clock: of the step.
        bandwidth: bytes a second; ``math.inf`` for a drive that takes no time.
    """

    def __init__(self, clock: Clock, bandwidth: float) -> None:
        self.clock = clock
        self.bandwidth = bandwidth
        self.transfers: list[Transfer] = []
        self._free_at = 0.0

    def note(self, kind: str, key: int, nbytes: int) -> None:
        """Note a write, a read, or the use of what was read."""
        self.transfers.append(Transfer(kind, key, nbytes, self.clock.compute_seconds))

    def schedule(self, kind: str, key: int, nbytes: int) -> float:
        """Return when a write or read that is asked for now will have ended."""
        self.note(kind, key, nbytes)
        seconds = 0.0 if math.isinf(self.bandwidth) else nbytes / self.bandwidth
        self._free_at = max(self._free_at, self.clock.now) + seconds
        return self._free_at
