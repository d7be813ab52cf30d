"""The memory behind tensors, as PyTorch's storages show it."""

from copy import deepcopy
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from offgrad import memory
from offgrad._dtype import DTYPES, DType
from offgrad._tensor.type_names import NAMES
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import new_storage
from offgrad.memory import Storage
from offgrad.memory.meta import MetaArray
from offgrad.ops._core.device import CPU, META, Device


class Memory:
    """NumPy's array interface of memory that an array holds."""

    def __init__(self, base: Any, shape: tuple[int, ...], strides: Any, offset: int) -> None:
        low, _ = byte_bounds(base)
        self.base = base
        self.__array_interface__ = {
            "version": 3,
            "data": (low + offset, not base.flags.writeable),
            "typestr": "|u1",
            "shape": shape,
            "strides": strides,
        }


def _lines(storage: Any) -> str:
    """Return the elements of a storage, one on a line."""
    if storage.device is META:
        return "...\n"
    return "".join(f" {each}\n" for each in storage.tolist())


class UntypedStorage:
    """The bytes behind a tensor and all its views."""

    __slots__ = ("_storage",)

    def __init__(self, storage: Any = 0) -> None:
        """Show the memory of a tensor, or new memory: of a number of bytes, or of their values."""
        if isinstance(storage, int):
            storage = new_storage(memory.empty((storage,), np.uint8))
        elif not isinstance(storage, Storage):
            storage = new_storage(memory.copy(np.asarray(storage, np.uint8)))
        self._storage = storage

    def _bytes(self) -> Array:
        if self.device is META:
            raise NotImplementedError("Not available for 'meta' storage: it has no bytes")
        return np.asarray(Memory(self._storage.root, (self.nbytes(),), None, 0))

    _elements = _bytes

    def data_ptr(self) -> int:
        """Return the address of the first byte."""
        if self.device is META:
            return 0
        return int(byte_bounds(self._storage.root)[0]) if self.nbytes() else 0

    def nbytes(self) -> int:
        """Return the number of bytes."""
        size = self._storage.size
        return self._capacity() if size is None else size

    def _capacity(self) -> int:
        low, high = byte_bounds(self._storage.root)
        return int(high - low) if self._storage.root.size else 0

    size = __len__ = nbytes

    def element_size(self) -> int:
        """Return 1: the elements are bytes."""
        return 1

    @property
    def _cdata(self) -> int:
        return self._storage.uid

    @property
    def device(self) -> Device:
        """The device: the CPU, or "meta" if there are no bytes."""
        return META if type(self._storage.root) is MetaArray else CPU

    is_cuda = is_sparse = False

    def is_shared(self) -> bool:
        """Return whether forked processes share the memory."""
        return self._storage.shared

    def tolist(self) -> list[int]:
        """Return the bytes as a list."""
        return self._bytes().tolist()

    def __getitem__(self, index: Any) -> Any:
        found = self._bytes()[index]
        return found.tolist() if isinstance(found, np.ndarray) else int(found)

    def fill_(self, value: int) -> "UntypedStorage":
        """Set all bytes to `value`; return the storage."""
        self._storage.write("fill_")
        self._bytes()[...] = value
        return self

    def copy_(self, source: "UntypedStorage") -> "UntypedStorage":
        """Copy the bytes of another storage; return this one."""
        self._storage.write("copy_")
        self._bytes()[...] = source._bytes()
        return self

    def clone(self) -> "UntypedStorage":
        """Return a copy."""
        return UntypedStorage(new_storage(memory.copy(self._bytes())))

    def __deepcopy__(self, memo: dict[Any, Any]) -> "UntypedStorage":
        """Return a copy; tensors over the same memory that are copied with it share it."""
        key = shared_copy_key(self._storage)
        copy: UntypedStorage | None = memo.get(key)
        if copy is None:
            copy = memo[key] = self.clone()
        return copy

    def resize_(self, size: int) -> "UntypedStorage":
        """Set the number of bytes; return the storage.

        Fewer bytes stay in memory as long as tensors over them live, so that the number can grow up
        to what it was.

        Raises:
            RuntimeError: for more bytes than the memory has, since its tensors would not follow; if
                it is a NumPy array's.
        """
        if not self.resizable() or not 0 <= size <= self._capacity():
            raise RuntimeError(
                f"this storage is not resizable to {size} bytes: it has {self._capacity()}"
                f"{'' if self.resizable() else ' of a NumPy array'}; use resize_() of the tensor"
            )
        self._storage.write("resize_")
        self._storage.size = size
        return self

    def resizable(self) -> bool:
        """Return whether `resize_` works: not for the memory of NumPy arrays."""
        return not self._storage.external

    def untyped(self) -> "UntypedStorage":
        """Return the storage itself."""
        return self

    def is_pinned(self, device: Any = None) -> bool:
        """Return False: there is no accelerator to pin memory for."""
        return False

    def cpu(self) -> "UntypedStorage":
        """Return the storage itself."""
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UntypedStorage) and other._storage is self._storage

    def __hash__(self) -> int:
        return hash(self._storage.uid)

    def __repr__(self) -> str:
        name = "torch.storage.UntypedStorage"
        return f"{_lines(self)}[{name}(device={self.device}) of size {self.nbytes()}]"


