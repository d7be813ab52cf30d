"""Tensors from numbers, sequences, arrays and buffers."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad._warning import warn_program
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import TensorBase, wrap
from offgrad.memory import Storage
from offgrad.ops._core.device import is_meta
from offgrad.ops._core.dtypes import cast, converted_array
from offgrad.ops._core.factories import check_options, factory, set_requires_grad
from offgrad.ops._core.nested_data import array_of_numbers, check_numeric

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "as_tensor",
    "asarray",
    "from_dlpack",
    "from_numpy",
    "frombuffer",
    "scalar_tensor",
    "tensor",
]


def _array_of(data: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Return an array of `data` with PyTorch's default dtypes; may share memory."""
    if isinstance(data, TensorBase):
        array = data._array
    elif isinstance(data, (np.ndarray, np.generic)):
        array = np.asarray(data)
    elif hasattr(data, "__array__") or hasattr(data, "__array_interface__"):
        array = np.asarray(data)  # a pandas Series, a picture
    else:
        return array_of_numbers(data, dtype)
    check_numeric(array, "tensor()")
    return array if dtype is None else converted_array(array, np.dtype(dtype))


@factory
def tensor(data: Any, *, dtype: Any = None) -> "Tensor":
    """Return a tensor with a copy of `data`: numbers, sequences, arrays or a tensor.

    Python floats become the default dtype, integers int64; elements that are NumPy's numbers,
    arrays or tensors of one element keep their dtypes, and different dtypes promote to one.

    Raises:
        TypeError: if the elements are not numbers.
        ValueError: if the lengths of sequences differ, or a tensor in one has several elements.
        RuntimeError: if a number does not fit into the dtype; if integers or bools should require
            grad.
    """
    if isinstance(data, TensorBase):
        warn_program(
            "To copy construct from a tensor, use detach().clone(), with requires_grad_() for a "
            "leaf that requires grad, rather than tensor()"
        )
    return wrap(memory.copy(_array_of(data, dtype)))


@factory
def scalar_tensor(s: Any, *, dtype: Any = None) -> "Tensor":
    """Return a number as a tensor without dimensions, of the default dtype."""
    return tensor(s, dtype=tensor(0.0)._array.dtype if dtype is None else dtype)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> "Tensor":
    """Return `data` as a tensor, sharing memory with an array or tensor where the dtype allows."""
    if isinstance(data, TensorBase):
        result = cast(data, dtype or data._array.dtype)  # type: ignore[arg-type]
        return result if device is None else result.to(device)
    array = _array_of(data, dtype)
    if array is not data or is_meta(device):
        return tensor(array, device=device)
    return from_numpy(array)


def asarray(
    obj: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    copy: bool | None = None,
    requires_grad: bool | None = None,
) -> "Tensor":
    """Return `obj` as a tensor; it shares memory where that is possible and `copy` is not True.

    Args:
        obj: a tensor, an array, an object with DLPack's protocol or Python's buffer protocol, a
            number or nested sequences of numbers.
        dtype: that of the result; of a buffer that of its elements, by default the default dtype.
        device: "cpu" or "meta".
        copy: True to copy always, False never.
        requires_grad: False to detach the result, True to make it require grad; None keeps the
            history of `obj`.

    Raises:
        ValueError: if `copy` is False and the result does not share memory.
    """
    is_meta(device)
    if isinstance(obj, TensorBase):
        source: Any = obj
    elif isinstance(obj, np.ndarray):
        source = from_numpy(obj)
    elif isinstance(obj, np.generic):
        source = None
    elif hasattr(obj, "__dlpack__"):
        source = from_dlpack(obj)
    elif isinstance(obj, (bytes, bytearray, memoryview)):
        source = frombuffer(obj, dtype=tensor(0.0)._array.dtype if dtype is None else dtype)
    else:
        source = None
    if source is None:
        if copy is False:
            raise ValueError(
                f"asarray: a {type(obj).__name__} has no memory to share; leave out copy=False"
            )
        return tensor(obj, dtype=dtype, device=device, requires_grad=requires_grad)
    result = as_tensor(source, dtype, device)
    if copy is False and result is not source:
        raise ValueError("asarray: another dtype needs a copy; leave out copy=False")
    if copy and result is source:
        result = source.clone()
    if requires_grad is False:
        return result.detach()
    return result if result.requires_grad else set_requires_grad(result, requires_grad)


def from_numpy(ndarray: np.ndarray[Any, Any]) -> "Tensor":
    """Return a tensor that shares the memory of an array, which the memory counters leave out.

    Raises:
        TypeError: if it is not an array of numbers.
    """
    if not isinstance(ndarray, np.ndarray):
        raise TypeError(f"from_numpy takes a NumPy array, got {type(ndarray).__name__}")
    if not ndarray.flags.writeable:
        _warn_not_writable(f"NumPy array is not writable, shape {list(ndarray.shape)}")
    return wrap(check_numeric(ndarray, "from_numpy()"), Storage(ndarray, external=True))


def _warn_not_writable(what: str) -> None:
    warn_program(
        f"The given {what}: operations that change the tensor in place will raise; copy it to "
        "change it"
    )


def frombuffer(
    buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> "Tensor":
    """Return a vector of the bytes of an object with Python's buffer protocol, without a copy.

    Args:
        buffer: bytes, a bytearray, a memoryview, an array.
        dtype: of the elements.
        count: how many elements; -1 for all.
        offset: how many bytes to leave out in front.
        requires_grad: whether the result requires grad.

    Raises:
        ValueError: if the buffer is empty, or does not hold `count` whole elements at `offset`.
    """
    array = np.frombuffer(buffer, np.dtype(dtype), count, offset)
    if not array.size:
        raise ValueError("frombuffer: the buffer, or what follows its offset, is empty")
    if not array.flags.writeable:
        _warn_not_writable("buffer is not writable")
    result = wrap(array, Storage(array, external=True))
    return set_requires_grad(result, requires_grad)


class _Capsule:
    """An object with DLPack's protocol around a capsule that a program made."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class _Writable:
    """The memory of an old capsule: it cannot say that it is read-only, so NumPy assumes it."""

    def __init__(self, array: Array) -> None:
        self._array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> "Tensor":
    """Return a tensor that shares the memory of another library's, by DLPack's protocol.

    Args:
        ext_tensor: an object with ``__dlpack__``, or a capsule that it returned.
        device: the CPU.
        copy: True for a copy of the memory.

    Raises:
        RuntimeError: for other objects.
        BufferError: for memory of another device.
    """
    check_options("from_dlpack", None, device, False)
    if isinstance(ext_tensor, TensorBase):
        result = wrap(ext_tensor._array, ext_tensor._storage)
        return result.clone() if copy else result
    is_capsule = type(ext_tensor).__name__ == "PyCapsule"
    if is_capsule:
        ext_tensor = _Capsule(ext_tensor)
    elif not hasattr(ext_tensor, "__dlpack__"):
        raise RuntimeError(
            f"from_dlpack takes objects with __dlpack__, got {type(ext_tensor).__name__}"
        )
    array = np.from_dlpack(ext_tensor)
    if is_capsule and not array.flags.writeable:
        array = np.asarray(_Writable(array))
    result = wrap(check_numeric(array, "from_dlpack()"), Storage(array, external=True))
    return result.clone() if copy else result
