"""Geometric."""

from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions._probabilities import BINARY, WithLogits
from offgrad.distributions.distribution import open_uniform
from offgrad.distributions.utils import broadcast_all

__all__ = ["Geometric"]


class Geometric(WithLogits):
    """The number of failures before the first success, of probability `probs`."""

    arg_constraints = BINARY
    support = constraints.nonnegative_integer

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        shape = self._set_probabilities(probs, logits)
        super().__init__(shape, validate_args=validate_args)
        if self._validate_args and probs is not None and not (self.probs > 0).all():
            raise ValueError(f"probs of {self!r} must be positive, got:\n{self.probs}")

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return 1.0 / self.probs - 1.0

    @property
    def mode(self) -> Tensor:
        """0."""
        return ops.zeros_like(self.probs)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return (1.0 / self.probs - 1.0) / self.probs

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return numbers of failures."""
        probs = self.probs.detach()
        noise = open_uniform(self._extended_shape(sample_shape), probs)
        return (noise.log() / ops.log1p(-probs)).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability."""
        value, probs = broadcast_all(self._checked(value), self.probs)
        probs = probs.masked_fill((probs == 1) & (value == 0), 0)
        return value * ops.log1p(-probs) + self.probs.log()

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return (
            ops.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")
            / self.probs
        )
