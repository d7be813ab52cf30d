"""Dirichlet."""

from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.distribution import ExponentialFamily
from offgrad.distributions.gamma import standard_gamma

__all__ = ["Dirichlet"]


class Dirichlet(ExponentialFamily):
    """Vectors of numbers that are not negative and sum to 1."""

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex
    has_rsample = True

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.ndim < 1:
            raise ValueError("concentration must have at least one dimension")
        self.concentration = concentration
        shape = concentration.shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self) -> Tensor:
        """The most probable vector."""
        above = (self.concentration - 1).clamp(min=0.0)
        mode = above / above.sum(-1, True)
        all_below = (self.concentration < 1).all(-1, True)
        corner = ops.eye(above.shape[-1], dtype=above._array.dtype)[mode.argmax(-1)]
        return ops.where(all_below, corner, mode)

    @property
    def variance(self) -> Tensor:
        """The variance of the elements."""
        total = self.concentration.sum(-1, True)
        return self.concentration * (total - self.concentration) / (total**2 * (total + 1))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return vectors with gradients to the concentration."""
        drawn = standard_gamma(self.concentration.expand(self._extended_shape(sample_shape)))
        result = drawn / drawn.sum(-1, keepdim=True)
        return result.clamp(min=float(np.finfo(result._array.dtype).tiny))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        value, a = self._checked(value), self.concentration
        return ops.xlogy(a - 1.0, value).sum(-1) + ops.lgamma(a.sum(-1)) - ops.lgamma(a).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy."""
        a = self.concentration
        count, total = a.shape[-1], a.sum(-1)
        return (  # type: ignore[no-any-return]
            ops.lgamma(a).sum(-1)
            - ops.lgamma(total)
            - (count - total) * ops.digamma(total)
            - ((a - 1.0) * ops.digamma(a)).sum(-1)
        )
