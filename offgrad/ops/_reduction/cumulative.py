"""Cumulative sums, products and extremes along a dimension, and differences."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import wrap
from offgrad.ops._core.dims import (
    normalize_dim,
)
from offgrad.ops._core.dtypes import (
    cast,
    category,
    check_ordered,
    check_tensor,
)
from offgrad.ops._core.numpy_names import with_numpy_names
from offgrad.ops._core.results import Extreme
from offgrad.ops._elementwise.comparison import logical_xor
from offgrad.ops._elementwise.special import log_add_exp
from offgrad.ops._reduction.extrema import Selection
from offgrad.ops._reduction.sums import (
    accumulation_dtype,
)
from offgrad.ops._shape.joining import cat

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "diff", "logcumsumexp"]


_WIDE_DTYPES = {
    "float16": "float32", "bfloat16": "float32", "float32": "float64", "complex64": "complex128",
}  # fmt: skip


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype to accumulate in: the error must not grow with the length."""
    name = _WIDE_DTYPES.get(dtype.name)
    return dtype if name is None else np.dtype(name)


class Cumsum(Op):
    """The cumulative sum along a dimension; keeps nothing."""

    def forward(self, x: Array, dim: int, reverse: bool = False) -> Array:
        """Return the sums, from the end if `reverse`."""
        self.dim, self.reverse = dim, reverse
        out = memory.empty(x.shape, x.dtype)
        kernels.cumsum(x, out, dim, reverse)
        return out

    def backward(self, grad: "Tensor") -> Any:
        return Cumsum.apply(grad, dim=self.dim, reverse=not self.reverse)


