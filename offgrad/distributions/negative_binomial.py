"""NegativeBinomial."""

from typing import Any

from offgrad import ops
from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.distributions import constraints
from offgrad.distributions._probabilities import WithLogits
from offgrad.distributions.gamma import standard_gamma
from offgrad.distributions.utils import broadcast_all

__all__ = ["NegativeBinomial"]


class NegativeBinomial(WithLogits):
    """The number of successes, of probability `probs`, before `total_count` failures."""

    arg_constraints = {
        "total_count": constraints.greater_than_eq(0),
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer

    def __init__(
        self,
        total_count: Any,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._check_one(probs, logits)
        name, given = ("probs", probs) if logits is None else ("logits", logits)
        self.total_count, parameter = broadcast_all(total_count, given)
        self.total_count = self.total_count.to(parameter._array.dtype)
        setattr(self, name, parameter)
        super().__init__(parameter.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Tensor:
        """The most probable number."""
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0.0)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.mean / (-self.logits).sigmoid()

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return numbers of successes."""
        return grad_mode.call(False, self._sample, self._extended_shape(sample_shape))

    def _sample(self, shape: Size) -> Tensor:
        return ops.poisson(standard_gamma(self.total_count.expand(shape)) * self.logits.exp())

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability."""
        value, count = self._checked(value), self.total_count
        log_prob = count * ops.logsigmoid(-self.logits) + value * ops.logsigmoid(self.logits)
        choices = ops.lgamma(count + value) - ops.lgamma(1.0 + value) - ops.lgamma(count)
        return log_prob + choices.masked_fill(count + value == 0.0, 0.0)
