"""LU factors of matrices, with or without exchanges of rows."""

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import wrap
from offgrad.memory.meta import MetaArray, meta_empty
from offgrad.ops._core.autocast import full_precision, own_precision
from offgrad.ops._core.results import result
from offgrad.ops._linalg import small_matrices
from offgrad.ops._linalg.matrices import (
    LinAlgError,
    check_matrices,
    eye_like,
    over_batch,
    tall_eye,
)
from offgrad.ops._linalg.solving import check_system, solve_triangular
from offgrad.ops._shape.joining import cat

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["lu", "lu_solve", "lu_unpack"]


@result("linalg_lu_factor")
class linalg_lu_factor(NamedTuple):
    """Both triangular factors in one matrix, and the row exchanges."""

    LU: "Tensor"
    pivots: "Tensor"


@result("linalg_lu_factor_ex")
class linalg_lu_factor_ex(NamedTuple):
    """Both triangular factors in one matrix, the row exchanges, and where a pivot is zero."""

    LU: "Tensor"
    pivots: "Tensor"
    info: "Tensor"


@result("linalg_lu")
class linalg_lu(NamedTuple):
    """A permutation, a unit lower triangular and an upper triangular factor."""

    P: "Tensor"
    L: "Tensor"
    U: "Tensor"


class LinalgLuFactorEx(Op):
    """L U of matrices with exchanged rows, both in one matrix; keeps it and the exchanges."""

    def forward(self, x: Array, pivot: bool) -> tuple[Array, Array, Array]:
        if pivot and small_matrices.are_many_and_small(x):
            factor, pivots, info = small_matrices.lu(x)
        else:
            factor, pivots, info = over_batch(_lu_pivoted if pivot else _lu_unpivoted, x)
        self.save(LU=factor, pivots=pivots)
        return factor, pivots, info

    def backward(self, grad: "Tensor", *_: Any) -> Any:
        """dA = P L^-H (tril(L^H dL, -1) + triu(dU U^H)) U^-H for square matrices.

        Rows below a square part are L2 = A2 U^-1, columns beside it U2 = L^-1 A2.
        """
        packed, pivots = self.saved("LU"), self.saved("pivots")
        rows, columns = packed._array.shape[-2:]
        k = min(rows, columns)
        square, grad_square = packed[..., :k, :k], grad[..., :k, :k]
        lower, upper = square.tril(-1) + eye_like(packed, k), square.triu()
        grad_lower, grad_upper = grad_square.tril(-1), grad_square.triu()
        rest = None
        if rows > k:
            below = packed[..., k:, :]
            rest = solve_triangular(upper.mH, grad[..., k:, :], upper=False, left=False)
            grad_upper = grad_upper - (below.mH @ rest).triu()
        elif columns > k:
            beside = packed[..., k:]
            rest = solve_triangular(lower.mH, grad[..., k:], upper=True)
            grad_lower = grad_lower - (rest @ beside.mH).tril(-1)
        inner = (lower.mH @ grad_lower).tril(-1) + (grad_upper @ upper.mH).triu()
        inner = solve_triangular(lower.mH, inner, upper=True, unitriangular=True)
        result = solve_triangular(upper.mH, inner, upper=False, left=False)
        if rest is not None:
            result = cat((result, rest), -2 if rows > k else -1)
        return _permutation(pivots._array, rows, result._array.dtype) @ result


def _lu_pivoted(matrix: Array) -> tuple[Array, Array, Array]:
    from scipy.linalg.lapack import get_lapack_funcs

    (getrf,) = get_lapack_funcs(("getrf",), (matrix,))
    if not matrix.size:
        return matrix.copy(), np.zeros(0, np.int32), np.asarray(0, np.int32)
    factor, pivots, info = getrf(matrix)
    return factor, pivots.astype(np.int32) + 1, np.asarray(info, np.int32)


@np.errstate(all="ignore")
def _lu_unpivoted(matrix: Array) -> tuple[Array, Array, Array]:
    factor = matrix.copy()
    k, info = min(factor.shape), 0
    for i in range(k):
        if not factor[i, i]:
            info = info or i + 1
        factor[i + 1 :, i] /= factor[i, i]
        factor[i + 1 :, i + 1 :] -= np.outer(factor[i + 1 :, i], factor[i, i + 1 :])
    return factor, np.arange(1, k + 1, dtype=np.int32), np.asarray(info, np.int32)


