"""Tensors from data, and constants."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.tensor_base import TensorBase, describe, is_differentiable, wrap
from offgrad.memory import Storage
from offgrad.ops._core.device import check_device
from offgrad.ops._core.dims import integer, integers, shape_of
from offgrad.ops._core.dtypes import (
    cast,
    category,
    check_tensor,
    common_dtype,
    converted_array,
    default_dtype,
    element,
)
from offgrad.ops._core.nested_data import array_of_numbers, check_numeric

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


def _set_requires_grad(tensor: "Tensor", requires_grad: bool | None) -> "Tensor":
    if requires_grad is False or requires_grad is None:
        return tensor
    return tensor.requires_grad_(requires_grad)


def _array_of(data: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Return an array of `data` with PyTorch's default dtypes; may share memory."""
    if isinstance(data, TensorBase):
        array = data._array
    elif isinstance(data, np.ndarray | np.generic):
        array = np.asarray(data)
    else:
        return array_of_numbers(data, dtype)
    check_numeric(array, "tensor()")
    return array if dtype is None else converted_array(array, np.dtype(dtype))


def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return a tensor with a copy of `data`: numbers, sequences, arrays or a tensor.

    Python floats become the default dtype, integers int64; elements that are NumPy's numbers,
    arrays or tensors of one element keep their dtypes, and different dtypes promote to one.

    Raises:
        TypeError: if the elements are not numbers.
        ValueError: if the lengths of sequences differ, or a tensor in one has several elements.
        RuntimeError: if a number does not fit into the dtype; if integers or bools should require
            grad.
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
    return wrap(check_numeric(array, "from_numpy()"), Storage(array, external=True))


