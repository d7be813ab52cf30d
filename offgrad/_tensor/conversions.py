"""Tensors as other dtypes, numbers, arrays, capsules and copies."""

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offgrad import _dtype, ops
from offgrad._dtype import DType
from offgrad._layout import preserve_format
from offgrad._tensor import type_names
from offgrad._tensor.storages import UntypedStorage, shared_copy_key
from offgrad.autograd import grad_mode, views
from offgrad.autograd.tensor_base import TensorBase, alias, describe
from offgrad.memory.meta import MetaArray, meta_strided
from offgrad.ops._core.dtypes import check_tensor

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def _method(name: str, dtype: DType) -> Callable[..., "Tensor"]:
    def convert(self: Any, memory_format: Any = None) -> "Tensor":
        return _converted(self, dtype.dtype, memory_format)

    convert.__name__ = name
    convert.__doc__ = f"Return the tensor as {dtype}; itself if it has that dtype."
    return convert


def _converted(tensor: Any, dtype: Any, memory_format: Any) -> "Tensor":
    if dtype is not None:
        tensor = ops.cast(tensor, dtype)
    if memory_format is None or memory_format is preserve_format:
        return tensor
    return ops.contiguous(tensor, memory_format)


def _moved(tensor: Any, to_meta: Any, dtype: Any, memory_format: Any) -> "Tensor":
    """Return a tensor on the other device."""
    if not to_meta:
        raise NotImplementedError(
            f"Cannot copy out of meta tensor, which has no data: a {describe(tensor)}; make one "
            "with torch.empty_like(..., device='cpu'), and a module's with to_empty()"
        )
    result: Any = ops.empty_like(tensor, dtype=dtype, device="meta", memory_format=memory_format)
    return result


def _needs_values(tensor: Any, where: str) -> None:
    """Raise RuntimeError for a tensor on the meta device."""
    if type(tensor._array) is MetaArray:
        raise RuntimeError(
            f"{where} cannot be called on meta tensors: they have no values, got a "
            f"{describe(tensor)}"
        )


