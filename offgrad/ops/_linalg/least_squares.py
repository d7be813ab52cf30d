"""Pseudoinverses, ranks and least squares, from singular values."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.results import result
from offgrad.ops._linalg.matrices import (
    check_matrices,
    check_same_dtype,
    lapack,
    over_batch,
    real_of,
)
from offgrad.ops._linalg.solving import is_vector
from offgrad.ops._linalg.spectral import eigh, linalg_svd_of

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["pinverse"]


@result("linalg_lstsq")
class linalg_lstsq(NamedTuple):
    """Least-squares solutions, sums of squared residuals, ranks and singular values."""

    solution: "Tensor"
    residuals: "Tensor"
    rank: "Tensor"
    singular_values: "Tensor"


class LinalgPinv(Op):
    """The pseudoinverse from singular values above a bound; keeps A and the result."""

    def forward(self, x: Array, result: Array) -> Array:
        out: Array = result.copy()
        self.save(self=x, result=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """dA = -P^H G P^H + (I - A P) G^H P P^H + P^H P G^H (I - P A) (Golub, Pereyra, 1973)."""
        a, p = self.saved("self"), self.saved("result")
        adjoint, grad_h = p.mH, grad.mH
        first = adjoint @ grad @ adjoint
        left = grad_h @ p @ adjoint
        right = adjoint @ p @ grad_h
        return left - a @ (p @ left) + right - (right @ p) @ a - first, None


def _bounds(
    singular: Array, shape: tuple[int, ...], atol: Any, rtol: Any, dtype: np.dtype[Any]
) -> Array:
    """Return the bound below which singular values count as zero."""
    numbers = [each._array[..., None] if isinstance(each, TensorBase) else each
               for each in (atol, rtol)]  # fmt: skip
    absolute, relative = numbers
    if relative is None:
        default = max(shape[-2:]) * np.finfo(dtype).eps
        relative = default if absolute is None else np.where(np.asarray(absolute) > 0, 0.0, default)
    largest = singular.max(-1, keepdims=True, initial=0)
    return np.asarray(np.maximum(0.0 if absolute is None else absolute, relative * largest))


def pinv(
    A: "Tensor", rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None
) -> "Tensor":
    """Return the pseudoinverses [..., n, m] of matrices [..., m, n].

    Singular values up to ``max(atol, rtol * largest)`` count as zero; `rtol` is by default
    max(m, n) times the dtype's eps where `atol` is 0, and 0 where it is positive. `rcond` is an
    older name of `rtol`.
    """
    check_matrices(A, "linalg.pinv", square=hermitian)
    array = A._array
    rtol = rcond if rtol is None else rtol
    if not array.size:
        empty = np.zeros((*array.shape[:-2], array.shape[-1], array.shape[-2]), array.dtype)
        return LinalgPinv.apply(A, A.new_tensor(empty))
    if hermitian:
        values, u = lapack("linalg.pinv", np.linalg.eigh, array)
        s, vh = np.abs(values), (u * np.sign(values)[..., None, :]).swapaxes(-1, -2).conj()
    else:
        u, s, vh = lapack("linalg.pinv", np.linalg.svd, array, full_matrices=False)
    kept = s > _bounds(s, array.shape, atol, rtol, array.dtype)
    inverse = np.divide(1, s, out=np.zeros_like(s), where=kept)
    result: Array = vh.swapaxes(-1, -2).conj() @ (inverse[..., None] * u.swapaxes(-1, -2).conj())
    return LinalgPinv.apply(A, wrap(result.astype(array.dtype, copy=False)))


@full_precision
def pinverse(input: "Tensor", rcond: float = 1e-15) -> "Tensor":
    """Return the pseudoinverses of matrices: `linalg.pinv`."""
    return pinv(input, rcond)


@full_precision
def matrix_rank(
    A: "Tensor", tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None
) -> "Tensor":
    """Return how many singular values exceed ``max(atol, rtol * largest)``, as int64.

    Defaults as for `pinv`; `tol` is an older name of `atol`.
    """
    check_matrices(A, "linalg.matrix_rank", square=hermitian)
    singular = eigh(A.detach())[0].abs() if hermitian else linalg_svd_of(A.detach(), False)[1]
    atol, rtol = (tol, 0.0) if tol is not None else (atol, rtol)
    bound = _bounds(singular._array, A._array.shape, atol, rtol, A._array.dtype)
    return wrap(np.asarray((singular._array > bound).sum(-1), np.int64))


class LinalgLstsq(Op):
    """X with the least |A X - B|; keeps A and B."""

    def forward(self, a: Array, b: Array, rcond: float, driver: str) -> tuple[Array, ...]:
        from scipy.linalg import lstsq as scipy_lstsq

        self.save(self=a, b=b)

        def one(a: Array, b: Array) -> tuple[Array, ...]:
            np.asarray_chkfinite(a)
            if not (a.size and b.size):
                none = np.zeros(min(a.shape), real_of(a.dtype))
                return np.zeros((a.shape[1], b.shape[1]), a.dtype), np.zeros((), np.int64), none
            solution, _, rank, singular = scipy_lstsq(
                a, b, rcond, lapack_driver=driver, check_finite=False
            )
            if singular is None:
                singular = np.empty(0, real_of(a.dtype))
            return np.ascontiguousarray(solution), np.asarray(rank, np.int64), singular

        found: tuple[Array, ...] = lapack("linalg.lstsq", over_batch, one, a, b)
        return found

    def backward(self, grad: "Tensor", *_: Any) -> Any:
        """The gradient of pinv(A) B."""
        inputs = self.saved("self"), self.saved("b")
        return differentiate(lambda a, b: pinv(a) @ b, inputs, (grad,), self.needs_input_grad)


@full_precision
def lstsq(A: "Tensor", B: "Tensor", rcond: Any = None, *, driver: Any = None) -> linalg_lstsq:
    """Return the X with the least |A X - B|, and its residuals, ranks and singular values.

    Args:
        A: [..., m, n].
        B: [..., m, k], or [..., m] for one column; batches broadcast.
        rcond: singular values below it times the largest count as zero; by default max(m, n)
            times the dtype's eps.
        driver: LAPACK's routine: ``"gelsy"`` (the default, which runs for ``"gels"``, too),
            ``"gelsd"`` or ``"gelss"``. Only the last two return singular values.

    Returns:
        solution [..., n, k], residuals [..., k], empty for gelsy, and unless m > n and A has full
        rank, rank [...] (empty for gels), and singular values [..., min(m, n)].
    """
    check_matrices(A, "linalg.lstsq")
    vector = is_vector(A, B)
    b = B.unsqueeze(-1) if vector else B
    check_same_dtype("linalg.lstsq", A, b)
    if A._array.shape[-2] != b._array.shape[-2]:
        raise RuntimeError(
            f"linalg.lstsq: A and B must have as many rows, got {describe(A)} and {describe(B)}"
        )
    if driver not in (None, "gelsy", "gels", "gelsd", "gelss"):
        raise RuntimeError(
            f"linalg.lstsq: driver must be 'gels', 'gelsy', 'gelsd' or 'gelss', got {driver!r}"
        )
    batch = np.broadcast_shapes(A._array.shape[:-2], b._array.shape[:-2])
    a = A.expand(*batch, *A._array.shape[-2:])
    b = b.expand(*batch, *b._array.shape[-2:])
    bound = max(A._array.shape[-2:]) * float(np.finfo(A._array.dtype).eps)
    routine = "gelsy" if driver in (None, "gels") else driver
    rcond = bound if rcond is None else rcond
    solution, rank, singular = LinalgLstsq.apply_all(a, b, rcond=rcond, driver=routine)
    residuals = singular.new_empty(0)
    rows, columns = A._array.shape[-2:]
    if driver not in (None, "gelsy") and rows > columns and (rank._array == columns).all():
        residuals = (a @ solution - b).abs().square().sum(-2)
    singular = singular.new_empty(0) if routine == "gelsy" else singular.detach()
    if driver == "gels":
        rank = rank.new_empty(0)
    return linalg_lstsq(solution.squeeze(-1) if vector else solution, residuals, rank, singular)
