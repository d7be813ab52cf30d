"""Parametrizations: weight normalisation, spectral normalisation, orthogonal matrices."""

from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.nn.modules.module import Module
from offgrad.nn.utils._spectral_norm import (
    as_matrix,
    default_dim,
    power_method,
    random_direction,
)
from offgrad.nn.utils.parametrize import register_parametrization
from offgrad.ops._linalg.solving import solve

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]

_MAPS = ("matrix_exp", "cayley", "householder")


class _WeightNorm(Module):
    """A weight from its magnitude and direction."""

    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return weight_v * (weight_g / ops.norm_except_dim(weight_v, 2, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return magnitude and direction of a weight."""
        return ops.norm_except_dim(weight, 2, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Train the magnitude and the direction of a weight (Salimans and Kingma, 2016); return the
    module.

    They are ``parametrizations.NAME.original0`` and ``original1``.

    Args:
        module: the owner of the weight.
        name: of the weight.
        dim: there is a magnitude for each index of this dimension; None: one for all.
    """
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def load_older(
        module: Any,
        state_dict: Any,
        prefix: str,
        *_: Any,
    ) -> None:
        for suffix, original in (("g", "original0"), ("v", "original1")):
            old = f"{prefix}{name}_{suffix}"
            if old in state_dict:
                new = f"{prefix}parametrizations.{name}.{original}"
                state_dict[new] = state_dict.pop(old)

    module.register_load_state_dict_pre_hook(load_older)
    return module


class _SpectralNorm(Module):
    """A weight over its largest singular value; a vector over its length."""

    _u: Tensor
    _v: Tensor

    def __init__(
        self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        super().__init__()
        if not -weight.ndim <= dim < weight.ndim:
            raise IndexError(
                f"dim must be from {-weight.ndim} to {weight.ndim - 1} for a weight of "
                f"{weight.ndim} dimensions, got {dim}"
            )
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, got {n_power_iterations}"
            )
        self.dim = dim % weight.ndim
        self.eps = eps
        if weight.ndim > 1:
            self.n_power_iterations = n_power_iterations
            with grad_mode.no_grad():
                matrix = as_matrix(weight, self.dim)
                height, width = matrix.size()
                self.register_buffer("_u", random_direction(matrix, height, eps))
                self.register_buffer("_v", random_direction(matrix, width, eps))
                power_method(matrix, self._u, self._v, 15, eps)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return ops.normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            power_method(matrix, self._u, self._v, self.n_power_iterations, self.eps)
        # Later calls change u and v, which backward needs as they are now.
        u, v = self._u.clone(), self._v.clone()
        return weight / ops.vdot(u, ops.mv(matrix, v))

    def right_inverse(self, value: Tensor) -> Tensor:
        """Return the value: it may already be normalised."""
        return value


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """Divide a weight by its largest singular value (Miyato et al., 2018); return the module.

    Args:
        module: the owner of the weight.
        name: of the weight.
        n_power_iterations: steps of the power method in each call in training mode.
        eps: keeps norms from being 0.
        dim: of the outputs; 1 for transposed convolutions, otherwise 0.
    """
    weight = _tensor_of(module, name)
    dim = default_dim(module) if dim is None else dim
    return register_parametrization(
        module, name, _SpectralNorm(weight, n_power_iterations, dim, eps)
    )


def _tensor_of(module: Module, name: str) -> Tensor:
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"{module} has neither a parameter nor a buffer named {name!r}")
    return weight


class _Orthogonal(Module):
    """A matrix with orthonormal columns, or rows if it is wide, from one without constraints.

    ``matrix_exp`` and ``cayley`` map a skew-symmetric matrix A to exp(A) and to
    (1 - A/2)^-1 (1 + A/2); ``householder`` multiplies reflections. A trivialization multiplies the
    result by a fixed orthogonal matrix, `base` (Lezcano-Casado, 2019).
    """

    base: Tensor | None

    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool) -> None:
        super().__init__()
        if weight.is_complex() and orthogonal_map == "householder":
            raise ValueError("orthogonal_map='householder' takes no complex tensors")
        self.shape = weight.shape
        self.orthogonal_map = orthogonal_map
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, X: Tensor) -> Tensor:
        is_wide = X.size(-2) < X.size(-1)
        X = X.mT if is_wide else X
        rows, columns = X.size(-2), X.size(-1)
        if self.orthogonal_map == "householder":
            reflectors = X.tril(diagonal=-1)
            tau = 2.0 / (1.0 + (reflectors * reflectors).sum(dim=-2))
            signs = X.diagonal(dim1=-2, dim2=-1).detach().unsqueeze(-2)
            Q = ops.orgqr(reflectors, tau) * signs
        else:
            lower = X.tril()
            if rows != columns:
                rest = X.new_zeros((*X.shape[:-1], rows - columns))
                lower = ops.cat([lower, rest], -1)
            skew = lower - lower.mH
            if self.orthogonal_map == "matrix_exp":
                Q = ops.matrix_exp(skew)
            else:
                identity = ops.eye(rows, dtype=X._array.dtype)
                Q = solve(identity - skew / 2, identity + skew / 2)
            Q = Q[..., :columns] if rows != columns else Q
        base = getattr(self, "base", None)
        if base is not None:
            Q = base @ Q
        return Q.mT if is_wide else Q

    @grad_mode.no_grad()
    def right_inverse(self, Q: Tensor) -> Tensor:
        """Return the matrix that gives Q, or, with a trivialization, make Q the base."""
        if Q.shape != self.shape:
            raise ValueError(f"the matrices must have the shape {self.shape}, got {Q.shape}")
        like = Q
        is_wide = Q.size(-2) < Q.size(-1)
        Q = Q.mT if is_wide else Q
        rows, columns = Q.size(-2), Q.size(-1)
        if hasattr(self, "base"):
            if rows != columns:
                rest = ops.randn(*Q.shape[:-1], rows - columns, dtype=Q._array.dtype)
                Q = ops.cat([Q, rest], -1)
            self.base = _orthogonalized(Q)
            start = ops.zeros_like(like)
            start.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
            return start
        if self.orthogonal_map != "householder":
            raise NotImplementedError(
                "matrix_exp and cayley take assignments only with use_trivialization=True"
            )
        reflectors, tau = ops.geqrf(Q)
        diagonal = reflectors.diagonal(dim1=-2, dim2=-1)
        diagonal.copy_(ops.where(tau == 0, -diagonal.sign(), diagonal.sign()))
        return reflectors.mT if is_wide else reflectors


