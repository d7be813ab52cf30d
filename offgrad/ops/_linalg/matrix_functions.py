"""Norms, condition numbers, powers and exponentials of matrices."""

from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe
from offgrad.ops._core.autocast import full_precision, lower_precision
from offgrad.ops._core.dtypes import cast, category, check_tensor
from offgrad.ops._linalg.matrices import check_matrices, eye_like, lapack
from offgrad.ops._linalg.solving import inv, inv_ex
from offgrad.ops._linalg.spectral import svdvals
from offgrad.ops._reduction import norms
from offgrad.ops._shape.joining import cat, stack

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["frobenius_norm", "matrix_exp", "matrix_power", "nuclear_norm"]


def vector_norm(
    x: "Tensor", ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> "Tensor":
    """Return the norm of order `ord` over `dim`, by default of all elements."""
    check_tensor(x, "linalg.vector_norm")
    if dtype is None and category(x._array.dtype) < 2:
        raise RuntimeError(
            "linalg.vector_norm: Expected a floating point or complex tensor as input, got a "
            f"{describe(x)}; pass dtype="
        )
    if isinstance(dim, (tuple, list)) and not len(dim):
        dim = None
    x = x if dtype is None else cast(x, dtype)
    return norms.norm(x, float(ord), dim, keepdim)


def matrix_norm(
    A: "Tensor", ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> "Tensor":
    """Return a norm of the matrices in the dimensions `dim`.

    `ord` is ``"fro"``, ``"nuc"``, inf, -inf, 1, -1, 2 or -2.
    """
    A = A if dtype is None else cast(A, dtype)
    check_matrices(A, "linalg.matrix_norm", of_lapack=ord in ("nuc", 2, -2))
    rows, columns = (each % A._array.ndim for each in dim)
    if rows == columns:
        raise RuntimeError(
            f"linalg.matrix_norm: dim needs two different dimensions, got {tuple(dim)}"
        )
    if ord == "fro":
        return vector_norm(A, 2, (rows, columns), keepdim)
    if ord in ("nuc", 2, -2):
        values = svdvals(A.movedim((rows, columns), (-2, -1)))
        result = (
            values.sum(-1)
            if ord == "nuc"
            else _largest(values, -1)
            if ord == 2
            else values.amin(-1)
        )
        if keepdim:
            for each in sorted((rows, columns)):
                result = result.unsqueeze(each)
        return result
    if ord not in (1, -1, inf, -inf):
        raise RuntimeError(
            f"linalg.matrix_norm: Order {ord} not supported: it must be 'fro', 'nuc', inf, 1, 2 or "
            "its negative"
        )
    summed, extreme = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = A.abs().sum(summed, keepdim=True)
    result = _largest(sums, extreme, True) if ord > 0 else sums.amin(extreme, keepdim=True)
    if keepdim:
        return result
    return result.squeeze((rows, columns))


def _largest(sizes: "Tensor", dim: int, keepdim: bool = False) -> "Tensor":
    """Return the largest along `dim`, 0 of none."""
    return sizes.amax(dim, keepdim) if sizes._array.shape[dim] else sizes.sum(dim, keepdim)


def norm(
    A: "Tensor", ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> "Tensor":
    """Return a vector norm, or a matrix norm where `dim` has two, or `ord` is given for a matrix.

    Without `ord`, the 2-norm of all elements in `dim`.
    """
    if dim is not None and not isinstance(dim, int):
        dim = tuple(dim)
    pair = dim if isinstance(dim, tuple) else None
    if ord is not None and ((pair is not None and len(pair) == 2) or (dim is None and A.ndim == 2)):
        return matrix_norm(A, ord, pair or (-2, -1), keepdim, dtype=dtype)
    if isinstance(ord, str):
        raise RuntimeError(f"linalg.norm: ord={ord!r} is for matrices, got a {describe(A)}")
    if ord is not None and dim is None and A.ndim != 1:
        raise RuntimeError(
            "linalg.norm: with ord and without dim, a vector or a matrix is needed, got a "
            f"{describe(A)}"
        )
    return vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)


def frobenius_norm(input: "Tensor", dim: Any = None, keepdim: bool = False) -> "Tensor":
    """Return the square root of the sum of squared absolute values over `dim`."""
    return vector_norm(input, 2, dim, keepdim)


def nuclear_norm(input: "Tensor", dim: Any = (-2, -1), keepdim: bool = False) -> "Tensor":
    """Return the sum of the singular values of matrices."""
    return matrix_norm(input, "nuc", dim, keepdim)


@full_precision
def cond(A: "Tensor", p: Any = None) -> "Tensor":
    """Return condition numbers [...]: |A| |A^-1| in the norm `p`, by default the 2-norm."""
    if p in (None, 2, -2):
        values = svdvals(A)
        if not values._array.shape[-1]:
            return values.sum(-1)
        largest, smallest = values[..., 0], values[..., -1]
        return smallest / largest if p == -2 else largest / smallest
    return matrix_norm(A, p) * matrix_norm(inv_ex(A)[0], p)


def matrix_power(input: "Tensor", n: int) -> "Tensor":
    """Return the n-th power of square matrices, for a negative n of their inverses."""
    check_matrices(input, "linalg.matrix_power", square=True)
    base = inv(input) if n < 0 else input
    n = abs(n)
    if not n:
        size = input._array.shape[-1]
        return eye_like(input, size).expand(input._array.shape).clone()
    result = None
    while n:
        if n & 1:
            result = base if result is None else result @ base
        n >>= 1
        base = base @ base if n else base
    assert result is not None
    return result if result is not input else input.clone()


class LinalgMatrixExp(Op):
    """The exponential of square matrices; keeps them."""

    def forward(self, x: Array) -> Array:
        from scipy.linalg import expm

        self.save(self=x)
        return np.asarray(lapack("linalg.matrix_exp", expm, x), x.dtype)

    def backward(self, grad: "Tensor") -> Any:
        """The upper right block of exp([[A^H, G], [0, A^H]]) (Mathias, 1996)."""
        adjoint = self.saved("self").mH
        size = adjoint._array.shape[-1]
        upper = cat((adjoint, grad), -1)
        lower = cat((grad.new_zeros(grad._array.shape), adjoint), -1)
        return matrix_exp(cat((upper, lower), -2))[..., :size, size:]


def matrix_exp(input: "Tensor") -> "Tensor":
    """Return the exponentials of square matrices [..., n, n]."""
    return LinalgMatrixExp.apply(check_matrices(input, "linalg.matrix_exp", square=True))


def vander(x: "Tensor", N: int | None = None) -> "Tensor":
    """Return the powers 0 to N - 1 of the elements of x [..., n]: [..., n, N], N = n by default."""
    x = x if x._array.ndim else x.reshape(1)
    x = x if category(x._array.dtype) >= 2 else cast(x, np.int64)
    count = x._array.shape[-1] if N is None else N
    if count < 2:
        raise RuntimeError(f"linalg.vander: N must be 2 or more, got {count}")
    return stack([x**power for power in range(count)], -1)


@lower_precision
def vecdot(x: "Tensor", y: "Tensor", *, dim: int = -1) -> "Tensor":
    """Return the sums of conj(x) y over one dimension."""
    return (x.conj() * y).sum(dim)


def linalg_diagonal(A: "Tensor", *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> "Tensor":
    """Return a view of the diagonals of matrices."""
    return A.diagonal(offset, dim1, dim2)
