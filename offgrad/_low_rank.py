"""Approximate decompositions of large matrices: `svd_lowrank`, `pca_lowrank` and `lobpcg`."""

from typing import Any

import numpy as np

from offgrad import linalg, ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.sparse_data import is_sparse


def svd_lowrank(
    A: Any, q: int | None = 6, niter: int | None = 2, M: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, S and V of the best `q` singular values of a matrix, approximately.

    A random range finder with power iterations (Halko, Martinsson and Tropp, 2011, algorithms 4.4
    and 5.1).

    Args:
        A: matrices [..., m, n], dense, or a sparse one.
        q: how many vectors span the range.
        niter: the number of power iterations.
        M: matrices to be subtracted from `A`, that broadcast to it.
    """
    count, iterations = 6 if q is None else q, 2 if niter is None else niter
    rows, columns = A.shape[-2:]
    if rows < columns:  # the shorter side gives the smaller decomposition
        u, s, v = svd_lowrank(
            A.t() if is_sparse(A) else A.mH, count, iterations, None if M is None else M.mH
        )
        return v, s, u
    adjoint = A.t() if is_sparse(A) else A.mH
    batch = () if is_sparse(A) else A.shape[:-2]

    def times(x: Tensor) -> Any:
        return A @ x if M is None else A @ x - M @ x

    def adjoint_times(x: Tensor) -> Any:
        return adjoint @ x if M is None else adjoint @ x - M.mH @ x

    start = ops.randn((*batch, columns, count), dtype=A._array.dtype)
    basis = linalg.qr(times(start)).Q
    for _ in range(iterations):
        basis = linalg.qr(times(linalg.qr(adjoint_times(basis)).Q)).Q
    u, s, vh = linalg.svd(adjoint_times(basis).mH, full_matrices=False)
    return basis @ u, s, vh.mH


def pca_lowrank(
    A: Any, q: int | None = None, center: bool = True, niter: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, S and V of `svd_lowrank`, of columns that have their means subtracted.

    Args:
        A: matrices [..., m, n], a row for each sample; or a sparse matrix.
        q: how many components; 6, or as many as there can be, by default.
        center: whether to subtract the means.
        niter: the number of power iterations.

    Raises:
        ValueError: if `q` is not from 0 to the smaller of m and n, or `niter` is negative.
    """
    rows, columns = A.shape[-2:]
    count = min(6, rows, columns) if q is None else q
    if not 0 <= count <= min(rows, columns):
        raise ValueError(
            f"q must be from 0 to the smaller size of the matrix, {min(rows, columns)}, got {q}"
        )
    if niter < 0:
        raise ValueError(f"niter(={niter}) must be non-negative integer")
    if not center:
        return svd_lowrank(A, count, niter)
    if is_sparse(A):
        means = A.sum(0).to_dense().unsqueeze(0) / rows
        return svd_lowrank(A, count, niter, means.expand(rows, columns))
    return svd_lowrank(A - A.mean(-2, keepdim=True), count, niter)


def lobpcg(
    A: Any,
    k: int | None = None,
    B: Tensor | None = None,
    X: Tensor | None = None,
    n: int | None = None,
    iK: Tensor | None = None,
    niter: int | None = None,
    tol: float | None = None,
    largest: bool | None = None,
    method: str | None = None,
    tracker: None = None,
    ortho_iparams: dict[str, int] | None = None,
    ortho_fparams: dict[str, float] | None = None,
    ortho_bparams: dict[str, bool] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the `k` largest or smallest eigenvalues of ``A x = e B x`` [..., k], and vectors.

    A sparse A is solved by iteration (Knyazev, 2001), as far as `niter` and `tol` say, without
    gradients. A dense one is decomposed whole, exactly, with gradients, so that `X`, `iK`, `niter`,
    `tol` and `method` do not matter.

    Args:
        A: symmetric positive definite matrices [..., m, m], or a sparse one.
        k: how many; by default as many as `X` has columns, or 1.
        B: symmetric positive definite matrices; the identity by default.
        X: vectors to begin with [..., m, n].
        n: how many vectors to iterate on, if `X` is None; not used.
        iK: a preconditioner [..., m, m].
        niter: the largest number of iterations.
        tol: the residual at which the iteration ends.
        largest: whether the largest are wanted; true by default.
        method: "basic" or "ortho": of one result.
        tracker: must be None.
        ortho_iparams: not used.
        ortho_fparams: not used.
        ortho_bparams: not used.

    Raises:
        ValueError: if the matrix has fewer than ``3 k`` rows, as in PyTorch.
        NotImplementedError: for a `tracker`.
    """
    rows = A.shape[-1]
    if A.ndim < 2 or A.shape[-2] != rows:
        raise ValueError(f"lobpcg: A must be square matrices, got a {describe(A)}")
    count = k if k is not None else 1 if X is None else X.shape[-1]
    if tracker is not None:
        raise NotImplementedError("lobpcg: there is no iteration to track; leave out tracker")
    if rows < 3 * count:
        raise ValueError(
            f"lobpcg needs at least 3 rows for each eigenpair, got {rows} rows for {count}; use "
            "linalg.eigh"
        )
    wants_largest = largest is not False
    if is_sparse(A):
        return _iterated(A, count, B, X, iK, niter, tol, wants_largest)
    if B is None:
        values, vectors = linalg.eigh(A)
    else:
        factor = linalg.cholesky(B)
        half = linalg.solve_triangular(factor, A, upper=False)
        values, inner = linalg.eigh(linalg.solve_triangular(factor, half.mH, upper=False))
        vectors = linalg.solve_triangular(factor.mH, inner, upper=True)
    if wants_largest:
        values, vectors = values.flip(-1), vectors.flip(-1)
    return values[..., :count], vectors[..., :count]


def _iterated(
    A: Any, count: int, B: Any, X: Any, iK: Any, niter: Any, tol: Any, largest: bool
) -> tuple[Tensor, Tensor]:
    from scipy.sparse import coo_matrix
    from scipy.sparse.linalg import lobpcg as scipy_lobpcg

    def plain(matrix: Any) -> Any:
        if matrix is None or not is_sparse(matrix):
            return None if matrix is None else matrix.detach()._array
        coo = matrix._coo()
        return coo_matrix((coo._value._array, tuple(coo._index._array)), tuple(coo.shape)).tocsr()

    start = ops.randn((A.shape[0], count), dtype=A._array.dtype) if X is None else X[:, :count]
    values, vectors = scipy_lobpcg(
        plain(A),
        start.detach()._array,
        B=plain(B),
        M=plain(iK),
        tol=tol,
        maxiter=20 * A.shape[0] if niter is None or niter < 0 else niter,
        largest=largest,
    )
    dtype = A._array.dtype
    return wrap(np.asarray(values, dtype)), wrap(np.ascontiguousarray(vectors, dtype))
