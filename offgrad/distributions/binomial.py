"""Binomial."""

from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import wrap
from offgrad.distributions import constraints
from offgrad.distributions._probabilities import BINARY, WithLogits
from offgrad.distributions.utils import broadcast_all
from offgrad.ops._random.generators import default_generator

__all__ = ["Binomial"]


class Binomial(WithLogits):
    """The number of successes in `total_count` trials."""

    arg_constraints = {"total_count": constraints.nonnegative_integer, **BINARY}
    has_enumerate_support = True

    def __init__(
        self,
        total_count: Any = 1,
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

    @constraints.dependent_property(is_discrete=True)
    def support(self) -> Any:
        """Integers up to the number of trials."""
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        """The most probable number."""
        return ((self.total_count + 1) * self.probs).floor().clamp(max=self.total_count)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return numbers."""
        shape = self._extended_shape(sample_shape)
        probs = self.probs._array
        # A sample may consume many uniform numbers.
        stream = default_generator.stream(16 * shape.numel())
        count = self.total_count._array.astype(np.int64)
        drawn = stream.binomial(count, probs.astype(np.float64), tuple(shape))
        result: Tensor = wrap(np.asarray(drawn, probs.dtype))
        return result

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability."""
        value = self._checked(value)
        count, logits = self.total_count, self.logits
        choices = ops.lgamma(count + 1) - ops.lgamma(value + 1) - ops.lgamma(count - value + 1)
        # log(1 + exp(logits)), without overflow.
        normaliser = count * (logits.clamp(min=0) + ops.log1p((-logits.abs()).exp()))
        return choices + value * logits - normaliser

    def entropy(self) -> Tensor:
        """Return the entropy, if all numbers of trials are equal.

        Raises:
            NotImplementedError: otherwise.
        """
        log_prob = self.log_prob(self.enumerate_support(False))
        return -(log_prob.exp() * log_prob).sum(0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all numbers.

        Raises:
            NotImplementedError: if the numbers of trials differ.
        """
        highest = int(self.total_count.max())
        if not self.total_count.min() == highest:
            raise NotImplementedError("enumerate_support needs one total_count for the whole batch")
        values = ops.arange(1 + highest, dtype=self._param._array.dtype)
        values = values.view((-1,) + (1,) * len(self._batch_shape))
        return values.expand((-1, *self._batch_shape)) if expand else values
