"""LogNormal."""

from typing import Any

from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.normal import Normal
from offgrad.distributions.transformed_distribution import TransformedDistribution
from offgrad.distributions.transforms import ExpTransform

__all__ = ["LogNormal"]


class LogNormal(TransformedDistribution):
    """Numbers whose logarithm is normal, of mean `loc` and standard deviation `scale`."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        super().__init__(base, ExpTransform(), validate_args=validate_args)

    @property
    def loc(self) -> Tensor:
        """The mean of the logarithm."""
        loc: Tensor = self.base_dist.loc
        return loc

    @property
    def scale(self) -> Tensor:
        """The standard deviation of the logarithm."""
        scale: Tensor = self.base_dist.scale
        return scale

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return (self.loc + self.scale**2 / 2).exp()

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return (self.loc - self.scale**2).exp()

    @property
    def variance(self) -> Tensor:
        """The variance."""
        square = self.scale**2
        return square.expm1() * (2 * self.loc + square).exp()

    def entropy(self) -> Tensor:
        """Return the entropy."""
        entropy: Tensor = self.base_dist.entropy() + self.loc
        return entropy
