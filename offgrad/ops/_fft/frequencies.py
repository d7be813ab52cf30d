"""The frequencies of a spectrum, and their order."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import wrap
from offgrad.ops._core.dims import integer
from offgrad.ops._core.dtypes import category, check_tensor, default_dtype
from offgrad.ops._core.factories import placed
from offgrad.ops._fft.arguments import Ints, dimensions
from offgrad.ops._shape.reordering import roll

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def _frequencies(
    counts: Array, n: int, d: Any, dtype: Any, device: Any, requires_grad: bool, where: str
) -> "Tensor":
    """Return ``counts / (n * d)``."""
    dtype = default_dtype() if dtype is None else np.dtype(dtype)
    if category(dtype) != 2:
        raise RuntimeError(f"{where}: the dtype must be a floating point type, got {dtype.name}")
    if isinstance(d, (str, bytes)):
        raise TypeError(f"{where}: d must be a number, got {d!r}")
    with np.errstate(all="ignore"):
        # As in PyTorch, the factor is rounded before the product.
        factor = np.asarray(1 / (n * np.float64(float(d))), dtype)
        result = placed(wrap(counts.astype(dtype) * factor), device)
    return result.requires_grad_() if requires_grad else result


def _count(n: Any, where: str) -> int:
    count = integer(n, where, "n")
    if count < 0:
        raise RuntimeError(f"{where}: n must not be negative, got {count}")
    return count


def fftfreq(
    n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return the frequencies of `fft` for `n` samples `d` apart, in cycles per unit of `d`.

    They are 0 and the positive ones, then the negative ones: 0, 1, ..., -2, -1 over ``n * d``.

    Raises:
        TypeError: if `n` is not an integer or `d` not a number.
        RuntimeError: if `n` is negative or `dtype` not a floating point type.
    """
    count = _count(n, "fftfreq")
    counts = (np.arange(count) + count // 2) % max(count, 1) - count // 2
    return _frequencies(counts, count, d, dtype, device, requires_grad, "fftfreq")


def rfftfreq(
    n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> "Tensor":
    """Return the frequencies of `rfft` for `n` samples `d` apart: 0, 1, ... over ``n * d``.

    Raises:
        TypeError: if `n` is not an integer or `d` not a number.
        RuntimeError: if `n` is negative or `dtype` not a floating point type.
    """
    count = _count(n, "rfftfreq")
    counts = np.arange(count // 2 + 1)
    return _frequencies(counts, count, d, dtype, device, requires_grad, "rfftfreq")


def _shifted(input: "Tensor", dim: Ints | None, where: str, *, inverse: bool) -> "Tensor":
    shape = check_tensor(input, where)._array.shape
    dims = tuple(range(len(shape))) if dim is None else dimensions(input, dim, where)
    if not dims:
        raise RuntimeError(f"{where}: a dimension to shift is needed, got none; pass dim")
    return roll(input, [(shape[axis] + inverse) // 2 for axis in dims], dims)


def fftshift(input: "Tensor", dim: Ints | None = None) -> "Tensor":
    """Return a copy with frequency 0 moved to the middle along `dim`, by default all.

    Raises:
        RuntimeError: if there is no dimension.
        IndexError: if `dim` is out of range.
    """
    return _shifted(input, dim, "fftshift", inverse=False)


def ifftshift(input: "Tensor", dim: Ints | None = None) -> "Tensor":
    """Return a copy with frequency 0 moved back to the front along `dim`: undoes `fftshift`.

    Raises:
        RuntimeError: if there is no dimension.
        IndexError: if `dim` is out of range.
    """
    return _shifted(input, dim, "ifftshift", inverse=True)
