"""Meta arrays: shape, dtype and strides without memory, for tensors of the device "meta".

A `MetaArray` is a view of addresses that are reserved and never written, so NumPy's views of one
(slices, transposes, reshapes) have the strides of real ones. All that would compute gives another
meta array of the right shape and dtype instead; `offgrad.memory.meta_functions` has the rules.
Threads listed in `shape_only` get meta arrays from `memory.empty`, too, so that the forward of an
operation runs as it stands and neither allocates nor computes.
"""

import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

shape_only: dict[int, int] = {}
"""How many blocks of `shapes_only` each thread is in, by its identifier; empty as a rule."""

reserved: list[Array] = []
"""The reserved bytes, once there is a meta array; empty before."""


class Meter(Protocol):
    """Counts the memory that the meta arrays of a thread would take: see `offgrad.memory.meter`."""

    def hold(self, storage: Any) -> None:
        """Note a new storage over a meta array."""

    def move(self, storage: Any, successor: Any) -> None:
        """Count the bytes of a storage until its successor has died, too."""

    def empty(self, shape: Any, dtype: Any) -> "MetaArray":
        """Return a meta array for tensor data, and count it until its last view dies."""

    def twin(self, tensor: Any) -> Any:
        """Return what stands for a tensor of the CPU, on the meta device."""

    def store_of(self, placement: Any, max_pack_nbytes: int) -> Any:
        """Return the store that takes the arrays of this thread instead of that of `placement`."""

    def computed(self, name: str, arrays: Any) -> None:
        """Note that a kernel, or a function of NumPy's, would have run on `arrays`."""


meters: dict[int, Meter] = {}
"""The meters of threads that have one, by their identifiers; empty as a rule."""

_ALIGNMENT = 64
_LARGEST, _SMALLEST = 46, 30  # binary logarithms of the bytes to reserve


def is_shape_only() -> bool:
    """Return whether this thread is in a block of `shapes_only`."""
    return bool(shape_only) and threading.get_ident() in shape_only


