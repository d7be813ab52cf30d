"""InverseGamma."""

from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.gamma import Gamma
from offgrad.distributions.transformed_distribution import TransformedDistribution
from offgrad.distributions.transforms import PowerTransform

__all__ = ["InverseGamma"]


class InverseGamma(TransformedDistribution):
    """The reciprocal of a `Gamma` number."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        base = Gamma(concentration, rate, validate_args=validate_args)
        super().__init__(base, PowerTransform(-1.0), validate_args=validate_args)

    @property
    def concentration(self) -> Tensor:
        """The concentration."""
        concentration: Tensor = self.base_dist.concentration
        return concentration

    @property
    def rate(self) -> Tensor:
        """The rate."""
        rate: Tensor = self.base_dist.rate
        return rate

    @property
    def mean(self) -> Tensor:
        """The mean; infinite for a concentration up to 1."""
        a = self.concentration
        return (self.rate / (a - 1)).masked_fill(a <= 1, float("inf"))

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        """The variance; infinite for a concentration up to 2."""
        a = self.concentration
        finite = self.rate**2 / ((a - 1) ** 2 * (a - 2))
        return finite.masked_fill(a <= 2, float("inf"))

    def entropy(self) -> Tensor:
        """Return the entropy."""
        a = self.concentration
        return a + self.rate.log() + ops.lgamma(a) - (1 + a) * ops.digamma(a)
