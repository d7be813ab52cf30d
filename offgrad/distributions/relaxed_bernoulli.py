"""RelaxedBernoulli, and its logits.

(C. Maddison et al., "The concrete distribution", arXiv:1611.00712.)
"""

from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions._probabilities import BINARY, WithLogits
from offgrad.distributions.distribution import open_uniform
from offgrad.distributions.transformed_distribution import TransformedDistribution
from offgrad.distributions.transforms import SigmoidTransform
from offgrad.distributions.utils import broadcast_all, clamp_probs

__all__ = ["LogitRelaxedBernoulli", "RelaxedBernoulli"]


class LogitRelaxedBernoulli(WithLogits):
    """The log-odds of `RelaxedBernoulli` numbers."""

    arg_constraints = BINARY
    support = constraints.real
    has_rsample = True

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        self.temperature = temperature
        shape = self._set_probabilities(probs, logits)
        super().__init__(shape, validate_args=validate_args)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return values with gradients to the probabilities."""
        noise = clamp_probs(open_uniform(self._extended_shape(sample_shape), self._param))
        logits: Tensor = self.logits
        return (noise.log() - ops.log1p(-noise) + logits) / self.temperature  # type: ignore[no-any-return]

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        logits, value = broadcast_all(self.logits, self._checked(value))
        difference = logits - value * self.temperature
        temperature = ops.as_tensor(self.temperature, dtype=difference._array.dtype)
        return temperature.log() + difference - 2 * ops.log1p(difference.exp())  # type: ignore[no-any-return]


class RelaxedBernoulli(TransformedDistribution):
    """Numbers of (0, 1) that come near to `Bernoulli` ones at a low temperature."""

    arg_constraints = BINARY
    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        base = LogitRelaxedBernoulli(temperature, probs, logits)
        super().__init__(base, SigmoidTransform(), validate_args=validate_args)

    @property
    def temperature(self) -> Any:
        """The temperature."""
        return self.base_dist.temperature

    @property
    def logits(self) -> Tensor:
        """The log-odds."""
        logits: Tensor = self.base_dist.logits
        return logits

    @property
    def probs(self) -> Tensor:
        """The probabilities."""
        probs: Tensor = self.base_dist.probs
        return probs
