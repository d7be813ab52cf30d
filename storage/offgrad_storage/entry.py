"""One stored array: the entry that a store keeps of it, and the user's handle to it.

No Python code runs when a handle dies, since Ctrl-C could interrupt it: the store watches the
handle by a weak reference whose callback is a C function.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import xxhash
from numpy.typing import NDArray

from offgrad_storage.errors import CorruptionError, StoreError

if TYPE_CHECKING:
    from offgrad_storage.base import AbstractArrayStore

Array = NDArray[Any]


class State(enum.Enum):
    """The state of a stored array. ``EntryTable`` has the transitions between them."""

    ARRIVING = "arriving"
    """Its put is under way; a pack is being filled."""
    QUEUED = "queued"
    """In memory, and its write is pending. The handle holds ``source``, so both die together."""
    WRITING = "writing"
    """Being written from ``source``."""
    STORED = "stored"
    """At its ``place`` in the backend."""
    PACKED = "packed"
    """At ``offset`` in ``pack``."""
    FAILED = "failed"
    """Its write failed with ``error``. It stays in memory, held as if queued."""
    CANCELLED = "cancelled"
    """The store was closed before its write."""
    LEAVING = "leaving"
    """Its handle is dead; reads and writes of it end first."""
    DEAD = "dead"
    """Nothing of it is left."""


class Fetch:
    """A prefetch: the array to fill, and its progress. Its handle holds it.

    For a packed array it reads the pack only; ``get`` fills the array.

    Attributes:
        array: to fill; None if ``get`` allocates it.
        is_own: whether the store allocated it, so that no other thread uses it.
        packed: whether it reads a pack.
        done: whether the array is filled, or ``error`` set.
    """

    __slots__ = ("array", "done", "error", "is_own", "packed")

    def __init__(self, array: Array | None, is_own: bool, packed: bool) -> None:
        self.array = array
        self.is_own = is_own
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
        checksum: set by the backend: XXH3-64 of the bytes in C order; None if not verified.
        stored_nbytes: bytes in the store; an upper estimate until written.
        state: decides which of the following count.
        pack, offset: PACKED: the pack that holds it, and where.
        source: WRITING: the array passed to put. In a persistent store also while it is QUEUED or
            FAILED; elsewhere the handle holds it then.
        error: FAILED: why.
        captured: whether the array passed to put may change.
        pins: number of reads from the source under way.
        busy: number of reads and writes at ``place`` under way.
        handle: a weak reference to the handle.
        wants_pack: whether a prefetch wants its pack in memory.
    """

    __slots__ = (
        "attributes",
        "busy",
        "captured",
        "checksum",
        "dtype",
        "encoded_nbytes",
        "error",
        "handle",
        "kind",
        "nbytes",
        "offset",
        "pack",
        "pins",
        "place",
        "serial",
        "shape",
        "source",
        "state",
        "stored_nbytes",
        "wants_pack",
    )

    def __init__(self, serial: int, array: Array, attributes: Mapping[str, object]) -> None:
        self.serial = serial
        self.shape = array.shape
        self.dtype = array.dtype
        self.nbytes = array.nbytes
        self.attributes = attributes
        self.kind: Hashable = None
        self.place: Any = None
        self.encoded_nbytes: int | None = None
        self.pack: Pack | None = None
        self.offset = 0
        self.checksum: int | None = 0
        self.stored_nbytes = 0
        self.source: Array | None = None
        self.state = State.ARRIVING
        self.pins = 0
        self.busy = 0
        self.captured = False
        self.error: StoreError | None = None
        self.handle: Callable[[], Handle | None] = _no_handle
        self.wants_pack = False

    @property
    def payload_nbytes(self) -> int:
        """Bytes to store, after encoding."""
        return self.nbytes if self.encoded_nbytes is None else self.encoded_nbytes

    @property
    def held_nbytes(self) -> int:
        """Bytes of memory that its source takes."""
        return self.nbytes

    def __str__(self) -> str:
        return f"array {self.serial} ({self.dtype} {self.shape}, {self.nbytes} bytes)"


