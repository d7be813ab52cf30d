"""LogisticNormal."""

from typing import Any

from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.normal import Normal
from offgrad.distributions.transformed_distribution import TransformedDistribution
from offgrad.distributions.transforms import StickBreakingTransform

__all__ = ["LogisticNormal"]


class LogisticNormal(TransformedDistribution):
    """Parts of 1, one more than normal numbers of mean `loc` and deviation `scale`."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.simplex
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        base = base if base.batch_shape else base.expand([1])
        super().__init__(base, StickBreakingTransform(), validate_args=validate_args)

    @property
    def loc(self) -> Tensor:
        """The mean of the normal numbers."""
        loc: Tensor = self.base_dist.base_dist.loc
        return loc

    @property
    def scale(self) -> Tensor:
        """The standard deviation of the normal numbers."""
        scale: Tensor = self.base_dist.base_dist.scale
        return scale
