"""Saved arrays: one array in the care of a session, and the tensors that are views of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import ref

import numpy as np
from numpy.typing import NDArray
from offgrad_storage import Handle

from offgrad import memory
from offgrad.memory import Storage
from offgrad.memory.meta import MetaArray
from offgrad.session.states import NEXT, Deferred, Evicting, InMemory, Recomputed, State, Stored

if TYPE_CHECKING:
    from offgrad.session.ledger_rows import LedgerCounter, RowKey
    from offgrad.session.memory_budget import MemoryBudget
    from offgrad.session.recompute import Recomputation

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """How an array lies over C-ordered bytes: a copy of its own elements, or of a larger array.

    Attributes:
        shape: of the array.
        dtype: of the array.
        strides: in bytes over the copy; 0 where the array repeats itself.
        offset: of its first element, in bytes.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    offset: int = 0

    def view(self, data: Array) -> Array:
        """Return the array as a view of `data`, a C-contiguous array of the same bytes."""
        kind = MetaArray if type(data) is MetaArray else np.ndarray
        return np.ndarray.__new__(kind, self.shape, self.dtype, data, self.offset, self.strides)


def compact(array: Array) -> tuple[Array, Layout, bool]:
    """Return the elements of `array` in memory order, each once.

    Returns:
        `array` without its repetitions, its dimensions ordered by stride; the layout that restores
        `array` over a C-ordered copy of it, in the same memory order, so that kernels give the same
        bits for either; and whether it is C-contiguous as it is.
    """
    if array.flags.c_contiguous:
        return array, Layout(array.shape, array.dtype, array.strides), True
    once = array[tuple([slice(1) if step == 0 else slice(None) for step in array.strides])]
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    packed = once.transpose(order)
    strides = [0] * array.ndim
    step = array.itemsize
    for position in reversed(range(array.ndim)):
        axis = order[position]
        strides[axis] = 0 if array.strides[axis] == 0 else step
        step *= packed.shape[position]
    return packed, Layout(array.shape, array.dtype, tuple(strides)), packed.flags.c_contiguous


def address(array: Array) -> int:
    """Return where the memory of `array` begins."""
    return int(array.__array_interface__["data"][0])


def has_no_gaps(root: Array) -> bool:
    """Return whether the memory of a storage has no gaps, in whatever order its dimensions are."""
    if root.flags.c_contiguous:
        return True
    packed, _, is_dense = compact(root)
    return is_dense and packed.nbytes == root.nbytes


class StorageRange(NamedTuple):
    """The part of a storage that an array covers.

    Attributes:
        array: a view of the storage.
        storage: the memory.
        begin: the offset of the first element in it, in bytes.
        data: the elements in memory order, each once.
        layout: how the array lies over a C-ordered copy of `data`.
        is_dense: whether `data` is C-contiguous: its bytes have no gaps.
        can_be_shared: whether a store or budget can take the bytes from the storage, without a
            copy.
        node_covers_storage: see `Save`.
    """

    array: Array
    storage: Storage
    begin: int
    data: Array
    layout: Layout
    is_dense: bool
    can_be_shared: bool
    node_covers_storage: bool = False

    @classmethod
    def of(
        cls, array: Array, storage: Storage, node_covers_storage: bool = False
    ) -> "StorageRange":
        """Return the part of `storage` that `array` covers."""
        root = storage.root
        data, layout, is_dense = compact(array)
        can_be_shared = is_dense and has_no_gaps(root) and not storage.external
        begin = address(array) - address(root)
        return cls(
            array, storage, begin, data, layout, is_dense, can_be_shared, node_covers_storage
        )

    @property
    def whole(self) -> "StorageRange":
        """The whole storage."""
        return StorageRange.of(self.storage.root, self.storage)

    @property
    def layout_in_storage(self) -> Layout:
        """How the array lies over a copy of the whole storage."""
        return Layout(self.array.shape, self.array.dtype, self.array.strides, self.begin)


