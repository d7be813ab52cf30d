"""Cauchy."""

import math
from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions._location_scale import LocationScale
from offgrad.distributions.distribution import open_uniform

__all__ = ["Cauchy"]


class Cauchy(LocationScale):
    """The Cauchy distribution of median `loc`; it has neither mean nor variance."""

    @property
    def mean(self) -> Tensor:
        """NaN."""
        return ops.full_like(self.loc, float("nan")).expand(self._extended_shape())

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Infinity."""
        return ops.full_like(self.loc, float("inf")).expand(self._extended_shape())

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return values with gradients to the parameters."""
        noise = open_uniform(self._extended_shape(sample_shape), self.loc)
        return self.loc + ops.tan((noise - 0.5) * math.pi) * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        x = self._standardised(value)
        return -math.log(math.pi) - self.scale.log() - ops.log1p(x**2)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most a value."""
        return ops.atan(self._standardised(value)) / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value at which `cdf` has a value."""
        return ops.tan(math.pi * (value - 0.5)) * self.scale + self.loc

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return math.log(4 * math.pi) + self.scale.log()
