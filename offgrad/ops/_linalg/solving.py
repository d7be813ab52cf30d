"""Systems of linear equations, and inverses."""

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.memory.meta import MetaArray
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.results import result
from offgrad.ops._linalg import small_matrices
from offgrad.ops._linalg.matrices import (
    LinAlgError,
    check_matrices,
    check_same_dtype,
    eye_like,
    over_batch,
)
from offgrad.ops._reduction.sums import sum_to_size

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["inverse", "triangular_solve"]


@result("linalg_inv_ex")
class linalg_inv_ex(NamedTuple):
    """Inverses, and for each matrix 0 or the number of its first zero pivot."""

    inverse: "Tensor"
    info: "Tensor"


@result("linalg_solve_ex")
class linalg_solve_ex(NamedTuple):
    """Solutions, and for each matrix 0 or the number of its first zero pivot."""

    result: "Tensor"
    info: "Tensor"


@result("triangular_solve")
class triangular_solutions(NamedTuple):
    """Solutions, and the coefficients."""

    solution: "Tensor"
    cloned_coefficient: "Tensor"


def _singular(where: str, matrices: Array) -> Array:
    """Return for each matrix the number of the first zero pivot of its LU factors, or 0."""

    def first_zero(matrix: Array) -> tuple[Array, ...]:
        from scipy.linalg.lapack import get_lapack_funcs

        (getrf,) = get_lapack_funcs(("getrf",), (matrix,))
        return (np.asarray(getrf(matrix)[2] if matrix.size else 0, np.int32),)

    return over_batch(first_zero, matrices)[0]


def _raise_singular(where: str, info: Array) -> None:
    failed = np.flatnonzero(info)
    if failed.size:
        order = int(info.reshape(-1)[failed[0]])
        batch = f"(Batch element {failed[0]}): " if info.ndim else ""
        raise LinAlgError(
            f"{where}: {batch}the input matrix is singular: the pivot {order} of its LU factors is "
            "zero; use pinv() or lstsq() for such matrices"
        )


_LARGE = 256
"""Order from which SciPy's LAPACK solves in half of NumPy's time, copies included."""


def _solutions(a: Array, b: Array) -> Array:
    """Return X with A X = B for arrays; raise NumPy's LinAlgError if a matrix is singular."""
    if not _is_large(a):
        solved: Array = np.linalg.solve(a, b)
        return solved
    from scipy.linalg.lapack import get_lapack_funcs

    (gesv,) = get_lapack_funcs(("gesv",), (a, b))
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (np.broadcast_to(each, (*batch, *each.shape[-2:])) for each in (a, b))
    out = np.empty(b.shape, b.dtype)
    for at in np.ndindex(batch if b.size else (0,)):
        columns = _columns(a[at]), _columns(b[at])
        _, _, x, info = gesv(*columns, overwrite_a=True, overwrite_b=True)
        if info:
            raise np.linalg.LinAlgError("Singular matrix")
        kernels.copy_into(out[at], x)
    return out


def _is_large(matrices: Array) -> bool:
    return matrices.shape[-1] >= _LARGE and type(matrices) is not MetaArray


def _columns(matrix: Array) -> Array:
    """Return a copy column after column, as LAPACK takes it."""
    turned = np.empty(matrix.shape[::-1], matrix.dtype)
    kernels.copy_into(turned, matrix.T)
    return turned.T