class _Addresses:
    """A range of addresses without memory behind them, handed out in turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0

    def take(self, nbytes: int) -> tuple[Array, int]:
        """Return the reserved bytes, and the offset of `nbytes` among them.

        Offsets repeat after the whole range, so that two meta arrays seem to share memory very
        rarely.

        Raises:
            MemoryError: if the range is smaller.
        """
        with self._lock:
            if not reserved:
                reserved.append(_reserve())
            (room,) = reserved
            if nbytes > room.size:
                raise MemoryError(
                    f"a meta tensor of {nbytes} bytes needs more addresses than the {room.size} "
                    "that the system reserves; is there a limit on address space (ulimit -v)?"
                )
            if self._next + nbytes > room.size:
                self._next = 0
            offset = self._next
            self._next += -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        return room, offset

    def holds(self, array: Array) -> bool:
        """Return whether the first element of `array` lies in the range."""
        if not reserved:
            return False
        (room,) = reserved
        begin = room.__array_interface__["data"][0]
        at = array.__array_interface__["data"][0]
        return bool(begin <= at < begin + room.size)


def _reserve() -> Array:
    """Return as many readable bytes as the system reserves; they take no memory unless read."""
    for exponent in range(_LARGEST, _SMALLEST - 1, -1):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        try:
            pages = mmap.mmap(-1, 1 << exponent, flags=flags, prot=mmap.PROT_READ)
        except (OSError, OverflowError, ValueError):
            continue
        return np.frombuffer(pages, np.uint8)
    raise MemoryError("the system reserves no addresses for meta tensors")


_addresses = _Addresses()


def _rules() -> Any:
    # Rarely needed; and the rules make meta arrays.
    return import_module("offgrad.memory.meta_rules").rules()


class MetaArray(np.ndarray[Any, Any]):
    """An array of which only shape, dtype and strides exist."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _rules().ufunc_rule(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _rules().function_rule(func, args, kwargs)

    def run_as_view(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a NumPy function that makes views and reads nothing."""
        found = super().__array_function__(func, (MetaArray,), args, kwargs)
        if isinstance(found, (tuple, list)):
            return type(found)(_viewed(each) for each in found)
        return _viewed(found)

    def __getitem__(self, index: Any) -> Any:
        each = index if isinstance(index, tuple) else (index,)
        if any(isinstance(one, (np.ndarray, list, bool, np.bool_)) for one in each):
            return _rules().index_rule(self, each)
        if Ellipsis not in each:
            each = (*each, Ellipsis)  # a view, never a number
        return super().__getitem__(each)

    def __setitem__(self, index: Any, value: Any) -> None:
        pass

    # Methods that would copy, read or write

    def astype(self, dtype: Any, *_: Any, copy: bool = True, **__: Any) -> "MetaArray":  # type: ignore[override]
        if not copy and self.dtype == np.dtype(dtype):
            return self
        return meta_empty(self.shape, dtype)

    def copy(self, order: Any = "C") -> "MetaArray":
        return meta_like(self) if order in ("K", "A") else meta_empty(self.shape, self.dtype)

    def reshape(self, *shape: Any, order: Any = "C", copy: bool | None = None) -> "MetaArray":
        sizes: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        try:
            view: Any = super().reshape(sizes, order=order, copy=False)
            return as_meta(view)
        except ValueError:
            if copy is False:
                raise
            sizes = tuple([int(each) for each in sizes])
            if -1 in sizes:
                rest = -prod(sizes)
                sizes = tuple([self.size // rest if each == -1 else each for each in sizes])
            if prod(sizes) != self.size:
                raise
            return meta_empty(sizes, self.dtype)

    def ravel(self, order: Any = "C") -> "MetaArray":
        return self.reshape(self.size)

    def flatten(self, order: Any = "C") -> "MetaArray":
        return meta_empty((self.size,), self.dtype)

    def fill(self, value: Any) -> None:
        pass

    def sort(self, *_: Any, **__: Any) -> None:
        pass

    def argsort(self, *args: Any, **kwargs: Any) -> Any:
        return _rules().function_rule(np.argsort, (self, *args), kwargs)

    def argmax(self, *args: Any, **kwargs: Any) -> Any:
        return _rules().function_rule(np.argmax, (self, *args), kwargs)

    def argmin(self, *args: Any, **kwargs: Any) -> Any:
        return _rules().function_rule(np.argmin, (self, *args), kwargs)

    def cumsum(self, *args: Any, **kwargs: Any) -> Any:
        return _rules().function_rule(np.cumsum, (self, *args), kwargs)

    def repeat(self, *args: Any, **kwargs: Any) -> Any:
        return _rules().function_rule(np.repeat, (self, *args), kwargs)

    def take(self, *args: Any, **kwargs: Any) -> Any:
        return _rules().function_rule(np.take, (self, *args), kwargs)

    def _no_values(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("a meta tensor has no values to read")

    item = tolist = tobytes = nonzero = searchsorted = _no_values
    __bool__ = __int__ = __float__ = __complex__ = __index__ = _no_values
    __iter__ = _no_values


def _viewed(found: Any) -> Any:
    return as_meta(found) if isinstance(found, np.ndarray) else found


def meta_empty(shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> MetaArray:
    """Return a C-ordered meta array."""
    kind = np.dtype(dtype)
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    nbytes = prod(sizes) * kind.itemsize
    room, offset = _addresses.take(nbytes)
    if meters and threading.get_ident() in meters:
        room, offset = np.asarray(MetaMemory(room, offset, nbytes)), 0
    return np.ndarray.__new__(MetaArray, sizes, kind, room, offset)


def meta_strided(
    shape: tuple[int, ...], dtype: DTypeLike, strides: Sequence[int], extent: int
) -> MetaArray:
    """Return a meta array with strides in bytes, in `extent` bytes of its own."""
    room, offset = _addresses.take(extent)
    if meters and threading.get_ident() in meters:
        room, offset = np.asarray(MetaMemory(room, offset, extent)), 0
    return np.ndarray.__new__(MetaArray, shape, np.dtype(dtype), room, offset, strides)


class MetaMemory:
    """The addresses of one meta array: the base of all views of it, as that of pooled memory is.

    Attributes:
        is_counted: whether a meter counts them until this object dies.
        role: the purpose of the memory, where no `Storage` tells it.
    """

    __slots__ = ("__array_interface__", "__weakref__", "is_counted", "role")

    def __init__(self, room: Array, offset: int, nbytes: int) -> None:
        self.is_counted = False
        self.role = ""
        self.__array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (room.__array_interface__["data"][0] + offset, True),
            "version": 3,
        }


def memory_of(array: Any) -> MetaMemory | None:
    """Return the addresses that `array` is a view of; None if it was made without a meter."""
    while array is not None:
        if isinstance(array, MetaMemory):
            return array
        array = getattr(array, "base", None)
    return None


def note_computed(name: str, arrays: Any) -> None:
    """Tell the meter of this thread that a function would have run on `arrays`."""
    meter = meters.get(threading.get_ident())
    if meter is not None:
        meter.computed(name, arrays)


def meta_tensor_memory(shape: Any, dtype: Any) -> MetaArray:
    """Return a meta array for tensor data, which the meter of this thread counts."""
    meter = meters.get(threading.get_ident()) if meters else None
    return meta_empty(shape, dtype) if meter is None else meter.empty(shape, dtype)


def meta_like(array: Array) -> MetaArray:
    """Return a meta array of the shape, dtype and order in memory of `array`, without its gaps."""
    order = sorted(range(array.ndim), key=lambda axis: (-abs(array.strides[axis]), axis))
    result = meta_empty(tuple([array.shape[axis] for axis in order]), array.dtype)
    return result.transpose(sorted(range(array.ndim), key=order.__getitem__))


def as_meta(array: Array) -> MetaArray:
    """Return a meta array with the geometry of `array`; itself if it is one, or a view of one."""
    if isinstance(array, MetaArray):
        return array
    if _addresses.holds(array):  # from a function of NumPy's that makes plain arrays
        return array.view(MetaArray)
    extent = array.itemsize
    for size, step in zip(array.shape, array.strides, strict=True):
        if step < 0:
            return meta_empty(array.shape, array.dtype)
        extent += (size - 1) * step
    if not array.size:
        extent = 0
    return meta_strided(array.shape, array.dtype, array.strides, extent)


entered: list[Callable[[], None]] = []
left: list[Callable[[], None]] = []
"""Called, with `lock` held, when the first thread enters and the last leaves `shapes_only`."""

lock = threading.RLock()


@contextmanager
def shapes_only() -> Iterator[None]:
    """Give this thread meta arrays for tensor memory, and kernels that do nothing."""
    thread = threading.get_ident()
    before = shape_only.get(thread, 0)
    with lock:
        if not shape_only:
            for call in entered:
                call()
        shape_only[thread] = before + 1
    try:
        yield
    finally:
        with lock:
            # Not one less: Ctrl-C may have ended a block inside this one before its `try`; or this
            # one, which ends with its frame, after the block around it.
            if before and thread in shape_only:
                shape_only[thread] = before
            else:
                shape_only.pop(thread, None)
            if not shape_only:
                for call in left:
                    call()
