"""Gumbel."""

import math
from typing import Any

from offgrad._tensor.tensor import Tensor
from offgrad.distributions._location_scale import LocationScale
from offgrad.distributions.distribution import open_uniform

__all__ = ["Gumbel"]

EULER = 0.57721566490153286060


class Gumbel(LocationScale):
    """The Gumbel distribution, of largest values."""

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc + self.scale * EULER

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return (math.pi / math.sqrt(6)) * self.scale

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.stddev**2

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return values with gradients to the parameters."""
        noise = open_uniform(self._extended_shape(sample_shape), self.loc)
        return self.icdf(noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        x = -self._standardised(value)
        return x - x.exp() - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most a value."""
        return (-(-self._standardised(value)).exp()).exp()

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value at which `cdf` has a value."""
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return self.scale.log() + (1 + EULER)
