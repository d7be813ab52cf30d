"""One stored array: the entry that a store keeps of it, and the user's handle to it."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import xxhash
from numpy.typing import NDArray

from offgrad_storage.errors import CorruptionError, StoreError

if TYPE_CHECKING:
    from offgrad_storage.base import AbstractArrayStore

Array = NDArray[Any]


class State(enum.Enum):
    """Where the bytes of an entry are."""

    QUEUED = "queued"
    WRITING = "writing"
    STORED = "stored"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Fetch:
    """A read in the background: where it goes, and how far it is.

    One of a gathered array reads its pack alone; the array is filled by ``get``.
    """

    __slots__ = ("array", "done", "error", "packed")

    def __init__(self, array: Array | None, packed: bool) -> None:
        self.array = array
        self.packed = packed
        self.done = False
        self.error: StoreError | None = None


class Entry:
    """One stored array. The executor alone changes it, under its lock, except as noted.

    Attributes:
        serial: its number in the store, from 0.
        kind: which small arrays it may be gathered with: those of the same; the backend's own.
        place: where the backend has put it; the backend's own.
        encoded_nbytes: bytes the codec made of it; None if it is stored plain. Of a store without a
            codec its backend may set it, in ``write``.
        pack, offset: the pack it is in, and where there; None if it has a place of its own.
        checksum: XXH3-64 of its bytes in C order; the backend's own, or None if it needs none.
        stored_nbytes: bytes in the store; an upper estimate until written.
        source: the array given to put, while its write is pending.
        pins: how many reads are being served from ``source``.
        busy: how many reads and writes are under way at ``place``.
        dropped: whether its handle has died.
    """

    __slots__ = (
        "attributes",
        "busy",
        "captured",
        "checksum",
        "dropped",
        "dtype",
        "encoded_nbytes",
        "error",
        "fetch",
        "kind",
        "nbytes",
        "offset",
        "pack",
        "pins",
        "place",
        "reserved",
        "serial",
        "shape",
        "source",
        "state",
        "stored_nbytes",
    )

    def __init__(self, serial: int, array: Array, attributes: Mapping[str, object]) -> None:
        self.serial = serial
        self.shape = array.shape
        self.dtype = array.dtype
        self.nbytes = array.nbytes
        self.attributes = attributes
        self.kind: Hashable = None
        self.place: Any = None
        self.reserved = False
        self.encoded_nbytes: int | None = None
        self.pack: Pack | None = None
        self.offset = 0
        self.checksum: int | None = 0
        self.stored_nbytes = 0
        self.source: Array | None = None
        self.state = State.QUEUED
        self.pins = 0
        self.busy = 0
        self.captured = False
        self.dropped = False
        self.error: StoreError | None = None
        self.fetch: Fetch | None = None

    @property
    def payload_nbytes(self) -> int:
        """Bytes to store: encoded, if they are."""
        return self.nbytes if self.encoded_nbytes is None else self.encoded_nbytes

    def __str__(self) -> str:
        return f"array {self.serial} ({self.dtype} {self.shape}, {self.nbytes} bytes)"


class Pack(Entry):
    """Small arrays gathered, to be written and read as one.

    To a backend it is an array like others: of uint8, whole pages of 4 KiB, without attributes.
    Its ``checksum`` is None, since each array in it has its own.

    Attributes:
        used: bytes taken so far.
        members: how many of its arrays have living handles.
        copying: how many of its arrays are just being copied in.
        sealed: whether it takes no more arrays.
        loading: whether a thread is reading it.
        loaded: its bytes, read back, as long as they are kept.
        interest: how many of its arrays have a prefetch that no get has taken.
    """

    __slots__ = ("copying", "interest", "loaded", "loading", "members", "sealed", "used")

    def __init__(self, serial: int, kind: Hashable, array: Array) -> None:
        super().__init__(serial, array, {})
        self.kind = kind
        self.source = array
        self.checksum = None  # each array in it has its own
        self.used = 0
        self.members = 0
        self.copying = 0
        self.sealed = False
        self.loading = False
        self.loaded: Array | None = None
        self.interest = 0

    @property
    def in_memory(self) -> bool:
        """Whether its bytes need not be read."""
        return self.source is not None or self.loaded is not None

    def __str__(self) -> str:
        return f"pack {self.serial} of small arrays ({self.used} bytes)"


class Handle:
    """Stands for one array in a store, and frees its space when it dies.

    Attributes:
        store: the store that holds it; a handle keeps its store alive.
        shape, dtype, nbytes: of the array.
    """

    __slots__ = ("__weakref__", "_entry", "store")

    def __init__(self, store: AbstractArrayStore, entry: Entry) -> None:
        self.store = store
        self._entry = entry

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self._entry.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the array, byte order included."""
        return self._entry.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self._entry.nbytes

    @property
    def encoded_nbytes(self) -> int:
        """Bytes the store's codec makes of it: its own until it is encoded, or if it never is.

        What a format adds to them, as padding and metadata, is in ``stored_nbytes`` alone. Final
        once the array is written.
        """
        return self._entry.payload_nbytes

    @property
    def stored_nbytes(self) -> int:
        """Bytes it takes in the store; an upper estimate until it is written."""
        return self._entry.stored_nbytes

    @property
    def captured(self) -> bool:
        """Whether the store is done with the array given to put, so that it may change."""
        return self._entry.captured

    def wait_captured(self) -> None:
        """Wait until the array given to put may be changed or freed.

        A failed write captures as well; its error is raised by ``check``, ``get`` and ``close``.
        """
        self.store._wait_captured(self._entry)

    def check(self) -> None:
        """Raise the error of its write, if that has failed; waits for nothing.

        Who keeps the array until its handle is captured and checked has lost nothing when a write
        fails. Arrays that were gathered stay in memory if their pack cannot be written, and can be
        got; the next put raises that error.

        Raises:
            StoreError: of the write, as ``get`` raises it.
        """
        self.store._check_written(self._entry)

    def get(self, out: Array | None = None) -> Array:
        """The stored array: see ``AbstractArrayStore.get``.

        Raises:
            StoreError: it cannot be read. If its write failed, the array is gone: every get raises
                the error of the write.
        """
        return self.store.get(self, out)

    def prefetch(self, out: Array | None = None) -> None:
        """Start reading: see ``AbstractArrayStore.prefetch``."""
        self.store.prefetch(self, out)

    def __repr__(self) -> str:
        return f"<Handle of {self._entry} in {self.store}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Handle owns its stored array and can be neither copied nor pickled")

    def __del__(self) -> None:
        self.store._drop(self._entry)


