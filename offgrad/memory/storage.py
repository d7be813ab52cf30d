"""Storage: the memory behind a tensor and all its views."""

import itertools
import math
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Protocol
from weakref import ref

from numpy.typing import NDArray
from offgrad_storage.interrupts import MaskedLock

from offgrad.memory.allocator import POOL_THRESHOLD, counter, pool
from offgrad.memory.meta import MetaArray, meters
from offgrad.memory.registry import WeakRegistry

_uids = itertools.count()
large_storages: "WeakRegistry[Storage]" = WeakRegistry()


OTHER_TENSORS = "inputs and other tensors"
LASTING_ROLES = ("parameters", "gradients", "optimizer state", "buffers")
"""Roles of memory that lasts from step to step, whether or not it is saved for backward, too."""


class Saver(Protocol):
    """An object that keeps a storage in memory for backward."""

    def kept_storage(self) -> "Storage | None":
        """Return the kept storage; None after its release."""

    def origin(self) -> str:
        """Return the node and slot, for an error message."""

    @property
    def module(self) -> str:
        """The name of the module that saved; empty if not known."""

    @property
    def kept_by_policy(self) -> bool:
        """Whether hooks were asked, and left the storage in memory."""


class PendingWrite(Protocol):
    """A write of a storage's memory to a store."""

    @property
    def captured(self) -> bool:
        """Whether the write no longer reads the memory."""

    def wait_captured(self) -> None:
        """Block until the memory may change."""


class PendingCopy:
    """Base class of pending writes that changes through a NumPy array must not reach, either."""


# Never held across a wait. Reentrant: a collection may run a finalizer of the program's inside it.
_lock = MaskedLock(reentrant=True)
savers: WeakRegistry[Saver] = WeakRegistry()
saver_observers: list[Callable[[Saver], object]] = []
"""Called with what nodes save that are no operations, as they save it, from any thread."""
write_observers: "list[Callable[[Storage], object]]" = []
"""Called with each storage that is changed in place, before it is, from any thread."""
_MIN_TO_PRUNE = 16


_count = counter.add


def new_uid() -> int:
    """Return a number that no other storage of this process has."""
    return next(_uids)