def _orthogonalized(matrix: Tensor) -> Tensor:
    """Return the Q of ``matrix = QR`` with a positive diagonal of R: orthogonal ones stay."""
    reflectors, tau = ops.geqrf(matrix)
    signs = reflectors.diagonal(dim1=-2, dim2=-1).sgn().unsqueeze(-2)
    return ops.orgqr(reflectors, tau) * signs


def orthogonal(
    module: Module,
    name: str = "weight",
    orthogonal_map: str | None = None,
    *,
    use_trivialization: bool = True,
) -> Module:
    """Keep the columns of a matrix orthonormal, or its rows if it is wide; return the module.

    Args:
        module: the owner of the matrix.
        name: of the matrix, or batch of matrices.
        orthogonal_map: ``"matrix_exp"``, ``"cayley"`` or ``"householder"``; by default the first
            for square and complex matrices, otherwise the last.
        use_trivialization: multiply by a fixed orthogonal matrix, so that any can be assigned.
    """
    weight = _tensor_of(module, name)
    if weight.ndim < 2:
        raise ValueError(
            f"Expected a matrix or batch of matrices, got a tensor of {weight.ndim} dimensions"
        )
    if orthogonal_map is None:
        is_square = weight.shape[-2] == weight.shape[-1]
        orthogonal_map = "matrix_exp" if is_square or weight.is_complex() else "householder"
    if orthogonal_map not in _MAPS:
        raise ValueError(
            "orthogonal_map must be 'matrix_exp', 'cayley' or 'householder', got "
            f"{orthogonal_map!r}"
        )
    parametrization = _Orthogonal(weight, orthogonal_map, use_trivialization)
    return register_parametrization(module, name, parametrization, unsafe=True)
