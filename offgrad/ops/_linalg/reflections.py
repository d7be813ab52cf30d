"""Products with the orthogonal matrix of Householder vectors, and indefinite factorizations."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.memory.meta import MetaArray, meta_empty
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.dtypes import shape_error
from offgrad.ops._core.results import result
from offgrad.ops._linalg.matrices import LinAlgError, check_matrices, eye_like, tall_eye
from offgrad.ops._linalg.solving import solve_triangular

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["ormqr"]


_BLOCK = 32  # reflections that are applied as one product, as LAPACK does


@full_precision
def ormqr(
    input: "Tensor", tau: "Tensor", other: "Tensor", left: bool = True, transpose: bool = False
) -> "Tensor":
    """Return the product of Q, which `geqrf` gives as `input` and `tau`, and a matrix.

    Args:
        input: Householder vectors below the diagonal [..., m, k]; further columns are not read.
        tau: their factors [..., k].
        other: the matrix: Q multiplies it from the left, or with ``left=False`` from the right.
        left: the side of Q.
        transpose: whether to multiply by the conjugate transpose of Q.

    Raises:
        RuntimeError: if sizes do not fit.
    """
    for each in (input, other):
        check_matrices(each, "ormqr")
    size, count = input._array.shape[-2], tau._array.shape[-1]
    columns = input._array.shape[-1]
    if other._array.shape[-2 if left else -1] != size or count > min(size, columns):
        raise shape_error(
            "ormqr", "the sizes of Q, [m, m], and of the matrix must fit", input, other
        )
    if not left:
        return ormqr(input, tau, other.mH, True, not transpose).mH
    vectors = input[..., :count].tril(-1) + tall_eye(eye_like(input, count), size)
    product, order = other, range(0, count, _BLOCK)
    for first in order if transpose else reversed(order):
        last = min(first + _BLOCK, count)
        some = vectors[..., first:last]
        triangle = _triangle(some, tau[..., first:last])
        product = product - some @ ((triangle.mH if transpose else triangle) @ (some.mH @ product))
    return product


def _triangle(vectors: "Tensor", factors: "Tensor") -> "Tensor":
    """Return the upper triangle T with H1 H2 ... = 1 - V T V^H, from T^-1 = diag(1/tau) + triu of
    V^H V without the diagonal (Schreiber and Van Loan, 1989, in the form of Joffrain et al., 2006).
    """
    size = vectors._array.shape[-1]
    inner = factors.unsqueeze(-1) * (vectors.mH @ vectors).triu(1) + eye_like(vectors, size)
    return solve_triangular(inner, factors.diag_embed(), upper=True, unitriangular=True)


@result("linalg_ldl_factor")
class LDLFactors(NamedTuple):
    """L and D in one matrix, and the pivots."""

    LD: "Tensor"
    pivots: "Tensor"


@result("linalg_ldl_factor_ex")
class LDLFactorsInfo(NamedTuple):
    """L and D in one matrix, the pivots, and whether D has a zero."""

    LD: "Tensor"
    pivots: "Tensor"
    info: "Tensor"


def _routine(name: str, dtype: Any, hermitian: bool) -> Any:
    from scipy.linalg import get_lapack_funcs

    is_complex = np.dtype(dtype).kind == "c"
    kind = "he" if hermitian and is_complex else "sy"
    (routine,) = get_lapack_funcs([kind + name], dtype=dtype)
    return routine


def ldl_factor_ex(
    A: "Tensor", *, hermitian: bool = False, check_errors: bool = False
) -> LDLFactorsInfo:
    """Return L D L^T of symmetric, or L D L^H of hermitian matrices, by Bunch and Kaufman's pivots.

    Not differentiable, as in PyTorch.

    Args:
        A: matrices [..., n, n], of which the lower triangle is read.
        hermitian: whether they are hermitian rather than symmetric.
        check_errors: whether a zero in D raises.

    Raises:
        RuntimeError: unless the matrices are square.
        LinAlgError: with `check_errors`, if D has a zero on its diagonal.
    """
    check_matrices(A, "linalg.ldl_factor", square=True)
    x = A._array
    if type(x) is MetaArray:
        shapes = (x.shape, x.dtype), (x.shape[:-1], np.int32), (x.shape[:-2], np.int32)
        return LDLFactorsInfo(*[wrap(meta_empty(*each)) for each in shapes])
    factors, size = np.empty(x.shape, x.dtype), x.shape[-1]
    pivots, info = np.empty(x.shape[:-1], np.int32), np.zeros(x.shape[:-2], np.int32)
    routine = _routine("trf", x.dtype, hermitian)
    for at in np.ndindex(x.shape[:-2]):
        if size:
            found, pivots[at], info[at] = routine(x[at], lower=1)
            factors[at] = np.tril(found)
    if check_errors and info.any():
        raise LinAlgError(
            f"linalg.ldl_factor: D is singular: its diagonal element {int(info.max())} is zero"
        )
    return LDLFactorsInfo(wrap(factors), wrap(pivots), wrap(info))


def _check_ldl_pivots(pivots: Array) -> None:
    """Check one matrix's pivots, by which LAPACK finds rows: two equal negative ones are a block.

    Raises:
        RuntimeError: for others.
    """
    size, at = len(pivots), 0
    while at < size:
        step = 1 if pivots[at] > 0 else 2
        if (
            not 1 <= abs(pivots[at]) <= size
            or at + step > size
            or pivots[at] != pivots[at + step - 1]
        ):
            raise RuntimeError(
                f"linalg.ldl_solve: pivots must be from 1 to {size}, or pairs of equal negative "
                f"ones, as ldl_factor returns them, got {pivots.tolist()}"
            )
        at += step


def ldl_factor(A: "Tensor", *, hermitian: bool = False) -> LDLFactors:
    """Return LD and pivots of `ldl_factor_ex`.

    Raises:
        RuntimeError: unless the matrices are square.
        LinAlgError: if D has a zero on its diagonal.
    """
    found = ldl_factor_ex(A, hermitian=hermitian, check_errors=True)
    return LDLFactors(found.LD, found.pivots)


def ldl_solve(LD: "Tensor", pivots: "Tensor", B: "Tensor", *, hermitian: bool = False) -> "Tensor":
    """Return X of ``A X = B``, with A as `ldl_factor` gives it: [..., n, k].

    Raises:
        RuntimeError: if sizes do not fit, or for pivots that `ldl_factor` does not return.
    """
    check_matrices(LD, "linalg.ldl_solve", square=True)
    factors, order, right = LD._array, pivots._array, B._array
    if right.ndim < 2 or right.shape[-2] != factors.shape[-1]:
        raise shape_error("linalg.ldl_solve", "B needs as many rows as the factors", LD, B)
    if right.dtype != factors.dtype:
        raise RuntimeError(f"linalg.ldl_solve: B must have the dtype of LD, got a {describe(B)}")
    if order.shape != factors.shape[:-1]:
        raise shape_error("linalg.ldl_solve", "each matrix needs a pivot for each row", LD, pivots)
    batch = np.broadcast_shapes(factors.shape[:-2], right.shape[:-2])
    if type(right) is MetaArray:
        return wrap(meta_empty((*batch, *right.shape[-2:]), right.dtype))
    for at in np.ndindex(order.shape[:-1]):
        _check_ldl_pivots(order[at])
    factors = np.broadcast_to(factors, (*batch, *factors.shape[-2:]))
    order = np.broadcast_to(order, (*batch, order.shape[-1]))
    right = np.broadcast_to(right, (*batch, *right.shape[-2:]))
    solved = np.empty(right.shape, right.dtype)
    routine = _routine("trs", factors.dtype, hermitian)
    for at in np.ndindex(batch):
        if right[at].size:
            solved[at], _ = routine(factors[at], order[at], right[at], lower=1)
    return wrap(solved)
