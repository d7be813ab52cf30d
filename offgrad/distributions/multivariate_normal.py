"""MultivariateNormal."""

import math
from typing import Any

import numpy as np

from offgrad import linalg, ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.distribution import Distribution, standard_normal
from offgrad.distributions.utils import lazy_property

__all__ = ["MultivariateNormal"]

_MATRICES = "covariance_matrix", "precision_matrix", "scale_tril"


class MultivariateNormal(Distribution):
    """Normal vectors, by covariance, its inverse, or its Cholesky factor `scale_tril`."""

    arg_constraints = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if loc.ndim < 1:
            raise ValueError("loc must have at least one dimension")
        given = {
            name: each
            for name, each in zip(
                _MATRICES, (covariance_matrix, precision_matrix, scale_tril), strict=True
            )
            if each is not None
        }
        if len(given) != 1:
            raise ValueError("give one of covariance_matrix, precision_matrix and scale_tril")
        ((name, matrix),) = given.items()
        if matrix.ndim < 2:
            raise ValueError(f"{name} must have at least two dimensions, got {matrix.ndim}")
        batch = np.broadcast_shapes(matrix.shape[:-2], loc.shape[:-1])
        self.loc = loc.expand((*batch, loc.shape[-1]))
        setattr(self, name, matrix.expand((*batch, *matrix.shape[-2:])))
        super().__init__(batch, self.loc.shape[-1:], validate_args=validate_args)
        self._factor = _factor(name, matrix)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the distribution with its parameters expanded."""
        return super().expand(batch_shape, _instance)

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The Cholesky factor of the covariance."""
        return self._factor.expand(self._batch_shape + self._event_shape + self._event_shape)

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        shape = self._batch_shape + self._event_shape + self._event_shape
        return (self._factor @ self._factor.mT).expand(shape)

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        shape = self._batch_shape + self._event_shape + self._event_shape
        return ops.cholesky_inverse(self._factor).expand(shape)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc

    mode = mean

    @property
    def variance(self) -> Tensor:
        """The variance of the elements."""
        return (self._factor**2).sum(-1).expand(self._batch_shape + self._event_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return vectors with gradients to the parameters."""
        noise = standard_normal(self._extended_shape(sample_shape), self.loc)
        return self.loc + (self._factor @ noise.unsqueeze(-1)).squeeze(-1)

    def _half_log_determinant(self) -> Tensor:
        return self._factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        difference = self._checked(value) - self.loc
        constant = self._event_shape[0] * math.log(2 * math.pi)
        distance = mahalanobis(self._factor, difference)
        return -0.5 * (constant + distance) - self._half_log_determinant()  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        """Return the entropy."""
        constant = 0.5 * self._event_shape[0] * (1.0 + math.log(2 * math.pi))
        return (constant + self._half_log_determinant()).expand(self._batch_shape)  # type: ignore[no-any-return]


def mahalanobis(factor: Tensor, difference: Tensor) -> Tensor:
    """Return ``x^T (L L^T)^-1 x`` for the last dimension of `difference`."""
    batch = np.broadcast_shapes(factor.shape[:-2], difference.shape[:-1])
    size = difference.shape[-1]
    column = difference.expand((*batch, size)).unsqueeze(-1)
    solved = linalg.solve_triangular(factor, column, upper=False)
    return (solved**2).sum((-2, -1))


def _factor(name: str, matrix: Tensor) -> Tensor:
    """Return the Cholesky factor of the covariance."""
    if name == "scale_tril":
        return matrix
    if name == "covariance_matrix":
        return linalg.cholesky(matrix)
    # With the rows and columns of the inverse reversed, its factor is an upper one of ours.
    reverse = linalg.cholesky(matrix.flip((-2, -1)))
    upper = reverse.flip((-2, -1)).mT
    size = matrix.shape[-1]
    identity = ops.eye(size, dtype=matrix._array.dtype)
    return linalg.solve_triangular(upper, identity, upper=False)
