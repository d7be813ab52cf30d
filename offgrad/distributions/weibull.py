"""Weibull."""

from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.exponential import Exponential
from offgrad.distributions.gumbel import EULER
from offgrad.distributions.transformed_distribution import TransformedDistribution
from offgrad.distributions.transforms import AffineTransform, PowerTransform
from offgrad.distributions.utils import broadcast_all

__all__ = ["Weibull"]


class Weibull(TransformedDistribution):
    """The Weibull distribution: `scale` times a power of an exponential number."""

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = broadcast_all(scale, concentration)
        base = Exponential(ops.ones_like(self.scale), validate_args=validate_args)
        exponent = self.concentration.reciprocal()
        transforms = [PowerTransform(exponent), AffineTransform(loc=0, scale=self.scale)]
        super().__init__(base, transforms, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the distribution with its parameters expanded."""
        return Weibull(self.scale.expand(batch_shape), self.concentration.expand(batch_shape))

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.scale * ops.lgamma(1 + self.concentration.reciprocal()).exp()

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        k = self.concentration
        return self.scale * ((k - 1) / k) ** k.reciprocal()

    @property
    def variance(self) -> Tensor:
        """The variance."""
        inverse = self.concentration.reciprocal()
        moments = ops.lgamma(1 + 2 * inverse).exp() - (2 * ops.lgamma(1 + inverse)).exp()
        return self.scale**2 * moments

    def entropy(self) -> Tensor:
        """Return the entropy."""
        inverse = self.concentration.reciprocal()
        return EULER * (1 - inverse) + (self.scale * inverse).log() + 1