class Storage:
    """The identity, version and role of one piece of tensor memory.

    A tensor and its views share one storage and its version. In-place operations increment the
    version, so that a tensor saved for backward can detect changes of its memory.

    Attributes:
        root: an array over the memory; keeps it alive.
        uid: a number unique among all storages of this process, dead ones included.
        version: the number of in-place operations that changed the memory.
        inference: whether it belongs to inference tensors, which autograd refuses to save.
        size: the bytes that the program has set for it; None for all of them.
        external: whether the memory is a NumPy array of the user, which may change unannounced.
        exported: whether the user has got a NumPy array of the memory.
        shared: whether forked processes share the memory.
        changed_by: the last operation that changed the memory.
        role: the purpose of the memory, in the words of an `OutOfMemoryError`.
        pending_writes: writes of the memory to a store, which in-place changes wait for.
        successor: holds the same memory after the storage has died: see `make_successor`.
        original: of a successor, the storage before it.
        is_noted: whether a session may return the memory where backward unpacks a tensor.
    """

    # Class attributes as defaults save memory: most storages never change and have no role.
    version = 0
    inference = False
    size: int | None = None
    external = False
    exported = False
    shared = False
    changed_by = ""
    role = OTHER_TENSORS
    pending_writes: "Sequence[ref[PendingWrite]]" = ()
    successor: "Storage | None" = None
    original: "ref[Storage] | None" = None
    is_noted = False
    # Whether the memory may be in a store: see `PagedStorage`.
    is_paged = False
    # Pages gradients, copies and optimizer state along with this memory, if a policy says so.
    placer: "Callable[[Any, str], None] | None" = None
    # Of optimizer state: the placer of its parameter that has decided about it.
    placed_by: Any = None
    # How many bytes of such memory an operation over many tensors should use at once.
    max_batch_nbytes: float = math.inf
    _max_writes = _MIN_TO_PRUNE

    def __init__(self, root: NDArray[Any], *, external: bool = False) -> None:
        """Count `root` as tensor memory, unless the pool counts it or it is `external`."""
        self.root = root
        self.uid = next(_uids)
        if external:
            self.external = True
            return
        if meters and (meter := meters.get(get_ident())) is not None:
            meter.hold(self)
            return
        nbytes: int = root.nbytes
        if nbytes >= POOL_THRESHOLD:
            if type(root) is MetaArray:
                return
            large_storages.add(self)
            if pool.owns(root):
                return
        if nbytes:
            _count(self, nbytes)

    @classmethod
    def of_nothing(cls, root: NDArray[Any]) -> "Storage":
        """Return the storage of a meta array: it counts no memory, unless a meter does."""
        storage = object.__new__(cls)
        storage.root, storage.uid = root, next(_uids)
        meter = meters.get(get_ident()) if meters else None
        if meter is not None:
            meter.hold(storage)
        return storage

    @property
    def nbytes(self) -> int:
        """The bytes of the content."""
        return self.root.nbytes

    @property
    def resident_nbytes(self) -> int:
        """The bytes of memory that it takes now."""
        return self.root.nbytes

    @property
    def purpose(self) -> str:
        """The purpose of the memory that it takes now: its role, or a page's way."""
        return self.role

    def place_alike(self, tensor: Any, role: str) -> None:
        """Page a gradient, a copy or optimizer state if the policy of this memory says so."""
        if self.placer is not None:
            self.placer(tensor, role)

    def make_successor(self) -> "Storage":
        """Return a storage for code that needs the memory unchanged after this storage died.

        It is the same for all callers. The memory is counted until both have died.
        """
        with _lock:
            if self.successor is None:
                successor = object.__new__(Storage)
                successor.root, successor.uid = self.root, next(_uids)
                successor.external = self.external
                successor.role = "saved for backward, to be written"
                successor.pending_writes = self.pending_writes
                successor.original = ref(self)
                self.successor = successor
                meter = meters.get(get_ident()) if meters else None
                if meter is not None:
                    meter.move(self, successor)
                    return successor
                if successor.root.nbytes >= POOL_THRESHOLD:
                    large_storages.add(successor)
                counter.move(self, successor)
            return self.successor

    def add_pending_write(self, pending: PendingWrite) -> None:
        """Make in-place changes wait for `pending`."""
        with _lock:
            writes = self.pending_writes
            if not isinstance(writes, list) or len(writes) >= self._max_writes:
                writes = [each for each in writes if (one := each()) and not one.captured]
                self._set_pending_writes(writes)
                self._max_writes = max(_MIN_TO_PRUNE, 2 * len(writes))
            writes.append(ref(pending))

    def write(self, operation: str) -> None:
        """Wait for pending writes and increment the version, before `operation` changes the memory
        in place.
        """
        while self.pending_writes:
            self._wait_for_writes()
        self.version += 1
        self.changed_by = operation
        if write_observers:
            for observer in tuple(write_observers):
                observer(self)
        if self.pending_writes:  # of a save by another thread since
            self._wait_for_writes()

    def export(self) -> None:
        """Prepare for changes through a NumPy array, which versions do not count."""
        if not self.root.flags.writeable:
            return  # as of numbers that operations share
        self.exported = True
        for reference in tuple(self.pending_writes):
            pending = reference()
            if isinstance(pending, PendingCopy):
                pending.wait_captured()

    def _wait_for_writes(self) -> None:
        # If one fails or is interrupted, the next attempt waits for all of them again.
        writes = tuple(self.pending_writes)
        for reference in writes:
            pending = reference()
            if pending is not None:
                pending.wait_captured()
        done = {id(reference) for reference in writes}
        with _lock:
            self._set_pending_writes([each for each in self.pending_writes if id(each) not in done])

    def _set_pending_writes(self, writes: "list[ref[PendingWrite]]") -> None:
        self.pending_writes = writes
        if self.successor is not None:  # its changes must wait for writes of the same memory
            self.successor.pending_writes = writes


class _ObservedRole:
    """In place of the class attribute `Storage.role` while there are observers of roles."""

    def __get__(self, storage: "Storage | None", owner: type["Storage"]) -> str:
        return OTHER_TENSORS if storage is None else storage.__dict__.get("role", OTHER_TENSORS)

    def __set__(self, storage: "Storage", role: str) -> None:
        storage.__dict__["role"] = role
        for observer in tuple(_role_observers):
            observer(storage, role)


RoleObserver = Callable[[Storage, str], object]
_role_observers: list[RoleObserver] = []


def add_role_observer(observer: RoleObserver) -> None:
    """Call `observer` with each storage that gets a role, from any thread."""
    with _lock:
        _role_observers.append(observer)
        Storage.role = _ObservedRole()  # type: ignore[assignment]


def remove_role_observer(observer: RoleObserver) -> None:
    """Undo one `add_role_observer`."""
    with _lock:
        if observer in _role_observers:
            _role_observers.remove(observer)
        if not _role_observers:
            Storage.role = OTHER_TENSORS


def track_saver(saver: Saver) -> None:
    """Make an `OutOfMemoryError` name `saver`, which keeps at least `POOL_THRESHOLD` bytes."""
    savers.add(saver)
