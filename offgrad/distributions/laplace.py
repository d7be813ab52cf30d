"""Laplace."""

import math
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions._location_scale import LocationScale

__all__ = ["Laplace"]


class Laplace(LocationScale):
    """The Laplace distribution: exponential on both sides of `loc`."""

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc

    mode = mean

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return 2 * self.scale**2

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return math.sqrt(2) * self.scale

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return values with gradients to the parameters."""
        dtype = self.loc._array.dtype
        noise = ops.rand(self._extended_shape(sample_shape), dtype=dtype) - 0.5
        inside = noise.abs().clamp(max=0.5 - float(np.finfo(dtype).eps) / 4)
        return self.loc - self.scale * noise.sign() * ops.log1p(-2 * inside)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        return -(2 * self.scale).log() - self._standardised(value).abs()

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most a value."""
        x = self._standardised(value)
        return 0.5 - 0.5 * x.sign() * ops.expm1(-x.abs())

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value at which `cdf` has a value."""
        x = value - 0.5
        return self.loc - self.scale * x.sign() * ops.log1p(-2 * x.abs())

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return 1 + (2 * self.scale).log()