def empty(
    *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return an uninitialised tensor."""
    check_device(device)
    dtype = default_dtype() if dtype is None else dtype
    return _set_requires_grad(wrap(memory.empty(shape_of(size, "empty"), dtype)), requires_grad)


def full(
    size: Sequence[int],
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> "Tensor":
    """Return a constant tensor.

    Args:
        size: the shape, a tuple or list.
        fill_value: a number, or a tensor without dimensions.
        dtype: by default bool, int64, the default dtype, or complex, for a value of that kind.
        device: the CPU.
        requires_grad: whether the result requires grad.

    Raises:
        TypeError: if `size` is not a sequence of integers, or `fill_value` not a number.
        RuntimeError: if the value does not fit into the dtype.
    """
    check_device(device)
    value = _number(fill_value, "full")
    kind = np.dtype(dtype) if dtype is not None else common_dtype(value)
    out = memory.empty(shape_of((integers(size, "full", "size"),), "full"), kind)
    out[...] = element(value, kind, "full")
    return _set_requires_grad(wrap(out), requires_grad)


def _number(value: Any, where: str) -> Any:
    """Return a number, or that in a tensor without dimensions.

    Raises:
        TypeError: for all else.
    """
    if isinstance(value, TensorBase) and not value._array.ndim:
        return value._array.tolist()
    if not isinstance(value, bool | int | float | complex | np.generic):
        raise TypeError(f"{where} takes numbers, got {type(value).__name__}")
    return value


def zeros(
    *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return a tensor of zeros."""
    return full(
        shape_of(size, "zeros"),
        0,
        dtype=dtype or default_dtype(),
        device=device,
        requires_grad=requires_grad,
    )


def ones(
    *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return a tensor of ones."""
    return full(
        shape_of(size, "ones"),
        1,
        dtype=dtype or default_dtype(),
        device=device,
        requires_grad=requires_grad,
    )


def empty_like(
    input: "Tensor", *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return `empty` of the shape and dtype of `input`."""
    like = check_tensor(input, "empty_like")._array
    return empty(like.shape, dtype=dtype or like.dtype, device=device, requires_grad=requires_grad)


def zeros_like(
    input: "Tensor", *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return `zeros` of the shape and dtype of `input`."""
    like = check_tensor(input, "zeros_like")._array
    return zeros(like.shape, dtype=dtype or like.dtype, device=device, requires_grad=requires_grad)


def ones_like(
    input: "Tensor", *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return `ones` of the shape and dtype of `input`."""
    like = check_tensor(input, "ones_like")._array
    return ones(like.shape, dtype=dtype or like.dtype, device=device, requires_grad=requires_grad)


def full_like(
    input: "Tensor",
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> "Tensor":
    """Return `full` of the shape and dtype of `input`."""
    like = check_tensor(input, "full_like")._array
    kind = dtype or like.dtype
    return full(like.shape, fill_value, dtype=kind, device=device, requires_grad=requires_grad)


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> "Tensor":
    """Return the numbers from `start` (0 if left out) to below `end` by `step`.

    Args:
        start: a number, or a tensor without dimensions, as `end` and `step`.
        end: the bound, which is left out of the result.
        step: the distance.
        dtype: by default int64 if all three are integers, else the default dtype.
        device: the CPU.
        requires_grad: whether the result requires grad.

    Raises:
        RuntimeError: if the numbers are complex or not finite, or `step` does not lead to `end`.
        NotImplementedError: for bool and complex dtypes.
    """
    check_device(device)
    if end is None:
        start, end = 0, start
    start, end, step = (_number(each, "arange") for each in (start, end, step))
    if any(isinstance(each, complex | np.complexfloating) for each in (start, end, step)):
        raise RuntimeError(f"arange: real numbers are needed, got {start}, {end} and {step}")
    if dtype is None:
        integral = all(isinstance(each, int | np.integer) for each in (start, end, step))
        dtype = np.int64 if integral else default_dtype()
    kind = np.dtype(dtype)
    if category(kind) in (0, 3):
        raise NotImplementedError(f"arange is not defined for {kind.name}")
    if not np.isfinite([start, end, step]).all():
        raise RuntimeError(f"arange: finite numbers are needed, got {start}, {end} and {step}")
    if category(kind) == 1:
        start, end, step = int(start), int(end), int(step)
    if not step or (end - start) / step < 0:
        raise RuntimeError(
            f"arange: step must lead from start to end, got start {start}, end {end}, step {step}"
        )
    return _set_requires_grad(wrap(np.arange(start, end, step).astype(kind)), requires_grad)


def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> "Tensor":
    """Return `steps` evenly spaced numbers from `start` to `end`, both included.

    Raises:
        RuntimeError: if `steps` is negative, a bound is a tensor with dimensions, or complex bounds
            do not fit into the dtype.
    """
    check_device(device)
    steps = integer(steps, "linspace", "steps")
    if steps < 0:
        raise RuntimeError(f"linspace: steps must not be negative, got {steps}")
    for each in (start, end):
        if isinstance(each, TensorBase) and each._array.ndim:
            raise RuntimeError(f"linspace: bounds have no dimensions, got a {describe(each)}")
    start, end = _number(start, "linspace"), _number(end, "linspace")
    inferred = common_dtype(start, end, 0.0)
    kind = inferred if dtype is None else np.dtype(dtype)
    if category(inferred) == 3 != category(kind):
        raise RuntimeError(f"linspace: complex bounds do not fit into {kind.name}")
    array = np.linspace(start, end, steps).astype(kind)
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
    rows, columns = shape_of((n, n if m is None else m), "eye")
    array = np.eye(rows, columns, dtype=dtype or default_dtype())
    return _set_requires_grad(wrap(array), requires_grad)


def check_requires_grad(tensor: TensorBase) -> None:
    """Raise RuntimeError unless the dtype of `tensor` can require grad."""
    if not is_differentiable(tensor._array.dtype):
        raise RuntimeError(
            "Only Tensors of floating point and complex dtype can require gradients, got "
            f"{tensor._array.dtype.name}; convert with .float()"
        )
