"""HalfCauchy."""

import math
from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.cauchy import Cauchy
from offgrad.distributions.transformed_distribution import TransformedDistribution
from offgrad.distributions.transforms import AbsTransform

__all__ = ["HalfCauchy"]


class HalfCauchy(TransformedDistribution):
    """The magnitude of a `Cauchy` number around 0."""

    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        base = Cauchy(0, scale, validate_args=False)
        super().__init__(base, AbsTransform(), validate_args=validate_args)

    @property
    def scale(self) -> Tensor:
        """The scale."""
        scale: Tensor = self.base_dist.scale
        return scale

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return ops.full(self._extended_shape(), math.inf, dtype=self.scale._array.dtype)

    @property
    def mode(self) -> Tensor:
        """0."""
        return ops.zeros_like(self.scale)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return ops.full(self._extended_shape(), math.inf, dtype=self.scale._array.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        value = self._checked(value)
        log_prob = self.base_dist.log_prob(value) + math.log(2)
        return ops.where(value >= 0, log_prob, -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most a value."""
        cdf: Tensor = 2 * self.base_dist.cdf(self._checked(value)) - 1
        return cdf

    def icdf(self, prob: Tensor) -> Tensor:
        """Return the value at which `cdf` is `prob`."""
        icdf: Tensor = self.base_dist.icdf((prob + 1) / 2)
        return icdf

    def entropy(self) -> Tensor:
        """Return the entropy."""
        entropy: Tensor = self.base_dist.entropy() - math.log(2)
        return entropy