class Pack(Entry):
    """Small arrays that are written and read as one.

    To a backend it is an array like others: of uint8, whole pages of 4 KiB, without attributes.
    Its ``checksum`` is None: each array in it has one.

    Attributes:
        used: bytes taken so far.
        capacity: bytes of its memory while it is filled and written; at least ``nbytes``.
        members: number of its arrays with live handles.
        copying: number of arrays being copied into it.
        target: memory for its read, until that begins.
        loaded: its bytes, while cached after reading.
        interest: number of its arrays with a prefetch that no get has used.
    """

    __slots__ = (
        "capacity", "copying", "interest", "loaded", "members", "target", "used",
    )  # fmt: skip

    def __init__(self, serial: int, kind: Hashable, array: Array) -> None:
        super().__init__(serial, array, {})
        self.kind = kind
        self.source = array
        self.checksum = None
        self.used = 0
        self.capacity = array.nbytes
        self.members = 0
        self.copying = 0
        self.target: Array | None = None
        self.loaded: Array | None = None
        self.interest = 0

    @property
    def held_nbytes(self) -> int:
        """Bytes of memory that its source takes."""
        return self.capacity

    @property
    def in_memory(self) -> Array | None:
        """Its bytes, if they are in memory."""
        return self.loaded if self.source is None else self.source

    def __str__(self) -> str:
        return f"pack {self.serial} of small arrays ({self.used} bytes)"


class Handle:
    """Owns one array in a store: when the handle dies, the space is free.

    A handle owns the memory that only its array needs, too: the array passed to put while its write
    is queued, and the array of a prefetch. They are free at once when it dies, whatever the
    threads of the store do.

    Attributes:
        store: the store that holds the array; a handle keeps its store alive.
        shape, dtype, nbytes: of the array.
    """

    __slots__ = ("__weakref__", "_entry", "_fetch", "_source", "store")

    def __init__(self, store: AbstractArrayStore, entry: Entry) -> None:
        self.store = store
        self._entry = entry
        self._fetch: Fetch | None = None
        self._source: Array | None = None

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
    def loading_nbytes(self) -> int:
        """Bytes of memory that a prefetch takes in the store: its pack, unless it is in memory."""
        pack = self._entry.pack
        if pack is None or pack.in_memory is not None or pack.target is not None:
            return 0
        return pack.nbytes

    @property
    def captured(self) -> bool:
        """Whether the array passed to put may be changed or freed.

        After a failed write the store still needs it, until ``wait_captured`` has copied it.
        """
        return self._entry.captured

    @property
    def is_pending(self) -> bool:
        """Whether the write is queued or under way; ``check`` tells if it has failed."""
        return not self.captured and self._entry.error is None

    def wait_written(self) -> None:
        """Wait until the write has ended or failed; unlike ``wait_captured`` it copies nothing."""
        self.store._wait_written(self._entry)

    def wait_captured(self) -> None:
        """Wait until the array passed to put may be changed or freed.

        After a failed write the array is first copied into memory of the store.

        Raises:
            StoreError: the write failed, and there is no memory for the copy.
        """
        self.store._wait_captured(self._entry)

    def check(self) -> None:
        """Raise the error of a failed write, without waiting.

        The array stays in memory after a failed write, and ``get`` returns it. The next put raises
        the error, unless this did. The store tries the write once more at ``flush`` and where puts
        need the memory.

        Raises:
            StoreError: the write failed.
        """
        self.store._check_written(self._entry)

    def get(self, out: Array | None = None) -> Array:
        """The stored array: see ``AbstractArrayStore.get``.

        Raises:
            StoreError: it cannot be read.
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


def _no_handle() -> None:
    """The handle of an entry that is not stored yet."""


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