class LinalgInvEx(Op):
    """The inverse of square matrices; keeps it."""

    def forward(self, x: Array) -> Array:
        if _is_large(x):
            out = _solutions(x, np.eye(x.shape[-1], dtype=x.dtype))
        else:
            out = np.linalg.inv(x)
        self.save(inverse=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """dA = -Y^H G Y^H for Y = A^-1."""
        inverse = self.saved("inverse").mH
        return -(inverse @ grad @ inverse)


@full_precision
def inv_ex(A: "Tensor", *, check_errors: bool = False) -> linalg_inv_ex:
    """Return inverses [..., n, n], and which failed; those hold infinities."""
    check_matrices(A, "linalg.inv", square=True)
    info = np.zeros(A._array.shape[:-2], np.int32)
    try:
        return linalg_inv_ex(LinalgInvEx.apply(A), wrap(info))
    except np.linalg.LinAlgError:
        info = _singular("linalg.inv", A._array)
        if check_errors:
            _raise_singular("linalg.inv", info)
        failed = wrap(info != 0).unsqueeze(-1).unsqueeze(-1)
        inverse = LinalgInvEx.apply(eye_like(A, A._array.shape[-1]).where(failed, A))
        return linalg_inv_ex(inverse.masked_fill(failed, np.inf), wrap(info))


@full_precision
def inv(A: "Tensor") -> "Tensor":
    """Return the inverses of square matrices [..., n, n].

    Raises:
        LinAlgError: for singular matrices.
    """
    return inv_ex(A, check_errors=True)[0]


@full_precision
def inverse(input: "Tensor") -> "Tensor":
    """Return the inverses of square matrices: `linalg.inv`."""
    return inv(input)


class LinalgSolveEx(Op):
    """X with A X = B; keeps A, and X for the gradient of A."""

    def forward(self, a: Array, b: Array) -> Array:
        out = _solutions(a, b)
        self.shape_a, self.shape_b = a.shape, b.shape
        self.save(A=a, result=out if self.needs_input_grad[0] else None)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """dB = A^-H G, dA = -dB X^H."""
        grad_b = solve(self.saved("A").mH, grad)
        grad_a = None
        if self.needs_input_grad[0]:
            grad_a = sum_to_size(-(grad_b @ self.saved("result").mH), self.shape_a)
        return grad_a, sum_to_size(grad_b, self.shape_b) if self.needs_input_grad[1] else None


def is_vector(a: "Tensor", b: "Tensor") -> bool:
    """Return whether `b` is a batch of vectors beside the matrices `a`."""
    return b._array.ndim == 1 or (
        b._array.ndim == a._array.ndim - 1 and b._array.shape == a._array.shape[:-1]
    )


def check_system(where: str, a: "Tensor", b: "Tensor", left: bool) -> None:
    check_matrices(a, where, square=True)
    check_matrices(b, where)
    check_same_dtype(where, a, b)
    if a._array.shape[-1] != b._array.shape[-2 if left else -1]:
        raise RuntimeError(
            f"{where}: Incompatible shapes of A and B for the equation "
            f"{'AX = B' if left else 'XA = B'}, got {describe(a)} and {describe(b)}"
        )
    try:
        np.broadcast_shapes(a._array.shape[:-2], b._array.shape[:-2])
    except ValueError:
        raise RuntimeError(
            f"{where}: the batch sizes must broadcast, got {describe(a)} and {describe(b)}"
        ) from None


def solve_ex(
    A: "Tensor", B: "Tensor", *, left: bool = True, check_errors: bool = False
) -> linalg_solve_ex:
    """Return `solve`, and for each matrix 0 or the number of its first zero pivot."""
    check_matrices(A, "linalg.solve", square=True)
    vector = left and is_vector(A, B)
    b = B.unsqueeze(-1) if vector else B
    check_system("linalg.solve", A, b, left)
    info = np.zeros(A._array.shape[:-2], np.int32)
    try:
        if left:
            result = LinalgSolveEx.apply(A, b)
        else:
            result = LinalgSolveEx.apply(A.mT, b.mT).mT
    except np.linalg.LinAlgError:
        info = _singular("linalg.solve", A._array)
        if check_errors:
            _raise_singular("linalg.solve", info)
        failed = wrap(info != 0).unsqueeze(-1).unsqueeze(-1)
        regular = eye_like(A, A._array.shape[-1]).where(failed, A)
        result = solve_ex(regular, b, left=left)[0].masked_fill(failed, np.nan)
    return linalg_solve_ex(result.squeeze(-1) if vector else result, wrap(info))


@full_precision
def solve(A: "Tensor", B: "Tensor", *, left: bool = True) -> "Tensor":
    """Return X with A X = B, or X A = B without `left`.

    Args:
        A: square matrices [..., n, n].
        B: [..., n, k], or [n] or [..., n] for one column; [..., k, n] without `left`. Batches
            broadcast.
        left: whether A stands left of X.

    Raises:
        LinAlgError: for singular matrices.
    """
    return solve_ex(A, B, left=left, check_errors=True)[0]


class LinalgSolveTriangular(Op):
    """X with A X = B for triangular A; keeps A, and X for the gradient of A."""

    def forward(self, a: Array, b: Array, upper: bool, unitriangular: bool) -> Array:
        self.upper, self.unitriangular = upper, unitriangular
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        self.shape_a, self.shape_b = a.shape, b.shape

        def one(a: Array, b: Array) -> tuple[Array]:
            from scipy.linalg.lapack import get_lapack_funcs

            (trtrs,) = get_lapack_funcs(("trtrs",), (a, b))
            if not b.size:
                return (b,)
            diagonal = np.ones(a.shape[0], a.dtype) if unitriangular else a.diagonal()
            if not diagonal.all():  # LAPACK leaves B as it is
                return (small_matrices.substituted(a, b, upper, unitriangular),)
            return (trtrs(a, b, lower=not upper, unitdiag=unitriangular)[0],)

        matrices = np.broadcast_to(a, (*batch, *a.shape[-2:]))
        right = np.broadcast_to(b, (*batch, *b.shape[-2:]))
        if small_matrices.are_many_and_small(matrices) and type(b) is not MetaArray:
            out = small_matrices.substituted(matrices, right, upper, unitriangular)
        else:
            (out,) = over_batch(one, matrices, right)
        result = memory.contiguous(out)
        self.save(A=a, result=result if self.needs_input_grad[0] else None)
        return result

    def backward(self, grad: "Tensor") -> Any:
        """dB = A^-H G, dA = -dB X^H within the triangle."""
        a = self.saved("A")
        options = {"upper": not self.upper, "unitriangular": self.unitriangular}
        grad_b = solve_triangular(a.mH, grad, **options)
        grad_a = None
        if self.needs_input_grad[0]:
            product = -(grad_b @ self.saved("result").mH)
            offset = int(self.unitriangular)
            product = product.triu(offset) if self.upper else product.tril(-offset)
            grad_a = sum_to_size(product, self.shape_a)
        return grad_a, sum_to_size(grad_b, self.shape_b) if self.needs_input_grad[1] else None


def solve_triangular(
    A: "Tensor", B: "Tensor", *, upper: bool, left: bool = True, unitriangular: bool = False
) -> "Tensor":
    """Return X with A X = B, or X A = B without `left`, for triangular matrices.

    Args:
        A: [..., n, n], of which one triangle is read.
        B: [..., n, k], or [..., k, n] without `left`. Batches broadcast.
        upper: whether the upper triangle of A is read, instead of the lower.
        left: whether A stands left of X.
        unitriangular: whether the diagonal counts as ones.
    """
    check_system("linalg.solve_triangular", A, B, left)
    if left:
        return LinalgSolveTriangular.apply(A, B, upper=upper, unitriangular=unitriangular)
    return LinalgSolveTriangular.apply(A.mT, B.mT, upper=not upper, unitriangular=unitriangular).mT


@full_precision
def triangular_solve(
    input: "Tensor",
    A: "Tensor",
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> triangular_solutions:
    """Return X with A X = `input`, and A; `linalg.solve_triangular` is the newer name."""
    matrix, upper = (A.mT, not upper) if transpose else (A, upper)
    solution = solve_triangular(matrix, input, upper=upper, unitriangular=unitriangular)
    return triangular_solutions(solution, A.clone())


@full_precision
def tensorinv(A: "Tensor", ind: int = 2) -> "Tensor":
    """Return the inverse of A as a map from its last dimensions to the first `ind`.

    Raises:
        RuntimeError: unless the products of both groups of sizes are equal.
    """
    if ind <= 0:
        raise RuntimeError(f"linalg.tensorinv: ind must be 1 or more, got {ind}")
    first, last = A._array.shape[:ind], A._array.shape[ind:]
    if prod(first) != prod(last):
        raise RuntimeError(
            "linalg.tensorinv: the products of the first `ind` sizes and of the others must be "
            f"equal, got {describe(A)} and ind={ind}"
        )
    return inv(A.reshape(prod(first), prod(last))).reshape(*last, *first)


@full_precision
def tensorsolve(A: "Tensor", B: "Tensor", dims: Any = None) -> "Tensor":
    """Return X with ``tensordot(A, X, X.ndim) = B``, after moving `dims` of A to its end."""
    if dims is not None:
        count = A._array.ndim
        A = A.movedim(tuple(dims), tuple(range(count - len(dims), count)))
    shape = A._array.shape[B._array.ndim :]
    if prod(shape) != B._array.size:
        raise RuntimeError(
            "linalg.tensorsolve: A must have as many columns as B has elements, got "
            f"{describe(A)} and {describe(B)}"
        )
    return solve(A.reshape(-1, prod(shape)), B.reshape(-1)).reshape(shape)
