"""Vector norms over dimensions."""

from math import inf, isinf
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import metadata, wrap
from offgrad.ops._core.broadcasting import compute, converted
from offgrad.ops._core.dims import (
    Dim,
    normalize_dims,
)
from offgrad.ops._core.dtypes import cast, category, check_broadcastable, check_tensor
from offgrad.ops._core.numpy_names import with_numpy_names
from offgrad.ops._reduction.extrema import not_empty
from offgrad.ops._reduction.statistics import real_dtype
from offgrad.ops._reduction.sums import (
    Reduction,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["dist", "norm", "norm_except_dim"]


class VectorNorm(Reduction):
    """The p-norm over dimensions; keeps x and the result. The gradient of a zero norm is 0."""

    torch_name = "LinalgVectorNormBackward0"

    def forward(self, x: Array, ord: float, dim: tuple[int, ...] | None, keepdim: bool) -> Array:
        """Return the norm: the count of nonzero elements for 0, max or min for inf and -inf."""
        self.ord = ord
        out = memory.empty(self.reduced_shape(x, dim, keepdim), real_dtype(x.dtype))
        promoted = converted(x, np.dtype(np.float32)) if x.dtype.itemsize == 2 else x
        is_square = ord == 2 and x.dtype.kind != "c"
        ufunc = np.square if is_square else np.abs
        magnitude = np.asanyarray(compute(ufunc, promoted, dtype=real_dtype(promoted.dtype)))
        options: Any = {"axis": self.dims, "keepdims": keepdim}
        if ord == 0:
            out[...] = np.count_nonzero(magnitude, **options)
        elif ord == inf:
            out[...] = np.max(magnitude, **options)
        elif ord == -inf:
            out[...] = np.min(magnitude, **options)
        elif ord == 1:
            out[...] = kernels.sum_axes(magnitude, self.dims, keepdim)
        elif ord == 2:
            if not is_square:
                np.square(magnitude, out=magnitude)
            out[...] = np.sqrt(kernels.sum_axes(magnitude, self.dims, keepdim))
        else:
            np.power(magnitude, ord, out=magnitude)
            out[...] = kernels.sum_axes(magnitude, self.dims, keepdim) ** (1 / ord)
        self.save(self=None if ord == 0 else x, result=None if ord in (0, 1) else out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """d|x|_p = sum of sgn(x) |x|^(p-1) dx/|x|_p^(p-1), with 0 for undefined factors."""
        if self.ord == 0:
            return None
        x = self.saved("self")
        if self.ord == 1:
            return self.expanded(grad) * x.sgn()
        norm, grad = self.with_reduced_dims(self.saved("result")), self.with_reduced_dims(grad)
        if isinf(self.ord):
            return self._share_among_extremes(x, norm, grad)
        zero = wrap(norm._array == 0)
        norm = norm.masked_fill(zero, 1)  # so that derivatives of the quotients are 0, too
        if self.ord == 2:
            return x * (grad / norm).masked_fill(zero, 0)
        scale = (grad / norm ** (self.ord - 1)).masked_fill(zero, 0)
        if self.ord > 2:
            return x * x.abs() ** (self.ord - 2) * scale
        power = (x.abs() ** (self.ord - 1)).masked_fill(wrap(x._array == 0), 0)
        return x.sgn() * power * scale

    def _share_among_extremes(self, x: "Tensor", norm: "Tensor", grad: "Tensor") -> "Tensor":
        """Share the gradient among the elements that attain the norm."""
        magnitude = np.abs(x._array)
        attained = (magnitude == norm._array) | (np.isnan(magnitude) & np.isnan(norm._array))
        ties = np.count_nonzero(attained, axis=self.dims, keepdims=True)
        return x.sgn() * (grad * wrap((attained / np.asarray(ties)).astype(grad._array.dtype)))


@with_numpy_names
def norm(
    input: "Tensor",
    p: float | str | None = 2,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> "Tensor":
    """Return the p-norm of the elements over `dim`; the gradient of a zero norm is 0.

    Args:
        input: floating point or complex.
        p: a number, infinity or minus infinity; ``"fro"`` and None mean 2; ``"nuc"`` the sum of the
            singular values of matrices, over two dimensions.
        dim: one dimension, several, or None for all.
        keepdim: keep the dimensions, of size 1.
        dtype: convert the input to this dtype first.

    Raises:
        RuntimeError: for integers and bools.
    """
    if dtype is not None:
        input = cast(check_tensor(input, "norm"), dtype)
    if category(check_tensor(input, "norm")._array.dtype) < 2:
        raise RuntimeError(
            "norm: Expected a floating point or complex tensor as input, got "
            f"{input._array.dtype.name}; pass dtype=offgrad.float32"
        )
    if p == "nuc":
        return _nuclear(input, dim, keepdim)
    ord = 2 if p is None or p == "fro" else p
    if not isinstance(ord, (int, float)):
        raise RuntimeError(f"norm: p must be a number, 'fro', 'nuc' or inf, got {p!r}")
    dims = None if dim is None else normalize_dims(dim, input._array.ndim, "norm")
    if ord < 0 or ord == inf:
        axes = range(input._array.ndim) if dims is None else dims
        not_empty(input, tuple(axes), f"norm with p={ord}", RuntimeError)
    return VectorNorm.apply(input, ord=ord, dim=dims, keepdim=keepdim)


def _nuclear(input: "Tensor", dim: Dim, keepdim: bool) -> "Tensor":
    """Return the sums of the singular values of matrices."""
    ndim = input._array.ndim
    axes = tuple(range(ndim)) if dim is None else normalize_dims(dim, ndim, "norm")
    if len(axes) != 2:
        raise RuntimeError(f"norm with p='nuc' is over two dimensions, got {len(axes)}")
    values = input.movedim(axes, (-2, -1)).svd()[1].sum(-1)
    if not keepdim:
        return values
    first, second = sorted(axes)
    return values.unsqueeze(first).unsqueeze(second)


def norm_except_dim(v: "Tensor", pow: int = 2, dim: int = 0) -> "Tensor":
    """Return the norm over all dimensions but `dim`, which keep size 1; -1: over all, as a number.

    Args:
        v: floating point or complex.
        pow: the order of the norm.
        dim: the dimension that stays.
    """
    if dim == -1:
        return norm(v, pow)
    dims = [each for each in range(metadata(v).ndim) if each != dim]
    return norm(v, pow, dims, keepdim=True) if dims else v.abs()


def dist(input: "Tensor", other: "Tensor", p: float = 2) -> "Tensor":
    """Return the p-norm of ``input - other``."""
    check_broadcastable("dist", check_tensor(input, "dist"), check_tensor(other, "dist"))
    return norm(input - other, p)