def _permutation(pivots: Array, size: int, dtype: np.dtype[Any]) -> "Tensor":
    """Return the matrices P [..., size, size] of the row exchanges `pivots`, with A = P L U."""
    if type(pivots) is MetaArray:
        return wrap(meta_empty((*pivots.shape[:-1], size, size), dtype))
    if pivots.size and not 1 <= pivots.min() <= pivots.max() <= size:
        raise RuntimeError(
            f"pivots must be from 1 to {size}, the number of rows, as lu_factor returns them, got "
            f"{pivots.min()} to {pivots.max()}"
        )
    flat = pivots.reshape(prod(pivots.shape[:-1]), pivots.shape[-1])
    result = np.zeros((flat.shape[0], size, size), dtype)
    order = small_matrices.row_order(flat, size)
    np.put_along_axis(result.swapaxes(-1, -2), order[..., None], 1, -1)
    return wrap(result.reshape(*pivots.shape[:-1], size, size))


def lu_factor_ex(
    A: "Tensor", *, pivot: bool = True, check_errors: bool = False
) -> linalg_lu_factor_ex:
    """Return `lu_factor` of matrices, and for each 0 or the number of its first zero pivot."""
    check_matrices(A, "linalg.lu_factor")
    result = linalg_lu_factor_ex(*LinalgLuFactorEx.apply_all(A, pivot=pivot))
    if check_errors and result.info._array.any():
        raise LinAlgError(
            "linalg.lu_factor: a diagonal element of U is zero, so that U is exactly singular"
        )
    return result


def lu_factor(A: "Tensor", *, pivot: bool = True) -> linalg_lu_factor:
    """Return L and U in one matrix, and the row exchanges [..., k] as int32, counted from 1."""
    return linalg_lu_factor(*lu_factor_ex(A, pivot=pivot)[:2])


def linalg_lu_of(A: "Tensor", *, pivot: bool = True) -> linalg_lu:
    """Return P [..., m, m], L [..., m, k] and U [..., k, n] with A = P L U, k = min(m, n)."""
    factor, pivots = lu_factor(A, pivot=pivot)
    return linalg_lu(*lu_unpack(factor, pivots))


def lu_unpack(
    LU_data: "Tensor", LU_pivots: "Tensor", unpack_data: bool = True, unpack_pivots: bool = True
) -> linalg_lu:
    """Return P, L and U of what `lu_factor` returned; what is not asked for is empty."""
    rows, columns = LU_data._array.shape[-2:]
    k = min(rows, columns)
    empty = LU_data.new_empty(0)
    permutation, lower, upper = empty, empty, empty
    if unpack_pivots:
        permutation = _permutation(LU_pivots._array, rows, LU_data._array.dtype)
    if unpack_data:
        lower = LU_data[..., :k].tril(-1)
        ones = lower.new_ones(k).diag()
        if rows > k:
            ones = tall_eye(ones, rows)
        lower, upper = lower + ones, LU_data[..., :k, :].triu()
    return linalg_lu(permutation, lower, upper)


@full_precision
def lu(A: "Tensor", pivot: bool = True, get_infos: bool = False) -> Any:
    """Return `linalg.lu_factor`, with `get_infos` of `linalg.lu_factor_ex`."""
    result = lu_factor_ex(A, pivot=pivot)
    return tuple(result) if get_infos else tuple(result[:2])


@full_precision
def lu_solve(
    b: "Tensor", LU_data: "Tensor", LU_pivots: "Tensor", *, left: bool = True, adjoint: bool = False
) -> "Tensor":
    """Return X with A X = B for the factors of A that `lu_factor` returned."""
    return linalg_lu_solve(LU_data, LU_pivots, b, left=left, adjoint=adjoint)


@own_precision
def linalg_lu_solve(
    LU: "Tensor", pivots: "Tensor", B: "Tensor", *, left: bool = True, adjoint: bool = False
) -> "Tensor":
    """Return X with A X = B, or X A = B without `left`, for the factors of `lu_factor`.

    With `adjoint`, A^H stands for A.
    """
    check_system("linalg.lu_solve", LU, B, left)
    if not left:
        return linalg_lu_solve(LU, pivots, B.mH, adjoint=not adjoint).mH
    permutation = _permutation(pivots._array, LU._array.shape[-1], LU._array.dtype)
    if adjoint:
        inner = solve_triangular(LU.mH, B, upper=False)
        return permutation @ solve_triangular(LU.mH, inner, upper=True, unitriangular=True)
    inner = solve_triangular(LU, permutation.mT @ B, upper=False, unitriangular=True)
    return solve_triangular(LU, inner, upper=True)
