"""Uniform."""

from typing import Any

from offgrad import ops
from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.distribution import Distribution, are_numbers
from offgrad.distributions.utils import broadcast_all

__all__ = ["Uniform"]


class Uniform(Distribution):
    """The uniform distribution on [low, high)."""

    arg_constraints = {"low": constraints.dependent, "high": constraints.dependent}
    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast_all(low, high)
        shape = Size() if are_numbers(low, high) else self.low.shape
        super().__init__(shape, validate_args=validate_args)
        if self._validate_args and not (self.low < self.high).all():
            raise ValueError(
                f"Expected parameter low ({self.low}) to be below parameter high ({self.high})"
            )

    @constraints.dependent_property
    def support(self) -> Any:
        """The numbers between the bounds."""
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Tensor:
        """NaN: all values are as probable."""
        return self.high * float("nan")

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return (self.high - self.low) ** 2 / 12

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return values with gradients to the bounds."""
        noise = ops.rand(self._extended_shape(sample_shape), dtype=self.low._array.dtype)
        return self.low + noise * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        value = self._checked(value)
        inside = (self.low <= value) & (self.high > value)
        return inside.to(self.low._array.dtype).log() - (self.high - self.low).log()

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most a value."""
        value = self._checked(value)
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value at which `cdf` has a value."""
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return (self.high - self.low).log()
