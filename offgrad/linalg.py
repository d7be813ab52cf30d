"""Linear algebra: ``torch.linalg``.

Functions of matrices [..., n, n] and [..., m, n], real or complex, over batches. LAPACK, which
NumPy and SciPy bring, computes them. Gradients of decompositions exist where the returned values
are unique: distinct eigenvalues, and losses that do not depend on the phases of vectors.
"""

from offgrad import _missing, _out
from offgrad._pickling import name_functions as _name_functions
from offgrad.ops._linalg.contraction import linalg_cross as cross
from offgrad.ops._linalg.contraction import multi_dot
from offgrad.ops._linalg.determinants import linalg_det as det
from offgrad.ops._linalg.determinants import linalg_slogdet_of as slogdet
from offgrad.ops._linalg.factorizations import (
    cholesky_ex,
    householder_product,
)
from offgrad.ops._linalg.factorizations import linalg_cholesky as cholesky
from offgrad.ops._linalg.factorizations import linalg_qr_of as qr
from offgrad.ops._linalg.least_squares import lstsq, matrix_rank, pinv
from offgrad.ops._linalg.lu import linalg_lu_of as lu
from offgrad.ops._linalg.lu import linalg_lu_solve as lu_solve
from offgrad.ops._linalg.lu import lu_factor, lu_factor_ex
from offgrad.ops._linalg.matrices import LinAlgError
from offgrad.ops._linalg.matrix_functions import (
    cond,
    matrix_exp,
    matrix_norm,
    matrix_power,
    norm,
    vander,
    vecdot,
    vector_norm,
)
from offgrad.ops._linalg.matrix_functions import linalg_diagonal as diagonal
from offgrad.ops._linalg.products import matmul
from offgrad.ops._linalg.reflections import ldl_factor, ldl_factor_ex, ldl_solve
from offgrad.ops._linalg.solving import (
    inv,
    inv_ex,
    solve,
    solve_ex,
    solve_triangular,
    tensorinv,
    tensorsolve,
)
from offgrad.ops._linalg.spectral import eig, eigh, eigvals, eigvalsh, svdvals
from offgrad.ops._linalg.spectral import linalg_svd_of as svd

__getattr__ = _missing.missing("offgrad.linalg")

__all__ = [
    "LinAlgError",
    "cholesky",
    "cholesky_ex",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "householder_product",
    "inv",
    "inv_ex",
    "ldl_factor",
    "ldl_factor_ex",
    "ldl_solve",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_factor_ex",
    "lu_solve",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
    "vector_norm",
]

globals().update(
    {
        name: _out.with_out(globals()[name])
        for name in __all__
        if name not in ("LinAlgError", "diagonal")
    }
)

_name_functions(globals())
