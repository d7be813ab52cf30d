"""Gamma, and samples with gradients to its concentration."""

from typing import Any

import numpy as np

from offgrad import ops, special
from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import wrap
from offgrad.distributions import constraints
from offgrad.distributions.distribution import ExponentialFamily, are_numbers
from offgrad.distributions.utils import broadcast_all
from offgrad.ops._random.generators import default_generator

__all__ = ["Gamma"]

_STEP = 1e-4
"""Relative step of the difference quotient of the distribution function."""


class Gamma(ExponentialFamily):
    """The gamma distribution; its mean is ``concentration / rate``."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        shape = Size() if are_numbers(concentration, rate) else self.concentration.shape
        super().__init__(shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.concentration / self.rate**2

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return values with gradients to the parameters."""
        shape = self._extended_shape(sample_shape)
        drawn = standard_gamma(self.concentration.expand(shape))
        sample = drawn / self.rate.expand(shape)
        tiny = float(np.finfo(sample._array.dtype).tiny)
        return sample.clamp(min=tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        value = ops.as_tensor(value, dtype=self.rate._array.dtype)
        value = self._checked(value)
        a, rate = self.concentration, self.rate
        return ops.xlogy(a, rate) + ops.xlogy(a - 1, value) - rate * value - ops.lgamma(a)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most a value."""
        return special.gammainc(self.concentration, self.rate * self._checked(value))

    def entropy(self) -> Tensor:
        """Return the entropy."""
        a = self.concentration
        return a - self.rate.log() + ops.lgamma(a) + (1 - a) * ops.digamma(a)


def standard_gamma(concentration: Tensor) -> Tensor:
    """Return gamma values of rate 1, with gradients to the concentration.

    The derivative of a sample x keeps ``F(x, a)``, the probability of less, constant (M. Figurnov
    et al., "Implicit reparameterization gradients", arXiv:1805.08498).
    """
    a = concentration._array.astype(np.float64)
    # A sample may consume many uniform numbers.
    sample = default_generator.stream(16 * a.size).standard_gamma(a)
    dtype = concentration._array.dtype
    tiny = float(np.finfo(dtype).tiny)
    sample = np.maximum(sample, tiny)
    values = wrap(np.asarray(sample, dtype))
    if not concentration.requires_grad:
        return values
    slope: Tensor = wrap(np.asarray(_slope(sample, a), dtype))
    return values + slope * (concentration - concentration.detach())


@np.errstate(all="ignore")
def _slope(x: Any, a: Any) -> Any:
    """Return ``dx / da`` at constant ``F(x, a)``, on float64."""
    step = a * _STEP
    x_, up, down = (wrap(np.asarray(each)) for each in (x, a + step, a - step))
    lower = special.gammainc(up, x_)._array - special.gammainc(down, x_)._array
    upper = special.gammaincc(down, x_)._array - special.gammaincc(up, x_)._array
    # Of the two, the smaller probability has the digits.
    change = np.where(x < a, lower, upper) / (2 * step)
    log_density = (a - 1) * np.log(x) - x - ops.lgamma(wrap(np.asarray(a)))._array
    slope = -change / np.exp(log_density)
    # Near 0, F is x**a / (a Gamma(a)).
    near_zero = x * (ops.digamma(wrap(np.asarray(a + 1)))._array - np.log(x)) / a
    return np.where(np.isfinite(slope) & (x > 1e-6 * a), slope, near_zero)