class Conversions(TensorBase):
    """Methods that give a tensor's elements in another form."""

    float = _method("float", _dtype.float32)
    double = _method("double", _dtype.float64)
    half = _method("half", _dtype.float16)
    bfloat16 = _method("bfloat16", _dtype.bfloat16)
    long = _method("long", _dtype.int64)
    int = _method("int", _dtype.int32)
    short = _method("short", _dtype.int16)
    char = _method("char", _dtype.int8)
    byte = _method("byte", _dtype.uint8)
    bool = _method("bool", _dtype.bool_)
    cfloat = _method("cfloat", _dtype.complex64)
    cdouble = _method("cdouble", _dtype.complex128)

    def to(
        self: Any,
        *target: Any,
        device: Any = None,
        dtype: Any = None,
        non_blocking: Any = False,
        copy: Any = False,
        memory_format: Any = None,
        other: Any = None,
    ) -> "Tensor":
        """Return the tensor in a dtype, or in that of another tensor; itself if it has that dtype.

        Called as ``to(dtype)``, ``to(device, dtype)`` or ``to(tensor)``, each with ``non_blocking``
        and ``copy`` behind. The device is ``"cpu"``, or ``"meta"`` for a tensor without memory.
        """
        flags = [each for each in target if each is True or each is False]
        if len(flags) == 2:
            copy = flags[1]
        if other is not None:
            target = (other, *target)
        dtype, on_meta = ops.conversion(target, device, dtype)
        if on_meta is not None and on_meta is not (type(self._array) is MetaArray):
            return _moved(self, on_meta, dtype, memory_format)
        result = _converted(self, dtype, memory_format)
        return result.clone() if copy and result is self else result

    def type(self: Any, dtype: Any = None, non_blocking: Any = False, **_: Any) -> Any:
        """Return the name of the tensor's type, or the tensor in another.

        Args:
            dtype: None for the name, such as ``"torch.FloatTensor"``; such a name; a dtype; or a
                type such as `offgrad.FloatTensor`.
            non_blocking: has no effect.

        Raises:
            ValueError: for what names no type.
        """
        if dtype is None:
            where = "meta." if type(self._array) is MetaArray else ""
            return f"torch.{where}{type_names.NAMES[self._array.dtype]}"
        return ops.cast(self, type_names.dtype_named(dtype))

    def type_as(self: Any, other: Any) -> "Tensor":
        """Return the tensor converted to the dtype of `other`."""
        return ops.cast(self, check_tensor(other, "type_as")._array.dtype)

    def cpu(self: Any, memory_format: Any = None) -> "Tensor":
        """Return the tensor itself; a meta tensor has no values to bring."""
        if type(self._array) is MetaArray:
            return _moved(self, False, None, None)
        return _converted(self, None, memory_format)

    def resolve_neg(self: Any) -> "Tensor":
        """Return the tensor itself: negatives are computed at once."""
        return self

    # Arrays and numbers

    def numpy(self, *, force: Any = False) -> NDArray[Any]:
        """Return an array that shares the memory.

        Raises:
            RuntimeError: if the tensor requires grad, in grad mode: detach it first, or pass
                ``force=True``.
        """
        if type(self._array) is MetaArray:
            if force:
                _moved(self, False, None, None)
            raise TypeError(
                "can't convert meta device type tensor to numpy: it has no values, got a "
                f"{describe(self)}"
            )
        if (
            (self._requires_grad or views.is_stale(self))
            and not force
            and grad_mode.is_grad_enabled()
        ):
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() "
                f"instead: an array cannot carry the history of this {describe(self)}"
            )
        self._storage.export()
        return self._array

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    # NumPy's functions take tensors and return tensors: np.sin(x), np.ones(3) + x.
    __array_priority__ = 1000

    def __array_wrap__(
        self, array: NDArray[Any], context: Any = None, return_scalar: Any = False
    ) -> "Tensor":
        array = np.asarray(array)
        if array.dtype == np.bool_:
            array = array.astype(np.uint8)  # as PyTorch
        return ops.from_numpy(array)

    def __dlpack__(
        self: Any,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: Any = None,
    ) -> Any:
        if stream is not None:
            raise AssertionError(f"stream should be None on cpu, got {stream!r}")
        if self._requires_grad or views.is_stale(self):
            raise BufferError(
                f"DLPack cannot export a tensor that requires grad, got a {describe(self)}; use "
                "its detach()"
            )
        if type(self._array) is MetaArray:
            raise BufferError(f"a meta tensor has no memory to pack, got a {describe(self)}")
        self._storage.export()
        return self._array.__dlpack__(max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def item(self) -> Any:
        """Return the only element as a Python number.

        Raises:
            RuntimeError: unless there is exactly one element.
        """
        if self._array.size != 1:
            raise RuntimeError(
                f"a Tensor with {self._array.size} elements cannot be converted to Scalar, got a "
                f"{describe(self)}"
            )
        _needs_values(self, "Tensor.item()")
        return self._array.item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        if type(self._array) is MetaArray:
            _moved(self, False, None, None)
        return self._array.tolist()

    def __bool__(self) -> Any:
        if self._array.size != 1:
            held = "more than one value" if self._array.size else "no values"
            raise RuntimeError(
                f"Boolean value of Tensor with {held} is ambiguous, got a {describe(self)}; use "
                "any() or all()"
            )
        _needs_values(self, "Tensor.item()")
        return self._array.item() != 0

    def __int__(self) -> Any:
        return int(self._real())

    def __float__(self) -> Any:
        return float(self._real())

    def __complex__(self) -> complex:
        return complex(self._scalar())

    def _scalar(self) -> Any:
        if self._array.size != 1:
            raise ValueError(
                "only one element tensors can be converted to Python scalars, got a "
                f"{describe(self)}"
            )
        _needs_values(self, "Tensor.item()")
        return self._array.item()

    def _real(self) -> Any:
        """Return the element, which must be real; a complex one without an imaginary part is."""
        number = self._scalar()
        if not isinstance(number, complex):
            return number
        if number.imag:
            raise RuntimeError(
                f"value cannot be converted to a real number without loss, got {number} in a "
                f"{describe(self)}; take its real part"
            )
        return number.real

    def __index__(self) -> Any:
        if self._array.dtype.kind not in "iub" or self._array.size != 1:
            raise TypeError(
                "only integer tensors of a single element can be converted to an index, got a "
                f"{describe(self)}"
            )
        _needs_values(self, "Tensor.item()")
        return int(self._array.item())

    def __format__(self, spec: str) -> str:
        is_number = self._array.ndim == 0 and type(self) is TensorBase.tensor_class
        is_number = is_number and type(self._array) is not MetaArray
        return format(self.item(), spec) if is_number else object.__format__(self, spec)

    # Copies

    def __deepcopy__(self: Any, memo: dict[Any, Any]) -> "Tensor":
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol, but "
                f"this {describe(self)} was computed by {self.grad_fn.name()}; copy its detach()"
            )
        known = memo.get(id(self))
        if known is not None:
            return known
        copy = object.__new__(type(self))
        copy._share(_deep_copy_of(self, memo), self._requires_grad)
        memo[id(self)] = copy
        if self._grad is not None:
            copy._grad = deepcopy(self._grad, memo)
            copy._storage.place_alike(copy._grad, "gradients")
        for name, value in self.__dict__.items():
            if name not in TensorBase.__annotations__:
                setattr(copy, name, deepcopy(value, memo))
        return copy

    def __copy__(self: Any) -> "Tensor":
        """Return a leaf of the same class over the same memory."""
        copy = object.__new__(type(self))
        for name, value in self.__dict__.items():
            if name not in TensorBase.__annotations__:
                copy.__dict__[name] = value
        copy._share(self, self._requires_grad)
        return copy

    def __reduce__(self: Any) -> Any:
        array = self._array
        if type(array) is MetaArray:
            geometry = array.shape, array.strides, array.dtype
            return rebuild_meta, (type(self), *geometry, self._requires_grad), _own(self)
        order = sorted(range(array.ndim), key=lambda dim: -array.strides[dim])
        if array.transpose(order).flags.c_contiguous:
            array = array.transpose(order)
        else:  # memory with gaps
            order = list(range(array.ndim))
            array = np.ascontiguousarray(array)
        return rebuild, (type(self), array, self._requires_grad, order), _own(self)


