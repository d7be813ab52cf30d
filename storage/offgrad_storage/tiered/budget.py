"""The bytes of RAM that arrays of a TieredStore take."""

from __future__ import annotations

import weakref
from typing import Any

from numpy.typing import NDArray

from offgrad_storage.memory.buffer_pool import lease_of
from offgrad_storage.tiered.states import TierState, Watch

Array = NDArray[Any]


class RamBudget:
    """The bytes of arrays, by their states, against a bound.

    Memory that its array releases counts until its last reference is gone: a lower tier may still
    read or write it for a dead array, and a get may be copying it.

    Args:
        nbytes: the bound.

    Attributes:
        counted_nbytes: bytes of arrays whose state counts.
        resident_nbytes: of them, those that a get can copy.
        leaving_nbytes: of them, those on their way to a lower tier.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.counted_nbytes = self.resident_nbytes = self.leaving_nbytes = 0
        self._released: list[tuple[weakref.ref[Any], int]] = []

    @property
    def used_nbytes(self) -> int:
        """Bytes in use: those of arrays, and those released that are still referred to."""
        released = sum(nbytes for memory, nbytes in self._released if memory() is not None)
        return self.counted_nbytes + released

    def fits(self, nbytes: int) -> bool:
        """Whether there is room for ``nbytes`` more."""
        return self.used_nbytes + nbytes <= self.nbytes

    def fits_after_evictions(self, nbytes: int) -> bool:
        """Whether there is, once all evictions under way have ended."""
        return self.used_nbytes - self.leaving_nbytes + nbytes <= self.nbytes

    def count(
        self,
        watch: Watch,
        state: TierState,
        memory: weakref.ref[Any] | None,
        taken: bool = False,
    ) -> None:
        """Count an array as in ``state``, whose bytes are in ``memory``.

        With ``taken`` the caller of a get owns the memory it had before.
        """
        before, nbytes = watch.kind, watch.nbytes
        self.counted_nbytes += nbytes * (state.is_counted - watch.is_counted)
        self.resident_nbytes += nbytes * (state.is_resident - before.is_resident)
        self.leaving_nbytes += nbytes * (state.is_leaving - before.is_leaving)
        if watch.memory is not None and watch.memory is not memory and not taken:
            self.release(watch.memory, nbytes)
        watch.kind, watch.is_counted, watch.memory = type(state), state.is_counted, memory

    def release(self, memory: weakref.ref[Any], nbytes: int) -> None:
        """Count ``memory``, which no array has any more, until it is gone."""
        self._released = [each for each in self._released if each[0]() is not None]
        self._released.append((memory, nbytes))


def memory_ref(array: Array) -> weakref.ref[Any]:
    """A weak reference that dies with the memory of ``array``.

    Memory of a BufferPool dies with its lease, the base of all views. Other memory is watched by
    the array itself, because its base may be shared.
    """
    lease = lease_of(array)
    return weakref.ref(array if lease is None else lease)
