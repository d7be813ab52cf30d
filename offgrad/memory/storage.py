"""Storage: the memory behind a tensor and all its views."""

import itertools
import os
import threading
from collections import Counter
from typing import Any, Protocol
from weakref import ref

from numpy.typing import NDArray

from offgrad.memory.allocator import POOL_THRESHOLD, counter, pool
from offgrad.memory.registry import WeakRegistry
from offgrad.memory.units import format_nbytes

_uids = itertools.count()
_large_storages: "WeakRegistry[Storage]" = WeakRegistry()


class Saver(Protocol):
    """An object that keeps a storage in memory for backward."""

    def kept_storage(self) -> "Storage | None":
        """Return the kept storage; None after its release."""

    def origin(self) -> str:
        """Return the node and slot, for an error message."""

    @property
    def module(self) -> str:
        """The name of the module that saved; empty if not known."""


class PendingWrite(Protocol):
    """A write of a storage's memory to a store."""

    @property
    def captured(self) -> bool:
        """Whether the write no longer reads the memory."""

    def wait_captured(self) -> None:
        """Block until the memory may change."""


class Adopter(PendingWrite, Protocol):
    """A pending write that needs the memory unchanged, even after its storage died."""

    def adopt(self, storage: "Storage") -> None:
        """Take over the memory in `storage`, which only adopters know. Called by a finalizer."""


# Never held across a wait, and never acquired by a finalizer.
_pending_writes_lock = threading.Lock()
_savers: WeakRegistry[Saver] = WeakRegistry()
# By the uid of the storage. Not an attribute of the storage: before the garbage collector finalizes
# an object, it clears weak references that only garbage holds.
_adopters: dict[int, tuple[ref[Adopter], ...]] = {}


class Storage:
    """The identity, version and role of one piece of tensor memory.

    A tensor and its views share one storage and its version. In-place operations increment the
    version, so that a tensor saved for backward can detect changes of its memory.

    Attributes:
        root: an array over the memory; keeps it alive.
        uid: a number unique among all storages of this process, dead ones included.
        version: the number of in-place operations that changed the memory.
        inference: whether it belongs to inference tensors, which autograd refuses to save.
        external: whether the memory is a NumPy array of the user, which may change unannounced.
        changed_by: the last operation that changed the memory.
        role: the purpose of the memory, in the words of an `OutOfMemoryError`.
        pending_writes: writes of the memory to a store, which in-place changes wait for.
        has_adopters: whether adopters take the memory over when the storage dies.
    """

    # Class attributes as defaults save memory: most storages never change and have no role.
    version = 0
    inference = False
    external = False
    changed_by = ""
    role = "tensors"
    pending_writes: "tuple[ref[PendingWrite], ...]" = ()
    has_adopters = False
    _counted_nbytes = 0

    def __init__(self, root: NDArray[Any], *, external: bool = False) -> None:
        """Count `root` as tensor memory, unless the pool counts it or it is `external`."""
        self.root = root
        self.uid = next(_uids)
        if external:
            self.external = True
            return
        nbytes: int = root.nbytes
        if nbytes >= POOL_THRESHOLD:
            _large_storages.add(self)
            if pool.owns(root):
                return
        if nbytes:
            counter.change(nbytes)
            self._counted_nbytes = nbytes

    def __del__(self) -> None:
        if self.has_adopters and self._hand_over():
            return
        if self._counted_nbytes:
            counter.change(-self._counted_nbytes)

    def _hand_over(self) -> bool:
        """Hand the memory and its count over to the live adopters; return False if none is left."""
        adopters = [adopter for each in _adopters.pop(self.uid) if (adopter := each()) is not None]
        if not adopters:
            return False
        successor = object.__new__(Storage)
        successor.root, successor.uid = self.root, next(_uids)
        successor._counted_nbytes = self._counted_nbytes
        successor.role = "saved for backward, to be written"
        # Before its write an adopter may return the memory to the program, which may change it.
        writes: list[ref[PendingWrite]] = [ref(adopter) for adopter in adopters]
        successor.pending_writes = (*self.pending_writes, *writes)
        if successor.root.nbytes >= POOL_THRESHOLD:
            _large_storages.add(successor)
        for adopter in adopters:
            adopter.adopt(successor)
        return True

    def add_pending_write(self, pending: PendingWrite) -> None:
        """Make in-place changes wait for `pending`."""
        with _pending_writes_lock:
            waiting = [each for each in self.pending_writes if (one := each()) and not one.captured]
            self.pending_writes = (*waiting, ref(pending))

    def add_adopter(self, adopter: Adopter) -> None:
        """Hand the memory over to `adopter`, if alive, when the storage dies; until then in-place
        changes wait for it.
        """
        self.add_pending_write(adopter)
        with _pending_writes_lock:
            alive = [each for each in _adopters.get(self.uid, ()) if each() is not None]
            _adopters[self.uid] = (*alive, ref(adopter))
            self.has_adopters = True

    def write(self, operation: str) -> None:
        """Wait for pending writes and increment the version, before `operation` changes the memory
        in place.
        """
        if self.pending_writes:
            with _pending_writes_lock:
                writes, self.pending_writes = self.pending_writes, ()
            for index, reference in enumerate(writes):
                pending = reference()
                try:
                    if pending is not None:
                        pending.wait_captured()
                except BaseException:
                    with _pending_writes_lock:  # the next attempt must wait for them, too
                        self.pending_writes = (*self.pending_writes, *writes[index:])
                    raise
        self.version += 1
        self.changed_by = operation


