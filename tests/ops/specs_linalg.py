"""Decompositions, systems of equations and functions of matrices."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad.ops._linalg import (
    determinants,
    factorizations,
    least_squares,
    lu,
    matrix_functions,
    solving,
    sparse,
    spectral,
)
from tests.ops.opspec import OpSpec, inside

SQUARE = [((3, 3),), ((2, 2, 2),), ((0, 2, 2),), ((1, 1),)]


def _regular(values: NDArray[Any]) -> NDArray[Any]:
    """Add a diagonal that makes matrices well conditioned, with distinct eigenvalues."""
    if values.ndim < 2:
        return values
    result = values.copy()
    size = min(values.shape[-2:])
    index = np.arange(size)
    result[..., index, index] += 3.0 + 2 * index
    return result


def _positive(m: Any, x: Any) -> Any:
    return x @ x.mH + 2 * m.eye(x.shape[-1], dtype=x.dtype)


def _eigh(m: Any, x: Any) -> Any:
    values, vectors = m.linalg.eigh(x + x.mH)
    return values, vectors.abs()


def _eig(m: Any, x: Any) -> Any:
    values, vectors = m.linalg.eig(x)
    return values, vectors.abs()


def _svd(m: Any, x: Any) -> Any:
    u, s, vh = m.linalg.svd(x, full_matrices=False)
    return u.abs(), s, vh.abs()


def _svd_full(m: Any, x: Any) -> Any:
    u, s, vh = m.linalg.svd(x)
    k = s.shape[-1]
    return u[..., :k] @ vh[..., :k, :], s


SPECS = [
    OpSpec("cholesky", (factorizations.LinalgCholeskyEx,),
           lambda m, x: m.linalg.cholesky(_positive(m, x)), SQUARE, complex=True),
    OpSpec("cholesky_upper", (factorizations.LinalgCholeskyEx,),
           lambda m, x: m.linalg.cholesky(_positive(m, x), upper=True), SQUARE[:1], complex=True),
    OpSpec("cholesky_inverse", (solving.LinalgSolveTriangular,),
           lambda m, x: m.cholesky_inverse(m.linalg.cholesky(_positive(m, x))), SQUARE[:2]),
    OpSpec("qr", (factorizations.LinalgQr,), lambda m, x: m.linalg.qr(x),
           [((3, 3),), ((4, 2),), ((2, 2, 3),), ((0, 3, 2),)], domain=_regular, complex=True),
    OpSpec("lu_factor", (lu.LinalgLuFactorEx,),
           lambda m, x: m.linalg.lu_factor(x)[0], [((3, 3),), ((2, 4, 2),), ((2, 3),)],
           domain=_regular, complex=True),
    OpSpec("lu", (lu.LinalgLuFactorEx,), lambda m, x: m.linalg.lu(x)[1:],
           [((3, 3),), ((3, 2),)], domain=_regular),
    OpSpec("lu_solve", (solving.LinalgSolveTriangular,),
           lambda m, a, b: m.linalg.lu_solve(*m.linalg.lu_factor(a), b),
           [((3, 3), (3, 2))], domain=_regular),
    OpSpec("householder_product", (), lambda m, a, t: m.linalg.householder_product(a, t),
           [((4, 3), (3,)), ((2, 3, 2), (2, 1))], domain=inside),
    OpSpec("eigh", (spectral.LinalgEigh,), _eigh, SQUARE, domain=_regular, complex=True),
    OpSpec("eig", (spectral.LinalgEig,), _eig, SQUARE[:2], domain=_regular, complex=True),
    OpSpec("svd", (spectral.LinalgSvd,), _svd, [((3, 3),), ((4, 2),), ((2, 2, 3),), ((0, 2, 3),)],
           domain=_regular, complex=True),
    OpSpec("svd_full", (spectral.LinalgSvd,), _svd_full, [((3, 2),), ((2, 4),)], domain=_regular,
           complex=True),
    OpSpec("inv", (solving.LinalgInvEx,), lambda m, x: m.linalg.inv(x), SQUARE, np.linalg.inv,
           domain=_regular, complex=True),
    OpSpec("solve", (solving.LinalgSolveEx,), lambda m, a, b: m.linalg.solve(a, b),
           [((3, 3), (3, 2)), ((2, 2, 2), (2, 2)), ((3, 3), (3,)), ((2, 2), (2, 2, 1))],
           domain=_regular, complex=True),
    OpSpec("solve_right", (solving.LinalgSolveEx,),
           lambda m, a, b: m.linalg.solve(a, b, left=False), [((3, 3), (2, 3))], domain=_regular),
    OpSpec("solve_triangular", (solving.LinalgSolveTriangular,),
           lambda m, a, b: m.linalg.solve_triangular(a, b, upper=True),
           [((3, 3), (3, 2)), ((2, 2, 2), (2, 1))], domain=_regular, complex=True),
    OpSpec("solve_triangular_unit", (solving.LinalgSolveTriangular,),
           lambda m, a, b: m.linalg.solve_triangular(
               a, b, upper=False, left=False, unitriangular=True), [((3, 3), (2, 3))]),
    OpSpec("pinv", (least_squares.LinalgPinv,), lambda m, x: m.linalg.pinv(x),
           [((3, 3),), ((4, 2),), ((2, 2, 3),), ((0, 3),)], np.linalg.pinv, domain=_regular,
           complex=True),
    OpSpec("lstsq", (least_squares.LinalgLstsq,), lambda m, a, b: m.linalg.lstsq(a, b)[0],
           [((4, 2), (4, 3)), ((2, 3), (2, 1)), ((2, 3, 2), (2, 3, 1))], domain=_regular,
           complex=True),
    OpSpec("lstsq_residuals", (least_squares.LinalgLstsq,),
           lambda m, a, b: tuple(m.linalg.lstsq(a, b, driver="gels")[:2]),
           [((4, 2), (4, 3)), ((2, 5, 2), (2, 5, 1))], domain=_regular, complex=True),
    OpSpec("det", (determinants.LinalgDet,), lambda m, x: m.det(x), SQUARE, np.linalg.det,
           domain=_regular, complex=True),
    OpSpec("slogdet", (determinants.LinalgSlogdet,), lambda m, x: m.linalg.slogdet(x), SQUARE,
           domain=_regular, complex=True),
    OpSpec("logdet", (determinants.LinalgSlogdet,), lambda m, x: m.logdet(_positive(m, x)),
           SQUARE[:2]),
    OpSpec("matrix_exp", (matrix_functions.LinalgMatrixExp,), lambda m, x: m.linalg.matrix_exp(x),
           SQUARE, complex=True),
    OpSpec("matrix_power", (), lambda m, x: (m.matrix_power(x, 3), m.matrix_power(x, -2)),
           SQUARE[:2], domain=_regular),
    OpSpec("matrix_norm", (),
           lambda m, x: tuple(m.linalg.matrix_norm(x, p) for p in ("fro", "nuc", 2, -2, 1, -1)),
           [((3, 3),), ((2, 2, 3),)], domain=_regular, complex=True),
    OpSpec("cond", (), lambda m, x: (m.linalg.cond(x), m.linalg.cond(x, -2)), SQUARE[:2],
           domain=_regular),
    OpSpec("vander", (), lambda m, x: m.linalg.vander(x, N=3), [((3,),), ((2, 2),)],
           lambda x: x[..., None] ** np.arange(3)),
    OpSpec("vecdot", (), lambda m, a, b: m.linalg.vecdot(a, b), [((2, 3), (2, 3))], complex=True),
    OpSpec("tensorsolve", (), lambda m, a, b: m.linalg.tensorsolve(a, b), [((4, 2, 2), (4,))]),
    OpSpec("tensorinv", (), lambda m, a: m.linalg.tensorinv(a, ind=1), [((4, 2, 2),)]),
    OpSpec("ormqr", (), lambda m, v, t, b: m.ormqr(v, t, b, True, True),
           [((4, 2), (2,), (4, 3))], complex=True, torch=False),
    OpSpec("sparse_mm", (sparse.SparseAddmm,),
           lambda m, v, d: m.sparse.mm(m.sparse_coo_tensor([[0, 2, 1], [1, 0, 1]], v, (3, 2)), d),
           [((3,), (2, 4))], complex=True, torch=False),
]  # fmt: skip