def shared_copy_key(storage: Storage) -> tuple[str, int]:
    """Return the key of a storage's copy in the memo of `copy.deepcopy`."""
    return "offgrad storage", storage.uid


class TypedStorage:
    """The memory behind a tensor and all its views, as elements of the tensor's dtype."""

    __slots__ = ("_untyped_storage", "dtype")

    def __init__(self, untyped: UntypedStorage, dtype: DType) -> None:
        self._untyped_storage = untyped
        self.dtype = dtype

    def _elements(self) -> Array:
        return self._untyped_storage._bytes().view(self.dtype.dtype)

    def untyped(self) -> UntypedStorage:
        """Return the same memory as bytes."""
        return self._untyped_storage

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return self._untyped_storage.data_ptr()

    def nbytes(self) -> int:
        """Return the number of bytes."""
        return self._untyped_storage.nbytes()

    def size(self) -> int:
        """Return the number of elements."""
        return self.nbytes() // self.dtype.itemsize

    __len__ = size

    def element_size(self) -> int:
        """Return the bytes of one element."""
        return self.dtype.itemsize

    @property
    def _cdata(self) -> int:
        return self._untyped_storage._cdata

    @property
    def device(self) -> Device:
        """The device: the CPU, or "meta" if there are no elements."""
        return self._untyped_storage.device

    is_cuda = is_sparse = False

    def is_shared(self) -> bool:
        """Return whether forked processes share the memory."""
        return self._untyped_storage.is_shared()

    def tolist(self) -> list[Any]:
        """Return the elements as a list."""
        return self._elements().tolist()

    def __getitem__(self, index: Any) -> Any:
        return self._elements()[index].tolist()

    def __setitem__(self, index: Any, value: Any) -> None:
        self._untyped_storage._storage.write("setitem")
        self._elements()[index] = value

    def fill_(self, value: Any) -> "TypedStorage":
        """Set all elements to `value`; return the storage."""
        self[...] = value
        return self

    def resize_(self, size: int) -> None:
        """Set the number of elements: see `UntypedStorage.resize_`."""
        self._untyped_storage.resize_(size * self.dtype.itemsize)

    def clone(self) -> "TypedStorage":
        """Return a copy."""
        return TypedStorage(self._untyped_storage.clone(), self.dtype)

    def __deepcopy__(self, memo: dict[Any, Any]) -> "TypedStorage":
        """Return a copy, which tensors share as their copies do."""
        return TypedStorage(deepcopy(self._untyped_storage, memo), self.dtype)

    def __repr__(self) -> str:
        kind = f"torch.storage.TypedStorage(dtype={self.dtype}, device={self.device})"
        return f"{_lines(self)}[{kind} of size {self.size()}]"


def _typed(name: str, dtype: DType) -> Any:
    """Return the class of typed storages of one dtype, made of a size or of numbers."""

    def make(self: TypedStorage, content: Any = 0) -> None:
        if isinstance(content, int):
            root = memory.empty((content,), dtype.dtype)
        else:
            root = memory.copy(np.asarray(content, dtype.dtype))
        TypedStorage.__init__(self, UntypedStorage(new_storage(root)), dtype)

    doc = f"Memory of {dtype} elements: of a size, uninitialised, or of a sequence of numbers."
    body = {"__init__": make, "__slots__": (), "__module__": "torch", "__doc__": doc}
    return type(name, (TypedStorage,), body)


def _converting(name: str, dtype: DType) -> Any:
    def convert(self: Any) -> TypedStorage:
        converted: TypedStorage = TYPES[dtype](self._elements())
        return converted

    convert.__name__ = name
    convert.__doc__ = f"Return the elements as {dtype}, a copy."
    return convert


TYPES: dict[DType, Any] = {
    DTYPES[dtype]: _typed(name.removesuffix("Tensor") + "Storage", DTYPES[dtype])
    for dtype, name in NAMES.items()
}
"""The class of typed storages of each dtype."""

for _name, _kind in {
    "double": np.float64, "float": np.float32, "half": np.float16, "long": np.int64,
    "int": np.int32, "short": np.int16, "char": np.int8, "byte": np.uint8, "bool": np.bool_,
    "complex_double": np.complex128, "complex_float": np.complex64,
}.items():  # fmt: skip
    for _owner in (UntypedStorage, TypedStorage):
        setattr(_owner, _name, _converting(_name, DTYPES[np.dtype(_kind)]))