class SavedArray:
    """One array saved for backward, shared by all saved tensors over the same bytes.

    Attributes:
        shape, dtype, nbytes: of the array.
        row: the ledger's row of the save that made it.
        ledger: counts its writes and reads.
        is_counted: whether the ledger has counted its save.
        lossless: whether it comes back bit for bit.
        budget: the budget that bounds its memory; None if none does.
        state: where it is; None until it is placed.
    """

    __slots__ = (
        "__weakref__", "_copy", "budget", "dtype", "is_counted", "ledger", "lossless", "nbytes",
        "row", "shape", "state",
    )  # fmt: skip

    def __init__(self, data: Array, row: "RowKey", ledger: "LedgerCounter", lossless: bool) -> None:
        self.row = row
        self.ledger = ledger
        self.is_counted = False
        self.shape = data.shape
        self.dtype = data.dtype
        self.nbytes = data.nbytes
        self.lossless = lossless
        self.budget: MemoryBudget | None = None
        self.state: State = None
        self._copy: tuple[ref[Storage], int, int] | None = None

    def enter(self, state: State) -> None:
        """Change to another state.

        Raises:
            RuntimeError: `state` cannot follow the present one.
        """
        if type(state) not in NEXT[type(self.state)]:
            raise RuntimeError(
                f"a saved array in state {type(self.state).__name__} cannot enter "
                f"{type(state).__name__}: this is a bug in offgrad.session"
            )
        self.state = state

    @property
    def stored(self) -> Stored | None:
        """Its place in a store, which may still be writing it."""
        state = self.state
        if isinstance(state, Evicting):
            return state.stored
        return state if isinstance(state, Stored) else None

    @property
    def handle(self) -> Handle:
        """Its handle, where it is stored."""
        stored = self.stored
        assert stored is not None
        return stored.handle

    @property
    def is_written(self) -> bool:
        """Whether its write has ended, and no budget may take it back."""
        return isinstance(self.state, Stored) and self.state.handle.captured

    @property
    def deferred(self) -> Deferred | None:
        """Its deferred write."""
        return self.state if isinstance(self.state, Deferred) else None

    @property
    def recomputation(self) -> "Recomputation | None":
        """How to compute it, where it is recomputed."""
        return self.state.recomputation if isinstance(self.state, Recomputed) else None

    @property
    def stays_in_memory(self) -> bool:
        """Whether it is in memory and stays there without being pinned."""
        return isinstance(self.state, (InMemory, Deferred))

    @property
    def captured(self) -> bool:
        """Whether the memory it was saved from may change."""
        if isinstance(self.state, (InMemory, Evicting)):
            return False
        stored = self.stored
        return stored is None or stored.handle.captured

    def wait_captured(self) -> None:
        """Write it, unless it is written, so that the memory it was saved from may change.

        Raises:
            StoreError: it cannot be written, and is still in that memory.
        """
        state = self.state
        if isinstance(state, (InMemory, Evicting)):
            state.cached.clear()
        stored = self.stored
        if stored is not None:
            stored.handle.wait_captured()

    def note_copy(self, storage: Storage, offset: int) -> None:
        """Note that `storage`, at its present version, holds the same bytes from `offset` on."""
        if has_no_gaps(storage.root):
            storage.is_noted = True
            self._copy = (ref(storage), storage.version, offset)

    def forget_copies(self) -> None:
        """From now on return the store's copy, which may be rounded, not a copy in memory."""
        self._copy = None

    def find_in_memory(self) -> tuple[Storage, Array] | None:
        """Return a storage that still holds the bytes, and these; None if there is none.

        The bytes of a deferred array may have gaps: `DeferredWrites.copy` returns these.
        """
        if isinstance(self.state, Deferred):
            self.state.shared.adopt()
        if self._copy is not None:
            reference, version, offset = self._copy
            storage = reference()
            if storage is not None and storage.version == version:
                flat = compact(storage.root)[0].reshape(-1).view("u1")
                return storage, flat[offset : offset + self.nbytes]
        return None

    def take_buffer(self) -> Array | None:
        """Return the memory that a prefetch is filling, for `read` or `cancel_prefetch`."""
        stored = self.stored
        if stored is None:
            return None
        buffer, stored.buffer = stored.buffer, None
        return buffer

    def read(self, buffer: Array | None) -> Array:
        """Return the array from its store, in `buffer` or else in new memory."""
        handle = self.handle
        if buffer is None:
            buffer = memory.empty(self.shape, self.dtype)
        return handle.get(buffer)


class PackedTensor(NamedTuple):
    """A tensor packed by a session: a view of a saved array."""

    saved: SavedArray
    layout: Layout
