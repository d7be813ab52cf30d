"""Wishart."""

import math
from typing import Any

import numpy as np

from offgrad import linalg, ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.chi2 import Chi2
from offgrad.distributions.distribution import ExponentialFamily, standard_normal
from offgrad.distributions.multivariate_normal import _factor
from offgrad.distributions.utils import lazy_property

__all__ = ["Wishart"]

_MATRICES = "covariance_matrix", "precision_matrix", "scale_tril"


class Wishart(ExponentialFamily):
    """Positive definite matrices: sums of ``x x^T`` of `df` normal vectors of a covariance."""

    support = constraints.positive_definite
    has_rsample = True

    def __init__(
        self,
        df: Any,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        given = {
            name: each
            for name, each in zip(
                _MATRICES, (covariance_matrix, precision_matrix, scale_tril), strict=True
            )
            if each is not None
        }
        if len(given) != 1:
            raise AssertionError("give one of covariance_matrix, precision_matrix and scale_tril")
        ((name, matrix),) = given.items()
        if matrix.ndim < 2:
            raise ValueError(f"{name} must have at least two dimensions, got {matrix.ndim}")
        number = df if isinstance(df, Tensor) else ops.tensor(df, dtype=matrix._array.dtype)
        batch, size = np.broadcast_shapes(matrix.shape[:-2], number.shape), matrix.shape[-1]
        if not (number > size - 1).all():
            raise ValueError(f"df must be above {size - 1}, the rows of a matrix less 1, got {df}")
        self.df = number.expand(batch)
        setattr(self, name, matrix.expand((*batch, size, size)))
        super().__init__(batch, (size, size), validate_args=validate_args)
        self._factor = _factor(name, self.__dict__[name])

    @property
    def arg_constraints(self) -> dict[str, Any]:  # type: ignore[override]
        """The constraints of the parameters: of `df` by the size of the matrices."""
        return {
            "covariance_matrix": constraints.positive_definite,
            "precision_matrix": constraints.positive_definite,
            "scale_tril": constraints.lower_cholesky,
            "df": constraints.greater_than(self._event_shape[-1] - 1),
        }

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the distribution with its parameters expanded."""
        shape = tuple(batch_shape)
        (name,) = (each for each in _MATRICES if each in self.__dict__)
        matrix = self.__dict__[name].expand(shape + tuple(self._event_shape))
        return Wishart(self.df.expand(shape), **{name: matrix}, validate_args=False)

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The Cholesky factor of the covariance."""
        return self._factor

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariance of the vectors."""
        return self._factor @ self._factor.mT

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        return ops.cholesky_inverse(self._factor)

    def _covariance(self) -> Tensor:
        return self._factor @ self._factor.mT

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.df[..., None, None] * self._covariance()

    @property
    def mode(self) -> Tensor:
        """The most probable matrix; NaN if there are too few vectors."""
        excess = self.df - self._event_shape[-1] - 1
        return excess.masked_fill(excess <= 0, float("nan"))[..., None, None] * self._covariance()  # type: ignore[no-any-return]

    @property
    def variance(self) -> Tensor:
        """The variance of the elements."""
        covariance = self._covariance()
        diagonal = covariance.diagonal(dim1=-2, dim2=-1)
        products = diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2)
        return self.df[..., None, None] * (covariance**2 + products)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return matrices with gradients to the parameters, by Bartlett's decomposition."""
        size = self._event_shape[-1]
        shape = self._extended_shape(sample_shape)
        counts = self.df.unsqueeze(-1) - ops.arange(size, dtype=self.df._array.dtype)
        roots = Chi2(counts, validate_args=False).rsample(sample_shape).sqrt()
        tiny = float(np.finfo(self.df._array.dtype).tiny)
        noise = standard_normal(shape, self.df).tril(-1)
        half = self._factor @ (noise + roots.clamp(min=tiny).diag_embed())
        return half @ half.mT

    def _half_log_determinant(self) -> Tensor:
        return self._factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        x, size, count = self._checked(value), self._event_shape[-1], self.df
        trace = ops.cholesky_solve(x, self._factor).diagonal(dim1=-2, dim2=-1).sum(-1)
        constant = count * (size * math.log(2) / 2 + self._half_log_determinant())
        powers = (count - size - 1) / 2 * linalg.slogdet(x).logabsdet
        return powers - trace / 2 - constant - ops.mvlgamma(count / 2, size)  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        """Return the entropy."""
        size, count = self._event_shape[-1], self.df
        halves = count.unsqueeze(-1) / 2 - ops.arange(size, dtype=count._array.dtype) / 2
        digammas = ops.digamma(halves).sum(-1)
        determinant = (size + 1) * (self._half_log_determinant() + size * math.log(2) / 2)
        powers = (count - size - 1) / 2 * digammas
        return determinant + ops.mvlgamma(count / 2, size) - powers + count * size / 2  # type: ignore[no-any-return]