class Cumprod(Op):
    """The cumulative product along a dimension; keeps x and the result."""

    def forward(self, x: Array, dim: int) -> Array:
        self.dim = dim
        if kernels.has_scans(x):
            out = _along_rows(kernels.cumprod, dim, x)
        else:
            out = memory.empty(x.shape, x.dtype)
            np.multiply.accumulate(x, axis=dim, dtype=_wide(x.dtype), out=out)
        self.save(self=x, result=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """The gradient is the product before each element times s, which has no division by zero:
        ``s[j] = grad[j] + x[j+1] s[j+1]``.
        """
        x = self.saved("self").conj()
        dim = self.dim
        if x._array.size == 1:
            return grad
        if np.all(x._array):
            weighted = (grad * self.saved("result").conj()).flip(dim).cumsum(dim).flip(dim)
            return weighted / x
        follows = _recur_backwards(grad, x, dim)
        return _shifted(self.saved("result").conj(), dim, 1, first=1) * follows


def _along_rows(scan: Callable[..., None], dim: int, *arrays: Array) -> Array:
    """Return ``scan(*arrays, out)`` along a dimension, of kernels that take rows."""
    rows = [memory.contiguous(np.moveaxis(each, dim, -1)) for each in arrays]
    out = memory.empty(rows[0].shape, rows[0].dtype)
    scan(*rows, out)
    return memory.contiguous(np.moveaxis(out, -1, dim))


class Recurrence(Op):
    """s[j] = b[j] + a[j] s[j-1] along a dimension, s[-1] = 0; keeps a and the result."""

    def forward(self, b: Array, a: Array, dim: int) -> Array:
        self.dim = dim
        if kernels.has_scans(b, a):
            out = _along_rows(kernels.recurrence, dim, b, a)
            self.save(factor=a, result=out if self.needs_input_grad[1] else None)
            return out
        out = memory.empty(b.shape, b.dtype)
        s, steps, factors = (np.moveaxis(each, dim, 0) for each in (out, b, a))
        for index in range(len(s)):
            s[index] = steps[index] + (factors[index] * s[index - 1] if index else 0)
        self.save(factor=a, result=out if self.needs_input_grad[1] else None)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """A recurrence from the end: ``t[j] = grad[j] + a[j+1] t[j+1]``."""
        grad_b = _recur_backwards(grad, self.saved("factor").conj(), self.dim)
        grad_a = None
        if self.needs_input_grad[1]:
            grad_a = grad_b * _shifted(self.saved("result").conj(), self.dim, 1, first=0)
        return grad_b, grad_a


def _shifted(x: "Tensor", dim: int, step: int, first: float) -> "Tensor":
    """Return `x` shifted by one along `dim`, with `first` in the gap."""
    if not x.shape[dim]:
        return x
    gap = x.narrow(dim, 0, 1).detach() * 0
    gap = gap.new_full(gap.shape, first)
    return cat([gap, x.narrow(dim, 0, x.shape[dim] - 1)], dim)


def _recur_backwards(b: "Tensor", a: "Tensor", dim: int) -> "Tensor":
    """Return ``s[j] = b[j] + a[j+1] s[j+1]``."""
    factors = _shifted(a.flip(dim), dim, 1, first=0)
    return Recurrence.apply(b.flip(dim), factors, dim=dim).flip(dim)


class Logcumsumexp(Op):
    """The logarithm of the cumulative sum of exponentials; keeps x and the result."""

    def forward(self, x: Array, dim: int) -> Array:
        """Return the logarithms, without overflow."""
        self.dim = dim
        if kernels.has_scans(x):
            out = _along_rows(kernels.log_cumsum_exp, dim, x)
            self.save(self=x, result=out)
            return out
        out = memory.empty(x.shape, x.dtype)
        sums, terms = np.moveaxis(out, dim, 0), np.moveaxis(x, dim, 0)
        total = np.full(sums.shape[1:], -np.inf, _wide(x.dtype))
        for index in range(len(sums)):
            log_add_exp(total, terms[index].astype(total.dtype), total)
            sums[index] = total
        self.save(self=x, result=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """The gradient is ``sum over k >= j of grad[k] exp(x[j] - result[k])``. In terms
        of ``s[j] = grad[j] + exp(result[j] - result[j+1]) s[j+1]`` it does not overflow.
        """
        x, result = self.saved("self"), self.saved("result")
        before = _shifted(result, self.dim, 1, first=0)
        distances = before - result
        if not np.isfinite(result._array).all():  # equal infinities are no distance apart
            is_equal = np.isinf(result._array) & (before._array == result._array)
            distances = distances.masked_fill(wrap(is_equal), 0)
        ratios = distances.exp().conj()
        return _recur_backwards(grad, ratios, self.dim) * (x - result).exp().conj()


def _running_index(ufunc: Any) -> Any:
    """Return a function that finds the last index of the cumulative extreme; NaN is extreme."""

    def find(x: Array, axis: int) -> Array:
        if kernels.has_scans(x):
            rows = memory.contiguous(np.moveaxis(x, axis, -1))
            indices = np.empty(rows.shape, np.int64)
            kernels.running_extreme(rows, indices, ufunc is np.maximum)
            return memory.contiguous(np.moveaxis(indices, -1, axis))
        running = ufunc.accumulate(x, axis=axis)
        attained = (x == running) | (np.isnan(x) & np.isnan(running))
        shape = [1] * x.ndim
        shape[axis] = -1
        positions = np.arange(x.shape[axis]).reshape(shape)
        return np.maximum.accumulate(np.where(attained, positions, 0), axis=axis)

    return find


@with_numpy_names
def cumsum(input: "Tensor", dim: int, *, dtype: Any = None) -> "Tensor":
    """Return the cumulative sum along `dim`; of integers and bools as int64."""
    axis = normalize_dim(dim, check_tensor(input, "cumsum")._array.ndim, "cumsum")
    input = cast(input, accumulation_dtype(input, dtype))
    if not input._array.ndim:
        return input.clone()
    return Cumsum.apply(input, dim=axis)


@with_numpy_names
def cumprod(input: "Tensor", dim: int, *, dtype: Any = None) -> "Tensor":
    """Return the cumulative product along `dim`; of integers and bools as int64."""
    axis = normalize_dim(dim, check_tensor(input, "cumprod")._array.ndim, "cumprod")
    input = cast(input, accumulation_dtype(input, dtype))
    if not input._array.ndim:
        return input.clone()
    return Cumprod.apply(input, dim=axis)


@with_numpy_names
def logcumsumexp(input: "Tensor", dim: int) -> "Tensor":
    """Return the logarithm of the cumulative sum of exponentials along `dim`, without overflow."""
    axis = normalize_dim(dim, check_tensor(input, "logcumsumexp")._array.ndim, "logcumsumexp")
    if category(input._array.dtype) < 2:
        raise NotImplementedError(
            f"logcumsumexp is defined for floating point tensors, got {input._array.dtype.name}"
        )
    x = input
    if not x._array.ndim:
        return x.clone()
    return Logcumsumexp.apply(x, dim=axis)


def _running(input: "Tensor", dim: int, ufunc: Any, where: str) -> Extreme:
    axis = normalize_dim(dim, check_tensor(input, where)._array.ndim, where)
    check_ordered(input, where)
    name = f"{where.capitalize()}Backward0"
    run = Selection.named(name).apply_all
    return Extreme.of(where, *run(input, dim=axis, find=_running_index(ufunc)))


@with_numpy_names
def cummax(input: "Tensor", dim: int) -> Extreme:
    """Return ``(values, indices)`` of the cumulative maximum along `dim`; the last of equals."""
    return _running(input, dim, np.maximum, "cummax")


@with_numpy_names
def cummin(input: "Tensor", dim: int) -> Extreme:
    """Return ``(values, indices)`` of the cumulative minimum along `dim`; the last of equals."""
    return _running(input, dim, np.minimum, "cummin")


@with_numpy_names
def diff(
    input: "Tensor",
    n: int = 1,
    dim: int = -1,
    prepend: "Tensor | None" = None,
    append: "Tensor | None" = None,
) -> "Tensor":
    """Return the differences of neighbours along `dim`, `n` times over; of bools their xor.

    Raises:
        RuntimeError: for a tensor without dimensions, or a negative `n`.
    """
    if not check_tensor(input, "diff")._array.ndim:
        raise RuntimeError("diff expects input to be at least one-dimensional, got a scalar")
    if n < 0:
        raise RuntimeError(f"diff: order must be non-negative but got {n}, as n")
    axis = normalize_dim(dim, input._array.ndim, "diff")
    ends = [each for each in (prepend, input, append) if each is not None]
    if n == 0:
        return input.clone()
    result = cat(ends, axis) if len(ends) > 1 else input
    for _ in range(min(n, result.shape[axis])):
        size = result.shape[axis]
        if not size:
            break
        later, earlier = result.narrow(axis, 1, size - 1), result.narrow(axis, 0, size - 1)
        result = logical_xor(later, earlier) if result._array.dtype == np.bool_ else later - earlier
    return result
