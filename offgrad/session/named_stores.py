"""The stores that policies name: one for each kind, codec and directory in the process.

They live as long as the process, so that each step reuses the space that the step before wrote.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import offgrad_storage
from offgrad_storage import AbstractArrayStore, ForkedStoreError, StoreError
from offgrad_storage.interrupts import MaskedLock

from offgrad import memory
from offgrad.memory.registry import WeakRegistry
from offgrad.policies.names import STORES, store_and_codec

INFLIGHT_NBYTES = 32 << 20
"""The maximum of bytes whose write is pending in a default store."""
THREADS = 2
"""I/O threads of a default store. A third slows computing as much as it speeds up the drive."""
MAX_PACK_NBYTES = 4 << 20
"""The maximum size of a pack of small arrays in a default store."""
_MIN_PACK_NBYTES = 64 << 10

# By name with codec, directory and process: a forked child needs its own stores.
_stores: dict[tuple[str, str | None, int], AbstractArrayStore] = {}
_lock = MaskedLock()


class _StoreMemory:
    """The tensor memory that the stores hold: copies in RAM, and packs that wait to be written."""

    lock = None

    def reclaim(self) -> bool:
        """Write the packs, and drop those read ahead; stored copies are needed."""
        failure: StoreError | None = None
        before = self._packs_nbytes()
        for store in _own_stores() if before else ():
            try:
                store.trim()
            except StoreError as error:  # the other stores' packs may do
                failure = error.with_traceback(None)  # its frames would hold memory
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # this frame would hold the exception that holds it
        return self._packs_nbytes() < before

    def held_by_purpose(self) -> Mapping[str, int]:
        pools = [
            each.stats().stored_nbytes
            for each in _own_stores()
            if isinstance(each, offgrad_storage.PoolStore)
        ]
        return {
            "copies in the pool store": sum(pools),
            "packs of small arrays": self._packs_nbytes(),
        }

    def _packs_nbytes(self) -> int:
        return sum(each.packs_nbytes for each in _own_stores())


def _own_stores() -> list[AbstractArrayStore]:
    return [store for (_, _, pid), store in _stores.copy().items() if pid == os.getpid()]


_store_memory = _StoreMemory()
memory.register_reclaimable(_store_memory)


unnamed: WeakRegistry[AbstractArrayStore] = WeakRegistry()
"""The stores that programs made and gave to sessions."""


class Traffic(NamedTuple):
    """What all stores of sessions, without those in memory, have done so far.

    Stores that a program made itself count while they live.

    Attributes:
        written_nbytes: stored bytes written.
        read_nbytes: bytes of arrays got back.
        stall_seconds: time in which puts and gets waited.
    """

    written_nbytes: int = 0
    read_nbytes: int = 0
    stall_seconds: float = 0.0


def traffic() -> Traffic:
    """Return the traffic of this process, of all sessions together."""
    stores = []
    for each in (*_own_stores(), *unnamed):
        if not isinstance(each, offgrad_storage.PoolStore):
            with suppress(ForkedStoreError):  # of the parent
                stores.append(each.stats())
    return Traffic(
        sum(each.written_nbytes for each in stores),
        sum(each.read_nbytes for each in stores),
        sum(each.put_stall_seconds + each.get_stall_seconds for each in stores),
    )


def max_pack_nbytes(bound: int | None) -> int:
    """Return the maximum size of a pack in the store of a budget of `bound` bytes, or of none.

    It is a power of two, so that similar budgets share a store, and 0 where packs would be tiny.
    """
    if bound is None:
        return MAX_PACK_NBYTES
    nbytes = min(MAX_PACK_NBYTES, 1 << (max(bound // 16, 1).bit_length() - 1))
    return nbytes if nbytes >= _MIN_PACK_NBYTES else 0


def open_store(
    store: str | AbstractArrayStore,
    directory: str | None = None,
    codec: str | None = None,
    max_pack_nbytes: int = MAX_PACK_NBYTES,
    inflight_nbytes: int = INFLIGHT_NBYTES,
) -> AbstractArrayStore:
    """Return the store of that name, the same one each time; a store object as it is.

    Args:
        store: ``"pool"``, ``"disk"``, ``"zarr"``, or one of these with a codec, ``"disk:lz4"``; or
            a store object.
        directory: where ``"disk"`` and ``"zarr"`` write; None for the store's default.
        codec: the name of its codec; None for the store's default.
        max_pack_nbytes: the maximum size of a pack; 0 for no packs.
        inflight_nbytes: the maximum of bytes whose write is pending.
    """
    if not isinstance(store, str):
        return store
    name, codec = store_and_codec(store, codec)
    kind = name if codec is None else f"{name}:{codec}"
    if max_pack_nbytes != MAX_PACK_NBYTES and not STORES[name].is_in_memory:
        kind += f", packs of {max_pack_nbytes}"
    if inflight_nbytes != INFLIGHT_NBYTES and not STORES[name].is_in_memory:
        kind += f", {inflight_nbytes} in flight"
    key = (kind, directory, os.getpid())
    with _lock:
        found = _stores.get(key)
        if found is None:
            options = name, codec, directory, max_pack_nbytes, inflight_nbytes
            found = _stores[key] = new_store(*options)
        return found


def new_store(
    name: str,
    codec: str | None = None,
    directory: str | None = None,
    max_pack_nbytes: int = MAX_PACK_NBYTES,
    inflight_nbytes: int = INFLIGHT_NBYTES,
) -> AbstractArrayStore:
    """Return a new store, with the settings of those that sessions use."""
    make: Any = STORES[name].store()
    options: dict[str, Any] = {"allocate": memory.empty, "hold": memory.empty}
    if codec is not None:
        options["codec"] = codec
    if STORES[name].is_in_memory:
        return make(**options)  # type: ignore[no-any-return]
    options |= {"inflight_nbytes": inflight_nbytes, "threads": THREADS}
    options["max_pack_nbytes"] = max_pack_nbytes
    return make(None if directory is None else Path(directory), **options)  # type: ignore[no-any-return]
