"""What a store knows of one stored array."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from .errors import CorruptionError, StoreError

Array = NDArray[Any]


class State(enum.Enum):
    """Where the bytes of an entry are."""

    QUEUED = "queued"
    WRITING = "writing"
    STORED = "stored"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Fetch:
    """A read in the background: where it goes, and how far it is."""

    __slots__ = ("array", "done", "error")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.done = False
        self.error: StoreError | None = None


class Entry:
    """One stored array. The executor alone changes it, under its lock, except as noted.

    Attributes:
        serial: its number in the store, from 0.
        place: where the backend has put it; the backend's own.
        checksum: XXH3-64 of its bytes in C order; the backend's own.
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
        "error",
        "fetch",
        "nbytes",
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
        self.place: Any = None
        self.reserved = False
        self.checksum = 0
        self.stored_nbytes = 0
        self.source: Array | None = None
        self.state = State.QUEUED
        self.pins = 0
        self.busy = 0
        self.captured = False
        self.dropped = False
        self.error: StoreError | None = None
        self.fetch: Fetch | None = None

    def __str__(self) -> str:
        return f"array {self.serial} ({self.dtype} {self.shape}, {self.nbytes} bytes)"


def bytes_of(array: Array) -> NDArray[np.uint8]:
    """The bytes of a C-contiguous array as a flat uint8 view."""
    if not array.nbytes:
        return np.empty(0, np.uint8)
    return array.reshape(-1).view(np.uint8)


def checksum(array: Array) -> int:
    """XXH3-64 of the bytes of a C-contiguous array."""
    return xxhash.xxh3_64_intdigest(bytes_of(array).data)


def verify(found: int, entry: Entry, store: str) -> None:
    """Raise CorruptionError unless ``found`` is the checksum that ``entry`` was written with."""
    if found != entry.checksum:
        raise CorruptionError(
            f"the bytes read are not those written (XXH3 {found:016x}, was {entry.checksum:016x})",
            store=store,
            handle=str(entry),
            fix="Something else wrote to the file, the drive is faulty, or the array was changed "
            "before its handle said captured",
        )
