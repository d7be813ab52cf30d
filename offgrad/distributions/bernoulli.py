"""Bernoulli."""

from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions._probabilities import BINARY, WithLogits
from offgrad.distributions.distribution import ExponentialFamily
from offgrad.distributions.utils import broadcast_all

__all__ = ["Bernoulli"]


class Bernoulli(WithLogits, ExponentialFamily):
    """1 with probability `probs`, else 0; `logits` are the log-odds."""

    arg_constraints = BINARY
    support = constraints.boolean
    has_enumerate_support = True

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(self._set_probabilities(probs, logits), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.probs

    @property
    def mode(self) -> Tensor:
        """The most probable value; NaN if both are."""
        mode = (self.probs >= 0.5).to(self.probs._array.dtype)
        return mode.masked_fill(self.probs == 0.5, float("nan"))

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return values."""
        return ops.bernoulli(self.probs.detach().expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability."""
        logits, value = broadcast_all(self.logits, self._checked(value))
        return -ops.binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return ops.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return 0 and 1."""
        values = ops.arange(2, dtype=self._param._array.dtype)
        values = values.view((-1,) + (1,) * len(self._batch_shape))
        return values.expand((-1, *self._batch_shape)) if expand else values
