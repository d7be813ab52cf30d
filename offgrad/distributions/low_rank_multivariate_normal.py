"""LowRankMultivariateNormal."""

import math
from typing import Any

import numpy as np

from offgrad import linalg, ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.distribution import Distribution, standard_normal
from offgrad.distributions.multivariate_normal import mahalanobis
from offgrad.distributions.utils import lazy_property

__all__ = ["LowRankMultivariateNormal"]


class LowRankMultivariateNormal(Distribution):
    """Normal vectors of covariance ``W W^T + diag(d)``, for W [n, r] of few columns.

    Only matrices [r, r] are decomposed: Woodbury's formula and the lemma of determinants.
    """

    arg_constraints = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        cov_factor: Tensor,
        cov_diag: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        if loc.ndim < 1:
            raise ValueError("loc must have at least one dimension")
        event = loc.shape[-1:]
        if cov_factor.ndim < 2 or cov_factor.shape[-2:-1] != event:
            raise ValueError(
                f"cov_factor must be matrices of {event[0]} rows, got the shape {cov_factor.shape}"
            )
        if cov_diag.shape[-1:] != event:
            raise ValueError(
                f"cov_diag must be vectors of {event[0]} elements, got the shape {cov_diag.shape}"
            )
        batch = np.broadcast_shapes(loc.shape[:-1], cov_factor.shape[:-2], cov_diag.shape[:-1])
        self.loc = loc.expand((*batch, *event))
        self.cov_factor = cov_factor.expand((*batch, *cov_factor.shape[-2:]))
        self.cov_diag = cov_diag.expand((*batch, *event))
        scaled = (cov_factor / cov_diag.unsqueeze(-1)).mT
        inner = scaled @ cov_factor
        identity = ops.eye(inner.shape[-1], dtype=inner._array.dtype)
        self._inner_factor = linalg.cholesky(inner + identity)
        super().__init__(batch, event, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the distribution with its parameters expanded."""
        shape, event = tuple(batch_shape), tuple(self._event_shape)
        factor = self.cov_factor.expand((*shape, *self.cov_factor.shape[-2:]))
        parts = self.loc.expand(shape + event), factor, self.cov_diag.expand(shape + event)
        return LowRankMultivariateNormal(*parts, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc

    mode = mean

    @lazy_property
    def variance(self) -> Tensor:
        """The variance of the elements."""
        return (self.cov_factor**2).sum(-1) + self.cov_diag

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        return self.cov_factor @ self.cov_factor.mT + ops.diag_embed(self.cov_diag)

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The Cholesky factor of the covariance."""
        result: Tensor = linalg.cholesky(self.covariance_matrix)
        return result

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        scaled = (self.cov_factor / self.cov_diag.unsqueeze(-1)).mT
        half = linalg.solve_triangular(self._inner_factor, scaled, upper=False)
        return ops.diag_embed(self.cov_diag.reciprocal()) - half.mT @ half

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return vectors with gradients to the parameters."""
        shape = self._extended_shape(sample_shape)
        few = standard_normal((*shape[:-1], self.cov_factor.shape[-1]), self.loc)
        along = (self.cov_factor @ few.unsqueeze(-1)).squeeze(-1)
        return self.loc + along + self.cov_diag.sqrt() * standard_normal(shape, self.loc)

    def _log_determinant(self) -> Tensor:
        inner = self._inner_factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return 2 * inner + self.cov_diag.log().sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        difference = self._checked(value) - self.loc
        scaled = difference / self.cov_diag
        along = (self.cov_factor.mT @ scaled.unsqueeze(-1)).squeeze(-1)
        distance = (difference * scaled).sum(-1) - mahalanobis(self._inner_factor, along)
        constant = self._event_shape[0] * math.log(2 * math.pi)
        return -0.5 * (constant + self._log_determinant() + distance)  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        """Return the entropy."""
        constant = self._event_shape[0] * (1.0 + math.log(2 * math.pi))
        return (0.5 * (constant + self._log_determinant())).expand(self._batch_shape)  # type: ignore[no-any-return]
