"""Normal."""

import math
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.distribution import ExponentialFamily, are_numbers, standard_normal
from offgrad.distributions.utils import broadcast_all

__all__ = ["Normal"]


class Normal(ExponentialFamily):
    """The normal distribution of mean `loc` and standard deviation `scale`."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        shape = Size() if are_numbers(loc, scale) else self.loc.shape
        super().__init__(shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc

    mode = mean

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.scale**2

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return values without gradients."""
        loc, scale = self.loc.detach(), self.scale.detach()
        return loc + standard_normal(self._extended_shape(sample_shape), loc) * scale

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return values with gradients to the parameters."""
        noise = standard_normal(self._extended_shape(sample_shape), self.loc)
        return self.loc + noise * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        value = self._checked(value)
        part = (value - self.loc) ** 2 / (2 * self.scale**2)
        return -part - self.scale.log() - math.log(math.sqrt(2 * math.pi))

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most a value."""
        value = self._checked(value)
        return 0.5 * (1 + ops.erf((value - self.loc) / (self.scale * np.sqrt(2.0).item())))

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value at which `cdf` has a value."""
        return self.loc + self.scale * ops.erfinv(2 * value - 1) * math.sqrt(2)

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()
