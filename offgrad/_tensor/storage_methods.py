"""Methods that show the memory of a tensor, and set it to other memory."""

import mmap
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from offgrad import memory
from offgrad._dtype import DTYPES
from offgrad._tensor.storages import Memory, TypedStorage, UntypedStorage
from offgrad.autograd.mutation import check_mutable
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import TensorBase, describe
from offgrad.memory import Storage
from offgrad.memory.meta import MetaArray, meta_empty
from offgrad.ops._core.dims import integers, sizes
from offgrad.ops._core.memory_formats import empty_in_order, order_of

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class StorageMethods(TensorBase):
    """The memory of a tensor, and methods that give it another."""

    def untyped_storage(self) -> UntypedStorage:
        """Return the memory that this tensor shares with its views, as bytes."""
        return UntypedStorage(self._storage)

    def storage(self) -> TypedStorage:
        """Return the memory that this tensor shares with its views, as elements of its dtype."""
        return TypedStorage(UntypedStorage(self._storage), DTYPES[self._array.dtype])

    _typed_storage = storage

    def storage_offset(self) -> int:
        """Return how many elements the first one lies behind the start of the memory."""
        if not self._array.size:
            return 0
        low = byte_bounds(self._storage.root)[0]
        start = self._array.__array_interface__["data"][0]
        return int(start - low) // self._array.itemsize

    def is_shared(self) -> bool:
        """Return whether forked processes share the memory: see `share_memory_`."""
        return self._storage.shared

    def share_memory_(self: Any) -> "Tensor":
        """Move the elements to memory that processes forked from now on share; return the tensor.

        Views made before keep the old memory.
        """
        if self._storage.shared:
            return self
        array = self._array
        if type(array) is MetaArray:
            raise RuntimeError(
                f"share_memory_: a meta tensor has no memory, got a {describe(self)}"
            )
        pages = mmap.mmap(-1, max(array.nbytes, 1))
        shared = np.frombuffer(pages, array.dtype, array.size).reshape(array.shape)
        np.copyto(shared, array)
        role = self._storage.role
        self._replace(shared, Storage(shared, external=True))
        self._storage.role, self._storage.shared = role, True
        return self

    def _replace(self, array: Array, storage: Storage | None) -> None:
        """Go over to other memory, as a leaf or constant."""
        self._base = self._view_chain = None
        self._set(array, storage, False)

    def set_(
        self: Any, source: Any = None, storage_offset: int = 0, size: Any = None, stride: Any = None
    ) -> "Tensor":
        """Make this tensor use the memory of another tensor or storage; return it.

        Args:
            source: a tensor of the same dtype; a storage; None for no elements.
            storage_offset: the first element's position in the memory.
            size: the shape; by default that of the tensor, or all elements.
            stride: the strides in elements; by default those of C order.

        Raises:
            RuntimeError: for a tensor of another dtype; if this one is a leaf that requires grad;
                if the memory does not hold the elements.
        """
        check_mutable(self, "set_", recorded=False)
        kind = self._array.dtype
        if source is None:
            make = meta_empty if type(self._array) is MetaArray else memory.empty
            return self._set_to(make((0,), kind), None)
        if isinstance(source, TensorBase):
            if source._array.dtype != kind:
                raise RuntimeError(
                    f"set_: Could not set tensor of type {source._array.dtype.name} to a tensor of "
                    f"type {kind.name}; convert it with .to()"
                )
            if size is None:
                return self._set_to(source._array, source._storage)
            source = UntypedStorage(source._storage)
        if isinstance(source, TypedStorage) and source.dtype.dtype != kind:
            raise RuntimeError(
                f"set_: Expected a Storage of type {kind.name}, got {source.dtype}; pass its "
                "untyped() to read the same bytes as another dtype"
            )
        untyped = source.untyped() if isinstance(source, TypedStorage) else source
        if not isinstance(untyped, UntypedStorage):
            raise TypeError(f"set_ takes a tensor or a storage, got {type(source).__name__}")
        shape = integers(
            (untyped.nbytes() // kind.itemsize - storage_offset,) if size is None else size,
            "set_",
            "size",
        )
        steps = _c_order(shape) if stride is None else integers(stride, "set_", "stride")
        view = _strided(untyped._storage.root, kind, shape, steps, storage_offset)
        return self._set_to(view, untyped._storage)

    def _set_to(self: Any, array: Array, storage: Storage | None) -> "Tensor":
        self._storage.write("set_")
        self._replace(array, storage)
        return self

    def resize_(self: Any, *shape: Any, memory_format: Any = None) -> "Tensor":
        """Give this tensor another shape over the same memory, in C order; return it.

        More elements than the memory holds take new memory: the old ones come first, the others are
        not initialised.

        Raises:
            RuntimeError: if the tensor requires grad, or its memory is a NumPy array's.
        """
        if self._requires_grad:
            raise RuntimeError("cannot resize variables that require grad; use a detached tensor")
        target = sizes(shape, "resize_")
        if min(target, default=0) < 0:
            raise RuntimeError(
                f"resize_: Trying to create tensor with negative dimension, got {list(target)}"
            )
        if target == self._array.shape and memory_format is None:
            return self
        if type(self._array) is MetaArray:
            return self._set_to(meta_empty(target, self._array.dtype), None)
        kind, offset = self._array.dtype, self.storage_offset()
        untyped = UntypedStorage(self._storage)
        if memory_format is None and prod(target) + offset <= untyped.nbytes() // kind.itemsize:
            root = self._storage.root
            self._storage.write("resize_")
            self._set(_strided(root, kind, target, _c_order(target), offset), self._storage, False)
            return self
        if self._storage.external:
            raise RuntimeError(
                f"the storage is not resizable: the memory of this {describe(self)} is a NumPy "
                "array's; use a clone()"
            )
        old = untyped._bytes()
        like = np.broadcast_to(np.empty((), kind), target)
        new = empty_in_order(
            target, kind, order_of(like, memory_format, "resize_") if memory_format else None
        )
        flat = np.asarray(Memory(new, (new.nbytes,), None, 0))
        begin = offset * kind.itemsize
        count = min(old.size - begin, flat.size)
        flat[:count] = old[begin : begin + count]
        self._storage.write("resize_")
        self._replace(new, None)
        return self

    def resize_as_(self: Any, the_template: Any, *, memory_format: Any = None) -> "Tensor":
        """Give this tensor the shape of another: see `resize_`."""
        return self.resize_(the_template._array.shape, memory_format=memory_format)


def _c_order(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a shape in C order."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _strided(
    root: Array, kind: np.dtype[Any], shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> Array:
    """Return a view of the memory of `root`.

    Raises:
        RuntimeError: if it does not lie within.
    """
    low, high = byte_bounds(root) if root.size else (0, 0)
    if len(shape) != len(stride):
        raise RuntimeError(f"each dimension needs a stride, got size {shape}, stride {stride}")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if not prod(shape):
        return np.empty(shape, kind)
    if offset < 0 or (last + 1) * kind.itemsize > high - low:
        raise RuntimeError(
            f"size {shape}, stride {stride} and storage offset {offset} are out of bounds: the "
            f"storage has {high - low} bytes"
        )
    flat = np.asarray(Memory(root, (high - low,), None, 0))
    base = flat[: (high - low) // kind.itemsize * kind.itemsize].view(kind)
    strides = tuple(step * kind.itemsize for step in stride)
    return np.lib.stride_tricks.as_strided(base[offset:], shape, strides)
