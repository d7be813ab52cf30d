"""OffloadSession: the mechanics behind a policy.

What a node saves comes in at `pack`: the policy places it, and what is to be stored goes to the
store once, however many tensors share its bytes. When a backward pass begins, `plan` learns what
will be wanted in which order; reads run ahead of it. `unpack` gives the tensors back.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

from offgrad_storage import AbstractArrayStore, Handle, PoolStore, StoreStats

from offgrad import memory
from offgrad.autograd.saved_tensor import KEEP, Save, pop_hooks, push_hooks
from offgrad.autograd.tensor_base import wrap
from offgrad.memory import OutOfMemoryError, Storage
from offgrad.nn.module import current_module_name
from offgrad.policies.layout import Array, Layout, address, compact
from offgrad.policies.ledger import Ledger
from offgrad.policies.policy import Keep, SaveContext, Store, as_policy
from offgrad.policies.stores import open_store

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


class _Entry:
    """One stored array, shared by all saved tensors over the same bytes.

    Attributes:
        handle: its place in the store; the array goes when the last saved tensor does.
        reading: the buffer a prefetch is filling.
        resident: the storage, with its version, that holds the same bytes in memory, and where
            they begin.
    """

    __slots__ = ("__weakref__", "handle", "reading", "resident")

    def __init__(self, handle: Handle, storage: Storage, offset: int) -> None:
        self.handle = handle
        self.reading: Array | None = None
        self.resident = (ref(storage), storage.version, offset)

    def in_memory(self) -> tuple[Storage, int] | None:
        """Return the storage that still holds the bytes and where they begin in it, if there is
        one.
        """
        reference, version, offset = self.resident
        storage = reference()
        if storage is None or storage.version != version or not storage.root.flags.c_contiguous:
            return None
        return storage, offset


class _Packed(NamedTuple):
    """What a saved tensor holds in place of its data."""

    entry: _Entry
    layout: Layout


# The bytes a save covers: version of the storage, first byte, number of bytes, dtype and, for
# elements with gaps between them, shape and strides.
_Range = tuple[Any, ...]


class OffloadSession:
    """Applies a policy to every tensor saved for backward inside the ``with`` block.

    It may be entered again, by one thread or several; each thread's innermost session counts.

    Attributes:
        policy: what decides.
        ledger: the figures so far.
    """

    def __init__(
        self, policy: Any, *, directory: str | None = None, prefetch_nbytes: int | str = 32 << 20
    ) -> None:
        """Make a session.

        Args:
            policy: ``"keep"``, ``"pool"``, ``"disk"``, ``"zarr"``, ``"zarr:CODEC"``, a store, or an
                object with a method ``place(context)``.
            directory: where stores that the policy names write.
            prefetch_nbytes: how far reads run ahead of backward; bytes or text.
        """
        self.policy = as_policy(policy)
        self._directory = directory
        self._prefetch_nbytes = memory.parse_nbytes(prefetch_nbytes)
        self._lock = threading.RLock()
        self._steps = 0
        self._ledger = Ledger()
        self._baselines: dict[AbstractArrayStore, StoreStats] = {}
        # What is stored of each storage, while anything still wants it.
        self._ranges: WeakKeyDictionary[Storage, dict[_Range, ref[_Entry] | None]]
        self._ranges = WeakKeyDictionary()
        self._pending: WeakSet[Handle] = WeakSet()
        self._upcoming: deque[ref[_Entry]] = deque()
        self._ahead: WeakSet[_Entry] = WeakSet()
        memory.on_pressure(self.relieve)

    def __enter__(self) -> "OffloadSession":
        push_hooks(self)
        self._steps += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pop_hooks()

    def __repr__(self) -> str:
        return f"<OffloadSession {self.policy}>"

    @property
    def ledger(self) -> Ledger:
        """The figures so far. Those of a store that others use too include their part."""
        ledger = self._ledger
        ledger.stored_nbytes = ledger.written_nbytes = ledger.read_nbytes = 0
        for store, before in self._baselines.items():
            now = store.stats()
            ledger.stored_nbytes += now.written_nbytes - before.written_nbytes
            ledger.read_nbytes += now.read_nbytes - before.read_nbytes
            if not isinstance(store, PoolStore):
                ledger.written_nbytes += now.written_nbytes - before.written_nbytes
        return ledger

    # Forward

    def pack(self, save: Save) -> Any:
        """Place the tensor; return what stands for it, or `KEEP`."""
        tensor = save.tensor
        array, storage = tensor._array, tensor._storage
        context = SaveContext(
            op=save.op,
            slot=save.slot,
            module=current_module_name(),
            dtype=array.dtype,
            shape=array.shape,
            nbytes=array.nbytes,
            is_parameter=save.is_parameter,
            is_output=save.is_output,
            storage=storage.uid,
            step=self._steps - 1,
        )
        placement = self.policy.place(context)
        data, layout, dense = compact(array)
        begin = address(data) - address(storage.root)
        key: _Range = (storage.version, begin, data.nbytes, data.dtype)
        if not dense:
            key += (array.shape, array.strides)
        with self._lock:
            ranges = self._ranges.setdefault(storage, {})
            known = ranges.get(key)
            self._record(context, 0 if key in ranges else data.nbytes)
            if isinstance(placement, Keep) or not data.nbytes:
                self._ledger.kept_nbytes += array.nbytes
                ranges.setdefault(key, None)
                return KEEP
            if not isinstance(placement, Store):
                raise TypeError(
                    f"a policy must return Keep or Store, but {self.policy} returned "
                    f"{type(placement).__name__} for {context}"
                )
            entry = None if known is None else known()
        if entry is None:
            entry = self._store(placement, data, dense, storage, begin, context)
            with self._lock:
                ranges[key] = ref(entry)
        return _Packed(entry, layout)

    def _record(self, context: SaveContext, unique_nbytes: int) -> None:
        self._ledger.saves += 1
        self._ledger.logical_nbytes += context.nbytes
        self._ledger.unique_nbytes += unique_nbytes
        self._ledger.by_slot[context.op, context.slot] += context.nbytes

    def _store(
        self,
        placement: Store,
        data: Array,
        dense: bool,
        storage: Storage,
        begin: int,
        context: SaveContext,
    ) -> _Entry:
        store = open_store(placement.store, self._directory)
        if store not in self._baselines:
            self._baselines[store] = store.stats()
        facts = {
            "op": context.op,
            "slot": context.slot,
            "module": context.module,
            "shape": list(context.shape),
            "step": context.step,
        }
        began = time.perf_counter()
        handle = store.put(data if dense else memory.copy(data), attributes=facts)
        self._stalled(began)
        entry = _Entry(handle, storage, begin)
        if not dense:
            # The bytes in memory have gaps, those in the store have none.
            entry.resident = (ref(storage), -1, 0)
        elif not handle.captured:
            self._pending.add(handle)
            storage.writers = (*storage.writers[-64:], partial(_wait_captured, ref(handle)))
        return entry

    def relieve(self) -> None:
        """Wait until no tensor is held for a pending write, so that its memory can be freed."""
        for handle in list(self._pending):
            handle.wait_captured()
            self._pending.discard(handle)

    # Backward

    def plan(self, packed: Sequence[Any]) -> None:
        """Learn the order of unpacking, and begin to read."""
        with self._lock:
            fresh = dict.fromkeys(each.entry for each in packed)
            self._upcoming.extendleft(ref(entry) for entry in reversed(fresh))
        self._read_ahead()

    def _read_ahead(self) -> None:
        """Begin reads until as many bytes are ahead of backward as may be."""
        with self._lock:
            ahead = sum(entry.handle.nbytes for entry in self._ahead)
            while self._upcoming:
                entry = self._upcoming[0]()
                if entry is not None and entry.reading is None and entry.in_memory() is None:
                    nbytes = entry.handle.nbytes
                    if ahead and ahead + nbytes > self._prefetch_nbytes:
                        return
                    try:
                        buffer = memory.empty(entry.handle.shape, entry.handle.dtype)
                    except OutOfMemoryError:
                        # Not now: whoever wants it will allocate, and hear if there is no room.
                        return
                    entry.handle.prefetch(buffer)
                    entry.reading = buffer
                    self._ahead.add(entry)
                    ahead += nbytes
                self._upcoming.popleft()

    def unpack(self, packed: _Packed) -> "Tensor":
        """Return the saved tensor: from memory if it is still or again there, else from its
        store.
        """
        entry, layout = packed
        with self._lock:
            found = entry.in_memory()
            if found is None:
                self._ahead.discard(entry)
                buffer, entry.reading = entry.reading, None
                began = time.perf_counter()
                data = (
                    entry.handle.get()
                    if buffer is not None
                    else entry.handle.get(memory.empty(entry.handle.shape, entry.handle.dtype))
                )
                del buffer
                self._stalled(began)
                storage = Storage(data)
                entry.resident = (ref(storage), 0, 0)
            else:
                storage, offset = found
                flat = storage.root.reshape(-1).view("u1")
                data = flat[offset : offset + entry.handle.nbytes]
        self._read_ahead()
        return wrap(layout.view(data), storage)

    def _stalled(self, began: float) -> None:
        with self._lock:
            self._ledger.stall_seconds += time.perf_counter() - began


def _wait_captured(reference: "ref[Handle]") -> None:
    handle = reference()
    if handle is not None:
        handle.wait_captured()
