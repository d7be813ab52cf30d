"""Eigenvalues and singular values."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad.autograd.op import Array, Op
from offgrad.memory.meta import MetaArray
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.results import result
from offgrad.ops._linalg.matrices import (
    check_matrices,
    complex_of,
    eye_like,
    lapack,
)
from offgrad.ops._linalg.solving import solve

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["svd"]


@result("linalg_eigh")
class linalg_eigh(NamedTuple):
    """Eigenvalues and eigenvectors of Hermitian matrices."""

    eigenvalues: "Tensor"
    eigenvectors: "Tensor"


@result("linalg_eig")
class linalg_eig(NamedTuple):
    """Eigenvalues and eigenvectors."""

    eigenvalues: "Tensor"
    eigenvectors: "Tensor"


@result("linalg_svd")
class linalg_svd(NamedTuple):
    """The factors of a singular value decomposition, with V transposed and conjugated."""

    U: "Tensor"
    S: "Tensor"
    Vh: "Tensor"


@result("svd")
class svd_factors(NamedTuple):
    """The factors of a singular value decomposition."""

    U: "Tensor"
    S: "Tensor"
    V: "Tensor"


def _differences(values: "Tensor") -> "Tensor":
    """Return d_ij = values_j - values_i, with 1 on the diagonal."""
    size = values._array.shape[-1]
    return values.unsqueeze(-2) - values.unsqueeze(-1) + eye_like(values, size)


def _diagonal(matrices: "Tensor") -> "Tensor":
    return matrices.diagonal(0, -2, -1)


def _skew(matrices: "Tensor") -> "Tensor":
    """Return X - X^H, with zeros on the diagonal."""
    result = matrices - matrices.mH
    return result - _diagonal(result).diag_embed()


def _check_gauge(where: str, phases: Array, scale: Array) -> None:
    """Raise RuntimeError if a gradient depends on the arbitrary phases of vectors."""
    tolerance = 1e-2 if phases.dtype == np.float32 else 1e-4
    if type(phases) is MetaArray:
        return
    if phases.size and np.abs(phases).max() > tolerance * max(1.0, float(np.abs(scale).max())):
        raise RuntimeError(
            f"{where}: the loss depends on the phases of the vectors, which are "
            "arbitrary, so that it has no gradient; use functions such as abs() of them"
        )


class LinalgEigh(Op):
    """Eigenvalues, ascending, and eigenvectors of Hermitian matrices; keeps both."""

    def forward(self, x: Array, uplo: str) -> tuple[Array, Array]:
        values, vectors = lapack("linalg.eigh", np.linalg.eigh, x, uplo)
        self.save(eigenvalues=values, eigenvectors=vectors)
        return values, vectors

    def backward(self, grad_values: "Tensor | None", grad_vectors: "Tensor | None") -> Any:
        """dA = V (diag(dL) + (V^H dV) / E) V^H, E_ij = L_j - L_i (Giles, 2008)."""
        vectors = self.saved("eigenvectors")
        inner: Any = 0
        if grad_vectors is not None:
            inner = vectors.mH @ grad_vectors
            diagonal = _diagonal(inner)
            if vectors.is_complex():
                _check_gauge("linalg_eigh", diagonal._array.imag, inner._array)
            inner = (inner - diagonal.diag_embed()) / _differences(self.saved("eigenvalues"))
        if grad_values is not None:
            inner = inner + grad_values.diag_embed()
        return None if isinstance(inner, int) else vectors @ inner.to(vectors) @ vectors.mH


@full_precision
def eigh(A: "Tensor", UPLO: str = "L") -> linalg_eigh:
    """Return eigenvalues [..., n], ascending, and eigenvectors [..., n, n] of Hermitian matrices.

    Only the triangle `UPLO`, ``"L"`` or ``"U"``, is read.

    Raises:
        RuntimeError: for other shapes and dtypes, and if LAPACK does not converge.
    """
    check_matrices(A, "linalg.eigh", square=True)
    if UPLO.upper() not in ("L", "U"):
        raise RuntimeError(f"linalg.eigh: UPLO must be 'L' or 'U', got {UPLO!r}")
    return linalg_eigh(*LinalgEigh.apply_all(A, uplo=UPLO.upper()))


@full_precision
def eigvalsh(A: "Tensor", UPLO: str = "L") -> "Tensor":
    """Return the eigenvalues [..., n] of Hermitian matrices, ascending."""
    return eigh(A, UPLO)[0]


class LinalgEig(Op):
    """Eigenvalues and eigenvectors of length 1 of square matrices, complex; keeps both."""

    def forward(self, x: Array) -> tuple[Array, Array]:
        dtype = complex_of(x.dtype)
        self.is_real = x.dtype.kind == "f"
        values, vectors = lapack("linalg.eig", np.linalg.eig, x)
        values, vectors = values.astype(dtype, copy=False), vectors.astype(dtype, copy=False)
        self.save(eigenvalues=values, eigenvectors=vectors)
        return values, vectors

    def backward(self, grad_values: "Tensor | None", grad_vectors: "Tensor | None") -> Any:
        """dA = V^-H (diag(dL) + (V^H dV - V^H V Re(diag(V^H dV))) / E*) V^H (Boeddeker, 2017)."""
        vectors = self.saved("eigenvectors")
        inner: Any = 0
        if grad_vectors is not None:
            projected = vectors.mH @ grad_vectors
            diagonal = _diagonal(projected)
            _check_gauge("linalg_eig", diagonal._array.imag, projected._array)
            norms = vectors.mH @ (vectors * diagonal.real.unsqueeze(-2))
            inner = projected - norms
            inner = inner - _diagonal(inner).diag_embed()
            inner = inner / _differences(self.saved("eigenvalues")).conj()
        if grad_values is not None:
            inner = inner + grad_values.diag_embed()
        if isinstance(inner, int):
            return None
        result = solve(vectors.mH, inner @ vectors.mH)
        return result.real if self.is_real else result


@full_precision
def eig(A: "Tensor") -> linalg_eig:
    """Return eigenvalues [..., n] and eigenvectors [..., n, n] of square matrices, complex.

    Raises:
        RuntimeError: for other shapes and dtypes.
    """
    check_matrices(A, "linalg.eig", square=True)
    return linalg_eig(*LinalgEig.apply_all(A))


@full_precision
def eigvals(A: "Tensor") -> "Tensor":
    """Return the eigenvalues [..., n] of square matrices, complex."""
    return eig(A)[0]


class LinalgSvd(Op):
    """Singular values, descending, and both sets of vectors; keeps all three."""

    def forward(self, x: Array, full_matrices: bool) -> tuple[Array, Array, Array]:
        self.full_matrices = full_matrices
        u, s, vh = lapack("linalg.svd", np.linalg.svd, x, full_matrices=full_matrices)
        self.save(U=u, S=s, Vh=vh)
        return u, s, vh

    def backward(
        self, grad_u: "Tensor | None", grad_s: "Tensor | None", grad_vh: "Tensor | None"
    ) -> Any:
        """dA = U ((skew(U^H dU) / E) S + S (skew(V^H dV) / E) + diag(dS)) V^H, and what lies
        outside the spans of U and V; E_ij = s_j^2 - s_i^2 (Townsend, 2016).
        """
        s = self.saved("S")
        rank = s._array.shape[-1]
        # Vectors beyond the rank are arbitrary: they have no gradient.
        u, vh = self.saved("U")[..., :rank], self.saved("Vh")[..., :rank, :]
        inner: Any = 0 if grad_s is None else grad_s.diag_embed()
        outside: Any = 0
        differences: Any = _differences(s * s)
        phases: Any = 0
        if grad_u is not None:
            grad_u = grad_u[..., :rank]
            projected = u.mH @ grad_u
            if u.is_complex():
                phases = _diagonal(projected).imag
                inner = inner + (1j * phases / s).diag_embed()
            inner = inner + _skew(projected) / differences * s.unsqueeze(-2)
            if u._array.shape[-2] > rank:
                outside = (grad_u - u @ projected) / s.unsqueeze(-2) @ vh
        if grad_vh is not None:
            grad_vh = grad_vh[..., :rank, :]
            projected = vh @ grad_vh.mH
            if u.is_complex():
                phases = phases + _diagonal(projected).imag
            inner = inner + s.unsqueeze(-1) * (_skew(projected) / differences)
            if vh._array.shape[-1] > rank:
                rest = grad_vh - projected.mH @ vh
                outside = outside + u @ (rest / s.unsqueeze(-1))
        if not isinstance(phases, int):
            _check_gauge("linalg_svd", phases._array, projected._array)
        return None if isinstance(inner, int) else u @ inner.to(u) @ vh + outside


@full_precision
def linalg_svd_of(A: "Tensor", full_matrices: bool = True, *, driver: Any = None) -> linalg_svd:
    """Return U [..., m, m], S [..., k], descending, and Vh [..., n, n], with k = min(m, n).

    Without `full_matrices`, U and Vh have k columns and rows. `driver` is accepted; LAPACK's
    divide and conquer runs.

    Raises:
        RuntimeError: for other shapes and dtypes, and if LAPACK does not converge.
    """
    check_matrices(A, "linalg.svd")
    return linalg_svd(*LinalgSvd.apply_all(A, full_matrices=full_matrices))


@full_precision
def svdvals(A: "Tensor", *, driver: Any = None) -> "Tensor":
    """Return the singular values [..., min(m, n)], descending."""
    return linalg_svd_of(A, full_matrices=False)[1]


@full_precision
def svd(input: "Tensor", some: bool = True, compute_uv: bool = True) -> svd_factors:
    """Return U, S and V, with min(m, n) columns where `some`; use `linalg.svd` in new code.

    Without `compute_uv`, U and V are zeros.
    """
    u, s, vh = linalg_svd_of(input, full_matrices=not some)
    if not compute_uv:
        rows, columns = input._array.shape[-2:]
        batch = input._array.shape[:-2]
        return svd_factors(
            input.new_zeros((*batch, rows, rows)), s, input.new_zeros((*batch, columns, columns))
        )
    return svd_factors(u, s, vh.mH)
