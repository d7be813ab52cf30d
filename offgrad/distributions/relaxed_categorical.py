"""RelaxedOneHotCategorical, and its logarithm.

(C. Maddison et al., "The concrete distribution", arXiv:1611.00712.)
"""

import math
from typing import Any

from offgrad import ops
from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions._probabilities import CATEGORICAL
from offgrad.distributions.categorical import Categorical
from offgrad.distributions.distribution import Distribution, open_uniform
from offgrad.distributions.transformed_distribution import TransformedDistribution
from offgrad.distributions.transforms import ExpTransform
from offgrad.distributions.utils import clamp_probs

__all__ = ["ExpRelaxedCategorical", "RelaxedOneHotCategorical"]


class ExpRelaxedCategorical(Distribution):
    """The logarithm of `RelaxedOneHotCategorical` vectors."""

    arg_constraints = CATEGORICAL
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        temperature: Any,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._categorical = Categorical(probs, logits)
        self.temperature = temperature
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the distribution with its parameters expanded."""
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.__dict__.update(self.__dict__)
        new._categorical = self._categorical.expand(batch_shape)
        new._batch_shape = Size(batch_shape)
        return new

    @property
    def logits(self) -> Tensor:
        """The log-probabilities."""
        logits: Tensor = self._categorical.logits
        return logits

    @property
    def probs(self) -> Tensor:
        """The probabilities."""
        probs: Tensor = self._categorical.probs
        return probs

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return vectors with gradients to the probabilities."""
        noise = clamp_probs(open_uniform(self._extended_shape(sample_shape), self.logits))
        scores = (self.logits - (-noise.log()).log()) / self.temperature
        return scores - scores.logsumexp(-1, keepdim=True)  # type: ignore[no-any-return]

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        logits, value = ops.broadcast_tensors(self.logits, self._checked(value))
        count = logits.shape[-1]
        temperature = ops.as_tensor(self.temperature, dtype=logits._array.dtype)
        constant = math.lgamma(count) + (count - 1) * temperature.log()
        score = logits - value * temperature
        return (score - score.logsumexp(-1, keepdim=True)).sum(-1) + constant  # type: ignore[no-any-return]


class RelaxedOneHotCategorical(TransformedDistribution):
    """Vectors that sum to 1 and come near to `OneHotCategorical` ones at a low temperature."""

    arg_constraints = CATEGORICAL
    support = constraints.simplex
    has_rsample = True

    def __init__(
        self,
        temperature: Any,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        base = ExpRelaxedCategorical(temperature, probs, logits, validate_args=validate_args)
        super().__init__(base, ExpTransform(), validate_args=validate_args)

    @property
    def temperature(self) -> Any:
        """The temperature."""
        return self.base_dist.temperature

    @property
    def logits(self) -> Tensor:
        """The log-probabilities."""
        logits: Tensor = self.base_dist.logits
        return logits

    @property
    def probs(self) -> Tensor:
        """The probabilities."""
        probs: Tensor = self.base_dist.probs
        return probs
