"""Poisson."""

from typing import Any

from offgrad import ops
from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.distribution import ExponentialFamily, are_numbers
from offgrad.distributions.utils import broadcast_all

__all__ = ["Poisson"]


class Poisson(ExponentialFamily):
    """Counts of mean `rate`."""

    arg_constraints = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        shape = Size() if are_numbers(rate) else self.rate.shape
        super().__init__(shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.rate

    @property
    def mode(self) -> Tensor:
        """The most probable count."""
        return self.rate.floor()

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.rate

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return counts."""
        return ops.poisson(self.rate.detach().expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability."""
        rate, value = broadcast_all(self.rate, self._checked(value))
        return ops.xlogy(value, rate) - rate - ops.lgamma(value + 1)
