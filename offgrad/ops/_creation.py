"""Tensors from data, and constants."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.tensor_base import TensorBase, is_differentiable, wrap
from offgrad.memory import Storage
from offgrad.ops._core.device import check_device
from offgrad.ops._core.dtypes import cast, get_default_dtype
from offgrad.ops._shape.reshaping import sizes

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "arange",
    "as_tensor",
    "check_requires_grad",
    "empty",
    "empty_like",
    "eye",
    "from_numpy",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "tensor",
    "zeros",
    "zeros_like",
]

_SUPPORTED = "biufc"


def _checked(array: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    if array.dtype.kind not in _SUPPORTED and array.dtype.name != "bfloat16":
        raise TypeError(
            f"{where}: elements must be numbers or bools, got dtype {array.dtype.name!r} (a "
            "ragged or mixed sequence gives object)"
        )
    if not array.dtype.isnative:
        raise ValueError(
            f"{where}: the byte order must be the machine's, got {array.dtype}; convert with "
            "array.astype(array.dtype.newbyteorder('='))"
        )
    return array


def _set_requires_grad(tensor: "Tensor", requires_grad: bool) -> "Tensor":
    return tensor.requires_grad_() if requires_grad else tensor


def _array_of(data: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Return an array of `data` with PyTorch's default dtypes; may share memory."""
    if isinstance(data, TensorBase):
        array = data._array
    elif isinstance(data, np.ndarray | np.generic):
        array = np.asarray(data)
    else:
        if isinstance(data, Sequence) and _holds_tensors(data):
            data = _as_lists(data)
        try:
            array = np.asarray(data)
        except ValueError as error:
            raise ValueError(
                f"tensor(): a sequence must have one length at each depth: {error}"
            ) from None
        if dtype is None:
            dtype = _default_for(array)
    _checked(array, "tensor()")
    return array if dtype is None else array.astype(dtype, copy=False)


def _default_for(array: np.ndarray[Any, Any]) -> np.dtype[Any]:
    """Return PyTorch's dtype for the Python numbers in `array`."""
    kind = array.dtype.kind
    if kind == "f" or not array.size:
        return get_default_dtype()
    if kind == "c":
        return np.dtype(np.complex128 if get_default_dtype() == np.float64 else np.complex64)
    return np.dtype(np.int64) if kind == "i" else array.dtype


def _holds_tensors(data: Any) -> bool:
    while isinstance(data, Sequence) and not isinstance(data, str) and data:
        data = data[0]
    return isinstance(data, TensorBase)


def _as_lists(data: Any) -> Any:
    if isinstance(data, TensorBase):
        return data._array.tolist()
    return [_as_lists(each) for each in data] if isinstance(data, list | tuple) else data


def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return a tensor with a copy of `data`: numbers, sequences, arrays or a tensor.

    Python floats become the default dtype, integers int64.

    Raises:
        TypeError: if the elements are not numbers.
        RuntimeError: if integers or bools should require grad.
    """
    check_device(device)
    return _set_requires_grad(wrap(memory.copy(_array_of(data, dtype))), requires_grad)


def as_tensor(data: Any, *, dtype: Any = None) -> "Tensor":
    """Return `data` as a tensor, sharing memory with an array or tensor where the dtype allows."""
    if isinstance(data, TensorBase):
        return cast(data, dtype or data._array.dtype)  # type: ignore[arg-type]
    array = _array_of(data, dtype)
    return from_numpy(array) if array is data else tensor(array)


def from_numpy(array: np.ndarray[Any, Any]) -> "Tensor":
    """Return a tensor that shares the memory of `array`, which the memory counters leave out.

    Raises:
        TypeError: if `array` is not an array of numbers.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy takes a NumPy array, got {type(array).__name__}")
    return wrap(_checked(array, "from_numpy()"), Storage(array, external=True))


def empty(
    *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return an uninitialised tensor."""
    check_device(device)
    dtype = get_default_dtype() if dtype is None else dtype
    return _set_requires_grad(wrap(memory.empty(sizes(size), dtype)), requires_grad)


def full(
    size: Sequence[int],
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> "Tensor":
    """Return a constant tensor; the dtype defaults to that of `fill_value`."""
    check_device(device)
    kind = np.dtype(dtype) if dtype is not None else _array_of(fill_value, None).dtype
    out = memory.empty(sizes((size,)), kind)
    out[...] = fill_value
    return _set_requires_grad(wrap(out), requires_grad)


def zeros(
    *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return a tensor of zeros."""
    return full(
        sizes(size),
        0,
        dtype=dtype or get_default_dtype(),
        device=device,
        requires_grad=requires_grad,
    )


def ones(
    *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return a tensor of ones."""
    return full(
        sizes(size),
        1,
        dtype=dtype or get_default_dtype(),
        device=device,
        requires_grad=requires_grad,
    )


def empty_like(
    input: "Tensor", *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return `empty` of the shape and dtype of `input`."""
    return empty(
        input.shape, dtype=dtype or input._array.dtype, device=device, requires_grad=requires_grad
    )


def zeros_like(
    input: "Tensor", *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return `zeros` of the shape and dtype of `input`."""
    return zeros(
        input.shape, dtype=dtype or input._array.dtype, device=device, requires_grad=requires_grad
    )


def ones_like(
    input: "Tensor", *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return `ones` of the shape and dtype of `input`."""
    return ones(
        input.shape, dtype=dtype or input._array.dtype, device=device, requires_grad=requires_grad
    )


def full_like(
    input: "Tensor",
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> "Tensor":
    """Return `full` of the shape and dtype of `input`."""
    return full(
        input.shape,
        fill_value,
        dtype=dtype or input._array.dtype,
        device=device,
        requires_grad=requires_grad,
    )


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> "Tensor":
    """Return the numbers from `start` (0 if left out) to below `end` by `step`."""
    check_device(device)
    if end is None:
        start, end = 0, start
    if any(isinstance(each, complex) for each in (start, end, step)):
        raise RuntimeError(f"arange: real numbers are needed, got {start}, {end} and {step}")
    if dtype is None:
        integers = all(isinstance(each, int | np.integer) for each in (start, end, step))
        dtype = np.int64 if integers else get_default_dtype()
    if not step or (end - start) / step < 0:
        raise RuntimeError(
            f"arange: step must lead from start to end, got start {start}, end {end}, step {step}"
        )
    return _set_requires_grad(wrap(np.arange(start, end, step).astype(dtype)), requires_grad)


def linspace(
    start: complex,
    end: complex,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> "Tensor":
    """Return `steps` evenly spaced numbers from `start` to `end`, both included."""
    check_device(device)
    if steps < 0:
        raise RuntimeError(f"linspace: steps must not be negative, got {steps}")
    if dtype is None and isinstance(start + end, complex):
        dtype = np.complex128 if get_default_dtype() == np.float64 else np.complex64
    array = np.linspace(start, end, steps).astype(dtype or get_default_dtype())
    return _set_requires_grad(wrap(array), requires_grad)


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> "Tensor":
    """Return the matrix [n, m] with ones on the diagonal; `m` defaults to `n`."""
    check_device(device)
    return _set_requires_grad(wrap(np.eye(n, m, dtype=dtype or get_default_dtype())), requires_grad)


def check_requires_grad(tensor: TensorBase) -> None:
    """Raise RuntimeError unless the dtype of `tensor` can require grad."""
    if not is_differentiable(tensor._array.dtype):
        raise RuntimeError(
            "only floating point and complex tensors can require grad, got "
            f"{tensor._array.dtype.name}; convert with .float()"
        )
