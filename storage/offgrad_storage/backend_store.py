"""BackendStore: a store around the four methods of a backend."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offgrad_storage.backend import Backend
from offgrad_storage.base import (
    AbstractArrayStore,
    Allocate,
    Handle,
    StoreStats,
)
from offgrad_storage.codecs import Codec
from offgrad_storage.codecs import codec as find_codec
from offgrad_storage.entry import Entry, check_out, check_plain
from offgrad_storage.executor.executor import Executor
from offgrad_storage.memory.buffer_pool import BufferPool

Array = NDArray[Any]


class BackendStore(AbstractArrayStore):
    """A store that keeps its arrays in a ``Backend``.

    Args:
        backend: moves the bytes; the store owns it from now on.
        threads: bound of the I/O threads for writes and prefetches. With 0, ``put`` writes before
            it returns and ``prefetch`` does nothing.
        inflight_nbytes: bound of the bytes of arrays with a pending write; ``put`` waits when it is
            reached. One larger array may go alone.
        codec: encodes arrays (see ``codec``), in the I/O threads if there are any.
        seed: of codecs that round at random: bits depend on the array and the seed alone.
        allocate: allocates arrays that are read back; None for a separate BufferPool.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        threads: int = 3,
        inflight_nbytes: int = 128 << 20,
        codec: str | Codec = "none",
        seed: int = 0,
        allocate: Allocate | None = None,
    ) -> None:
        self._allocate = BufferPool().empty if allocate is None else allocate
        self._threads = threads
        try:
            chosen = find_codec(codec)
            used = None if chosen.name == "none" else chosen
            self._executor = Executor(backend, threads, inflight_nbytes, used, seed)
        except BaseException:
            backend.close()
            raise
        self._serial = itertools.count()
        weakref.finalize(self, self._executor.abandon).atexit = False

    def put(self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None) -> Handle:
        """Store ``array``: see ``AbstractArrayStore.put``."""
        array = np.asarray(array)
        check_plain(array, self._executor.backend.name)
        handle = Handle(self, Entry(next(self._serial), array, dict(attributes or {})))
        self._executor.write(handle._entry, array)
        return handle

    def get(self, handle: Handle, out: Array | None = None) -> Array:
        """Return the stored array: see ``AbstractArrayStore.get``."""
        entry = self._entry_of(handle)
        if out is not None:
            check_out(entry, out)
        since = time.perf_counter()
        target, filled = None, False
        fetch = entry.fetch
        if fetch is not None and not (fetch.packed and fetch.array is None):
            target, filled = self._executor.take_prefetched(entry, since)
        if not filled:
            if out is not None and out.flags.c_contiguous:
                target = out
            elif target is None:
                target = self._allocate(entry.shape, entry.dtype)
            self._executor.read(entry, target, since)
        assert target is not None
        if out is not None and target is not out:
            np.copyto(out, target)
            return out
        return target

    def prefetch(self, handle: Handle, out: Array | None = None) -> None:
        """Start reading: see ``AbstractArrayStore.prefetch``."""
        entry = self._entry_of(handle)
        if out is not None:
            check_out(entry, out, contiguous=True)
        self._executor.check(entry)
        if not self._threads:
            return
        while True:
            fetch = entry.fetch
            if fetch is not None:
                if out is None or out is fetch.array:
                    return
                self._executor.take_prefetched(entry)
            target = out
            if target is None and entry.pack is None:
                target = self._allocate(entry.shape, entry.dtype)
            if self._executor.prefetch(entry, target):
                return

    def cancel_prefetch(self, handle: Handle) -> None:
        """Discard a prefetch: see ``AbstractArrayStore.cancel_prefetch``."""
        self._executor.cancel_prefetch(self._entry_of(handle))

    @property
    def lossless(self) -> bool:
        """Whether the codec is lossless."""
        return self._executor.lossless

    @property
    def reads_ahead(self) -> bool:
        """Whether there are I/O threads."""
        return bool(self._threads)

    def flush(self) -> None:
        """Wait for pending writes: see ``AbstractArrayStore.flush``."""
        self._executor.flush()

    def close(self) -> None:
        """Free everything: see ``AbstractArrayStore.close``."""
        self._executor.close()

    def stats(self) -> StoreStats:
        """The figures so far."""
        return self._executor.stats()

    def _entry_of(self, handle: Handle) -> Entry:
        if handle.store is not self:
            raise ValueError(f"{handle} belongs to another store than {self}")
        return handle._entry

    def _check_open(self) -> None:
        self._executor.check()

    def _wait_captured(self, entry: Entry) -> None:
        self._executor.wait_captured(entry)

    def _check_written(self, entry: Entry) -> None:
        self._executor.check_written(entry)

    def _drop(self, entry: Entry) -> None:
        self._executor.drop(entry)

    def __repr__(self) -> str:
        return f"<{self._executor.backend.name}>"
