"""GeneralizedPareto."""

from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.distribution import Distribution, are_numbers, open_uniform, shape_of
from offgrad.distributions.utils import broadcast_all

__all__ = ["GeneralizedPareto"]


class GeneralizedPareto(Distribution):
    """Excesses over `loc`: an exponential tail for concentration 0, a heavier one above."""

    arg_constraints = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "concentration": constraints.real,
    }
    has_rsample = True

    def __init__(
        self, loc: Any, scale: Any, concentration: Any, validate_args: bool | None = None
    ) -> None:
        parameters = broadcast_all(loc, scale, concentration)
        self.loc, self.scale, self.concentration = parameters
        shape = shape_of(self.loc, are_numbers=are_numbers(loc, scale, concentration))
        super().__init__(shape, validate_args=validate_args)

    @constraints.dependent_property
    def support(self) -> Any:
        """Numbers from the location; below a bound for a negative concentration."""
        is_bounded = self.concentration < 0
        bound = self.loc - self.scale / self.concentration.masked_fill(~is_bounded, -1)
        return constraints.interval(self.loc, bound.masked_fill(~is_bounded, float("inf")))

    def _is_exponential(self) -> Tensor:
        return ops.isclose(self.concentration, ops.zeros_like(self.concentration))

    def log_survival_function(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability of more than a value."""
        excess = (self._checked(value) - self.loc) / self.scale
        is_exponential = self._is_exponential()
        shape = self.concentration.masked_fill(is_exponential, 1)
        heavy = -ops.log1p(shape * excess) / shape
        return ops.where(is_exponential, -excess, heavy)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        excess = (self._checked(value) - self.loc) / self.scale
        is_exponential = self._is_exponential()
        shape = self.concentration.masked_fill(is_exponential, 1)
        heavy = -(1 + 1 / shape) * ops.log1p(shape * excess)
        return ops.where(is_exponential, -excess, heavy) - self.scale.log()

    def log_cdf(self, value: Tensor) -> Tensor:
        """Return the logarithm of `cdf`."""
        return ops.log1p(-self.log_survival_function(value).exp())

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most a value."""
        return -self.log_survival_function(value).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value at which `cdf` has a value."""
        is_exponential = self._is_exponential()
        shape = self.concentration.masked_fill(is_exponential, 1)
        left = ops.log1p(-value)
        heavy = (-shape * left).expm1() / shape
        return self.loc + self.scale * ops.where(is_exponential, -left, heavy)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return values with gradients to the parameters."""
        return self.icdf(open_uniform(self._extended_shape(sample_shape), self.loc))

    @property
    def mean(self) -> Tensor:
        """The mean; NaN for a concentration from 1."""
        mean = self.loc + self.scale / (1 - self.concentration)
        return mean.masked_fill(self.concentration >= 1, float("nan"))

    @property
    def variance(self) -> Tensor:
        """The variance; NaN for a concentration from 1/2."""
        shape = self.concentration
        variance = self.scale**2 / ((1 - shape) ** 2 * (1 - 2 * shape))
        return variance.masked_fill(shape >= 0.5, float("nan"))

    @property
    def mode(self) -> Tensor:
        """The location."""
        return self.loc

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return self.scale.log() + self.concentration + 1
