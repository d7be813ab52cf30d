"""The tiers of a TieredStore, and the lock under which the states of its arrays change.

The rules of the lock:

- It guards ``ram``, ``figures`` and ``closed``. It is held briefly, and released for I/O, for
  copies and for calls of an allocator: the array is in a moving state meanwhile, which no other
  thread changes.
- A thread that ends a move notifies all. A thread waits only for moves of other threads.
- It may be held while the lock of a lower tier is taken, never the other way round.
- Call the methods of this folder in a masked block, so that Ctrl-C leaves the lock free.
  KeyboardInterrupt is raised only in waits and in interruptible blocks, and a move that it
  interrupts ends as one that fails.
- No finalizer takes it. A C function notes the death of an array, also in a thread that holds the
  lock, and ``RamTier.handle_deaths`` uncounts it later.
- A forked child never takes it: another thread may have held it. So ``check_process`` goes first.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Sequence
from typing import Any

from offgrad_storage.base import AbstractArrayStore, StoreStats
from offgrad_storage.errors import (
    ForkedStoreError,
    StoreClosedError,
    StoreError,
    as_store_error,
    copy_for_raise,
)
from offgrad_storage.executor.waiting import Waiters
from offgrad_storage.interrupts import masked
from offgrad_storage.tiered.invariants import check_invariants
from offgrad_storage.tiered.ram import RamTier
from offgrad_storage.tiered.states import TierEntry


class Tiers:
    """The RAM tier, the stores below it, and what all operations on them share.

    Args:
        nbytes: bound of the bytes of RAM.
        below: the lower tiers, the fastest first.

    Attributes:
        lock: see above.
        wait: releases the lock until ``notify_all``; see ``Waiters``.
        figures: of ``stats``, those of this store.
        closed: whether the store refuses new work.
    """

    name = "TieredStore"

    def __init__(self, nbytes: int, below: Sequence[AbstractArrayStore]) -> None:
        self.ram = RamTier(nbytes)
        self.below = below
        self.lock = threading.Lock()
        waiters = Waiters(self.lock.release, self.lock.acquire)
        self.wait, self.notify_all = waiters.wait, waiters.notify_all
        self.figures: dict[str, Any] = dataclasses.asdict(StoreStats())
        self.closed = False
        self._pid = os.getpid()

    @property
    def used_nbytes(self) -> int:
        """Bytes of RAM in use."""
        with masked, self.lock:
            self.ram.handle_deaths()
            return self.ram.budget.used_nbytes

    def own_figures(self) -> dict[str, Any]:
        """The figures of this store, without those of the lower tiers."""
        with masked, self.lock:
            self.ram.handle_deaths()
            return self.figures | {
                "live_handles": len(self.ram.live),
                "logical_nbytes": self.ram.logical_nbytes,
                "stored_nbytes": self.ram.budget.resident_nbytes,
            }

    def count(self, **changes: float) -> None:
        """Add to the figures; with the lock held."""
        for name, change in changes.items():
            self.figures[name] += change

    def is_forked(self) -> bool:
        """Whether the store belongs to the parent of this process."""
        return os.getpid() != self._pid

    def check_open(self, entry: TierEntry | None = None) -> None:
        """Raise unless the store may be used, by this process."""
        self.check_process(entry)
        if self.closed:
            raise StoreClosedError(
                "the store is closed",
                store=self.name,
                handle=str(entry or ""),
                fix="Close a store after the last use of its handles",
            )

    def check_process(self, entry: TierEntry | None = None) -> None:
        """Raise if this process is a fork."""
        if self.is_forked():
            raise ForkedStoreError(
                f"the store belongs to process {self._pid}, this is its fork {os.getpid()}",
                store=self.name,
                handle=str(entry or ""),
                fix="Make another store in the child, or use this one in the parent only",
            )

    def without_tracebacks(self, error: StoreError) -> StoreError:
        """``error`` without tracebacks, which would keep arrays alive."""
        return as_store_error(error, "moving an array", store=self.name)

    def as_own_error(self, error: StoreError, entry: TierEntry) -> StoreError:
        """``error`` of a tier below as one of this store, naming its array; of the same kind."""
        result = copy_for_raise(error)
        result.args = (f"{self.name}, {entry}: {error}",)
        result.store, result.handle = self.name, str(entry)
        return result

    def _check(self) -> None:
        with masked, self.lock:
            check_invariants(self.ram)