def check_plain(array: Array, store: str) -> None:
    """Raise TypeError if ``array`` holds Python objects."""
    if array.dtype.hasobject:
        raise TypeError(
            f"{store}: a store holds plain bytes, but dtype {array.dtype} holds Python objects. "
            "Convert it to numbers or fixed-size text"
        )


def check_out(entry: Entry, out: Array, contiguous: bool = False) -> None:
    """Raise ValueError unless the array of ``entry`` can be read into ``out``."""
    if out.shape != entry.shape or out.dtype != entry.dtype:
        raise ValueError(
            f"out must have the shape and dtype of the stored array, {entry.shape} and "
            f"{entry.dtype}; got {out.shape} and {out.dtype}"
        )
    if not out.flags.writeable:
        raise ValueError("out is read-only; give an array that may be written to")
    if contiguous and not out.flags.c_contiguous:
        raise ValueError("prefetch needs a C-contiguous out; get takes any")


def bytes_of(array: Array) -> NDArray[np.uint8]:
    """The bytes of a C-contiguous array as a flat uint8 view."""
    if not array.nbytes:
        return np.empty(0, np.uint8)
    return array.reshape(-1).view(np.uint8)


def checksum(array: Array) -> int:
    """XXH3-64 of the bytes of a C-contiguous array: for ``entry.checksum``."""
    return xxhash.xxh3_64_intdigest(bytes_of(array).data)


def verify(found: int | None, entry: Entry, store: str) -> None:
    """Raise CorruptionError unless ``found`` is the checksum that ``entry`` was written with.

    Args:
        found: of the bytes read; None, as ``entry.checksum``, for nothing to compare.
        entry: of the array read.
        store: what errors call the store.
    """
    if entry.checksum is not None and found is not None and found != entry.checksum:
        raise CorruptionError(
            f"the bytes read are not those written (XXH3 {found:016x}, was {entry.checksum:016x})",
            store=store,
            handle=str(entry),
            fix="Something else wrote to the file, the drive is faulty, or the array was changed "
            "before its handle said captured",
        )
