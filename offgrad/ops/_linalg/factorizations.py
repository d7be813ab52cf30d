"""Triangular and orthogonal factors: Cholesky, QR and LU."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import wrap
from offgrad.ops._linalg.matrices import (
    LinAlgError,
    check_matrices,
    eye_like,
    halved_diagonal,
    lapack,
    over_batch,
)
from offgrad.ops._linalg.solving import check_system, solve_triangular
from offgrad.ops._shape.joining import cat

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "geqrf",
    "lu",
    "lu_solve",
    "lu_unpack",
    "orgqr",
    "qr",
]


class linalg_cholesky_ex(NamedTuple):
    """A Cholesky factor, and for each matrix 0 or the order of the minor that is not positive."""

    L: "Tensor"
    info: "Tensor"


class linalg_qr(NamedTuple):
    """An orthogonal and an upper triangular factor."""

    Q: "Tensor"
    R: "Tensor"


class linalg_lu_factor(NamedTuple):
    """Both triangular factors in one matrix, and the row exchanges."""

    LU: "Tensor"
    pivots: "Tensor"


class linalg_lu_factor_ex(NamedTuple):
    """Both triangular factors in one matrix, the row exchanges, and where a pivot is zero."""

    LU: "Tensor"
    pivots: "Tensor"
    info: "Tensor"


class linalg_lu(NamedTuple):
    """A permutation, a unit lower triangular and an upper triangular factor."""

    P: "Tensor"
    L: "Tensor"
    U: "Tensor"


class LinalgCholeskyEx(Op):
    """The Cholesky factor of Hermitian positive-definite matrices; keeps it."""

    def forward(self, x: Array, upper: bool) -> tuple[Array, Array]:
        self.upper = upper
        factor, info = over_batch(_cholesky, x.swapaxes(-1, -2).conj() if upper else x)
        factor = np.ascontiguousarray(factor.swapaxes(-1, -2).conj()) if upper else factor
        self.save(L=factor)
        return factor, info

    def backward(self, grad: "Tensor", _: Any) -> Any:
        """dA = L^-H phi(L^H dL) L^-1, made Hermitian; phi halves the diagonal of the lower
        triangle (Murray, 2016).
        """
        lower = self.saved("L")
        if self.upper:
            lower, grad = lower.mH, grad.mH
        phi = halved_diagonal((lower.mH @ grad).tril())
        phi = phi + phi.tril(-1).mH + phi.diagonal(0, -2, -1).conj().diag_embed()
        left = solve_triangular(lower.mH, phi, upper=True)
        return solve_triangular(lower, left, upper=False, left=False) * 0.5


def _cholesky(matrix: Array) -> tuple[Array, Array]:
    from scipy.linalg.lapack import get_lapack_funcs

    (potrf,) = get_lapack_funcs(("potrf",), (matrix,))
    factor, info = potrf(matrix, lower=True, clean=True)
    return factor, np.asarray(info, np.int32)


def cholesky_ex(
    A: "Tensor", *, upper: bool = False, check_errors: bool = False
) -> linalg_cholesky_ex:
    """Return the Cholesky factors of Hermitian matrices, and where they failed.

    Args:
        A: [..., n, n], of which the lower triangle is read, the upper one with `upper`.
        upper: whether the factor is U with A = U^H U, instead of L with A = L L^H.
        check_errors: whether a matrix that is not positive-definite raises LinAlgError.
    """
    check_matrices(A, "linalg.cholesky", square=True)
    result = linalg_cholesky_ex(*LinalgCholeskyEx.apply_all(A, upper=upper))
    failed = np.flatnonzero(result.info._array)
    if check_errors and failed.size:
        order = int(result.info._array.reshape(-1)[failed[0]])
        batch = f"(Batch element {failed[0]}): " if A._array.ndim > 2 else ""
        raise LinAlgError(
            f"linalg.cholesky: {batch}the matrix is not positive-definite: its leading minor of "
            f"order {order} is not positive"
        )
    return result


def linalg_cholesky(A: "Tensor", *, upper: bool = False) -> "Tensor":
    """Return L with A = L L^H, or with `upper` U with A = U^H U, of Hermitian matrices [..., n, n].

    Raises:
        LinAlgError: for matrices that are not positive-definite.
    """
    return cholesky_ex(A, upper=upper, check_errors=True)[0]


def cholesky(input: "Tensor", upper: bool = False) -> "Tensor":
    """Return the Cholesky factor of Hermitian matrices; `linalg.cholesky` is the newer name."""
    return linalg_cholesky(input, upper=upper)


class LinalgQr(Op):
    """Q R with orthonormal columns in Q and an upper triangle in R; keeps both."""

    def forward(self, x: Array, mode: str) -> tuple[Array, Array]:
        self.mode = mode
        if mode == "r":
            r = lapack("linalg.qr", np.linalg.qr, x, "r")
            return np.empty(0, x.dtype), r
        q, r = lapack("linalg.qr", np.linalg.qr, x, mode)
        self.save(Q=q, R=r)
        return q, r

    def backward(self, grad_q: "Tensor | None", grad_r: "Tensor | None") -> Any:
        """dA = (dQ + Q sym(dR R^H - Q^H dQ)) R^-H, sym(N) the upper triangle made Hermitian.

        Of a wide matrix [X, Y] the part X has this gradient, and Y = Q V follows from Q.
        """
        if self.mode == "r":
            raise RuntimeError(
                "linalg.qr: mode='r' keeps no Q, which its gradient needs; use mode='reduced'"
            )
        q, r = self.saved("Q"), self.saved("R")
        rows, columns = q._array.shape[-2], r._array.shape[-1]
        if self.mode == "complete" and rows > columns:
            raise RuntimeError(
                "linalg.qr: with mode='complete' and more rows than columns, Q is not unique and "
                "has no gradient; use mode='reduced'"
            )
        grad_wide = None
        if columns > rows:
            wide, r = r[..., rows:], r[..., :rows]
            if grad_r is not None:
                grad_v, grad_r = grad_r[..., rows:], grad_r[..., :rows]
                grad_wide = q @ grad_v
                extra = (q @ wide) @ grad_v.mH
                grad_q = extra if grad_q is None else grad_q + extra
        inner: Any = 0 if grad_r is None else grad_r @ r.mH
        if grad_q is not None:
            inner = inner - q.mH @ grad_q
        upper = inner.triu(1)
        outer = q @ (upper + upper.mH + inner.diagonal(0, -2, -1).real.diag_embed().to(q))
        outer = outer if grad_q is None else outer + grad_q
        grad = solve_triangular(r.mH, outer, upper=False, left=False)
        if columns > rows:
            if grad_wide is None:
                grad_wide = grad.new_zeros((*grad._array.shape[:-1], columns - rows))
            grad = cat((grad, grad_wide), -1)
        return grad


def linalg_qr_of(A: "Tensor", mode: str = "reduced") -> linalg_qr:
    """Return Q and R of matrices [..., m, n], with k = min(m, n).

    Args:
        A: [..., m, n].
        mode: ``"reduced"``: Q [..., m, k], R [..., k, n]; ``"complete"``: Q [..., m, m],
            R [..., m, n]; ``"r"``: Q empty, R [..., k, n].
    """
    check_matrices(A, "linalg.qr")
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(f"linalg.qr: mode must be 'reduced', 'complete' or 'r', got {mode!r}")
    return linalg_qr(*LinalgQr.apply_all(A, mode=mode))


def qr(input: "Tensor", some: bool = True) -> linalg_qr:
    """Return Q and R, with min(m, n) columns of Q where `some`; `linalg.qr` is the newer name."""
    return linalg_qr_of(input, "reduced" if some else "complete")


class LinalgLuFactorEx(Op):
    """L U of matrices with exchanged rows, both in one matrix; keeps it and the exchanges."""

    def forward(self, x: Array, pivot: bool) -> tuple[Array, Array, Array]:
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
    flat = pivots.reshape(-1, pivots.shape[-1])
    result = np.zeros((flat.shape[0], size, size), dtype)
    for matrix, exchanges in zip(result, flat, strict=True):
        order = np.arange(size)
        for i, j in enumerate(exchanges - 1):
            order[[i, j]] = order[[j, i]]
        matrix[order, np.arange(size)] = 1
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
            ones = _tall_eye(ones, rows)
        lower, upper = lower + ones, LU_data[..., :k, :].triu()
    return linalg_lu(permutation, lower, upper)


def _tall_eye(eye: "Tensor", rows: int) -> "Tensor":
    k = eye._array.shape[0]
    return cat((eye, eye.new_zeros(rows - k, k)), 0)


def lu(A: "Tensor", pivot: bool = True, get_infos: bool = False) -> Any:
    """Return `linalg.lu_factor`, with `get_infos` of `linalg.lu_factor_ex`."""
    result = lu_factor_ex(A, pivot=pivot)
    return tuple(result) if get_infos else tuple(result[:2])


def lu_solve(
    b: "Tensor", LU_data: "Tensor", LU_pivots: "Tensor", *, left: bool = True, adjoint: bool = False
) -> "Tensor":
    """Return X with A X = B for the factors of A that `lu_factor` returned."""
    return linalg_lu_solve(LU_data, LU_pivots, b, left=left, adjoint=adjoint)


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


def cholesky_solve(B: "Tensor", L: "Tensor", upper: bool = False) -> "Tensor":
    """Return X with A X = B for the Cholesky factor L of A, or U with `upper`."""
    lower = L.mH if upper else L
    inner = solve_triangular(lower, B, upper=False)
    return solve_triangular(lower.mH, inner, upper=True)


def cholesky_inverse(L: "Tensor", upper: bool = False) -> "Tensor":
    """Return the inverse of the matrices whose Cholesky factor is L, or U with `upper`."""
    return cholesky_solve(eye_like(L, L._array.shape[-1]), L, upper)


def geqrf(input: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return Householder vectors and R in one matrix [..., m, n], and the factors tau [..., k]."""
    check_matrices(input, "geqrf")

    def factor(matrix: Array) -> tuple[Array, Array]:
        from scipy.linalg import qr as scipy_qr

        (packed, tau), _ = scipy_qr(matrix, mode="raw", check_finite=False)
        return np.asarray(packed), np.asarray(tau)

    packed, tau = over_batch(factor, input._array)
    return wrap(np.ascontiguousarray(packed)), wrap(tau)


def householder_product(A: "Tensor", tau: "Tensor") -> "Tensor":
    """Return the first n columns of the product of the reflections I - tau_i v_i v_i^H.

    Args:
        A: [..., m, n], with v_i below the diagonal of column i; v_i[i] is 1.
        tau: [..., k], k at most n.
    """
    check_matrices(A, "linalg.householder_product")
    rows, columns = A._array.shape[-2:]
    if rows < columns:
        raise RuntimeError(
            "linalg.householder_product: A needs at least as many rows as columns, got "
            f"{rows} and {columns}"
        )
    vectors = A.tril(-1) + _tall_eye(eye_like(A, columns), rows)
    result = _tall_eye(eye_like(A, columns), rows)
    for i in reversed(range(tau._array.shape[-1])):
        vector = vectors[..., i : i + 1]
        factor = tau[..., i].unsqueeze(-1).unsqueeze(-1)
        result = result - factor * (vector @ (vector.mH @ result))
    return result.expand(A._array.shape) if result._array.shape != A._array.shape else result


def orgqr(input: "Tensor", input2: "Tensor") -> "Tensor":
    """Return `linalg.householder_product`."""
    return householder_product(input, input2)