def _own(tensor: Any) -> dict[str, Any] | None:
    """Return the attributes that the program has set; None if there is none."""
    names = TensorBase.__annotations__
    return {name: each for name, each in tensor.__dict__.items() if name not in names} or None


def rebuild_meta(kind: Any, shape: Any, strides: Any, dtype: Any, requires_grad: Any) -> "Tensor":
    """Return the unpickled meta tensor."""
    extent = sum((size - 1) * step for size, step in zip(shape, strides, strict=True) if size)
    tensor = object.__new__(kind)
    array = meta_strided(shape, dtype, strides, extent + np.dtype(dtype).itemsize)
    tensor._set(array, None, requires_grad)
    return tensor


def _clone_of(tensor: TensorBase) -> "Tensor":
    """Return a copy with its role; the copy of paged memory is paged as well."""
    copy = ops.clone(alias(tensor))
    storage = tensor._storage
    copy._storage.role = storage.role
    storage.place_alike(copy, storage.role)
    return copy


def _deep_copy_of(tensor: "Tensor", memo: dict[Any, Any]) -> "Tensor":
    """Return a copy that shares memory with the copies of tensors with which `tensor` does."""
    storage = tensor._storage
    if storage.is_paged or type(storage.root) is MetaArray:
        return _clone_of(tensor)
    array = tensor._array
    if min(array.strides, default=0) < 0:  # which PyTorch's strides cannot describe
        return _clone_of(tensor)
    key = shared_copy_key(storage)
    is_whole = array.nbytes == storage.root.nbytes and array.flags.c_contiguous
    if is_whole and key not in memo:
        copy = _clone_of(tensor)
        if not copy._storage.is_paged:
            memo[key] = UntypedStorage(copy._storage)
        return copy
    whole: UntypedStorage = deepcopy(UntypedStorage(storage), memo)
    whole._storage.role = storage.role
    empty = ops.empty(0, dtype=tensor.dtype)
    return empty.set_(whole, tensor.storage_offset(), tensor.shape, tensor.stride())


def rebuild(
    kind: Any, array: NDArray[Any], requires_grad: Any, order: list[int] | None = None
) -> "Tensor":
    """Return the unpickled tensor; `order` has its dimensions as they lie in memory."""
    source = ops.tensor(array)
    tensor = object.__new__(kind)
    data = source._array if order is None else source._array.transpose(np.argsort(order))
    tensor._set(data, source._storage, requires_grad)
    return tensor
