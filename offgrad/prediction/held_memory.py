"""Memory that a recorder holds for backward, and notes of deaths."""

from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np
from offgrad_storage import Handle

from offgrad import memory
from offgrad.autograd.saved_tensor import Save
from offgrad.memory import Storage
from offgrad.profiler.owners import HoldsMemory
from offgrad.session.named_stores import open_store
from offgrad.session.saved_array import Array, address


class DeathNote(ref[Any]):
    """A weak reference with the step in which it was made, and what to note when its target dies.

    Attributes:
        number: of the target in the recording.
        step: in which it was made.
        room: of a held memory.
    """

    __slots__ = ("number", "room", "step")

    number: int
    step: Any
    room: "Room"


class Room:
    """How many bytes a held memory takes for backward alone."""

    __slots__ = ("nbytes",)

    def __init__(self) -> None:
        self.nbytes = 0


class HeldMemory:
    """A memory that the recorder holds for backward; freed with the last saved tensor in it.

    Attributes:
        number: in the recording.
        storage: a weak reference to the program's storage.
        root: an array over the memory; None while it is in a store.
        version: of the storage, when it was saved.
        room: that it takes.
    """

    __slots__ = (
        "__weakref__", "_change", "_handle", "_is_copy", "is_pooled", "number", "room", "root",
        "storage", "version",
    )  # fmt: skip

    def __init__(
        self, number: int, storage: Storage, change: "Callable[[HeldMemory], None]"
    ) -> None:
        self.number = number
        self.storage = ref(storage)
        self.root: Array | None = storage.root
        self.version = storage.version
        self.is_pooled = memory.pool.owns(storage.root)
        self.room = Room()
        self._change = change
        self._is_copy = False
        self._handle: Handle | None = None

    @property
    def captured(self) -> bool:
        """Whether the program may change its memory."""
        return self._is_copy or self.storage() is None

    def wait_captured(self) -> None:
        """Hold a copy from now on: the program is about to change the memory."""
        if not self.captured:
            self._change(self)

    def become_copy(self) -> None:
        """Hold a copy."""
        assert self.root is not None
        self.root, self._is_copy = memory.copy(self.root), True
        self.is_pooled = memory.pool.owns(self.root)

    def spill(self) -> bool:
        """Move it to the disk until its use; return whether that is possible."""
        if self.root is None or not self.root.flags.c_contiguous:
            return False
        self._handle = open_store("disk", max_pack_nbytes=0).put(self.root)
        self._handle.wait_captured()
        self.root = None
        return True

    def bring_back(self) -> Array:
        """Return the array over the memory, read if it was spilled."""
        if self.root is None:
            assert self._handle is not None
            self.root = self._handle.get()
        return self.root

    def living_storage(self) -> Storage | None:
        """Return the program's storage, while it has the bytes that were saved."""
        storage = None if self._is_copy else self.storage()
        return storage if storage is not None and storage.version == self.version else None


class Packed(HoldsMemory):
    """What the recorder gives autograd for a saved tensor."""

    __slots__ = ("__weakref__", "array", "begin", "dtype", "held", "number", "shape", "step",
                 "strides")  # fmt: skip

    def __init__(self, number: int, held: HeldMemory, save: Save, step: Any) -> None:
        array, root = save.array, save.storage.root
        self.number, self.held, self.step = number, held, step
        self.shape, self.dtype, self.strides = array.shape, array.dtype, array.strides
        self.begin = address(array) - address(root)
        # The bytes of other memory have gaps, and it is never spilled.
        self.array = None if root.flags.c_contiguous else array

    def held_memory(self) -> tuple[Array | None, Storage | None]:
        """Return the array over the memory and its storage; see `HoldsMemory`."""
        return self.held.root, self.held.storage()

    def view(self, root: Array) -> Array:
        """Return the array that was saved, in the array over its memory."""
        if self.array is not None:
            return self.array
        return np.ndarray(self.shape, self.dtype, root, self.begin, self.strides)
