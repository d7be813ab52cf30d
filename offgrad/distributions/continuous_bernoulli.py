"""ContinuousBernoulli."""

import math
from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.distributions import constraints
from offgrad.distributions._probabilities import BINARY, WithLogits
from offgrad.distributions.distribution import ExponentialFamily, open_uniform
from offgrad.distributions.utils import broadcast_all, clamp_probs

__all__ = ["ContinuousBernoulli"]


class ContinuousBernoulli(WithLogits, ExponentialFamily):
    """Numbers x from 0 to 1 with density in proportion to ``p ** x (1 - p) ** (1 - x)``.

    Loaiza-Ganem and Cunningham (2019). For `probs` within `lims`, around 1/2, series replace
    quotients of zeros.
    """

    arg_constraints = BINARY
    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self,
        probs: Any = None,
        logits: Any = None,
        lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:
        shape = self._set_probabilities(probs, logits)
        self._lims = lims
        super().__init__(shape, validate_args=validate_args)
        if "probs" in self.__dict__:
            self.probs = clamp_probs(self.probs)

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return where `probs` is far from 1/2, `probs` there, and its distance from 1/2."""
        is_far = (self.probs <= self._lims[0]) | (self.probs > self._lims[1])
        far = ops.where(is_far, self.probs, self.probs.new_full((), self._lims[0]))
        return is_far, far, self.probs - 0.5

    def _log_normalizer(self) -> Tensor:
        is_far, p, distance = self._parts()
        low = ops.where(p <= 0.5, p, ops.zeros_like(p))
        high = ops.where(p >= 0.5, p, ops.ones_like(p))
        width = ops.where(p <= 0.5, ops.log1p(-2 * low), ops.log(2 * high - 1))
        exact = (ops.log1p(-p) - p.log()).abs().log() - width
        square = distance**2
        series = math.log(2) + (4 / 3 + 104 / 45 * square) * square
        return ops.where(is_far, exact, series)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        is_far, p, distance = self._parts()
        exact = p / (2 * p - 1) + 1 / (ops.log1p(-p) - p.log())
        series = 0.5 + (1 / 3 + 16 / 45 * distance**2) * distance
        return ops.where(is_far, exact, series)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        is_far, p, distance = self._parts()
        exact = p * (p - 1) / (1 - 2 * p) ** 2 + 1 / (ops.log1p(-p) - p.log()) ** 2
        square = distance**2
        series = 1 / 12 - (1 / 15 - 128 / 945 * square) * square
        return ops.where(is_far, exact, series)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return values without gradients."""
        result: Tensor = grad_mode.call(False, self.rsample, sample_shape)
        return result

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return values with gradients to the parameter."""
        return self.icdf(open_uniform(self._extended_shape(sample_shape), self.probs))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        logits, value = broadcast_all(self.logits, self._checked(value))
        cross = ops.binary_cross_entropy_with_logits(logits, value, reduction="none")
        return self._log_normalizer() - cross

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most a value."""
        is_far, p, _ = self._parts()
        x = self._checked(value)
        exact = (p**x * (1 - p) ** (1 - x) + p - 1) / (2 * p - 1)
        inside = ops.where(is_far, exact, x)
        ends = ops.where(x >= 1, ops.ones_like(inside), inside)
        return ops.where(x <= 0, ops.zeros_like(inside), ends)

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value at which `cdf` has a value."""
        is_far, p, _ = self._parts()
        exact = ops.log1p(value * (2 * p - 1) - p) - ops.log1p(-p)
        return ops.where(is_far, exact / (p.log() - ops.log1p(-p)), value)

    def entropy(self) -> Tensor:
        """Return the entropy."""
        zero, one = ops.log1p(-self.probs), self.probs.log()
        return self.mean * (zero - one) - self._log_normalizer() - zero
