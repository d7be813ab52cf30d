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
    """A prefetch: the array to fill, and its progress.

    For a packed array it reads the pack only; ``get`` fills the array.
    """

    __slots__ = ("array", "done", "error", "packed")

    def __init__(self, array: Array | None, packed: bool) -> None:
        self.array = array
        self.packed = packed
        self.done = False
        self.error: StoreError | None = None


class Entry:
    """One stored array. Only the executor changes it, under its lock, except as noted.

    Attributes:
        serial: number in the store, from 0.
        kind: set by the backend: small arrays of one kind are packed together.
        place: set by the backend: where it stores the array.
        encoded_nbytes: bytes after encoding; None if stored as it is. The backend of a store
            without codec may set it, in ``write``.
        pack, offset: the pack that holds it, and where; None if it has a separate place.
        checksum: set by the backend: XXH3-64 of the bytes in C order; None if not verified.
        stored_nbytes: bytes in the store; an upper estimate until written.
        source: the array passed to put, while its write is pending.
        pins: number of reads from ``source`` under way.
        busy: number of reads and writes at ``place`` under way.
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
        """Bytes to store, after encoding."""
        return self.nbytes if self.encoded_nbytes is None else self.encoded_nbytes

    def __str__(self) -> str:
        return f"array {self.serial} ({self.dtype} {self.shape}, {self.nbytes} bytes)"


class Pack(Entry):
    """Small arrays that are written and read as one.

    To a backend it is an array like others: of uint8, whole pages of 4 KiB, without attributes.
    Its ``checksum`` is None: each array in it has one.

    Attributes:
        used: bytes taken so far.
        members: number of its arrays with live handles.
        copying: number of arrays being copied into it.
        sealed: whether it takes no more arrays.
        loading: whether a thread is reading it.
        loaded: its bytes, while cached after reading.
        interest: number of its arrays with a prefetch that no get has used.
    """

    __slots__ = ("copying", "interest", "loaded", "loading", "members", "sealed", "used")

    def __init__(self, serial: int, kind: Hashable, array: Array) -> None:
        super().__init__(serial, array, {})
        self.kind = kind
        self.source = array
        self.checksum = None
        self.used = 0
        self.members = 0
        self.copying = 0
        self.sealed = False
        self.loading = False
        self.loaded: Array | None = None
        self.interest = 0

    @property
    def in_memory(self) -> bool:
        """Whether its bytes are in memory."""
        return self.source is not None or self.loaded is not None

    def __str__(self) -> str:
        return f"pack {self.serial} of small arrays ({self.used} bytes)"


class Handle:
    """Owns one array in a store: when the handle dies, the space is free.

    Attributes:
        store: the store that holds the array; a handle keeps its store alive.
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
        """Bytes after encoding; ``nbytes`` until then, or without a codec.

        Without padding and metadata of the format, which ``stored_nbytes`` includes. Final once the
        array is written.
        """
        return self._entry.payload_nbytes

    @property
    def stored_nbytes(self) -> int:
        """Bytes it takes in the store; an upper estimate until it is written."""
        return self._entry.stored_nbytes

    @property
    def captured(self) -> bool:
        """Whether the array passed to put may be changed or freed."""
        return self._entry.captured

    def wait_captured(self) -> None:
        """Wait until the array passed to put may be changed or freed.

        It returns after a failed write, too; ``check``, ``get`` and ``close`` raise the error.
        """
        self.store._wait_captured(self._entry)

    def check(self) -> None:
        """Raise the error of a failed write, without waiting.

        Keep the array until its handle is captured and checked, and a failed write loses nothing.
        Packed arrays stay in memory if their pack cannot be written, and ``get`` returns them; the
        next put raises that error.

        Raises:
            StoreError: the write failed, as ``get`` raises it.
        """
        self.store._check_written(self._entry)

    def get(self, out: Array | None = None) -> Array:
        """The stored array: see ``AbstractArrayStore.get``.

        Raises:
            StoreError: it cannot be read. After a failed write the array is lost, and every get
                raises the error of the write.
        """
        return self.store.get(self, out)

    def prefetch(self, out: Array | None = None) -> None:
        """Start reading: see ``AbstractArrayStore.prefetch``."""
        self.store.prefetch(self, out)

    def __repr__(self) -> str:
        return f"<Handle of {self._entry} in {self.store}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Handle owns its stored array and cannot be copied or pickled; copy handle.get()"
        )

    def __del__(self) -> None:
        self.store._drop(self._entry)


def check_plain(array: Array, store: str) -> None:
    """Raise TypeError if ``array`` holds Python objects."""
    if array.dtype.hasobject:
        raise TypeError(
            f"{store}: dtypes must be of fixed size, without Python objects, got {array.dtype}. "
            "Convert the array to numbers or fixed-size text"
        )


def check_out(entry: Entry, out: Array, contiguous: bool = False) -> None:
    """Raise ValueError unless the array of ``entry`` can be read into ``out``."""
    if out.shape != entry.shape or out.dtype != entry.dtype:
        raise ValueError(
            f"out must have the shape and dtype of the stored array, {entry.shape} and "
            f"{entry.dtype}; got {out.shape} and {out.dtype}"
        )
    if not out.flags.writeable:
        raise ValueError("out must be writeable, got a read-only array")
    if contiguous and not out.flags.c_contiguous:
        raise ValueError("out must be C-contiguous for prefetch; get takes any memory order")


def bytes_of(array: Array) -> NDArray[np.uint8]:
    """The bytes of a C-contiguous array as a flat uint8 view."""
    if not array.nbytes:
        return np.empty(0, np.uint8)
    return array.reshape(-1).view(np.uint8)


def checksum(array: Array) -> int:
    """XXH3-64 of the bytes of a C-contiguous array: for ``entry.checksum``."""
    return xxhash.xxh3_64_intdigest(bytes_of(array).data)


def verify(found: int | None, entry: Entry, store: str) -> None:
    """Raise CorruptionError unless ``found`` is the checksum of ``entry``.

    Args:
        found: checksum of the bytes read; None for no check, as is an ``entry.checksum`` of None.
        entry: of the array that was read.
        store: name of the store in errors.
    """
    if entry.checksum is not None and found is not None and found != entry.checksum:
        raise CorruptionError(
            f"the bytes read are not those written (XXH3 {found:016x}, was {entry.checksum:016x})",
            store=store,
            handle=str(entry),
            fix="Another program wrote to the file, the drive is faulty, or the array was changed "
            "before handle.captured was true",
        )
