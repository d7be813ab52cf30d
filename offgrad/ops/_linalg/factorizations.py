"""Triangular and orthogonal factors: Cholesky and QR."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad._warning import warn_program
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import wrap
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.results import result
from offgrad.ops._linalg import small_matrices
from offgrad.ops._linalg.matrices import (
    LinAlgError,
    check_matrices,
    eye_like,
    halved_diagonal,
    lapack,
    over_batch,
    tall_eye,
)
from offgrad.ops._linalg.reflections import ormqr
from offgrad.ops._linalg.solving import solve_triangular
from offgrad.ops._shape.joining import cat

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "geqrf",
    "orgqr",
    "qr",
]


@result("linalg_cholesky_ex")
class linalg_cholesky_ex(NamedTuple):
    """A Cholesky factor, and for each matrix 0 or the order of the minor that is not positive."""

    L: "Tensor"
    info: "Tensor"


@result("linalg_qr")
class linalg_qr(NamedTuple):
    """An orthogonal and an upper triangular factor."""

    Q: "Tensor"
    R: "Tensor"


class LinalgCholeskyEx(Op):
    """The Cholesky factor of Hermitian positive-definite matrices; keeps it."""

    def forward(self, x: Array, upper: bool) -> tuple[Array, Array]:
        self.upper = upper
        lower = x.swapaxes(-1, -2).conj() if upper else x
        factor, info = _cholesky_of_batch(lower)
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


def _cholesky_of_batch(matrices: Array) -> tuple[Array, ...]:
    if small_matrices.are_many_and_small(matrices):
        factor, info = small_matrices.cholesky(matrices)
        if not info.any():
            return factor, info
    return over_batch(_cholesky, matrices)


def _cholesky(matrix: Array) -> tuple[Array, Array]:
    from scipy.linalg.lapack import get_lapack_funcs

    (potrf,) = get_lapack_funcs(("potrf",), (matrix,))
    factor, info = potrf(matrix, lower=True, clean=True)
    return factor, np.asarray(info, np.int32)


@full_precision
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
    if check_errors and result.info._array.any():
        failed = np.flatnonzero(result.info._array)
        order = int(result.info._array.reshape(-1)[failed[0]])
        batch = f"(Batch element {failed[0]}): " if A._array.ndim > 2 else ""
        raise LinAlgError(
            f"linalg.cholesky: {batch}the matrix is not positive-definite: its leading minor of "
            f"order {order} is not positive"
        )
    return result


@full_precision
def linalg_cholesky(A: "Tensor", *, upper: bool = False) -> "Tensor":
    """Return L with A = L L^H, or with `upper` U with A = U^H U, of Hermitian matrices [..., n, n].

    Raises:
        LinAlgError: for matrices that are not positive-definite.
    """
    return cholesky_ex(A, upper=upper, check_errors=True)[0]


@full_precision
def cholesky(input: "Tensor", upper: bool = False) -> "Tensor":
    """Return the Cholesky factor of Hermitian matrices; `linalg.cholesky` is the newer name."""
    warn_program("torch.cholesky is deprecated in favor of torch.linalg.cholesky")
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


@full_precision
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


@full_precision
def qr(input: "Tensor", some: bool = True) -> linalg_qr:
    """Return Q and R, with min(m, n) columns of Q where `some`; `linalg.qr` is the newer name."""
    warn_program("torch.qr is deprecated in favor of torch.linalg.qr, which takes a mode")
    return linalg_qr_of(input, "reduced" if some else "complete")


@full_precision
def cholesky_solve(B: "Tensor", L: "Tensor", upper: bool = False) -> "Tensor":
    """Return X with A X = B for the Cholesky factor L of A, or U with `upper`."""
    lower = L.mH if upper else L
    inner = solve_triangular(lower, B, upper=False)
    return solve_triangular(lower.mH, inner, upper=True)


@full_precision
def cholesky_inverse(L: "Tensor", upper: bool = False) -> "Tensor":
    """Return the inverse of the matrices whose Cholesky factor is L, or U with `upper`."""
    return cholesky_solve(eye_like(L, L._array.shape[-1]), L, upper)


@full_precision
def geqrf(input: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return Householder vectors and R in one matrix [..., m, n], and the factors tau [..., k]."""
    check_matrices(input, "geqrf")

    def factor(matrix: Array) -> tuple[Array, Array]:
        from scipy.linalg import qr as scipy_qr

        (packed, tau), _ = scipy_qr(matrix, mode="raw", check_finite=False)
        return np.asarray(packed), np.asarray(tau)

    packed, tau = over_batch(factor, input._array)
    return wrap(np.ascontiguousarray(packed)), wrap(tau)


@full_precision
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
    result = ormqr(A, tau, tall_eye(eye_like(A, columns), rows))
    return result.expand(A._array.shape) if result._array.shape != A._array.shape else result


@full_precision
def orgqr(input: "Tensor", input2: "Tensor") -> "Tensor":
    """Return `linalg.householder_product`."""
    return householder_product(input, input2)