def _renew_lock() -> None:
    global _pending_writes_lock
    _pending_writes_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def track_saver(saver: Saver, nbytes: int) -> bool:
    """Make an `OutOfMemoryError` name `saver` if it keeps at least `POOL_THRESHOLD` bytes.

    Returns:
        Whether it does.
    """
    if nbytes < POOL_THRESHOLD:
        return False
    _savers.add(saver)
    return True


def memory_by_holder() -> dict[str, int]:
    """Return the held bytes by role, largest first.

    Tensors saved for backward are listed by the node and slot that saved them.
    """
    saved_by = {}
    for saver in _savers:
        storage = saver.kept_storage()
        if storage is not None:
            saved_by[storage.uid] = f"saved for backward by {saver.origin()}"
    held: Counter[str] = Counter()
    for storage in _large_storages:
        held[saved_by.get(storage.uid, storage.role)] += storage.root.nbytes
    for reclaimable in counter.reclaimables:
        held.update(reclaimable.held_by_purpose())
    rest = counter.allocated - held.total()
    if rest > 0:
        held["buffers in use, pending writes and small tensors"] += rest
    return {role: nbytes for role, nbytes in held.most_common() if nbytes}


def saved_by_module() -> dict[str, int]:
    """Return the bytes kept for backward by the module that saved them first.

    Only tensors of at least `POOL_THRESHOLD` bytes count, parameters excluded. Module names are
    known while a session or a profile is active; else the name is ``""``.
    """
    saved: dict[int, tuple[str, int]] = {}
    for saver in _savers:
        storage = saver.kept_storage()
        if storage is not None and storage.role != "parameters":
            saved.setdefault(storage.uid, (saver.module, storage.root.nbytes))
    held: Counter[str] = Counter()
    for module, nbytes in saved.values():
        held[module] += nbytes
    return dict(held.most_common())


def describe() -> str:
    """Return one sentence on the largest holders of tensor memory."""
    held = memory_by_holder()
    saved = sum(n for role, n in held.items() if role.startswith("saved"))
    parts = [f"{format_nbytes(n)} {role}" for role, n in list(held.items())[:5]]
    total = f"{format_nbytes(saved)} of it saved for backward; largest: " if saved else ""
    return f"Held: {total}{', '.join(parts) or 'nothing'}."


counter.describe = describe
