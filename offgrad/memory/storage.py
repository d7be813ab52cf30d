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
_large: "WeakRegistry[Storage]" = WeakRegistry()


class Saver(Protocol):
    """What keeps memory for backward."""

    def kept_storage(self) -> "Storage | None":
        """Return the storage it keeps, None once it has let go."""

    def origin(self) -> str:
        """Return the node and slot, for an error message."""

    @property
    def module(self) -> str:
        """The name of the module that saved, as far as it is known."""


class PendingWrite(Protocol):
    """A write of some memory to a store."""

    @property
    def captured(self) -> bool:
        """Whether it is done with the memory."""

    def wait_captured(self) -> None:
        """Wait until the memory may change."""


class Adopter(PendingWrite, Protocol):
    """Who needs some memory as it is, and longer than its owner lives."""

    def adopt(self, storage: "Storage") -> None:
        """Take over the memory, in a storage that only heirs have. Called by a finalizer."""


# Taken for a moment only, never by a finalizer.
_writers_lock = threading.Lock()
_savers: WeakRegistry[Saver] = WeakRegistry()
# By the number of the storage. Not in the storage: the garbage collector, before it finalizes an
# object, clears the weak references that only garbage holds.
_heirs: dict[int, tuple[ref[Adopter], ...]] = {}


class Storage:
    """The identity, version and role of one piece of tensor memory.

    A tensor and its views share one storage, and so share its version: in-place operations count it
    up, and a tensor saved for backward knows by it whether its memory still holds what was saved.

    Attributes:
        root: an array over the memory; keeps it alive.
        uid: a number no other storage of this process has or had.
        version: how many in-place operations changed the memory.
        inference: whether it is an inference tensor's, which autograd refuses.
        external: whether it is the user's array, whose changes nobody announces.
        changed_by: the operation that changed it last.
        role: what the memory is for, in the words of an `OutOfMemoryError`.
        writers: pending writes of the memory to a store, which `write()` waits for.
        has_heirs: whether somebody gets the memory when the storage dies.
    """

    # Defaults are the class's: most storages are never changed and have no role.
    version = 0
    inference = False
    external = False
    changed_by = ""
    role = "tensors"
    writers: "tuple[ref[PendingWrite], ...]" = ()
    has_heirs = False
    _counted = 0

    def __init__(self, root: NDArray[Any], *, external: bool = False) -> None:
        """Count `root` as tensor memory, unless the pool does or it is `external` (the user's)."""
        self.root = root
        self.uid = next(_uids)
        if external:
            self.external = True
            return
        nbytes: int = root.nbytes
        if nbytes >= POOL_THRESHOLD:
            _large.add(self)
            if pool.owns(root):
                return
        if nbytes:
            counter.change(nbytes)
            self._counted = nbytes

    def __del__(self) -> None:
        if self.has_heirs and self._hand_over():
            return
        if self._counted:
            counter.change(-self._counted)

    def _hand_over(self) -> bool:
        """Leave the memory, counted as it is, to the heirs; False if there are none."""
        heirs = [heir for each in _heirs.pop(self.uid) if (heir := each()) is not None]
        if not heirs:
            return False
        left = object.__new__(Storage)
        left.root, left.uid, left._counted = self.root, next(_uids), self._counted
        left.role = "saved for backward, to be written"
        # Heirs may hand the memory out before they let go of it.
        writers: list[ref[PendingWrite]] = [ref(heir) for heir in heirs]
        left.writers = (*self.writers, *writers)
        if left.root.nbytes >= POOL_THRESHOLD:
            _large.add(left)
        for heir in heirs:
            heir.adopt(left)
        return True

    def add_pending_write(self, writer: PendingWrite) -> None:
        """Have `write` wait for `writer`."""
        with _writers_lock:
            waiting = [each for each in self.writers if (one := each()) and not one.captured]
            self.writers = (*waiting, ref(writer))

    def add_adopter(self, heir: Adopter) -> None:
        """Leave the memory to `heir`, if it is alive then; until then `write` waits for it."""
        self.add_pending_write(heir)
        with _writers_lock:
            known = [each for each in _heirs.get(self.uid, ()) if each() is not None]
            _heirs[self.uid] = (*known, ref(heir))
            self.has_heirs = True

    def write(self, operation: str) -> None:
        """Announce that `operation` is about to change the memory in place."""
        if self.writers:
            with _writers_lock:
                writers, self.writers = self.writers, ()
            for index, reference in enumerate(writers):
                writer = reference()
                try:
                    if writer is not None:
                        writer.wait_captured()
                except BaseException:
                    with _writers_lock:  # the next try waits for them as well
                        self.writers = (*self.writers, *writers[index:])
                    raise
        self.version += 1
        self.changed_by = operation


def _renew_lock() -> None:
    global _writers_lock
    _writers_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def track_saver(saver: Saver, nbytes: int) -> bool:
    """Have an `OutOfMemoryError` name `saver`, if what it keeps is large; return whether it is."""
    if nbytes < POOL_THRESHOLD:
        return False
    _savers.add(saver)
    return True


def memory_by_holder() -> dict[str, int]:
    """Return the bytes held by each role, largest first.

    What is saved for backward goes by the node and slot that saved it.
    """
    saved_by = {}
    for saver in _savers:
        storage = saver.kept_storage()
        if storage is not None:
            saved_by[storage.uid] = f"saved for backward by {saver.origin()}"
    held: Counter[str] = Counter()
    for storage in _large:
        held[saved_by.get(storage.uid, storage.role)] += storage.root.nbytes
    for borrower in counter.borrowers:
        held.update(borrower.held_by_purpose())
    rest = counter.allocated - held.total()
    if rest > 0:
        held["buffers in use, pending writes and small tensors"] += rest
    return {role: nbytes for role, nbytes in held.most_common() if nbytes}


def saved_by_module() -> dict[str, int]:
    """Return the large memory kept for backward, in bytes, by the module that saved it first.

    Parameters, which are there anyway, do not count.
    Modules are known while a session or a profile is active; what else saves is ``""``.
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
    """Return one sentence that says what holds tensor memory."""
    held = memory_by_holder()
    saved = sum(n for role, n in held.items() if role.startswith("saved"))
    parts = [f"{format_nbytes(n)} {role}" for role, n in list(held.items())[:5]]
    total = f"{format_nbytes(saved)} of it saved for backward; largest: " if saved else ""
    return f"Held: {total}{', '.join(parts) or 'nothing'}."


counter.describe = describe
