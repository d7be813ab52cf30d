"""StudentT."""

import math
from typing import Any

from offgrad import ops
from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.distribution import Distribution, are_numbers, standard_normal
from offgrad.distributions.gamma import standard_gamma
from offgrad.distributions.utils import broadcast_all

__all__ = ["StudentT"]


class StudentT(Distribution):
    """Student's t distribution of `df` degrees of freedom, moved and scaled."""

    arg_constraints = {
        "df": constraints.positive,
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    has_rsample = True

    def __init__(
        self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        shape = Size() if are_numbers(df, loc, scale) else self.df.shape
        super().__init__(shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean; NaN for `df` up to 1."""
        return self.loc.masked_fill(self.df <= 1, float("nan"))

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The variance; infinite for `df` up to 2, NaN up to 1."""
        finite = self.scale**2 * self.df / (self.df - 2)
        return finite.masked_fill(self.df <= 2, float("inf")).masked_fill(
            self.df <= 1, float("nan")
        )

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return values with gradients to the parameters."""
        shape = self._extended_shape(sample_shape)
        squares = 2 * standard_gamma((0.5 * self.df).expand(shape))
        noise = standard_normal(shape, self.df) * ops.rsqrt(squares / self.df)
        return self.loc + self.scale * noise

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        df = self.df
        x = (self._checked(value) - self.loc) / self.scale
        normaliser = (
            self.scale.log()
            + 0.5 * df.log()
            + 0.5 * math.log(math.pi)
            + ops.lgamma(0.5 * df)
            - ops.lgamma(0.5 * (df + 1.0))
        )
        return -0.5 * (df + 1.0) * ops.log1p(x**2.0 / df) - normaliser

    def entropy(self) -> Tensor:
        """Return the entropy."""
        df = self.df
        log_beta = ops.lgamma(0.5 * df) + math.lgamma(0.5) - ops.lgamma(0.5 * (df + 1))
        digammas = ops.digamma(0.5 * (df + 1)) - ops.digamma(0.5 * df)
        return self.scale.log() + 0.5 * (df + 1) * digammas + 0.5 * df.log() + log_beta
