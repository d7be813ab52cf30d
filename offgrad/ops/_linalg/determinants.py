"""Determinants and their logarithms."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad.autograd.op import Array, Op
from offgrad.ops._core.results import result
from offgrad.ops._linalg.matrices import check_matrices, eye_like
from offgrad.ops._linalg.solving import solve
from offgrad.ops._linalg.spectral import linalg_svd_of

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["det", "logdet", "slogdet"]


@result("linalg_slogdet")
class linalg_slogdet(NamedTuple):
    """The sign of determinants, and the logarithm of their absolute values."""

    sign: "Tensor"
    logabsdet: "Tensor"


class LinalgDet(Op):
    """The determinant of square matrices; keeps them and the result."""

    def forward(self, x: Array) -> Array:
        out = np.asarray(np.linalg.det(x), x.dtype)
        self.save(A=x, result=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """dA = g conj(det) A^-H; of singular matrices, from the singular values of the others."""
        a, result = self.saved("A"), self.saved("result")
        if not result._array.all():
            return _cofactors(a) * grad.unsqueeze(-1).unsqueeze(-1)
        scale = (grad * result.conj()).unsqueeze(-1).unsqueeze(-1)
        return solve(a.mH, scale * eye_like(a, a._array.shape[-1]))


def _cofactors(a: "Tensor") -> "Tensor":
    """Return the gradients of determinants: conj(det(U V^H)) U diag(prod_{j != i} s_j) V^H."""
    u, s, vh = linalg_svd_of(a)
    size = s._array.shape[-1]
    others = s.unsqueeze(-2).expand(*s._array.shape, size)
    products = (others - others * eye_like(s, size) + eye_like(s, size)).prod(-1)
    phase = wrap_detached(np.linalg.det((u @ vh)._array).conj(), a)
    return phase * (u * products.unsqueeze(-2)) @ vh


def wrap_detached(values: Array, like: "Tensor") -> "Tensor":
    """Return one factor for each matrix of `like`, without a gradient."""
    return like.new_tensor(np.asarray(values, like._array.dtype)).unsqueeze(-1).unsqueeze(-1)


def det(input: "Tensor") -> "Tensor":
    """Return the determinants [...] of square matrices [..., n, n]."""
    return LinalgDet.apply(check_matrices(input, "linalg.det", square=True))


def linalg_det(A: "Tensor") -> "Tensor":
    """Return the determinants [...] of square matrices [..., n, n]."""
    return det(A)


class LinalgSlogdet(Op):
    """Sign and logarithm of the determinant; keeps the matrices and the sign."""

    def forward(self, x: Array) -> tuple[Array, Array]:
        sign, logarithm = np.linalg.slogdet(x)
        sign, logarithm = np.asarray(sign), np.asarray(logarithm)
        self.save(A=x, sign=sign)
        return sign, logarithm

    def backward(self, grad_sign: "Tensor | None", grad_log: "Tensor | None") -> Any:
        """dA = (dl - i Im(conj(ds) s)) A^-H."""
        a, sign = self.saved("A"), self.saved("sign")
        scale: Any = 0 if grad_log is None else grad_log
        if a.is_complex() and grad_sign is not None:
            scale = scale - 1j * (grad_sign.conj() * sign).imag
        if isinstance(scale, int):
            return None
        scale = scale.to(a).unsqueeze(-1).unsqueeze(-1)
        return solve(a.mH, scale * eye_like(a, a._array.shape[-1]))


def slogdet(input: "Tensor") -> linalg_slogdet:
    """Return the sign of determinants [...] and the logarithm of their absolute values, real."""
    check_matrices(input, "linalg.slogdet", square=True)
    return linalg_slogdet(*LinalgSlogdet.apply_all(input))


def linalg_slogdet_of(A: "Tensor") -> linalg_slogdet:
    """Return the sign of determinants [...] and the logarithm of their absolute values, real."""
    return slogdet(A)


def logdet(input: "Tensor") -> "Tensor":
    """Return the logarithm of determinants: NaN where one is negative, -inf where it is 0."""
    sign, logarithm = slogdet(input)
    if input.is_complex():
        return sign.log() + logarithm
    return logarithm.masked_fill(sign < 0, np.nan)
