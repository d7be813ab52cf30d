"""Variance, standard deviation and log-sum-exp over dimensions."""

from math import inf, nan, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad._warning import warn_program
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.broadcasting import (
    conj,
)
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dims import (
    Dim,
    normalize_dims,
)
from offgrad.ops._core.dtypes import category, check_tensor, floating
from offgrad.ops._core.numpy_names import with_numpy_names
from offgrad.ops._reduction.sums import (
    Reduction,
    mean,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["logsumexp", "std", "std_mean", "var", "var_mean"]

Dims = tuple[int, ...] | None

_KERNEL_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
_MIN_SIZE = 128 * 1024  # from which the kernel of variances saves time


_PARTS: dict[Any, np.dtype[Any]] = {
    np.dtype(np.complex64): np.dtype(np.float32),
    np.dtype(np.complex128): np.dtype(np.float64),
}


def real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the parts of a complex dtype; a real dtype itself."""
    return _PARTS.get(dtype, dtype)


class Var(Reduction):
    """The variance over dimensions; keeps x."""

    root = False

    def forward(self, x: Array, dim: Dims, keepdim: bool, correction: float | None) -> Array:
        """Return the sum of squared distances from the mean over ``n - correction``."""
        self.correction, self.is_whole = correction, dim is None or not x.ndim
        out = memory.empty(self.reduced_shape(x, dim, keepdim), real_dtype(x.dtype))
        promoted = x.astype(np.float32) if x.dtype.itemsize == 2 else x
        total = self._squares(promoted, out)
        np.divide(total, max(self.degrees_of_freedom, 0), out=total)
        if self.root:
            np.sqrt(total, out=total)
        out[...] = total
        self.save(self=x, result=out if self.root else None)
        return out

    def _squares(self, x: Array, out: Array) -> Array:
        """Return the sums of squared distances from the mean, of the shape of `out`."""
        if not self.count:
            return np.zeros(out.shape, real_dtype(x.dtype))
        total = kernels.sum_axes(x, self.dims, keepdims=True)
        centre = total / total.dtype.type(self.count)
        sums = np.empty(out.shape, real_dtype(x.dtype))
        count, ndim = len(self.dims), x.ndim
        axis = 1 if self.dims == tuple(range(ndim - count, ndim)) else 0
        if (
            x.dtype in _KERNEL_DTYPES
            and x.flags.c_contiguous
            and x.size > _MIN_SIZE
            and (axis or self.dims == tuple(range(count)))
        ):
            shape = (-1, self.count) if axis else (self.count, x.size // self.count)
            kernels.squared_deviations(x.reshape(shape), centre.reshape(-1), axis, sums.reshape(-1))
            return sums
        distances = x - centre
        squares = distances * distances
        if x.dtype.kind == "c":
            squares = distances.real**2 + distances.imag**2
        return kernels.sum_axes(squares, self.dims, out.ndim == ndim, sums)

    @property
    def degrees_of_freedom(self) -> float:
        """The count of elements less the correction."""
        return self.count - (1 if self.correction is None else self.correction)

    def backward(self, grad: "Tensor") -> Any:
        """d var = 2/(n - correction) (x - mean) dx; of all elements infinite for too few."""
        x = self.saved("self")
        center = mean(x, self.dims or None, keepdim=True)
        if self.is_whole and self.degrees_of_freedom <= 0:
            ends = np.where(x._array == center._array, nan, inf)
            return self.with_reduced_dims(grad) * wrap(ends.astype(x._array.dtype))
        factor = 2 / self.degrees_of_freedom if self.degrees_of_freedom else inf
        return self.with_reduced_dims(grad) * factor * (x - center)


class Std(Var):
    """The standard deviation over dimensions; keeps x and the result."""

    root = True

    def backward(self, grad: "Tensor") -> Any:
        """d std = d var/(2 std), and 0 where std is 0."""
        std = self.saved("result")
        return super().backward((grad / (std * 2)).masked_fill(wrap(std._array == 0), 0))


class Logsumexp(Reduction):
    """log(sum(exp(x))) over dimensions; keeps x and the result."""

    def is_over_rows(self, x: Array) -> bool:
        """Return whether the last dimensions are reduced, of numbers that the kernel takes."""
        last = tuple(range(x.ndim - len(self.dims), x.ndim))
        return x.dtype in _KERNEL_DTYPES and x.size > 0 < x.ndim and self.dims == last

    def forward(self, x: Array, dim: Dims, keepdim: bool) -> Array:
        """Return the logarithm, without overflow."""
        out = memory.empty(self.reduced_shape(x, dim, keepdim), x.dtype)
        if self.is_over_rows(x):
            kernels.log_sum_exp(memory.contiguous(x).reshape(-1, self.count), out)
            self.save(self=x, result=out)
            return out
        promoted = x.astype(np.float32) if x.dtype.itemsize == 2 else x
        maximum = np.max(promoted.real, axis=self.dims, keepdims=True, initial=-inf)
        maximum = np.where(np.isfinite(maximum), maximum, 0)
        total = kernels.sum_axes(np.exp(promoted - maximum), self.dims, keepdims=True)
        out[...] = (np.log(total) + maximum).reshape(out.shape)
        self.save(self=x, result=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Share the gradient in the ratio of exp(x)."""
        x, result = self.saved("self"), self.saved("result")
        if self.is_over_rows(x._array):
            return LogsumexpBackward.apply(grad, x, result, dims=self.dims, count=self.count)
        shares = (self.saved("self") - self.with_reduced_dims(self.saved("result"))).exp()
        return self.expanded(grad) * conj(shares)


class LogsumexpBackward(Op):
    """A gradient times exp(x - result), in one pass; keeps all three."""

    torch_name = "LogsumexpBackwardBackward0"

    def forward(
        self, grad: Array, x: Array, result: Array, dims: tuple[int, ...], count: int
    ) -> Array:
        """Return the gradient of x, whose last dimensions `dims` were reduced."""
        self.dims = dims
        self.save(grad_output=grad, self=x, result=result)
        out = memory.empty(x.shape, x.dtype)
        rows = memory.contiguous(x).reshape(-1, count)
        kernels.log_sum_exp_backward(grad, rows, result, out.reshape(rows.shape))
        return out

    def backward(self, grad: "Tensor") -> Any:
        inputs = self.saved("grad_output"), self.saved("self"), self.saved("result")
        ones = (1,) * len(self.dims)

        def reference(g: "Tensor", x: "Tensor", result: "Tensor") -> "Tensor":
            shape = (*x.shape[: x.ndim - len(ones)], *ones)
            return g.reshape(shape) * (x - result.reshape(shape)).exp()

        return differentiate(reference, inputs, (grad,), self.needs_input_grad)


def _dims(input: "Tensor", dim: Any, where: str) -> Dims:
    if dim is None:
        return None
    return normalize_dims(dim, input._array.ndim, where)


def _variance(
    cls: type[Var],
    where: str,
    input: "Tensor",
    dim: Any,
    unbiased: bool | None,
    keepdim: bool,
    correction: float | None,
) -> "Tensor":
    if category(check_tensor(input, where)._array.dtype) < 2:
        raise RuntimeError(
            f"{where}: std and var only support floating point and complex dtypes, got "
            f"{input._array.dtype.name}; convert with .float()"
        )
    if isinstance(dim, bool):  # PyTorch's other signature: var(unbiased)
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = float(unbiased) if correction is None else correction
    elif correction is None and dim is not None:
        correction = 1
    dims = _dims(input, dim, where)
    shape = input._array.shape
    count = prod(shape if dims is None else [shape[axis] for axis in dims])
    if count <= (1 if correction is None else correction) and 0 not in shape:
        warn_program(
            f"{where}(): degrees of freedom is <= 0: {count} numbers less the correction leave "
            f"none, so the result is not finite, got a {describe(input)}"
        )
    return cls.apply(input, dim=dims, keepdim=keepdim, correction=correction)


@with_numpy_names
def var(
    input: "Tensor",
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> "Tensor":
    """Return the variance over `dim`, all dimensions by default.

    This is the sum of squared distances from the mean over ``n - correction``.

    Args:
        input: floating point or complex.
        dim: one dimension, several, or None.
        unbiased: the older form of ``correction=1`` (True) or 0 (False).
        keepdim: keep the dimensions, of size 1.
        correction: 1 by default.

    Raises:
        RuntimeError: for integers and bools.
    """
    return _variance(Var, "var", input, dim, unbiased, keepdim, correction)


@with_numpy_names
def std(
    input: "Tensor",
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> "Tensor":
    """Return the standard deviation over `dim`, the root of `var`; where 0 it has gradient 0."""
    return _variance(Std, "std", input, dim, unbiased, keepdim, correction)


@with_numpy_names
def var_mean(
    input: "Tensor",
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> "tuple[Tensor, Tensor]":
    """Return the variance and the mean over `dim`, as `var` and `mean`."""
    spread = var(input, dim, unbiased, keepdim, correction=correction)
    return spread, mean(input, None if isinstance(dim, bool) else dim, keepdim)


@with_numpy_names
def std_mean(
    input: "Tensor",
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> "tuple[Tensor, Tensor]":
    """Return the standard deviation and the mean over `dim`, as `std` and `mean`."""
    spread = std(input, dim, unbiased, keepdim, correction=correction)
    return spread, mean(input, None if isinstance(dim, bool) else dim, keepdim)


@with_numpy_names
def logsumexp(input: "Tensor", dim: Dim, keepdim: bool = False) -> "Tensor":
    """Return ``log(sum(exp(input)))`` over `dim`, without overflow."""
    x = floating(input, "logsumexp")
    return Logsumexp.apply(x, dim=_dims(x, dim, "logsumexp"), keepdim=keepdim)
